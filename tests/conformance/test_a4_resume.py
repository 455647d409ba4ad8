"""A4: resuming the events of a task. A4.3 needs events that have expired, which takes the retention period."""

import pytest

pytestmark = [pytest.mark.chapter6, pytest.mark.needs("tasks")]


@pytest.fixture(scope="module")
def task(lmsp):
    """A task that has finished. How tasks are made is left to a chapter that is not at hand; this is part B's way."""
    answer = lmsp.post("/tasks", {"type": "response", "request": lmsp.ask()})
    if not answer.is_success:
        pytest.skip("tasks are made in another way here")
    lmsp.follow(answer.json())
    return answer.json()


@pytest.fixture(scope="module")
def events(lmsp, task):
    """All its events."""
    return lmsp.follow(task)


def test_a4_1_the_events_of_a_task_are_numbered_from_1(events):
    ids = [event.id for event in events]

    assert ids[0] == 1
    assert ids == sorted(set(ids))


def test_a4_2_after_gives_what_is_numbered_above(lmsp, task, events):
    assert lmsp.follow(task, after=2) == [event for event in events if event.id > 2]


def test_a4_2_last_event_id_gives_the_same(lmsp, task, events):
    assert lmsp.follow(task, {"Last-Event-ID": "3"}) == [event for event in events if event.id > 3]


def test_a4_2_after_wins_where_both_stand(lmsp, task, events):
    assert lmsp.follow(task, {"Last-Event-ID": "1"}, after=4) == [event for event in events if event.id > 4]


def test_a4_2_a_task_that_was_interrupted_is_resumed_without_gap_or_repeat(lmsp):
    answer = lmsp.post("/tasks", {"type": "response", "request": lmsp.ask()})
    if not answer.is_success:
        pytest.skip("tasks are made in another way here")
    task = answer.json()
    with lmsp.open("GET", f"/tasks/{task['id']}/events") as stream:
        seen = [next(stream), next(stream)]

    seen += lmsp.follow(task, after=seen[-1].id)

    assert seen == lmsp.follow(task)


def test_a4_3_the_result_is_fetched_from_the_task(lmsp, task, events):
    fetched = lmsp.task(task)

    assert fetched["status"] == events[-1].data["status"]


def test_a4_4_a_response_that_was_streamed_directly_cannot_be_resumed(lmsp):
    response_id = lmsp.stream(lmsp.ask(max_output_tokens=1))[0].data["response_id"]

    assert lmsp.get(f"/tasks/{response_id}/events", params={"after": 0}).status_code == 404
