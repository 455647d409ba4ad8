"""B8: many things followed on one WebSocket."""

import pytest
import websocket

from .api import refused, said
from .sse import Event

pytestmark = pytest.mark.ours

UNKNOWN = "task_01J8M6Q4W2T7N5R3V9X1Z8B0DF"


def to_end(socket, task):
    """The events of one task, to the word that it ended."""
    events = []
    for entry in socket:
        if entry.get("task_id") == task["id"]:
            assert "error" not in entry, entry
            if entry.get("ended"):
                return events
            events.append(Event(entry["id"], entry["event"], entry["data"]))
    raise AssertionError("the socket ended first")


def changes(socket, name):
    """What is said about a list."""
    return (entry for entry in socket if entry.get("list") == name)


def test_b8_1_a_task_is_followed_to_its_end(lmsp):
    task = lmsp.make_task(lmsp.ask())
    with lmsp.connect() as socket:
        socket.send(follow=task["id"], after=0)

        assert to_end(socket, task) == lmsp.follow(task)


def test_b8_1_a_task_is_followed_from_a_position(lmsp):
    task = lmsp.finish(lmsp.ask())
    with lmsp.connect() as socket:
        socket.send(follow=task["id"], after=3)
        assert to_end(socket, task) == lmsp.follow(task, after=3)

        socket.send(follow=task["id"], after=task["last_event_id"])
        assert to_end(socket, task) == []


def test_b8_1_many_tasks_are_followed_at_once(lmsp):
    tasks = [lmsp.make_task(lmsp.ask()) for _ in range(3)]
    seen, ended = {task["id"]: [] for task in tasks}, set()
    with lmsp.connect() as socket:
        for task in tasks:
            socket.send(follow=task["id"], after=0)
        for entry in socket:
            if entry.get("ended"):
                ended.add(entry["task_id"])
            else:
                seen[entry["task_id"]].append(Event(entry["id"], entry["event"], entry["data"]))
            if len(ended) == len(tasks):
                break

    assert seen == {task["id"]: lmsp.follow(task) for task in tasks}


def test_b8_1_what_cannot_be_followed_is_an_error(lmsp):
    task = lmsp.finish(lmsp.ask(max_output_tokens=1))
    with lmsp.connect() as socket:
        for task_id, after, code in (
            (UNKNOWN, 0, "task_not_found"),
            (task["id"], -1, "invalid_request"),
            (task["id"], 10**6, "invalid_request"),
        ):
            socket.send(follow=task_id, after=after)
            entry = next(entry for entry in socket if "error" in entry)
            assert (entry.get("task_id"), entry["error"]["code"]) == (task_id, code)


def test_b8_1_unfollowing_ends_the_events_but_not_the_task(lmsp, long_task):
    other = lmsp.finish(lmsp.ask(max_output_tokens=1))
    with lmsp.connect() as socket:
        socket.send(follow=long_task["id"], after=0)
        next(socket)
        socket.send(unfollow=long_task["id"])
        socket.send(follow=other["id"], after=0)
        to_end(socket, other)  # by now the first has been left
        socket.send(follow=other["id"], after=0)
        between = []
        for entry in socket:
            between.append(entry["task_id"])
            if entry.get("ended"):
                break

    assert set(between) == {other["id"]}
    assert lmsp.task(long_task)["status"] == "in_progress"


def test_b8_1_tasks_come_as_a_whole_list_and_then_as_changes(lmsp):
    old = lmsp.finish(lmsp.ask(max_output_tokens=1))
    with lmsp.connect() as socket:
        socket.send(follow="tasks")
        listed = changes(socket, "tasks")
        whole = next(listed)
        assert old["id"] in {task["id"] for task in whole["changed"]}
        assert whole["gone"] == []

        new = lmsp.make_task(lmsp.ask(max_output_tokens=1))
        states = (task for entry in listed for task in entry["changed"] if task["id"] == new["id"])
        assert next(task for task in states if task["status"] == "incomplete")["model"] == lmsp.model

    with lmsp.connect() as socket:
        socket.send(follow="tasks")
        listed = changes(socket, "tasks")
        next(listed)
        lmsp.delete(f"/tasks/{old['id']}")
        assert next(entry for entry in listed if old["id"] in entry["gone"])


def test_b8_1_models_come_as_a_whole_list_and_then_as_changes(lmsp):
    lmsp.post(f"/models/{lmsp.model}/load")
    with lmsp.connect() as socket:
        socket.send(follow="models")
        listed = changes(socket, "models")
        assert {model["id"]: model["state"] for model in next(listed)["changed"]}[lmsp.model] == "loaded"

        lmsp.post(f"/models/{lmsp.model}/unload")
        states = (model["state"] for entry in listed for model in entry["changed"] if model["id"] == lmsp.model)
        assert "available" in states


def test_b8_1_a_slow_task_says_what_it_has_said_so_far(lmsp, long_task):
    with lmsp.connect() as socket:
        socket.send(follow=long_task["id"], after=0)
        text = ""
        for entry in socket:
            text += entry["data"].get("delta", "")
            if text:
                break

    assert said(lmsp.task(long_task)["response"]).startswith(text)


def test_b8_1_the_socket_is_authenticated(lmsp):
    with pytest.raises(websocket.WebSocketBadStatusException) as refusal, lmsp.connect("wrong"):
        pass

    assert refusal.value.status_code in (401, 403)


def test_b8_1_the_socket_is_checked_for_its_origin(lmsp):
    answer = lmsp.get()
    cookies = "; ".join(f"{name}={value}" for name, value in answer.cookies.items())
    if not cookies:
        pytest.skip("the service gives no cookie")
    by_cookie = {"header": [], "cookie": cookies}

    with lmsp.connect(**by_cookie) as socket:
        socket.send(follow="models")
        next(socket)
    with (
        pytest.raises(websocket.WebSocketBadStatusException),
        lmsp.connect(**by_cookie, origin="http://evil.example"),
    ):
        pass


def test_b5_3_on_the_socket_scopes_are_by_subject(lmsp):
    token, task = lmsp.mint("models:read"), lmsp.finish(lmsp.ask(max_output_tokens=1))
    refused(lmsp.get("/tasks", headers={"Authorization": f"Bearer {token['token']}"}), 403, "insufficient_scope")

    with lmsp.connect(token["token"]) as socket:
        socket.send(follow="models")
        assert next(changes(socket, "models"))["changed"]
        socket.send(follow=task["id"], after=0)
        entry = next(entry for entry in socket if entry.get("task_id") == task["id"])
        assert entry["error"]["code"] == "insufficient_scope"

    lmsp.delete(f"/tokens/{token['id']}")
