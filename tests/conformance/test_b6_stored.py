"""B6: stored responses, and going on from them."""

import pytest

from .api import WEATHER, calls, key, message, refused, said

pytestmark = pytest.mark.ours

STORY = "Tell me a long story."
UNKNOWN = "resp_01J8M6Q4W2T7N5R3V9X1Z8B0DF"


@pytest.fixture(scope="module")
def first(lmsp):
    """A stored response."""
    return lmsp.respond(lmsp.ask(store=True))


# B6.1


def test_b6_1_a_response_is_kept_if_it_is_to_be(lmsp, first):
    other = lmsp.respond(lmsp.ask())

    assert lmsp.get(f"/responses/{first['id']}").json() == first
    refused(lmsp.get(f"/responses/{other['id']}"), 404, "response_not_found")


def test_b6_1_a_response_can_be_fetched_while_it_is_made(lmsp):
    with lmsp.open(
        "POST", "/responses", json=lmsp.ask(STORY, store=True, stream=True, max_output_tokens=None)
    ) as events:
        path = f"/responses/{next(events).data['response_id']}"
        assert lmsp.get(path).json()["status"] == "in_progress"
        next(event for event in events if event.name == "response.output_text.delta")
        assert said(lmsp.get(path).json()) != ""


def test_b6_1_its_input_is_kept(lmsp):
    turns = [message("Be brief.", "system"), message("Name three fruits.")]
    response = lmsp.respond(lmsp.ask(input=turns, store=True, max_output_tokens=1))

    listed = lmsp.get(f"/responses/{response['id']}/input_items").json()

    assert listed["object"] == "list"
    assert [(item["type"], item["role"]) for item in listed["data"]] == [("message", "system"), ("message", "user")]
    assert [item["content"][0]["text"] for item in listed["data"]] == ["Be brief.", "Name three fruits."]


def test_b6_1_a_response_is_deleted(lmsp):
    response = lmsp.respond(lmsp.ask(store=True, max_output_tokens=1))

    assert lmsp.delete(f"/responses/{response['id']}").status_code == 204

    for answer in (
        lmsp.get(f"/responses/{response['id']}"),
        lmsp.get(f"/responses/{response['id']}/input_items"),
        lmsp.delete(f"/responses/{response['id']}"),
    ):
        refused(answer, 404, "response_not_found")


def test_b6_1_deleting_empties_the_task_too(lmsp):
    task = lmsp.finish(lmsp.ask(store=True, max_output_tokens=1))

    assert lmsp.delete(f"/responses/{task['response_id']}").status_code == 204

    assert lmsp.task(task)["response"] is None
    refused(lmsp.get(f"/tasks/{task['id']}/events"), 410, "event_history_expired")


def test_b6_1_deleting_frees_the_idempotency_key(lmsp):
    headers, request = key(), lmsp.ask(store=True, max_output_tokens=1)
    before = lmsp.respond(request, headers=headers)

    lmsp.delete(f"/responses/{before['id']}")

    assert lmsp.respond(request, headers=headers)["id"] != before["id"]


def test_b6_1_any_running_response_can_be_cancelled(lmsp):
    for store in (False, True):
        request = lmsp.ask(STORY, store=store, stream=True, max_output_tokens=None)
        with lmsp.open("POST", "/responses", json=request) as events:
            created = next(events)
            answer = lmsp.post(f"/responses/{created.data['response_id']}/cancel")
            *_, final = events

        assert answer.is_success
        assert final.name == "response.cancelled"


def test_b6_1_a_tasks_response_can_be_cancelled(lmsp, long_task):
    lmsp.post(f"/responses/{long_task['response_id']}/cancel")

    assert lmsp.task(long_task)["status"] == "cancelled"


def test_b6_1_a_tasks_response_is_found_only_if_it_was_stored(lmsp):
    stored, other = (lmsp.finish(lmsp.ask(store=store, max_output_tokens=1)) for store in (True, False))

    assert lmsp.get(f"/responses/{stored['response_id']}").json() == stored["response"]
    refused(lmsp.get(f"/responses/{other['response_id']}"), 404, "response_not_found")


# B6.2


def follow_up(lmsp, previous, text="Name one more.", **more):
    return lmsp.ask(text, **{"previous_response_id": previous, "max_output_tokens": 8} | more)


def test_b6_2_inputs_and_outputs_are_carried(lmsp, first):
    second = lmsp.respond(follow_up(lmsp, first["id"], store=True))
    third = lmsp.respond(follow_up(lmsp, second["id"], "And another."))

    turns = [message("Name three fruits."), *first["output"], message("Name one more.")]
    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens"] == lmsp.size(turns)
    turns += [*second["output"], message("And another.")]
    assert third["usage"]["input_tokens"] == lmsp.size(turns)


def test_b6_2_pairs_of_calls_and_outputs_stay_whole(lmsp):
    tools = {"tools": [WEATHER], "max_output_tokens": 120, "store": True}
    asked = lmsp.respond(lmsp.ask("What is the weather in Oslo?", tool_choice="required", **tools))
    outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"} for call in calls(asked)]

    told = lmsp.respond(lmsp.ask(input=outputs, previous_response_id=asked["id"], **tools | {"max_output_tokens": 8}))

    turns = [message("What is the weather in Oslo?"), *asked["output"], *outputs]
    assert told["usage"]["input_tokens"] == lmsp.size(turns, tools=[WEATHER])


def test_b6_2_instructions_are_not_carried(lmsp):
    told = lmsp.respond(lmsp.ask(instructions="Answer in French, always.", store=True, max_output_tokens=4))

    second = lmsp.respond(follow_up(lmsp, told["id"]))

    turns = [message("Name three fruits."), *told["output"], message("Name one more.")]
    assert second["instructions"] is None
    assert second["usage"]["input_tokens"] == lmsp.size(turns)


def test_b6_2_system_messages_are_joined_in_front(lmsp):
    system = [message("Be brief.", "system"), message("Be kind.", "system")]
    around = lmsp.size([system[0], message("Hello"), message("Hi", "assistant"), system[1], message("Bye")])

    assert around == lmsp.size([*system, message("Hello"), message("Hi", "assistant"), message("Bye")])


def test_b6_2_an_incomplete_response_can_be_continued(lmsp):
    cut = lmsp.respond(lmsp.ask(STORY, max_output_tokens=4, store=True))

    assert cut["status"] == "incomplete"
    lmsp.respond(follow_up(lmsp, cut["id"], "Go on."))


def test_b6_2_a_cancelled_response_can_be_continued(lmsp):
    task = lmsp.make_task(lmsp.ask(STORY, max_output_tokens=None, store=True))
    with lmsp.open("GET", f"/tasks/{task['id']}/events") as events:
        next(event for event in events if event.name == "response.output_text.delta")
    lmsp.post(f"/tasks/{task['id']}/cancel")

    assert lmsp.respond(follow_up(lmsp, task["response_id"], "Go on."))["status"] in ("completed", "incomplete")


def test_b6_2_a_running_response_cannot_be_continued(lmsp):
    task = lmsp.make_task(lmsp.ask(STORY, max_output_tokens=None, store=True))

    refused(lmsp.post("/responses", follow_up(lmsp, task["response_id"])), 409, "response_in_progress")

    lmsp.remove_task(task)


def test_b6_2_unknown_and_deleted_links(lmsp, first):
    second = lmsp.respond(follow_up(lmsp, lmsp.respond(lmsp.ask(store=True, max_output_tokens=2))["id"], store=True))
    lmsp.delete(f"/responses/{second['previous_response_id']}")
    other = lmsp.respond(lmsp.ask(max_output_tokens=1))

    for link in (UNKNOWN, second["previous_response_id"], second["id"], other["id"]):
        refused(lmsp.post("/responses", follow_up(lmsp, link)), 404, "response_not_found")


def test_b6_2_what_is_too_long_is_refused_and_never_cut(lmsp, first):
    long = "word " * (lmsp.context_length - first["usage"]["total_tokens"])

    refused(lmsp.post("/responses", follow_up(lmsp, first["id"], long)), 400, "context_length_exceeded")


# B6.3


def test_b6_3_an_empty_input_goes_on_inside_the_last_message(lmsp):
    whole = said(lmsp.respond(lmsp.ask(STORY, max_output_tokens=16)))
    cut = lmsp.respond(lmsp.ask(STORY, max_output_tokens=8, store=True))

    rest = lmsp.respond(lmsp.ask(input=[], previous_response_id=cut["id"], max_output_tokens=8))

    assert said(cut) + said(rest) == whole
    assert rest["output"][0]["id"] != cut["output"][0]["id"]


def test_b6_3_a_final_assistant_item_that_is_incomplete_goes_on_too(lmsp):
    whole = said(lmsp.respond(lmsp.ask(STORY, max_output_tokens=16)))
    cut = lmsp.respond(lmsp.ask(STORY, max_output_tokens=8))

    rest = lmsp.respond(lmsp.ask(input=[message(STORY), *cut["output"]], max_output_tokens=8))

    assert said(cut) + said(rest) == whole


def test_b6_3_a_cancelled_response_goes_on(lmsp):
    task = lmsp.make_task(lmsp.ask(STORY, max_output_tokens=None, store=True))
    with lmsp.open("GET", f"/tasks/{task['id']}/events") as events:
        next(event for event in events if event.name == "response.output_text.delta")
    cancelled = lmsp.post(f"/tasks/{task['id']}/cancel").json()["response"]

    rest = lmsp.respond(lmsp.ask(input=[], previous_response_id=task["response_id"], max_output_tokens=8))

    whole = lmsp.respond(lmsp.ask(STORY, max_output_tokens=cancelled["usage"]["output_tokens"] + 8))
    assert said(whole).startswith(said(cancelled) + said(rest))


def test_b6_3_a_completed_response_has_nothing_to_go_on_with(lmsp):
    answer = lmsp.respond(lmsp.ask(max_output_tokens=200, store=True))
    if answer["status"] != "completed":
        pytest.skip("the model did not come to an end")

    refused(lmsp.post("/responses", lmsp.ask(input=[], previous_response_id=answer["id"])), 400, "invalid_request")
