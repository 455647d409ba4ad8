"""B3: tasks, their events and who follows them. Restarts, shared folders and retention are tested elsewhere."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from . import sse
from .api import WEATHER, message, refused, said, structured, until

pytestmark = pytest.mark.ours

STORY = "Tell me a long story."


@pytest.fixture(scope="module")
def done(lmsp):
    """A task that has finished."""
    return lmsp.finish(lmsp.ask(), metadata={"cell": "1"})


# B3.1


def test_b3_1_a_task_is_accepted(lmsp):
    answer = lmsp.post("/tasks", {"type": "response", "request": lmsp.ask(), "metadata": {"a": "b"}})

    task = answer.json()
    lmsp.follow(task)
    assert answer.status_code == 202
    assert answer.headers["Location"].endswith(f"/lmsp/v1/tasks/{task['id']}")
    assert (task["object"], task["type"], task["model"]) == ("task", "response", lmsp.model)
    assert task["status"] in ("queued", "in_progress")
    assert task["metadata"] == {"a": "b"}


def test_b3_1_stream_is_ignored(lmsp):
    task = lmsp.make_task(lmsp.ask(stream=True))

    assert lmsp.follow(task)[-1].final


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": None},
        {"model": "none-such"},
        {"input": []},
        {"temperature": 9},
        {"max_output_tokens": 0},
        {"temprature": 1},
        {"input": [message("Hello", "tool")]},
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
        {"input": [{"type": "function_call_output", "call_id": "call_1", "output": "a"}, message("Hello")]},
        {"input": "word " * 8200},
        {"tools": [WEATHER, WEATHER]},
        {"tool_choice": "required"},
        {"response_format": structured({"type": "nothing"})},
        {"previous_response_id": "resp_01J8M6Q4W2T7N5R3V9X1Z8B0DF"},
        {"extensions": {"lmsp_jupyter": {"topk": 5}}},
        {"background": True},
    ],
    ids=str,
)
def test_b3_1_a_task_is_refused_exactly_where_a_response_is(lmsp, wrong):
    request = lmsp.ask(**wrong)
    as_response = lmsp.post("/responses", request)
    if as_response.status_code == 200:
        pytest.skip("this window is too large for the input to be refused")

    as_task = lmsp.post("/tasks", {"type": "response", "request": request})

    refused(as_task, as_response.status_code, as_response.json()["code"])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"type": "response"},
        {"type": "download", "request": {}},
        {"type": "response", "request": []},
        {"type": "response", "request": {}, "metadata": {str(n): "" for n in range(17)}},
        {"type": "response", "request": {}, "metadata": {"a": 1}},
    ],
    ids=str,
)
def test_b3_1_what_is_no_task(lmsp, body):
    refused(lmsp.post("/tasks", body), 400, "invalid_request")


def test_b3_1_an_unknown_member(lmsp):
    body = {"type": "response", "request": lmsp.ask(), "priority": 1}

    refused(lmsp.post("/tasks", body), 400, "unknown_parameter", "/priority")


# B3.2


def test_b3_2_a_finished_task(lmsp, done):
    events = lmsp.follow(done)

    assert done["status"] == done["response"]["status"] == events[-1].data["status"]
    assert done["response"]["id"] == done["response_id"] == events[0].data["response_id"]
    assert done["response"] == events[-1].data["response"]
    assert done["last_event_id"] == events[-1].id
    assert done["created_at"] <= done["started_at"] <= done["completed_at"] < done["events_expire_at"]
    assert done["error"] is None
    assert done["metadata"] == {"cell": "1"}


def test_b3_2_a_running_task(lmsp, long_task):
    task = lmsp.task(long_task)

    assert task["status"] == task["response"]["status"] == "in_progress"
    assert said(task["response"]) != ""
    assert task["started_at"] is not None
    assert task["completed_at"] is None
    assert task["events_expire_at"] is None
    assert task["last_event_id"] > 1


def test_b3_2_a_queued_task(lmsp, queued_task):
    task = lmsp.task(queued_task)

    assert task["status"] == "queued"
    assert task["response"]["status"] == "in_progress"  # a response is never queued
    assert task["response"]["output"] == []
    assert task["started_at"] is None
    assert task["last_event_id"] >= 2


def test_b3_2_metadata_of_16_pairs(lmsp):
    metadata = {str(n): "x" for n in range(16)}

    assert lmsp.finish(lmsp.ask(max_output_tokens=1), metadata=metadata)["metadata"] == metadata


# B3.3


def test_b3_3_tasks_are_listed_newest_first_a_page_at_a_time(lmsp):
    made = [lmsp.finish(lmsp.ask(max_output_tokens=1))["id"] for _ in range(3)]

    first = lmsp.get("/tasks", params={"limit": 2}).json()
    second = lmsp.get("/tasks", params={"limit": 2, "after": first["next"]}).json()

    assert [task["id"] for task in first["data"]] == [made[2], made[1]]
    assert second["data"][0]["id"] == made[0]
    assert first["has_more"] is True
    assert all("response" not in task for task in first["data"])


def test_b3_3_pages_are_20_tasks_unless_asked_and_the_last_has_no_next(lmsp, done):
    pages, after = [], {}
    while not pages or pages[-1]["has_more"]:
        pages.append(lmsp.get("/tasks", params=after).json())
        after = {"after": pages[-1]["next"]}
    ids = [task["id"] for page in pages for task in page["data"]]

    assert all(len(page["data"]) == 20 for page in pages[:-1])
    assert pages[-1]["next"] is None
    assert done["id"] in ids
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("limit", ["0", "101", "-1", "many", "1.5"])
def test_b3_3_limits_that_are_none(lmsp, limit):
    refused(lmsp.get("/tasks", params={"limit": limit}), 400, "invalid_request")


def test_b3_3_tasks_by_status_and_model(lmsp, done, long_task):
    running = lmsp.get("/tasks", params={"status": "in_progress"}).json()["data"]
    finished = lmsp.get("/tasks", params={"status": done["status"], "model": lmsp.model, "limit": 100}).json()["data"]

    assert long_task["id"] in {task["id"] for task in running}
    assert {task["status"] for task in running} == {"in_progress"}
    assert {(task["status"], task["model"]) for task in finished} == {(done["status"], lmsp.model)}


def test_b3_3_a_task_is_cancelled_at_once(lmsp, long_task):
    answer = lmsp.post(f"/tasks/{long_task['id']}/cancel")

    task = answer.json()
    assert answer.status_code == 200
    assert task["status"] == task["response"]["status"] == "cancelled"
    assert task["completed_at"] is not None
    assert lmsp.follow(long_task)[-1].name == "response.cancelled"


def test_b3_3_cancelled_stays_cancelled(lmsp, long_task):
    first = lmsp.post(f"/tasks/{long_task['id']}/cancel").json()
    events = lmsp.follow(long_task)
    lmsp.respond(lmsp.ask(max_output_tokens=1))  # the engine has gone on to other work since

    assert lmsp.post(f"/tasks/{long_task['id']}/cancel").json() == first
    assert lmsp.follow(long_task) == events


def test_b3_3_a_queued_task_is_cancelled_without_having_started(lmsp, queued_task):
    task = lmsp.post(f"/tasks/{queued_task['id']}/cancel").json()

    names = [event.name for event in lmsp.follow(queued_task)]
    assert (task["status"], task["started_at"]) == ("cancelled", None)
    assert names[-1] == "response.cancelled"
    assert "response.in_progress" not in names


def test_b3_3_a_finished_task_comes_back_as_it_is(lmsp, done):
    answer = lmsp.post(f"/tasks/{done['id']}/cancel")

    assert (answer.status_code, answer.json()) == (200, done)


def test_b3_3_a_task_is_deleted(lmsp):
    task = lmsp.finish(lmsp.ask(max_output_tokens=1))

    assert lmsp.delete(f"/tasks/{task['id']}").status_code == 204

    for answer in (
        lmsp.get(f"/tasks/{task['id']}"),
        lmsp.get(f"/tasks/{task['id']}/events"),
        lmsp.post(f"/tasks/{task['id']}/cancel"),
        lmsp.delete(f"/tasks/{task['id']}"),
    ):
        refused(answer, 404, "task_not_found")


def test_b3_3_a_running_task_is_not_deleted(lmsp, long_task):
    refused(lmsp.delete(f"/tasks/{long_task['id']}"), 409, "task_not_finished")


def test_b3_3_a_stored_response_survives_its_task(lmsp):
    task = lmsp.finish(lmsp.ask(store=True))

    lmsp.delete(f"/tasks/{task['id']}")

    assert lmsp.get(f"/responses/{task['response_id']}").json() == task["response"]


# B3.4


@pytest.mark.parametrize("params", [{}, {"after": 0}])
def test_b3_4_after_0_or_none_gives_all(lmsp, done, params):
    assert [event.id for event in lmsp.follow(done, **params)] == list(range(1, done["last_event_id"] + 1))


def test_b3_4_every_position_gives_the_rest(lmsp, done):
    events = lmsp.follow(done)

    for n in range(1, len(events)):
        assert lmsp.follow(done, after=n) == events[n:]


@pytest.mark.parametrize("after", ["-1", "1.5", "one", "1e0"])
def test_b3_4_a_position_that_is_none(lmsp, done, after):
    path = f"/tasks/{done['id']}/events"

    refused(lmsp.get(path, params={"after": after}), 400, "invalid_request")
    refused(lmsp.get(path, headers={"Last-Event-ID": after}), 400, "invalid_request")


def test_b3_4_a_position_above_the_last_event(lmsp, done, long_task):
    for task in (done, long_task):
        refused(lmsp.get(f"/tasks/{task['id']}/events", params={"after": 10**6}), 400, "invalid_request")


def test_b3_4_with_nothing_left_there_is_nothing_to_send(lmsp, done):
    answer = lmsp.get(f"/tasks/{done['id']}/events", params={"after": done["last_event_id"]})

    assert (answer.status_code, answer.content) == (204, b"")


def test_b3_4_a_follower_with_nothing_to_read_gets_headers_and_a_heartbeat_at_once(lmsp, queued_task):
    path = f"{lmsp.url}/tasks/{queued_task['id']}/events"
    after = lmsp.task(queued_task)["last_event_id"]

    with lmsp.http.stream("GET", path, params={"after": after}) as answer:
        assert answer.status_code == 200
        assert next(answer.iter_raw()) == b": ping\n"


def test_b3_4_a_follower_that_leaves_cancels_nothing(lmsp):
    task = lmsp.make_task(lmsp.ask())
    with lmsp.open("GET", f"/tasks/{task['id']}/events") as events:
        next(events)

    assert lmsp.follow(task)[-1].name in ("response.completed", "response.incomplete")


# B3.5


def test_b3_5_all_followers_get_the_same_whenever_they_join(lmsp):
    task = lmsp.make_task(lmsp.ask(STORY, max_output_tokens=40))
    spoke = threading.Event()

    def follow(_):
        with lmsp.open("GET", f"/tasks/{task['id']}/events") as stream:
            events = []
            for event in stream:
                events.append(event)
                if event.name == "response.output_text.delta":
                    spoke.set()
        return events

    with ThreadPoolExecutor(4) as pool:
        early = [pool.submit(follow, n) for n in range(2)]
        assert spoke.wait(120)
        late = [pool.submit(follow, n) for n in range(2)]
        seen = [each.result() for each in early + late]

    last = lmsp.follow(task)
    assert all(events == last for events in seen)
    assert [event.id for event in last] == list(range(1, len(last) + 1))


def test_b3_5_a_slow_follower_slows_nobody(lmsp):
    task = lmsp.make_task(lmsp.ask(STORY, max_output_tokens=40))
    with lmsp.open("GET", f"/tasks/{task['id']}/events") as slow:
        first = next(slow)
        others = lmsp.follow(task)  # to the end, while the slow one reads nothing

        assert [first, *slow] == others


# B3.8


ORDER = [
    r"response\.created",
    r"response\.queued",
    r"response\.in_progress",
    r"response\.progress",
    r"response\.(output_|content_|function_|reasoning_).*",
    r"response\.(completed|incomplete|failed|cancelled)",
]


@pytest.mark.parametrize("source", ["stream", "task"])
def test_b3_8_the_order_of_a_run(lmsp, done, source):
    events = lmsp.stream(lmsp.ask()) if source == "stream" else lmsp.follow(done)

    _assert_order(events)
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    names = [event.name for event in events]
    assert names.count("response.created") == names.count("response.in_progress") == 1
    for event in events:
        if event.name == "response.progress":
            assert event.data["phase"] in ("loading", "prompt")
            assert 0 <= event.data["done"] <= event.data["total"]


def test_b3_8_who_waits_is_told_the_place_in_line_and_when_work_starts(lmsp, queued_task):
    for task in queued_task["blockers"]:
        lmsp.post(f"/tasks/{task['id']}/cancel")
    until(lambda: lmsp.task(queued_task), lambda task: task["started_at"] is not None)
    lmsp.post(f"/tasks/{queued_task['id']}/cancel")

    events = lmsp.follow(queued_task)

    _assert_order(events)
    positions = [event.data["position"] for event in events if event.name == "response.queued"]
    assert positions == sorted(set(positions), reverse=True)
    assert positions[-1] >= 1


def _assert_order(events):
    places = [next(n for n, names in enumerate(ORDER) if re.fullmatch(names, event.name)) for event in events]
    assert places == sorted(places), [event.name for event in events]


def test_b3_8_items_come_between_start_and_end(lmsp, done):
    assert sse.items(lmsp.follow(done)) == done["response"]["output"]
