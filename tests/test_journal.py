"""Runs on disk and in the making, as one (A4.2, A4.3, B3, B6.1)."""

import asyncio
import json
import time
from types import SimpleNamespace

import msgspec
import pytest
from waiting import until

from lmsp_jupyter import journal as journal_module
from lmsp_jupyter.errors import (
    BadRequest,
    EngineCrashed,
    EventHistoryExpired,
    ResponseInProgress,
    ResponseNotFound,
    StorageUnavailable,
    TaskNotFinished,
    TaskNotFound,
)
from lmsp_jupyter.events import Composer, InProgress, Queued
from lmsp_jupyter.journal import Journal
from lmsp_jupyter.parsing import parse_request
from lmsp_jupyter.protocol import Response, Usage, new_id
from lmsp_jupyter.store import Key, Store

chapter6 = pytest.mark.chapter6
ours = pytest.mark.ours

HOUR, DAY = 3600, 86400
USAGE = Usage(input_tokens=3, output_tokens=2, total_tokens=5)
KEY = Key(owner="ann", method="POST", path="/lmsp/v1/responses", key="k1")


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Another server's log is looked at often, so that tests are quick."""
    monkeypatch.setattr(journal_module, "POLL", 0.01)


class Server:
    """A journal as a server has it, and the runs that it makes."""

    def __init__(self, folder):
        self.store = Store(folder)
        self.journal = Journal(self.store, event_retention=HOUR, task_retention=30 * DAY)

    async def begin(self, *, metadata=None, key=None, owner="ann", **members):
        """A new run, a task if it has metadata."""
        body = {"model": "m", "input": "Hi."} | members
        request = parse_request(json.dumps(body).encode())
        response = Response(
            id=new_id("resp"), created_at=1000, model="m", store=request.store, background=request.background
        )
        return Running(await self.journal.open(response, request, owner, metadata=metadata, key=key), response.id)

    def die(self):
        """Let go of the database as a process that ends does."""
        self.store.close()

    async def record(self, running):
        return await self.journal.running(["ann"], running.id)

    async def follow(self, running, after=0):
        record = await self.record(running)
        return [entry async for batch in self.journal.follow(record, after) for entry in batch]


class Running:
    """A run in the making: what its maker says."""

    def __init__(self, log, id):
        self.log = log
        self.id = id
        self.composer = Composer(id)

    async def start(self):
        await self.log.append(InProgress(response_id=self.id))
        return self

    async def text(self, *deltas):
        for delta in deltas:
            await self.log.append(*self.composer.text(delta))
        return self

    async def end(self, how="completed"):
        await self.log.append(*getattr(self.composer, how)(USAGE))
        return self


@pytest.fixture
def on_disk(tmp_path):
    """Run `act(server, …)` with as many servers on one folder as it takes; they are closed afterwards."""

    def on_disk(act, count=1):
        async def scenario():
            servers = [Server(tmp_path / "data") for _ in range(count)]
            try:
                return await act(*servers)
            finally:
                for server in servers:
                    await server.journal.close()

        return asyncio.run(asyncio.wait_for(scenario(), timeout=30))

    return on_disk


def names(entries):
    return [entry.event.removeprefix("response.") for entry in entries]


# Writing.


@ours
def test_b3_8_a_run_is_on_disk_with_its_first_event(on_disk):
    async def act(server):
        running = await server.begin(metadata={"notebook": "a.ipynb"}, store=True, previous_response_id="resp_0")
        record = await server.record(running)
        assert (record.owner, record.model, record.status, record.created_at) == ("ann", "m", "queued", 1000)
        assert (record.stored, record.previous, record.last_event_id) == (True, "resp_0", 1)
        assert record.task_id.startswith("task_")
        assert record.metadata == {"notebook": "a.ipynb"}
        assert json.loads(record.request)["model"] == "m"
        assert json.loads(record.response)["id"] == running.id
        assert names(server.store.entries(running.id, 0)) == ["created"]

    on_disk(act)


@ours
def test_a_run_without_metadata_is_no_task(on_disk):
    async def act(server):
        assert (await server.record(await server.begin(store=True))).task_id is None
        assert (await server.record(await server.begin(metadata={}))).task_id is not None

    on_disk(act)


@ours
def test_b7_5_a_response_in_the_background_names_its_task(on_disk):
    async def act(server):
        running = await server.begin(metadata={}, store=True, background=True)
        record = await server.record(running)
        assert running.log.response.task_id == record.task_id
        assert json.loads(record.response)["task_id"] == record.task_id
        assert json.loads(server.store.entries(running.id, 0)[0].data)["response"]["task_id"] == record.task_id

    on_disk(act)


@ours
def test_b3_2_a_task_is_queued_until_its_work_starts(on_disk):
    async def act(server):
        running = await server.begin(metadata={})
        await running.log.append(Queued(response_id=running.id, position=1))
        assert (await server.record(running)).status == "queued"

        await running.start()
        record = await server.record(running)
        assert (record.status, record.last_event_id) == ("in_progress", 3)
        assert record.started_at is not None
        assert record.completed_at is None

    on_disk(act)


@ours
@pytest.mark.parametrize("ending", ["completed", "cancelled"])
def test_b3_2_the_final_event_and_what_it_says_are_one(on_disk, ending):
    async def act(server):
        running = await (await (await server.begin(metadata={})).start()).text("Be", "cause.")
        await running.end(ending)
        record = await server.record(running)
        kept = json.loads(record.response)
        final = json.loads(server.store.entries(running.id, record.last_event_id - 1)[0].data)
        assert (record.status, record.completed_at) == (ending, kept["completed_at"])
        assert kept == final["response"]
        assert kept["usage"]["total_tokens"] == 5

    on_disk(act)


@ours
def test_b3_3_a_task_that_is_cancelled_while_it_waits_is_cancelled(on_disk):
    async def act(server):
        running = await (await server.begin(metadata={})).end("cancelled")
        record = await server.record(running)
        assert (record.status, record.started_at) == ("cancelled", None)
        assert record.completed_at is not None

    on_disk(act)


@ours
def test_b2_5_a_run_is_noted_under_its_key(on_disk):
    async def act(server):
        server.store.reserve(KEY, b"digest")
        running = await server.begin(key=KEY)
        assert server.store.reserve(KEY, b"digest").run_id == running.id

    on_disk(act)


@ours
def test_b3_6_what_was_told_is_on_disk(on_disk):
    async def act(server):
        running = await (await server.begin(metadata={})).start()
        for text in ("Be", "cause", "."):
            await running.text(text)
            assert running.log.last == (await server.record(running)).last_event_id
        await running.end()
        told = [entry async for batch in running.log.follow() for entry in batch]
        assert server.store.entries(running.id, 0) == told

    on_disk(act)


@ours
def test_b3_3_a_run_that_another_server_ended_takes_nothing_any_more(on_disk):
    async def act(one, other):
        running = await (await one.begin(metadata={})).start()
        other.store.append(running.id, [], status="cancelled", completed_at=2000, response=b"{}")

        with pytest.raises(StorageUnavailable):
            await running.text("late")
        assert names(one.store.entries(running.id, 0)) == ["created", "in_progress"]

    on_disk(act, count=2)


# Finding.


@ours
def test_b5_5_what_is_another_identitys_does_not_exist(on_disk):
    async def act(server):
        running = await server.begin(metadata={}, store=True)
        record = await server.record(running)
        for owners in (["bob"], []):
            with pytest.raises(ResponseNotFound):
                await server.journal.response(owners, running.id)
            with pytest.raises(ResponseNotFound):
                await server.journal.running(owners, running.id)
            with pytest.raises(TaskNotFound):
                await server.journal.task(owners, record.task_id)
        assert await server.journal.response(["bob", "ann"], running.id) == record
        assert await server.journal.task(["bob", "ann"], record.task_id) == record

    on_disk(act)


@chapter6
def test_a2_5_an_unknown_response_is_not_found(on_disk):
    async def act(server):
        with pytest.raises(ResponseNotFound):
            await server.journal.response(["ann"], "resp_0")
        with pytest.raises(TaskNotFound):
            await server.journal.task(["ann"], "task_0")

    on_disk(act)


@ours
def test_b6_1_a_response_that_is_not_stored_is_found_as_a_run_alone(on_disk):
    async def act(server):
        running = await server.begin(metadata={})
        with pytest.raises(ResponseNotFound):
            await server.journal.response(["ann"], running.id)
        assert (await server.journal.running(["ann"], running.id)).id == running.id

    on_disk(act)


@ours
def test_b3_3_tasks_are_listed_newest_first(on_disk):
    async def act(server):
        made = [await server.begin(metadata={}) for _ in range(3)]
        await server.begin(store=True)
        await made[1].end()
        listed = server.journal.tasks
        newest_first = [each.id for each in reversed(made)]
        page = {"model": None, "after": None}
        assert [each.id for each in await listed(["ann"], status=None, limit=10, **page)] == newest_first
        assert [each.id for each in await listed(["ann"], status="completed", limit=10, **page)] == [made[1].id]
        assert await listed(["bob"], status=None, limit=10, **page) == []

    on_disk(act)


@ours
def test_b3_2_the_response_of_a_run_is_the_response_so_far_wherever_it_is_asked_for(on_disk):
    async def act(one, other):
        running = await (await one.begin(metadata={})).start()
        await running.text("Be", "cause.")
        so_far = [await server.journal.response_of(await server.record(running)) for server in (one, other)]
        assert so_far == [running.log.response] * 2
        assert (so_far[0].status, so_far[0].text) == ("in_progress", "Because.")

        await running.end()
        one.journal.release(running.id)
        whole = [await server.journal.response_of(await server.record(running)) for server in (one, other)]
        assert whole == [running.log.response] * 2
        assert whole[0].status == "completed"

    on_disk(act, count=2)


@ours
def test_b3_2_a_task_has_what_is_known_of_it(on_disk):
    async def act(server):
        running = await server.begin(metadata={"a": "b"})
        task = await server.journal.task_of(await server.record(running))
        assert (task.id, task.status, task.model) == ((await server.record(running)).task_id, "queued", "m")
        assert (task.created_at, task.started_at, task.completed_at) == (1000, None, None)
        assert (task.response_id, task.response.status) == (running.id, "in_progress")
        assert (task.last_event_id, task.events_expire_at, task.error) == (1, None, None)
        assert task.metadata == {"a": "b"}

        await running.start()
        await running.end()
        task = await server.journal.task_of(await server.record(running))
        assert task.status == task.response.status == "completed"
        assert task.completed_at == task.response.completed_at
        assert task.events_expire_at == task.completed_at + HOUR

    on_disk(act)


@ours
def test_b3_3_a_listing_leaves_the_response_out_and_tells_the_error(on_disk):
    async def act(server):
        good = await (await server.begin(metadata={})).end()
        bad = await server.begin(metadata={})
        await bad.log.append(*bad.composer.failed(EngineCrashed("It died.")))
        page = await server.journal.tasks(["ann"], status=None, model=None, limit=10, after=None)
        tasks = {each.id: await server.journal.task_of(each, whole=False) for each in page}
        assert all(task.response is msgspec.UNSET for task in tasks.values())
        assert tasks[good.id].error is None
        assert tasks[bad.id].error["code"] == "engine_crashed"

    on_disk(act)


@ours
def test_b3_2_a_task_that_ended_since_it_was_looked_up_is_told_as_it_is(on_disk):
    async def act(server):
        running = await (await server.begin(metadata={})).start()
        before = await server.record(running)
        await running.end()
        task = await server.journal.task_of(before)
        assert task.status == task.response.status == "completed"
        assert task.last_event_id == running.log.last

    on_disk(act)


# Following.


@ours
def test_b3_5_live_ended_and_another_servers_events_are_the_same(on_disk):
    async def act(one, other):
        running = await one.begin(metadata={})
        followers = [asyncio.create_task(server.follow(running)) for server in (one, one, other)]
        await running.start()
        await running.text("Be", "cause.")
        late = [asyncio.create_task(server.follow(running)) for server in (one, other)]
        await running.end()
        live = await asyncio.gather(*followers, *late)
        one.journal.release(running.id)
        ended = [await server.follow(running) for server in (one, other)]

        whole = one.store.entries(running.id, 0)
        assert [entry.id for entry in whole] == list(range(1, len(whole) + 1))
        assert [*live, *ended] == [whole] * 7

    on_disk(act, count=2)


@chapter6
def test_a4_2_only_events_above_a_position_are_followed(on_disk):
    async def act(one, other):
        running = await (await (await (await one.begin(metadata={})).start()).text("Because.")).end()
        whole = one.store.entries(running.id, 0)
        for after in range(len(whole) + 1):
            assert await one.follow(running, after) == whole[after:]
            assert await other.follow(running, after) == whole[after:]

    on_disk(act, count=2)


@ours
def test_b3_5_a_long_log_is_read_in_several_steps(on_disk, monkeypatch):
    monkeypatch.setattr(journal_module, "CHUNK", 3)

    async def act(server):
        running = await (await (await server.begin(metadata={})).text(*"Because I say so.")).end()
        server.journal.release(running.id)
        record = await server.record(running)
        batches = [batch async for batch in server.journal.follow(record)]
        assert max(map(len, batches)) == 3
        assert [entry for batch in batches for entry in batch] == server.store.entries(running.id, 0)
        assert (await server.journal.response_of(record)).text == "Because I say so."

    on_disk(act)


@ours
def test_b4_1_silence_is_told_of_another_servers_run_too(on_disk):
    async def act(one, other):
        running = await one.begin(metadata={})
        for server in (one, other):
            follow = server.journal.follow(await server.record(running), 1, patience=0.02)
            assert [await anext(follow) for _ in range(2)] == [[], []]
            await follow.aclose()

    on_disk(act, count=2)


@ours
def test_b3_10_a_follower_of_what_is_dropped_meanwhile_is_let_go(on_disk):
    async def act(one, other):
        running = await (await one.begin(metadata={}, store=True)).end()
        record = await other.record(running)
        follow = other.journal.follow(record, record.last_event_id - 1)
        one.store.delete_response(running.id)
        assert [batch async for batch in follow] == []
        one.store.delete_task(record.task_id)
        assert [batch async for batch in other.journal.follow(record)] == []

    on_disk(act, count=2)


@ours
def test_b3_4_a_position_that_is_not_reached_yet_is_refused(on_disk):
    async def act(server):
        running = await server.begin(metadata={})
        record = await server.record(running)
        check = server.journal.check_position
        assert (check(record, 0), check(record, 1)) == (True, True)
        with pytest.raises(BadRequest):
            check(record, 2)

        ended = await server.record(await running.end())
        assert check(ended, ended.last_event_id - 1)
        assert check(ended, ended.last_event_id) is False
        with pytest.raises(BadRequest):
            check(ended, ended.last_event_id + 1)

    on_disk(act)


@chapter6
def test_a4_3_events_that_were_dropped_are_gone(on_disk):
    async def act(server):
        running = await (await server.begin(metadata={})).end()
        last = running.log.last
        server.store.sweep(10**10, event_retention=0, task_retention=10**10)
        record = await server.record(running)
        check = server.journal.check_position
        for after in (0, last - 1):
            with pytest.raises(EventHistoryExpired):
                check(record, after)
        assert check(record, last) is False
        with pytest.raises(BadRequest):
            check(record, last + 1)

    on_disk(act)


# Cancelling from another server.


@ours
def test_b3_7_another_servers_run_is_cancelled_by_a_flag(on_disk):
    async def act(one, other):
        running = await (await one.begin(metadata={})).start()
        assert await one.journal.cancels() == []
        asking = asyncio.create_task(other.journal.ask_to_cancel(await other.record(running)))
        await until(one.store.cancels)
        assert await one.journal.cancels() == [running.id]
        assert not asking.done()
        await running.end("cancelled")
        await asking
        assert (await other.record(running)).status == "cancelled"
        assert await one.journal.cancels() == await other.journal.cancels() == []

    on_disk(act, count=2)


# Deleting.


@ours
def test_b3_3_a_task_that_runs_is_not_deleted(on_disk):
    async def act(server):
        running = await server.begin(metadata={}, store=True)
        for _ in range(2):
            with pytest.raises(TaskNotFinished):
                await server.journal.delete_task(await server.record(running))
            with pytest.raises(ResponseInProgress):
                await server.journal.delete_response(await server.record(running))
            await running.start()

    on_disk(act)


@ours
def test_b3_3_a_deleted_task_leaves_a_stored_response(on_disk):
    async def act(server):
        stored = await (await server.begin(metadata={}, store=True)).end()
        passing = await (await server.begin(metadata={})).end()
        for running in (stored, passing):
            record = await server.record(running)
            await server.journal.delete_task(record)
            with pytest.raises(TaskNotFound):
                await server.journal.task(["ann"], record.task_id)
        kept = await server.journal.response(["ann"], stored.id)
        assert (await server.journal.response_of(kept)).status == "completed"
        assert server.store.entries(stored.id, 0) == []
        with pytest.raises(ResponseNotFound):
            await server.journal.running(["ann"], passing.id)

    on_disk(act)


@ours
def test_b6_1_a_deleted_response_leaves_its_task_empty(on_disk):
    async def act(server):
        running = await (await server.begin(metadata={}, store=True)).end()
        record = await server.record(running)
        await server.journal.delete_response(record)
        with pytest.raises(ResponseNotFound):
            await server.journal.response(["ann"], running.id)
        emptied = await server.journal.task(["ann"], record.task_id)
        task = await server.journal.task_of(emptied)
        assert (task.status, task.response) == ("completed", None)
        with pytest.raises(EventHistoryExpired):
            server.journal.check_position(emptied, 0)

    on_disk(act)


@ours
def test_b6_1_a_deleted_response_that_is_no_task_is_gone(on_disk):
    async def act(server):
        running = await (await server.begin(store=True)).end()
        await server.journal.delete_response(await server.record(running))
        with pytest.raises(ResponseNotFound):
            await server.journal.running(["ann"], running.id)

    on_disk(act)


# What a dead server left.


@ours
def test_b3_7_the_runs_of_a_living_server_are_left_alone(on_disk):
    async def act(one, other):
        running = await (await one.begin(metadata={})).start()
        assert await other.journal.recover() == []
        assert await one.journal.recover() == []
        assert (await other.record(running)).status == "in_progress"

    on_disk(act, count=2)


@ours
def test_b3_6_tasks_that_waited_are_given_back_to_be_made(on_disk):
    async def act(dead, heir):
        waited = await dead.begin(metadata={"a": "b"})
        await waited.log.append(Queued(response_id=waited.id, position=2))
        dead.die()

        ((record, log),) = await heir.journal.recover()
        assert (record.id, record.status, record.metadata) == (waited.id, "queued", {"a": "b"})
        assert (log.last, log.response.id) == (2, waited.id)

        following = asyncio.create_task(heir.follow(waited))
        heir_run = await (await Running(log, waited.id).start()).text("Because.")
        await heir_run.end()
        heir.journal.release(waited.id)
        entries = await following
        assert names(entries)[:3] == ["created", "queued", "in_progress"]
        assert [entry.id for entry in entries] == list(range(1, len(entries) + 1))
        assert (await heir.record(waited)).status == "completed"
        assert await heir.journal.recover() == []

    on_disk(act, count=2)


@ours
def test_b3_6_a_run_that_was_at_work_has_failed(on_disk):
    async def act(dead, heir):
        running = await (await (await dead.begin(metadata={})).start()).text("Be", "cause")
        told = await asyncio.to_thread(dead.store.entries, running.id, 0)
        dead.die()

        assert await heir.journal.recover() == []

        entries = await heir.follow(running)
        assert entries[: len(told)] == told
        assert [entry.id for entry in entries] == list(range(1, len(entries) + 1))
        assert names(entries[len(told) :]) == ["output_text.done", "content_part.done", "output_item.done", "failed"]
        done, final = (json.loads(entry.data) for entry in entries[-2:])
        assert (done["item"]["status"], done["item"]["content"][0]["text"]) == ("incomplete", "Because")
        assert final["error"]["code"] == "service_restarted"
        assert final["response"]["output"] == [done["item"]]

        record = await heir.record(running)
        task = await heir.journal.task_of(record)
        assert (task.status, task.error["code"]) == ("failed", "service_restarted")
        assert (task.response.status, task.response.text) == ("failed", "Because")
        assert task.completed_at is not None

    on_disk(act, count=2)


@ours
def test_b0_7_a_call_that_the_dead_server_cut_is_not_done(on_disk):
    async def act(dead, heir):
        running = await (await dead.begin(metadata={})).start()
        await running.log.append(*running.composer.call("f"), *running.composer.arguments('{"a":'))
        dead.die()
        await heir.journal.recover()
        assert names(await heir.follow(running))[-2:] == ["function_call_arguments.delta", "failed"]
        assert (await heir.journal.response_of(await heir.record(running))).output == []

    on_disk(act, count=2)


@ours
def test_b3_6_a_response_that_is_no_task_has_failed_even_if_it_waited(on_disk):
    async def act(dead, heir):
        running = await dead.begin(store=True)
        dead.die()
        assert await heir.journal.recover() == []
        response = await heir.journal.response_of(await heir.journal.response(["ann"], running.id))
        assert (response.status, response.error["code"]) == ("failed", "service_restarted")

    on_disk(act, count=2)


@ours
def test_b2_5_a_dead_server_releases_the_key_of_a_run_that_failed(on_disk):
    async def act(dead, heir):
        dead.store.reserve(KEY, b"digest")
        await (await dead.begin(key=KEY)).start()
        dead.die()
        await heir.journal.recover()
        assert heir.store.reserve(KEY, b"digest") is None

    on_disk(act, count=2)


@ours
def test_b3_7_each_run_of_a_dead_server_goes_to_one_heir(on_disk):
    async def act(dead, one, other):
        for _ in range(5):
            await dead.begin(metadata={})
        dead.die()
        taken = await asyncio.gather(one.journal.recover(), other.journal.recover())
        ids = [record.id for each in taken for record, _ in each]
        assert len(ids) == len(set(ids)) == 5

    on_disk(act, count=3)


@ours
def test_b3_9_what_a_dead_server_left_is_ended_when_the_store_can_be_written(on_disk, monkeypatch):
    async def act(dead, heir):
        left = [await (await dead.begin(metadata={})).start() for _ in range(2)]
        waited = await dead.begin(metadata={})
        dead.die()
        with monkeypatch.context() as patch:
            patch.setattr(heir.store, "append", full)
            with pytest.raises(StorageUnavailable):
                await heir.journal.recover()
        given_back = await heir.journal.recover()
        await heir.journal.tend()
        assert [record.id for record, _ in given_back] == [waited.id]
        assert [(await heir.record(running)).status for running in left] == ["failed"] * 2

    on_disk(act, count=2)


# What could not be written.


def full(*_, **__):
    raise StorageUnavailable("The disk is full.")


@ours
def test_b3_9_what_could_not_be_written_is_written_when_it_can_be(on_disk):
    async def act(server):
        running = await (await (await server.begin(metadata={})).start()).text("Be")
        told = running.log.last
        following = asyncio.create_task(server.follow(running))
        running.log.break_off(StorageUnavailable("The disk is full."))
        assert [entry.id for entry in await following] == list(range(1, told + 1))
        server.journal.release(running.id)
        assert (await server.record(running)).status == "in_progress"

        await server.journal.tend()

        entries = await server.follow(running)
        assert [entry.id for entry in entries] == list(range(1, len(entries) + 1))
        assert names(entries)[-2:] == ["output_item.done", "failed"]
        task = await server.journal.task_of(await server.record(running))
        assert (task.status, task.error["code"]) == ("failed", "storage_unavailable")
        await server.journal.tend()
        assert len(await server.follow(running)) == len(entries)

    on_disk(act)


@ours
def test_b3_9_what_still_cannot_be_written_is_tried_again(on_disk, monkeypatch):
    async def act(server):
        running = await (await server.begin(metadata={})).start()
        running.log.break_off(StorageUnavailable())
        server.journal.release(running.id)

        with monkeypatch.context() as patch:
            patch.setattr(server.store, "append", full)
            with pytest.raises(StorageUnavailable):
                await server.journal.tend()
        await server.journal.tend()
        assert (await server.record(running)).status == "failed"

    on_disk(act)


@ours
def test_b3_9_what_was_ended_elsewhere_meanwhile_stays_as_it_is(on_disk):
    async def act(one, other):
        running = await (await one.begin(metadata={})).start()
        running.log.break_off(StorageUnavailable())
        one.journal.release(running.id)
        other.store.append(running.id, [], status="cancelled", completed_at=int(time.time()), response=b"{}")
        await one.journal.tend()
        assert (await one.record(running)).status == "cancelled"

    on_disk(act, count=2)


@ours
def test_a_run_that_ended_well_is_never_failed_later(on_disk):
    async def act(server):
        running = await (await server.begin(metadata={})).end()
        running.log.break_off(StorageUnavailable())
        server.journal.release(running.id)
        await server.journal.tend()
        assert (await server.record(running)).status == "completed"

    on_disk(act)


@ours
def test_b3_10_events_go_after_their_time_and_tasks_after_theirs(on_disk, monkeypatch):
    def at(now):
        monkeypatch.setattr(journal_module, "time", SimpleNamespace(time=lambda: now))

    async def act(server):
        running = await (await server.begin(metadata={})).end()
        ended = (await server.record(running)).completed_at
        for passed, dropped in ((HOUR - 1, False), (HOUR, True), (30 * DAY - 1, True)):
            at(ended + passed)
            await server.journal.tend()
            assert (await server.record(running)).events_dropped is dropped
        at(ended + 30 * DAY)
        await server.journal.tend()
        with pytest.raises(ResponseNotFound):
            await server.record(running)

    on_disk(act)


@ours
def test_a_journal_that_is_closed_is_storage_that_cannot_be_used(tmp_path):
    async def scenario():
        server = Server(tmp_path / "data")
        running = await server.begin(metadata={})
        await server.journal.close()
        with pytest.raises(StorageUnavailable):
            await server.record(running)

    asyncio.run(scenario())
