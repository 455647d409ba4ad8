"""A3: the stream of a response, and the numbers of its events (A4.1)."""

import pytest

from . import sse
from .api import said, until

pytestmark = pytest.mark.chapter6


@pytest.fixture(scope="module")
def events(lmsp):
    return lmsp.stream(lmsp.ask())


@pytest.fixture(scope="module")
def cut(lmsp):
    """The stream of a response that met its limit."""
    return lmsp.stream(lmsp.ask("Tell me a long story.", max_output_tokens=4))


def named(events, name):
    return [event.data for event in events if event.name == name]


def test_a3_1_every_event_has_an_id_a_name_and_an_object(lmsp):
    answer = lmsp.post("/responses", lmsp.ask(stream=True))

    assert answer.status_code == 200
    assert answer.headers["Content-Type"].partition(";")[0] == "text/event-stream"
    assert list(sse.read([answer.content]))  # which looks at each


def test_a3_2_a_stream_begins_with_response_created(events):
    assert events[0].name == "response.created"
    assert events[0].data["status"] == "in_progress"
    assert isinstance(events[0].data["response_id"], str)


def test_a3_2_every_event_of_a_response_names_it(events):
    known = (
        "response.created",
        "response.output_item.added",
        "response.output_text.delta",
        "response.output_item.done",
        *sse.FINAL,
    )

    assert {event.data["response_id"] for event in events if event.name in known} == {events[0].data["response_id"]}


def test_a3_2_a_message_starts_empty(events):
    added = [data for data in named(events, "response.output_item.added") if data["item"]["type"] == "message"]

    assert added
    for data in added:
        assert isinstance(data["output_index"], int)
        assert data["item"]["content"] == []


def test_a3_2_a_message_grows_by_its_deltas(events):
    for data in named(events, "response.output_item.done"):
        if data["item"]["type"] == "message":
            deltas = named(events, "response.output_text.delta")
            grown = "".join(each["delta"] for each in deltas if each["item_id"] == data["item"]["id"])
            assert grown == "".join(part["text"] for part in data["item"]["content"])


def test_a3_2_an_item_is_added_before_it_grows_and_is_done(events):
    opened, done = set(), set()
    for event in events:
        if event.name == "response.output_item.added":
            opened.add(event.data["item"]["id"])
        elif event.name == "response.output_text.delta":
            assert event.data["item_id"] in opened - done
        elif event.name == "response.output_item.done":
            assert event.data["item"]["id"] in opened - done
            done.add(event.data["item"]["id"])
    assert done == opened


def test_a3_2_the_final_event_tells_status_and_usage(events):
    final = events[-1]

    assert final.name in ("response.completed", "response.incomplete")
    assert final.data["status"] == final.name.removeprefix("response.")
    assert {"input_tokens", "output_tokens", "total_tokens"} <= final.data["usage"].keys()


def test_a3_2_a_stream_that_met_its_limit_is_incomplete(cut):
    assert (cut[-1].name, cut[-1].data["status"]) == ("response.incomplete", "incomplete")
    assert isinstance(cut[-1].data["incomplete_details"]["reason"], str)
    assert cut[-1].data["usage"]["output_tokens"] <= 4


def test_a3_3_the_stream_closes_after_its_final_event(events, cut):
    for stream in (events, cut):
        assert [event.final for event in stream] == [False] * (len(stream) - 1) + [True]


def test_a3_4_what_chapter_6_names_is_enough_for_a_client(lmsp, events):
    response = lmsp.respond(lmsp.ask())

    assert [item["type"] for item in sse.items(events)] == [item["type"] for item in response["output"]]
    assert said({"output": sse.items(events)}) == sse.text(events)


@pytest.mark.needs("conversations")
def test_a3_5_who_leaves_stops_the_generation(lmsp):
    request = lmsp.ask("Tell me a long story.", max_output_tokens=400, store=True, stream=True)
    with lmsp.open("POST", "/responses", json=request) as stream:
        created = next(stream)
        next(event for event in stream if event.name.endswith(".delta"))

    response_id = created.data["response_id"]
    answer = until(
        lambda: lmsp.get(f"/responses/{response_id}"),
        lambda answer: answer.status_code != 200 or answer.json()["status"] != "in_progress",
    )

    if answer.status_code == 404:
        pytest.skip("the service does not keep a response that was left")
    assert answer.json()["status"] not in ("completed", "incomplete")


def test_a4_1_ids_are_integers_that_increase_strictly_from_1(events, cut):
    for stream in (events, cut):
        ids = [event.id for event in stream]
        assert ids[0] == 1
        assert ids == sorted(set(ids))
