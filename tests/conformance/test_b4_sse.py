"""B4: the bytes of event streams, and the other methods of the routes."""

import pytest

from . import sse
from .api import WEATHER, said, structured

pytestmark = pytest.mark.ours

EMOJI = "👩‍👧 wörld — 日本語"
REQUESTS = {
    "text": {},
    "cut": {"max_output_tokens": 2},
    "call": {"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 120},
    "emoji": {"response_format": structured({"enum": [EMOJI]}), "max_output_tokens": 80},
}


@pytest.fixture(scope="module")
def task(lmsp):
    return lmsp.finish(lmsp.ask())


@pytest.mark.parametrize("more", REQUESTS.values(), ids=REQUESTS)
def test_b4_1_the_bytes_of_a_stream(lmsp, more):
    answer = lmsp.post("/responses", lmsp.ask(**more) | {"stream": True})

    assert sse.check(answer.content)[-1].final


def test_b4_1_the_bytes_of_a_task_live_and_replayed(lmsp):
    path = f"/tasks/{lmsp.make_task(lmsp.ask())['id']}/events"

    live, replayed = lmsp.get(path), lmsp.get(path)

    assert sse.check(live.content) == sse.check(replayed.content)


def test_b4_1_every_write_ends_on_an_events_boundary(lmsp):
    with lmsp.http.stream("POST", f"{lmsp.url}/responses", json=lmsp.ask(stream=True)) as answer:
        raw = list(answer.iter_raw())

    # Networks may join writes, but do not cut one as small as an event.
    assert all(chunk.endswith((b"\n\n", b": ping\n")) for chunk in raw)


@pytest.mark.parametrize("source", ["stream", "task", "background"])
def test_b4_1_headers_forbid_caches_proxies_and_compression(lmsp, task, source):
    headers = {"Accept-Encoding": "gzip, deflate, br"}
    answer = {
        "stream": lambda: lmsp.post("/responses", lmsp.ask(stream=True), headers=headers),
        "task": lambda: lmsp.get(f"/tasks/{task['id']}/events", headers=headers),
        "background": lambda: lmsp.post(
            "/responses", lmsp.ask(stream=True, background=True, store=True), headers=headers
        ),
    }[source]()

    assert answer.headers["Content-Type"].partition(";")[0] == "text/event-stream"
    assert answer.headers["Cache-Control"] == "no-store, no-transform"
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert answer.headers.get("Content-Encoding", "identity") == "identity"


def test_b4_1_a_delta_never_splits_a_code_point(lmsp):
    events = lmsp.stream(lmsp.ask(**REQUESTS["emoji"]))

    deltas = [event.data["delta"] for event in events if event.name == "response.output_text.delta"]
    for delta in deltas:
        delta.encode("utf-8")  # which half of a surrogate pair does not survive
        assert "\N{REPLACEMENT CHARACTER}" not in delta
    assert EMOJI in "".join(deltas)
    assert said(events[-1].data["response"]) == "".join(deltas)


def test_b4_1_silence_is_filled_with_heartbeats(lmsp, queued_task):
    after = lmsp.task(queued_task)["last_event_id"]

    with lmsp.http.stream("GET", f"{lmsp.url}/tasks/{queued_task['id']}/events", params={"after": after}) as answer:
        raw = answer.iter_raw()
        first, second = next(raw), next(raw)

    assert first == b": ping\n"  # at once
    # After 10 s of silence another one, unless the line moved before.
    assert second.startswith((b": ping\n", b"id: "))


def test_b4_2_head_on_every_get_route(lmsp, task):
    stored = lmsp.respond(lmsp.ask(max_output_tokens=1, store=True))["id"]
    approval = lmsp.post("/approvals", {"tool": "f", "arguments": "{}", "task_id": task["id"]}).json()["id"]
    routes = ["", "/health", "/openapi.json", "/models", f"/models/{lmsp.model}", "/tasks", f"/tasks/{task['id']}"]
    routes += [f"/responses/{stored}", f"/responses/{stored}/input_items", "/tokens", f"/approvals/{approval}"]

    for route in routes:
        answer = lmsp.request("HEAD", route)
        assert (answer.status_code, answer.content) == (200, b""), route


def test_b4_2_head_on_an_event_route(lmsp, task, long_task):
    for each in (task, long_task):
        answer = lmsp.request("HEAD", f"/tasks/{each['id']}/events")

        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["Content-Type"].partition(";")[0] == "text/event-stream"


@pytest.mark.parametrize("path", ["", "/responses", "/tasks", "/tasks/task_1/events", "/models", "/tokens"])
def test_b4_2_options_without_credentials(lmsp, path):
    preflight = {"Origin": "http://other.example", "Access-Control-Request-Method": "POST", "Authorization": ""}
    answer = lmsp.request("OPTIONS", path, headers=preflight)

    allowed = answer.headers["Access-Control-Allow-Headers"].lower().replace(" ", "").split(",")
    assert answer.is_success
    assert {"authorization", "idempotency-key", "lmsp-version", "last-event-id"} <= set(allowed)


def test_b4_2_a_stream_is_sent_to_who_accepts_json_only(lmsp):
    events = lmsp.stream(lmsp.ask(max_output_tokens=2), headers={"Accept": "application/json"})

    assert events[-1].final
