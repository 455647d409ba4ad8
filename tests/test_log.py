"""The event log of a response (A4.1, B3.5, B3.6, B3.8, B3.9): numbered once, on disk before anyone is told, read by
anyone from anywhere."""

import asyncio
import json

import pytest

from lmsp_jupyter.errors import EngineCrashed, StorageUnavailable
from lmsp_jupyter.events import Composer, Created, Failed, Fold, InProgress, decode
from lmsp_jupyter.log import Log
from lmsp_jupyter.protocol import Response, new_id

chapter6 = pytest.mark.chapter6
ours = pytest.mark.ours

ID = new_id("resp")


def run_of(texts=("Be", "cause", ".")):
    """The events of a short run."""
    composer = Composer(ID)
    stream = [Created(response_id=ID, response=Response(id=ID)), InProgress(response_id=ID)]
    for text in texts:
        stream += composer.text(text)
    return stream + composer.completed(None)


def run(scenario):
    """Run a coroutine that a lost wake-up would leave waiting for ever."""
    return asyncio.run(asyncio.wait_for(scenario, timeout=20))


def filled(stream):
    log = Log()
    append(log, *stream)
    return log


def append(log, *batch):
    run(log.append(*batch))


async def collect(log, after=0):
    return [entry async for batch in log.follow(after) for entry in batch]


async def anext_of(log, after=0, patience=None):
    """The next batch alone."""
    follow = log.follow(after, patience)
    try:
        return await anext(follow)
    finally:
        await follow.aclose()


async def settle():
    """Let every other coroutine run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


def read(log, after=0):
    return run(collect(log, after))


@chapter6
def test_a4_1_numbers_are_dense_from_1():
    entries = read(filled(run_of()))

    assert [entry.id for entry in entries] == list(range(1, len(entries) + 1))
    assert entries[0].event == "response.created"
    assert entries[-1].event == "response.completed"


@ours
def test_b7_1_an_entry_has_its_number_and_name_in_its_data_too():
    for entry in read(filled(run_of())):
        data = json.loads(entry.data)
        assert (data["sequence_number"], data["type"]) == (entry.id, entry.event)


@ours
def test_b3_8_an_event_that_cannot_be_encoded_takes_no_number():
    log = filled(run_of()[:2])

    with pytest.raises(TypeError):
        append(log, *Composer(ID).text("never"), Failed(response_id=ID, error={"cause": object()}))
    assert not log.ended
    assert (log.last, log.response.status, log.response.output) == (2, "in_progress", [])

    append(log, *Composer(ID).cancelled())
    assert [entry.id for entry in read(log)] == [1, 2, 3]


@ours
def test_b7_1_a_logged_response_is_the_one_of_its_moment():
    entries = read(filled(run_of()))

    whole = {entry.event: json.loads(entry.data)["response"] for entry in (*entries[:2], entries[-1])}
    assert [(each["status"], len(each["output"])) for each in whole.values()] == [
        ("in_progress", 0),
        ("in_progress", 0),
        ("completed", 1),
    ]


@ours
def test_the_response_of_a_log_is_the_fold_of_its_entries():
    stream = run_of()
    log, fold = Log(), Fold()
    for event in stream:
        append(log, event)
        entry = run(anext_of(log, event.sequence_number - 1))[0]
        fold.apply(decode(entry.event, str(entry.id), entry.data))
        assert log.response == fold.response


@chapter6
@pytest.mark.parametrize("ending", ["completed", "incomplete", "failed", "cancelled"])
def test_a3_3_after_a_final_event_nothing_is_taken(ending):
    endings = {
        "completed": lambda composer: composer.completed(None),
        "incomplete": lambda composer: composer.incomplete("context_length", None),
        "failed": lambda composer: composer.failed(EngineCrashed()),
        "cancelled": lambda composer: composer.cancelled(),
    }
    composer = Composer(ID)
    log = filled([*run_of()[:2], *composer.text("Be"), *endings[ending](composer)])
    before, response = read(log), log.response
    assert log.ended

    for late in (*composer.text("late"), *composer.cancelled(), *composer.completed(None)):
        append(log, late)

    assert read(log) == before
    assert log.response == response
    assert log.response.status == ending


@chapter6
def test_a4_2_only_events_above_a_position_are_read():
    log = filled(run_of())
    entries = read(log)

    for after in range(len(entries) + 1):
        assert read(log, after) == entries[after:]


@ours
def test_b3_5_followers_that_join_at_any_time_read_the_same():
    stream = run_of("Because I say so.")

    async def scenario():
        log = Log()
        followers = []
        for event in stream:
            followers.append(asyncio.create_task(collect(log)))
            await settle()
            await log.append(event)
        followers.append(asyncio.create_task(collect(log)))
        return await asyncio.gather(*followers)

    first, *others = run(scenario())

    assert [entry.id for entry in first] == list(range(1, len(stream) + 1))
    assert all(other == first for other in others)


@ours
def test_b3_5_followers_at_different_positions_read_what_is_left_to_each():
    stream = run_of()

    async def scenario():
        log = Log()
        followers = [asyncio.create_task(collect(log, after)) for after in range(len(stream) + 1)]
        for event in stream:
            await settle()
            await log.append(event)
        return await asyncio.gather(*followers)

    whole, *others = run(scenario())

    assert all(other == whole[after:] for after, other in enumerate(others, start=1))


@ours
def test_b3_5_a_slow_follower_gets_what_it_missed_in_one_batch():
    stream = run_of()

    async def scenario():
        log = Log()
        await log.append(stream[0])
        follow = log.follow()
        first = await anext(follow)
        for event in stream[1:]:
            await log.append(event)
            await settle()
        return log, first, [batch async for batch in follow]

    log, first, rest = run(scenario())

    assert [first, *rest] == [read(log)[:1], read(log)[1:]]


@ours
def test_a_waiting_follower_wakes_at_an_append():
    created, in_progress, *_ = run_of()

    async def scenario():
        log = Log()
        await log.append(created)
        waiting = asyncio.create_task(anext_of(log, after=1))
        await settle()
        assert not waiting.done()
        await log.append(in_progress)
        await settle()
        assert waiting.done()
        return await waiting

    assert [entry.event for entry in run(scenario())] == ["response.in_progress"]


@ours
def test_every_waiting_follower_wakes():
    created, *_ = run_of()

    async def scenario():
        log = Log()
        waiting = [asyncio.create_task(anext_of(log)) for _ in range(5)]
        await settle()
        await log.append(created)
        return await asyncio.gather(*waiting)

    assert [[entry.id for entry in batch] for batch in run(scenario())] == [[1]] * 5


@ours
def test_a_follower_that_leaves_takes_nothing_from_the_others():
    stream = run_of()

    async def scenario():
        log = Log()
        leaver, stayer = (asyncio.create_task(collect(log)) for _ in range(2))
        await log.append(stream[0])
        await settle()
        leaver.cancel()
        for event in stream[1:]:
            await settle()
            await log.append(event)
        return await stayer, leaver.cancelled()

    entries, left = run(scenario())

    assert left
    assert len(entries) == len(stream)


@ours
def test_b4_1_silence_for_as_long_as_patience_is_an_empty_batch():
    stream = run_of()

    async def scenario():
        log = Log()
        await log.append(stream[0])
        follow = log.follow(patience=0)
        batches = [await anext(follow) for _ in range(3)]
        for event in stream[1:]:
            await log.append(event)
        return batches + [batch async for batch in follow]

    first, *silence, rest = run(scenario())

    assert [entry.id for entry in first] == [1]
    assert silence == [[], []]
    assert [entry.id for entry in rest] == list(range(2, len(stream) + 1))


@ours
def test_a_log_that_has_ended_needs_no_patience():
    log = filled(run_of())

    async def scenario():
        return [batch async for batch in log.follow(patience=0)]

    assert run(scenario()) == [read(log)]


@ours
def test_a_log_may_be_made_before_any_event_loop_runs_and_read_in_several():
    log = filled(run_of())

    assert read(log) == read(log)


# A log that is on disk.


class Disk:
    """Where a log is committed: its rows, a gate that they wait at, and why they are refused."""

    def __init__(self):
        self.rows = []
        self.responses = []
        self.failure = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def commit(self, entries, response):
        await self.gate.wait()
        if self.failure:
            raise self.failure
        self.rows += entries
        self.responses.append(response)


@ours
def test_b3_6_events_are_on_disk_before_anyone_is_told():
    created, in_progress, *_ = run_of()

    async def scenario():
        disk = Disk()
        log = Log(disk.commit)
        await log.append(created)
        disk.gate.clear()
        writing = asyncio.create_task(log.append(in_progress))
        reading = asyncio.create_task(anext_of(log, after=1))
        await settle()
        assert not reading.done()
        assert log.last == 1
        disk.gate.set()
        await writing
        return disk.rows, await reading

    rows, batch = run(scenario())

    assert rows[1:] == batch
    assert [entry.event for entry in rows] == ["response.created", "response.in_progress"]


@ours
def test_b3_6_a_batch_is_committed_and_sent_as_one_with_the_response_that_it_makes():
    stream = run_of()

    async def scenario():
        disk = Disk()
        log = Log(disk.commit)
        await log.append(*stream[:3])
        await log.append(*stream[3:])
        return log, disk

    log, disk = run(scenario())

    assert disk.rows == read(log)
    assert [response.status for response in disk.responses] == ["in_progress", "completed"]
    assert disk.responses[-1] == log.response
    assert disk.responses[-1].completed_at is not None


@ours
@pytest.mark.parametrize("count", [0, 2, len(run_of()) - 1])
def test_b3_9_what_cannot_be_committed_is_not_told_and_takes_no_number(count):
    stream = run_of()

    async def scenario():
        disk = Disk()
        log = Log(disk.commit)
        await log.append(*stream[:count])
        disk.failure = StorageUnavailable()
        with pytest.raises(StorageUnavailable):
            await log.append(*stream[count:])
        return log, disk

    log, disk = run(scenario())

    assert log.last == len(disk.rows) == count
    assert not log.ended


@ours
def test_b3_9_a_log_that_breaks_off_lets_its_followers_go_without_a_final_event():
    async def scenario():
        log = Log()
        followers = [asyncio.create_task(collect(log)) for _ in range(3)]
        await log.append(*run_of()[:2])
        await settle()
        log.break_off(StorageUnavailable())
        return log, await asyncio.gather(*followers, collect(log))

    log, received = run(scenario())

    assert isinstance(log.broken, StorageUnavailable)
    assert not log.ended
    assert [[entry.id for entry in each] for each in received] == [[1, 2]] * 4


@ours
def test_b3_9_a_log_that_broke_off_takes_nothing_any_more():
    async def scenario():
        disk = Disk()
        log = Log(disk.commit)
        await log.append(run_of()[0])
        log.break_off(StorageUnavailable())
        await log.append(*Composer(ID).cancelled())
        return log, disk

    log, disk = run(scenario())

    assert log.last == len(disk.rows) == 1
    assert log.response.status == "in_progress"


@ours
def test_a_log_that_has_ended_does_not_break_off():
    log = filled(run_of())

    log.break_off(StorageUnavailable())

    assert log.broken is None


@ours
def test_an_empty_batch_changes_nothing():
    log = filled(run_of()[:2])

    append(log)

    assert (log.last, log.ended) == (2, False)


# A log that was on disk.


@ours
@pytest.mark.parametrize("count", range(1, len(run_of())))
def test_b3_6_a_log_from_disk_goes_on_with_the_next_number(count):
    entries = run(anext_of(filled(run_of()[:count])))
    log = Log()
    log.restore(entries)
    assert (log.last, log.response.id, log.response.status) == (count, ID, "in_progress")

    append(log, *Composer(ID).cancelled()[-1:])

    assert read(log)[:-1] == entries
    assert [entry.id for entry in read(log)] == list(range(1, count + 2))
    assert log.response.status == "cancelled"


@ours
def test_a_log_from_disk_has_the_response_of_its_entries():
    whole = filled(run_of())
    log = Log()

    log.restore(read(whole))

    assert log.response == whole.response


@ours
def test_b3_8_nothing_is_committed_where_nothing_is_said():
    async def scenario():
        disk = Disk()
        log = Log(disk.commit)
        await log.append()
        disk.failure = StorageUnavailable()
        await log.append()
        return log

    log = run(scenario())

    assert (log.last, log.ended) == (0, False)
