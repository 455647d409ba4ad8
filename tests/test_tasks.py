"""Tasks over HTTP (A4, B3): made, followed from anywhere, cancelled, deleted, listed; what is kept and for how long;
what happens when nothing can be kept."""

import asyncio
import re
import threading

import pytest
from streams import body, create, events_in, finished, follow, frames, names_in, stream
from waiting import until

from lmsp_jupyter import sse
from lmsp_jupyter.errors import StorageUnavailable
from lmsp_jupyter.handlers.tasks import TasksHandler
from lmsp_jupyter.worker import Generation

pytestmark = pytest.mark.usefixtures("script")

FINALS = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}


@pytest.fixture
def store(app):
    return app.runner.journal._store


@pytest.fixture
def endless(script):
    """A model that speaks until it is stopped."""
    script("endless", ["repeat", 100_000, "x ", 0.005])


async def speaking(app, task):
    """The run of a task, when its model has begun to speak."""
    await until(lambda: (run := app.runner._runs.get(task["response_id"])) and run.log.response.text)
    return app.runner._runs[task["response_id"]]


async def cancel(client, task):
    return (await client.post(f"/tasks/{task['id']}/cancel")).json()


async def ids(client, **query):
    """The ids in one page of the list."""
    return [task["id"] for task in (await client.get("/tasks", params=query)).json()["data"]]


# Making one


@pytest.mark.ours
async def test_b3_1_a_task_is_accepted_and_found_at_its_location(client, jp_base_url):
    metadata = {f"key{n}": "wört" for n in range(16)}
    task = {"type": "response", "request": body(stream=True), "metadata": metadata}
    answer = await client.post("/tasks", json=task)

    task = answer.json()
    assert answer.status_code == 202
    assert re.fullmatch(r"task_[0-9A-HJKMNP-TV-Z]{26}", task["id"])
    assert answer.headers["Location"] == f"{jp_base_url}lmsp/v1/tasks/{task['id']}"
    assert (task["object"], task["type"], task["model"]) == ("task", "response", "hello")
    assert task["metadata"] == metadata
    assert task["last_event_id"] >= 1
    assert task["response"]["id"] == task["response_id"]
    assert task["response"]["status"] == "in_progress"
    found = await client.get(str(client.base_url.copy_with(path=answer.headers["Location"])))
    assert found.json()["id"] == task["id"]
    done = await finished(client, task)
    assert (done["status"], done["metadata"]) == ("completed", metadata)


@pytest.mark.ours
async def test_b3_1_a_task_is_refused_where_its_request_is(client, script):
    script("small", ["echo"], context_length=10)
    script("plain", ["echo"], capabilities=[])
    for request in (
        body(max_tokens=5),
        body(temperature=9),
        body(input=[]),
        body(input=[{"role": "user", "content": [{"type": "input_image"}]}]),
        body("helo"),
        body("small", input="word " * 10),
        body("plain", tools=[{"type": "function", "name": "f", "parameters": {"type": "object"}}]),
        body(previous_response_id="resp_none"),
    ):
        of_response = await client.post("/responses", json=request)
        of_task = await client.post("/tasks", json={"type": "response", "request": request})

        assert of_task.status_code == of_response.status_code >= 400
        assert of_task.json()["code"] == of_response.json()["code"]

    assert await ids(client) == []


@pytest.mark.ours
async def test_b3_1_the_pointer_of_a_refusal_leads_into_the_task(client):
    answer = await client.post("/tasks", json={"type": "response", "request": body(temperature=9)})

    assert answer.json()["param"] == "/request/temperature"


@pytest.mark.ours
async def test_b3_1_what_is_no_task(client):
    for change, pointer in (
        ({"type": "other"}, "/type"),
        ({"request": None}, "/request"),
        ({"request": "hi"}, "/request"),
        ({"more": 1}, "/more"),
        ({"metadata": {"a": 1}}, "/metadata"),
        ({"metadata": {f"key{n}": "" for n in range(17)}}, "/metadata"),
    ):
        answer = await client.post("/tasks", json={"type": "response", "request": body(), **change})
        assert (answer.status_code, answer.json()["param"]) == (400, pointer)


@pytest.mark.ours
async def test_b2_3_a_full_queue_takes_no_task(client, endless):
    tasks = [await create(client, body("endless")) for _ in range(4)]

    answer = await client.post("/tasks", json={"type": "response", "request": body("endless")})

    assert (answer.status_code, answer.json()["code"]) == (429, "queue_full")
    assert int(answer.headers["Retry-After"]) > 0
    for task in tasks:
        await cancel(client, task)


# Its life


@pytest.mark.ours
async def test_b3_2_a_task_is_queued_then_as_its_response_is(app, client, endless):
    working = [await create(client, body("endless")) for _ in range(2)]
    waiting = await create(client, body("endless"))
    await speaking(app, working[0])

    task = (await client.get(f"/tasks/{waiting['id']}")).json()
    assert (task["status"], task["response"]["status"]) == ("queued", "in_progress")
    assert (task["started_at"], task["completed_at"], task["events_expire_at"]) == (None, None, None)

    for each in working:
        await cancel(client, each)
    await speaking(app, waiting)

    task = (await client.get(f"/tasks/{waiting['id']}")).json()
    assert (task["status"], task["response"]["status"]) == ("in_progress", "in_progress")
    assert task["started_at"] >= task["created_at"]
    assert (task["completed_at"], task["events_expire_at"], task["error"]) == (None, None, None)
    assert task["response"]["output"][0]["content"][0]["text"].startswith("x ")
    assert (await cancel(client, waiting))["status"] == "cancelled"


@pytest.mark.ours
async def test_b3_2_a_finished_task_has_the_response_of_its_final_event(client):
    task = await create(client, body())
    *_, (last, name, data) = events_in(await follow(client, task))

    task = (await client.get(f"/tasks/{task['id']}")).json()
    assert (name, task["status"], task["last_event_id"]) == ("response.completed", "completed", last)
    assert task["response"] == data["response"]
    assert task["response"]["output"][0]["content"][0]["text"] == "Hello 👩‍👧 wörld"
    assert task["completed_at"] >= task["started_at"]
    assert task["events_expire_at"] == task["completed_at"] + 3600


@pytest.mark.ours
async def test_b3_2_other_ends_of_a_task(client, script):
    script("breaks", ["text", "a"], ["broken", "no luck"])
    script("dies", ["text", "a"], ["crash"])

    cut = await finished(client, await create(client, body(max_output_tokens=1)))
    assert (cut["status"], cut["error"]) == ("incomplete", None)
    assert cut["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    for model, code in (("breaks", "engine_failed"), ("dies", "engine_crashed")):
        task = await finished(client, await create(client, body(model)))
        assert (task["status"], task["error"]["code"]) == ("failed", code)
        assert task["error"] == task["response"]["error"]


@pytest.mark.ours
async def test_b3_8_the_order_of_a_run(client, script):
    script("loads", ["progress", 1, 2], ["text", "a"], load={"sleep": 0.2})
    *_, task = [await create(client, body("loads")) for _ in range(3)]

    events = events_in(await follow(client, task))

    assert [id for id, _, _ in events] == list(range(1, len(events) + 1))
    assert [(name, data.get("position"), data.get("phase")) for _, name, data in events] == [
        ("response.created", None, None),
        ("response.queued", 1, None),
        ("response.in_progress", None, None),
        ("response.progress", None, "prompt"),
        ("response.output_item.added", None, None),
        ("response.content_part.added", None, None),
        ("response.output_text.delta", None, None),
        ("response.output_text.done", None, None),
        ("response.content_part.done", None, None),
        ("response.output_item.done", None, None),
        ("response.completed", None, None),
    ]


# Following


@pytest.mark.chapter6
async def test_a4_2_a_stream_that_is_cut_and_resumed_is_the_same_to_the_byte(client, script):
    script("talks", ["reasoning", "Hm."], ["repeat", 60, "ä \n", 0.003])
    task = await create(client, body("talks"))
    uncut = asyncio.ensure_future(follow(client, task))

    async def in_sevens(position):
        cut = []
        while not cut or names_in(cut)[-1] not in FINALS:
            cut += await follow(client, task, leave_after=7, **position(len(cut)))
        return cut

    def last_event_id(number):
        return {"headers": {"Last-Event-ID": str(number)}}

    def after(number):
        return {"params": {"after": number}}

    live = await asyncio.gather(in_sevens(last_event_id), in_sevens(after))
    later = [await in_sevens(last_event_id), await in_sevens(after), await follow(client, task)]

    assert [*live, *later] == [await uncut] * 5
    assert [id for id, _, _ in events_in(await uncut)] == list(range(1, len(await uncut) + 1))
    assert len(await uncut) > 70


@pytest.mark.ours
async def test_b3_5_twenty_followers_agree(app, client, script):
    script("talks", ["repeat", 100, "x ", 0.003])
    task = await create(client, body("talks"))
    run = await speaking(app, task)

    async def join(late):
        await until(lambda: run.log.last >= late * 5)
        return await follow(client, task, params={"after": late})

    followers = await asyncio.gather(*(join(late) for late in range(20)))

    for late, followed in enumerate(followers):
        assert followed == followers[0][late:]
    assert names_in(followers[0])[-1] == "response.completed"


@pytest.mark.ours
async def test_b3_5_a_slow_follower_slows_nobody(client, script):
    script("loud", ["repeat", 30, "x" * 100_000])
    task = await create(client, body("loud"))

    async with client.stream("GET", f"/tasks/{task['id']}/events") as slow:
        quick = await follow(client, task)
        assert (await client.get(f"/tasks/{task['id']}")).json()["status"] == "completed"
        late = frames(await slow.aread())

    assert late == quick
    assert names_in(quick)[-1] == "response.completed"


@pytest.mark.ours
async def test_b3_4_a_follower_that_leaves_never_cancels(client, script):
    script("talks", ["repeat", 50, "x ", 0.003])
    task = await create(client, body("talks"))

    for _ in range(5):
        assert len(await follow(client, task, leave_after=3)) == 3

    assert (await finished(client, task))["status"] == "completed"


@pytest.mark.chapter6
async def test_a4_2_after_wins_over_last_event_id(client):
    task = await create(client, body())
    whole = await follow(client, task)

    assert await follow(client, task, params={"after": 3}, headers={"Last-Event-ID": "5"}) == whole[3:]
    assert await follow(client, task, params={"after": 0}, headers={"Last-Event-ID": "nine"}) == whole
    assert await follow(client, task, headers={"Last-Event-ID": "5"}) == whole[5:]
    assert await follow(client, task, headers={"Last-Event-ID": ""}) == whole


@pytest.mark.ours
async def test_b3_4_positions_that_are_none(app, client, endless):
    task = await create(client, body("endless"))
    await speaking(app, task)
    events = f"/tasks/{task['id']}/events"
    for position in ("-1", "1.5", "x", "1e3", "٣", "0x1", "9" * 30, "100000"):
        answer = await client.get(events, params={"after": position})
        assert (position, answer.status_code, answer.json()["code"]) == (position, 400, "invalid_request")
    for position in ("-1", "1.5", "x", "9" * 30, "100000"):
        answer = await client.get(events, headers={"Last-Event-ID": position})
        assert (position, answer.status_code, answer.json()["code"]) == (position, 400, "invalid_request")
    task = await cancel(client, task)

    answer = await client.get(events, params={"after": task["last_event_id"] + 1})

    assert answer.status_code == 400


@pytest.mark.ours
async def test_b3_4_with_nothing_left_a_finished_task_is_204(client):
    task = await finished(client, await create(client, body()))
    events, last = f"/tasks/{task['id']}/events", task["last_event_id"]

    answer = await client.get(events, headers={"Last-Event-ID": str(last)})

    assert (answer.status_code, answer.content) == (204, b"")
    assert names_in(await follow(client, task, params={"after": last - 1})) == ["response.completed"]


@pytest.mark.ours
async def test_b3_4_a_follower_with_nothing_to_read_hears_a_heartbeat_at_once(app, client, script):
    script("pauses", ["text", "a"], ["sleep", 600])
    task = await create(client, body("pauses"))
    log = (await speaking(app, task)).log
    await until(lambda: log.last == 7)  # the text is on disk
    last = log.last

    async with client.stream("GET", f"/tasks/{task['id']}/events", params={"after": last}) as answer:
        chunks = answer.aiter_raw()
        assert await anext(chunks) == sse.PING
        await cancel(client, task)
        rest = b"".join([chunk async for chunk in chunks])

    assert names_in(frames(rest))[-1] == "response.cancelled"
    assert events_in(frames(rest))[0][0] == last + 1


@pytest.mark.ours
async def test_b4_1_heartbeats_of_a_silent_task(client, script, monkeypatch):
    monkeypatch.setattr("lmsp_jupyter.handlers.streams.HEARTBEAT", 0.05)
    script("slow", ["sleep", 0.4], ["text", "a"])
    task = await create(client, body("slow"))

    live = (await client.get(f"/tasks/{task['id']}/events")).content
    replayed = (await client.get(f"/tasks/{task['id']}/events")).content

    assert b": ping\n" in live
    assert b": ping\n\n" not in live
    assert live.replace(sse.PING, b"") == replayed


@pytest.mark.ours
async def test_b4_2_head_tells_status_and_headers_alone(app, client, endless):
    task = await create(client, body("endless"))
    await speaking(app, task)
    events = f"/tasks/{task['id']}/events"

    running = await client.head(events)
    task = await cancel(client, task)

    for answer in (running, await client.head(events)):
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["Cache-Control"] == "no-store, no-transform"
        assert answer.headers["X-Accel-Buffering"] == "no"
    assert (await client.head(events, params={"after": task["last_event_id"]})).status_code == 204
    assert (await client.head(events, params={"after": "-1"})).status_code == 400
    for path in ("/tasks", f"/tasks/{task['id']}"):
        answer = await client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert int(answer.headers["Content-Length"]) > 0
    assert (await client.get(f"/tasks/{task['id']}")).json()["status"] == "cancelled"


@pytest.mark.ours
async def test_b2_3_an_unknown_task_is_404(client):
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/events"), ("HEAD", "/events")):
        answer = await client.request(method, f"/tasks/task_01ARZ3NDEKTSV4RRFFQ69G5FAV{path}")
        assert answer.status_code == 404
        assert method == "HEAD" or answer.json()["code"] == "task_not_found"


# Cancelling and deleting


@pytest.mark.ours
async def test_b3_3_cancel_answers_before_the_engine_has_stopped(app, client, endless, monkeypatch):
    task = await create(client, body("endless"))
    await speaking(app, task)
    stop, heard = Generation.cancel, []
    monkeypatch.setattr(Generation, "cancel", lambda generation: heard.append(generation))  # noqa: PLW0108  # a builtin binds no self

    answer = await client.post(f"/tasks/{task['id']}/cancel")

    cancelled = answer.json()
    assert (answer.status_code, cancelled["status"], app.runner.active) == (200, "cancelled", 1)
    assert cancelled["response"]["status"] == "cancelled"
    assert cancelled["response"]["usage"]["input_tokens"] == 1
    assert cancelled["completed_at"] >= cancelled["started_at"]
    followed = await follow(client, task)
    assert names_in(followed)[-2:] == ["response.output_item.done", "response.cancelled"]
    assert events_in(followed)[-2][2]["item"] == cancelled["response"]["output"][0]
    assert cancelled["response"]["output"][0]["status"] == "incomplete"
    (generation,) = heard
    stop(generation)
    await until(lambda: app.runner.active == 0)
    assert await follow(client, task) == followed


@pytest.mark.ours
async def test_b3_3_a_finished_task_comes_back_as_it_is(client):
    task = await finished(client, await create(client, body()))

    answer = await client.post(f"/tasks/{task['id']}/cancel")

    assert (answer.status_code, answer.json()) == (200, task)


@pytest.mark.ours
async def test_b3_3_the_first_final_event_wins(client, script):
    script("talks", ["repeat", 10, "x ", 0.002])
    await client.post("/models/talks/load")
    tasks = [await create(client, body("talks")) for _ in range(4)]
    cancels = [asyncio.ensure_future(cancel(client, task)) for _ in range(5) for task in tasks]

    followed = [await follow(client, task) for task in tasks]

    for answer in await asyncio.gather(*cancels):
        assert answer["status"] in ("completed", "cancelled")
    for task, events in zip(tasks, followed, strict=True):
        assert [name for name in names_in(events) if name in FINALS] == names_in(events)[-1:]
        status = (await client.get(f"/tasks/{task['id']}")).json()["status"]
        assert names_in(events)[-1] == f"response.{status}"


@pytest.mark.ours
async def test_b3_3_a_queued_task_is_cancelled_and_leaves_the_line(app, client, endless):
    working = [await create(client, body("endless")) for _ in range(2)]
    await speaking(app, working[0])
    first, second = [await create(client, body("endless")) for _ in range(2)]

    cancelled = await cancel(client, first)

    assert (cancelled["status"], cancelled["started_at"], cancelled["response"]["output"]) == ("cancelled", None, [])
    assert names_in(await follow(client, first)) == ["response.created", "response.queued", "response.cancelled"]
    for task in working:
        await cancel(client, task)
    await speaking(app, second)
    await cancel(client, second)
    places = [data["position"] for _, name, data in events_in(await follow(client, second)) if "queued" in name]
    assert places == [2, 1]


@pytest.mark.ours
async def test_b3_3_a_task_is_deleted_when_it_has_ended(app, client, endless):
    task = await create(client, body("endless"))
    await speaking(app, task)
    refused = await client.delete(f"/tasks/{task['id']}")
    assert (refused.status_code, refused.json()["code"]) == (409, "task_not_finished")
    await cancel(client, task)

    answer = await client.delete(f"/tasks/{task['id']}")

    assert (answer.status_code, answer.content) == (204, b"")
    for path in ("", "/events"):
        assert (await client.get(f"/tasks/{task['id']}{path}")).status_code == 404
    assert (await client.delete(f"/tasks/{task['id']}")).status_code == 404
    assert await ids(client) == []
    assert (await client.get(f"/responses/{task['response_id']}")).status_code == 404


@pytest.mark.ours
async def test_b3_3_a_stored_response_outlives_its_task(client):
    task = await finished(client, await create(client, body(store=True)))

    assert (await client.delete(f"/tasks/{task['id']}")).status_code == 204

    response = f"/responses/{task['response_id']}"
    assert (await client.get(response)).json() == task["response"]
    assert (await client.get(response, params={"stream": "true"})).status_code == 400
    continued = await client.post("/responses", json=body(previous_response_id=task["response_id"]))
    assert continued.status_code == 200


@pytest.mark.ours
async def test_b6_1_deleting_the_response_empties_the_task(client):
    task = await finished(client, await create(client, body(store=True)))

    assert (await client.delete(f"/responses/{task['response_id']}")).status_code == 204

    emptied = (await client.get(f"/tasks/{task['id']}")).json()
    assert emptied == task | {"response": None}
    events = f"/tasks/{task['id']}/events"
    assert (await client.get(events)).json()["code"] == "event_history_expired"
    assert (await client.get(events, params={"after": task["last_event_id"]})).status_code == 204


@pytest.mark.ours
async def test_b0_8_who_leaves_while_a_task_is_made_leaves_no_work_without_a_maker(app, client, store, monkeypatch):
    making, left, go_on = threading.Event(), asyncio.Event(), threading.Event()
    make, close = store.create, TasksHandler.on_connection_close

    def slowly(*arguments):
        making.set()
        assert go_on.wait(20)
        return make(*arguments)

    def leave(handler):
        close(handler)
        left.set()

    monkeypatch.setattr(store, "create", slowly)
    monkeypatch.setattr(TasksHandler, "on_connection_close", leave)
    posted = asyncio.ensure_future(client.post("/tasks", json={"type": "response", "request": body()}))
    await until(making.is_set)
    posted.cancel()
    await left.wait()
    go_on.set()

    (task,) = (await client.get("/tasks")).json()["data"]
    assert names_in(await follow(client, task)) == ["response.created", "response.cancelled"]
    await until(lambda: app.runner.active == 0)


# Listing


@pytest.mark.ours
async def test_b3_3_tasks_are_listed_newest_first_without_their_responses(client, script):
    script("breaks", ["broken", "no luck"])
    tasks = [await create(client, body(model)) for model in ("hello", "hello", "breaks")]
    for task in tasks:
        await finished(client, task)

    listed = (await client.get("/tasks")).json()

    assert (listed["object"], listed["has_more"], listed["next"]) == ("list", False, None)
    assert [task["id"] for task in listed["data"]] == [task["id"] for task in reversed(tasks)]
    for task in listed["data"]:
        whole = (await client.get(f"/tasks/{task['id']}")).json()
        assert task == {name: value for name, value in whole.items() if name != "response"}
    assert listed["data"][0]["error"]["code"] == "engine_failed"


@pytest.mark.ours
async def test_b3_3_a_list_is_filtered_and_paged(app, client, script, endless):
    script("other", ["text", "a"])
    done = [await finished(client, await create(client, body(model))) for model in ["hello", "other"] * 3]
    running = await create(client, body("endless"))
    await speaking(app, running)
    newest = [task["id"] for task in reversed([*done, running])]

    assert await ids(client, status="completed") == newest[1:]
    assert await ids(client, status="in_progress") == await ids(client, model="endless") == newest[:1]
    assert await ids(client, status="failed") == await ids(client, model="none") == []
    assert await ids(client, status="completed", model="other") == newest[1::2]
    pages, after = [], {}
    while True:
        page = (await client.get("/tasks", params={"limit": 3, **after})).json()
        pages.append([task["id"] for task in page["data"]])
        assert page["has_more"] == (page["next"] is not None)
        if not page["has_more"]:
            break
        after = {"after": page["next"]}
    assert pages == [newest[:3], newest[3:6], newest[6:]]
    await cancel(client, running)


@pytest.mark.ours
async def test_b3_3_queries_that_are_none(client):
    for query in ("limit=0", "limit=101", "limit=x", "limit=-1", "status=done", "status="):
        answer = await client.get(f"/tasks?{query}")
        assert (query, answer.status_code, answer.json()["code"]) == (query, 400, "invalid_request")


# Keeping


class TestEventsAreKeptForNoTime:
    """A service that drops events as soon as their task has ended (B3.10)."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        jp_server_config["LMSPApp"]["event_retention"] = 0
        return jp_server_config

    @pytest.mark.chapter6
    async def test_a4_3_events_that_are_no_longer_kept_are_gone(self, app, client):
        task = await finished(client, await create(client, body()))
        last, path = task["last_event_id"], f"/tasks/{task['id']}/events"
        assert len(await follow(client, task)) == last  # not yet

        await app.runner.journal.tend()

        for after in (0, 1, last - 1):
            for answer in (
                await client.get(path, params={"after": after}),
                await client.get(path, headers={"Last-Event-ID": str(after)}),
            ):
                assert (answer.status_code, answer.json()["code"]) == (410, "event_history_expired")
        assert (await client.head(path)).status_code == 410
        assert (await client.get(path, params={"after": last})).status_code == 204
        assert (await client.get(path, params={"after": last + 1})).status_code == 400
        assert (await client.get(f"/tasks/{task['id']}")).json() == task
        assert task["events_expire_at"] == task["completed_at"]

    @pytest.mark.ours
    async def test_b3_10_a_running_task_keeps_its_events_and_a_cancelled_one_stays_so(self, app, client, endless):
        task = await create(client, body("endless"))
        await speaking(app, task)

        await app.runner.journal.tend()

        assert names_in(await follow(client, task, leave_after=1)) == ["response.created"]
        task = await cancel(client, task)

        await app.runner.journal.tend()

        assert await cancel(client, task) == (await client.get(f"/tasks/{task['id']}")).json() == task
        assert task["status"] == "cancelled"

    @pytest.mark.ours
    async def test_b1_1_the_service_tells_its_retentions(self, client):
        limits = (await client.get("")).json()["limits"]

        assert (limits["event_retention"], limits["task_retention"]) == (0, 30 * 86400)

    @pytest.mark.ours
    async def test_b2_5_the_log_of_a_keyed_stream_is_kept_for_its_key(self, app, client):
        keyed, request = {"Idempotency-Key": "a"}, body(stream=True)
        first = await client.post("/responses", json=request, headers=keyed)

        await app.runner.journal.tend()

        again = await client.post("/responses", json=request, headers=keyed)
        assert again.headers["Idempotency-Replayed"] == "true"
        assert again.content == first.content


class TestTasksAreKeptForNoTime:
    """A service that drops tasks as soon as they have ended."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        jp_server_config["LMSPApp"] |= {"event_retention": 0, "task_retention": 0}
        return jp_server_config

    @pytest.mark.ours
    async def test_b3_10_a_task_goes_with_its_response(self, app, client):
        task = await finished(client, await create(client, body()))

        await app.runner.journal.tend()

        assert (await client.get(f"/tasks/{task['id']}")).json()["code"] == "task_not_found"
        assert await ids(client) == []


# When nothing can be kept


def refuse(*_, **__):
    raise StorageUnavailable("The disk is full.")


@pytest.mark.ours
async def test_b3_9_a_log_that_cannot_be_written_ends_the_task_later(app, client, store, endless, monkeypatch):
    task = await create(client, body("endless"))
    followers = [asyncio.ensure_future(follow(client, task)) for _ in range(3)]
    await speaking(app, task)
    with monkeypatch.context() as patch:
        patch.setattr(store, "append", refuse)
        sent, *others = await asyncio.gather(*followers)

        assert others == [sent, sent]
        assert not FINALS & {*names_in(sent)}
        assert "error" not in names_in(sent)
        await until(lambda: app.runner.active == 0)
        assert (await client.get(f"/tasks/{task['id']}")).json()["status"] == "in_progress"
        with pytest.raises(StorageUnavailable):
            await app.runner.journal.tend()

    await app.runner.journal.tend()

    whole = await follow(client, task)
    assert whole[: len(sent)] == sent
    assert [id for id, _, _ in events_in(whole)] == list(range(1, len(whole) + 1))
    assert names_in(whole)[-2:] == ["response.output_item.done", "response.failed"]
    task = (await client.get(f"/tasks/{task['id']}")).json()
    assert (task["status"], task["error"]["code"]) == ("failed", "storage_unavailable")
    assert task["last_event_id"] == len(whole)
    text = "".join(data["delta"] for _, name, data in events_in(whole) if name == "response.output_text.delta")
    assert task["response"]["output"][0]["content"][0]["text"] == text


@pytest.mark.ours
@pytest.mark.parametrize("streamed", [True, False])
async def test_b3_9_a_stored_response_whose_log_cannot_be_written(app, client, store, endless, monkeypatch, streamed):
    request = body("endless", store=True, stream=streamed)
    posted = asyncio.ensure_future(client.post("/responses", json=request))
    await until(lambda: app.runner.runs("endless"))
    (run,) = app.runner.runs("endless")
    await until(lambda: run.log.response.text)
    with monkeypatch.context() as patch:
        patch.setattr(store, "append", refuse)
        answer = await posted
        await until(lambda: app.runner.active == 0)

    if streamed:
        events = events_in(frames(answer.content))
        assert [id for id, _, _ in events] == list(range(1, len(events) + 1))
        assert events[-1][1] == "error"
        assert events[-1][2]["error"]["code"] == "storage_unavailable"
        assert not FINALS & {name for _, name, _ in events}
    else:
        assert (answer.status_code, answer.json()["code"]) == (507, "storage_unavailable")
    await app.runner.journal.tend()
    response = (await client.get(f"/responses/{run.id}")).json()
    assert (response["status"], response["error"]["code"]) == ("failed", "storage_unavailable")


@pytest.mark.ours
async def test_b3_9_a_cancel_that_cannot_be_written_stops_the_work_too(app, client, store, script, monkeypatch):
    script("pauses", ["text", "a"], ["sleep", 600])
    task = await create(client, body("pauses"))
    await speaking(app, task)
    with monkeypatch.context() as patch:
        patch.setattr(store, "append", refuse)
        answer = await client.post(f"/tasks/{task['id']}/cancel")
        assert (answer.status_code, answer.json()["code"]) == (507, "storage_unavailable")
        await until(lambda: app.runner.active == 0)

    await app.runner.journal.tend()

    assert names_in(await follow(client, task))[-2:] == ["response.output_item.done", "response.failed"]


class TestNothingCanBeKept:
    """A service whose data folder cannot be made."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config, tmp_path):
        (tmp_path / "file").touch()
        jp_server_config["LMSPApp"]["data_folder"] = str(tmp_path / "file" / "data")
        return jp_server_config

    @pytest.mark.ours
    async def test_b3_9_generating_without_keeping_goes_on(self, client):
        assert (await client.post("/responses", json=body())).status_code == 200
        assert (await stream(client, body()))[-1][1] == "response.completed"
        chat = {"model": "hello", "messages": [{"role": "user", "content": "hi"}]}
        assert (await client.post("/chat/completions", json=chat)).status_code == 200
        assert (await client.get("/models")).status_code == 200

    @pytest.mark.ours
    async def test_b2_3_what_is_to_be_kept_is_507(self, app, client, tmp_path):
        answers = [
            await client.post("/tasks", json={"type": "response", "request": body()}),
            await client.get("/tasks"),
            await client.post("/responses", json=body(store=True)),
            await client.post("/responses", json=body(store=True, stream=True)),
            await client.post("/responses", json=body(store=True, background=True)),
            await client.post("/responses", json=body(), headers={"Idempotency-Key": "a"}),
        ]

        for answer in answers:
            assert (answer.status_code, answer.json()["code"]) == (507, "storage_unavailable")
            assert str(tmp_path) not in answer.text
        assert app.runner.active == 0
