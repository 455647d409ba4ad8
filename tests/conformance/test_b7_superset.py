"""B7: what clients of Responses APIs also get, and chat completions."""

import json

import jsonschema
import pytest

from . import sse
from .api import WEATHER, message, refused, said

pytestmark = pytest.mark.ours

STORY = "Tell me a long story."
CALL = {"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 120}


@pytest.fixture(scope="module")
def events(lmsp):
    return lmsp.stream(lmsp.ask())


@pytest.fixture(scope="module")
def called(lmsp):
    """The stream of a call."""
    return lmsp.stream(lmsp.ask("What is the weather in Oslo?", **CALL))


def named(events, name):
    return [event.data for event in events if event.name == name]


# B7.1


def test_b7_1_data_repeats_the_name_and_the_number(events, called):
    for event in [*events, *called]:
        assert (event.data["type"], event.data["sequence_number"]) == (event.name, event.id)


def test_b7_1_the_whole_response_comes_with_its_first_and_last_events(events):
    (created,), (started,) = named(events, "response.created"), named(events, "response.in_progress")

    for data in (created, started, events[-1].data):
        assert data["response"]["id"] == data["response_id"]
        assert data["response"]["object"] == "response"
        assert data["response"]["status"] == data["status"]
    assert created["response"]["output"] == []
    assert events[-1].data["response"]["usage"] == events[-1].data["usage"]


def test_b7_1_deltas_have_their_place(events):
    places = {(data["output_index"], data["content_index"]) for data in named(events, "response.output_text.delta")}

    assert places == {(0, 0)}


def test_b7_1_items_have_a_status_and_parts_their_lists(lmsp, events, called):
    for data in named(events, "response.output_item.added") + named(called, "response.output_item.added"):
        assert data["item"]["status"] == "in_progress"
    for item in sse.items(events) + sse.items(called):
        assert item["status"] in ("completed", "incomplete")
    for part in sse.items(events)[0]["content"]:
        assert (part["annotations"], part["logprobs"]) == ([], [])


# B7.2


def test_b7_2_the_parts_of_a_message(events):
    (added,) = named(events, "response.content_part.added")
    (text,) = named(events, "response.output_text.done")
    (part,) = named(events, "response.content_part.done")

    assert added["part"]["type"] == part["part"]["type"] == "output_text"
    assert added["part"]["text"] == ""
    assert text["text"] == part["part"]["text"] == sse.text(events)
    assert {each["item_id"] for each in (added, text, part)} == {sse.items(events)[0]["id"]}


def test_b7_2_the_arguments_of_a_call(called):
    (call, *_) = [item for item in sse.items(called) if item["type"] == "function_call"]
    deltas = named(called, "response.function_call_arguments.delta")
    done = named(called, "response.function_call_arguments.done")[0]

    assert "".join(data["delta"] for data in deltas if data["item_id"] == call["id"]) == call["arguments"]
    assert (done["item_id"], done["arguments"]) == (call["id"], call["arguments"])


@pytest.mark.needs("reasoning")
def test_b7_2_the_summary_of_reasoning(lmsp):
    events = lmsp.stream(lmsp.ask(max_output_tokens=100))
    names = [event.name for event in events]

    for name in ("part.added", "text.delta", "text.done", "part.done"):
        assert f"response.reasoning_summary_{name}" in names


# B7.3


def test_b7_3_the_members_of_a_response(lmsp):
    response = lmsp.respond(lmsp.ask(max_output_tokens=4, instructions="Be brief.", metadata={"a": "b"}))

    members = [
        "completed_at",
        "previous_response_id",
        "instructions",
        "tools",
        "tool_choice",
        "truncation",
        "parallel_tool_calls",
        "text",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "top_logprobs",
        "temperature",
        "reasoning",
        "max_output_tokens",
        "max_tool_calls",
        "store",
        "background",
        "service_tier",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
    ]
    assert set(members) <= response.keys()
    assert response["truncation"] == "disabled"
    assert response["instructions"] == "Be brief."
    assert response["metadata"] == {"a": "b"}
    assert (response["temperature"], response["max_output_tokens"], response["store"]) == (0, 4, False)
    assert isinstance(response["usage"]["input_tokens_details"]["cached_tokens"], int)
    assert isinstance(response["usage"]["output_tokens_details"]["reasoning_tokens"], int)


def test_b7_3_tools_are_told_again(called):
    response = called[-1].data["response"]

    assert response["tool_choice"] == "required"
    (tool,) = response["tools"]
    assert (tool["type"], tool["name"], tool["parameters"]) == ("function", "get_weather", WEATHER["parameters"])


# B7.4


def test_b7_4_instructions_are_a_system_message_in_front(lmsp):
    told = lmsp.size([message("Hello")], instructions="Be brief.")

    assert told == lmsp.size([message("Be brief.", "system"), message("Hello")])


def test_b7_4_text_format(lmsp):
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    flat = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}

    response = lmsp.respond(lmsp.ask(text=flat, max_output_tokens=60))

    assert response["status"] == "completed"
    jsonschema.validate(json.loads(said(response)), schema)


@pytest.mark.parametrize(
    "more",
    [
        {"top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": -0.1},
        {"parallel_tool_calls": False},
        {"reasoning": {"effort": "none"}},
        {"text": {"format": {"type": "text"}}},
        {"truncation": "disabled"},
        {"service_tier": "auto"},
        {"top_logprobs": 0},
        {"include": []},
        {"user": "me", "safety_identifier": "me", "prompt_cache_key": "k"},
    ],
    ids=str,
)
def test_b7_4_what_is_also_accepted(lmsp, more):
    lmsp.respond(lmsp.ask(max_output_tokens=1, **more))


@pytest.mark.parametrize(
    "more",
    [
        {"truncation": "auto"},
        {"service_tier": "priority"},
        {"top_logprobs": 3},
        {"include": ["reasoning.encrypted_content"]},
        {"max_tool_calls": 2},
        {"top_p": 2},
        {"metadata": {"a": 1}},
    ],
    ids=str,
)
def test_b7_4_only_with_a_neutral_value(lmsp, more):
    (name,) = more

    problem = refused(lmsp.post("/responses", lmsp.ask(**more)), 400, "invalid_request")
    assert problem["param"].startswith(f"/{name}")


# B7.5


def test_b7_5_background_needs_store(lmsp):
    refused(lmsp.post("/responses", lmsp.ask(background=True)), 400, "invalid_request", "/background")


def test_b7_5_background_answers_at_once_with_a_task(lmsp):
    response = lmsp.respond(lmsp.ask(background=True, store=True))

    assert response["status"] == "in_progress"
    assert response["background"] is True
    lmsp.follow({"id": response["task_id"]})
    done = lmsp.get(f"/responses/{response['id']}").json()
    assert done["status"] in ("completed", "incomplete")
    assert lmsp.task({"id": response["task_id"]})["response"]["output"] == done["output"]


def test_b7_5_a_background_stream_goes_on_without_its_reader_and_either_route_resumes_it(lmsp):
    request = lmsp.ask(background=True, store=True, stream=True)
    with lmsp.open("POST", "/responses", json=request) as stream:
        seen = [next(stream), next(stream), next(stream)]
    response = seen[0].data["response"]

    by_task = lmsp.follow({"id": response["task_id"]}, after=3)
    resumed = lmsp.get(f"/responses/{response['id']}", params={"stream": "true", "starting_after": 3})

    assert list(sse.read([resumed.content])) == by_task
    assert by_task[-1].name in ("response.completed", "response.incomplete")
    assert [event.id for event in seen + by_task] == list(range(1, by_task[-1].id + 1))


def test_b7_5_a_tasks_response_is_replayed_from_its_beginning(lmsp):
    task = lmsp.finish(lmsp.ask(store=True))

    replay = lmsp.get(f"/responses/{task['response_id']}", params={"stream": "true"})

    assert list(sse.read([replay.content])) == lmsp.follow(task)


def test_b7_5_another_response_has_no_stream(lmsp):
    response = lmsp.respond(lmsp.ask(store=True, max_output_tokens=1))

    refused(lmsp.get(f"/responses/{response['id']}", params={"stream": "true"}), 400, "invalid_request")


# B7.6


def chat(lmsp, text="Name three fruits.", **more):
    base = {"model": lmsp.model, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24}
    return {name: value for name, value in (base | more).items() if value is not None}


def complete(lmsp, **more):
    answer = lmsp.post("/chat/completions", chat(lmsp, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks(lmsp, **more):
    """The chunks of a chat stream."""
    answer = lmsp.post("/chat/completions", chat(lmsp, stream=True, **more))
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].partition(";")[0] == "text/event-stream"
    lines = [line for line in answer.text.split("\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)  # no `id:`
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_b7_6_a_chat_completion_says_what_a_response_says(lmsp):
    completion, response = complete(lmsp), lmsp.respond(lmsp.ask())

    (choice,) = completion["choices"]
    assert (completion["object"], completion["model"]) == ("chat.completion", lmsp.model)
    assert (choice["message"]["role"], choice["message"]["content"]) == ("assistant", said(response))
    assert choice["finish_reason"] == {"completed": "stop", "incomplete": "length"}[response["status"]]
    assert completion["usage"]["prompt_tokens"] == response["usage"]["input_tokens"]
    assert completion["usage"]["completion_tokens"] == response["usage"]["output_tokens"]


def test_b7_6_a_chat_stream(lmsp):
    streamed = chunks(lmsp, stream_options={"include_usage": True})

    deltas = [choice["delta"].get("content") or "" for chunk in streamed for choice in chunk["choices"]]
    assert {chunk["object"] for chunk in streamed} == {"chat.completion.chunk"}
    assert "".join(deltas) == complete(lmsp)["choices"][0]["message"]["content"]
    assert streamed[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_b7_6_limits(lmsp, limit):
    completion = complete(lmsp, text=STORY, **{"max_tokens": None, limit: 3})

    assert completion["choices"][0]["finish_reason"] == "length"
    assert completion["usage"]["completion_tokens"] <= 3


def test_b7_6_seed_and_stop(lmsp):
    sampled = [complete(lmsp, text=STORY, temperature=1.5, seed=7, max_tokens=8) for _ in range(2)]
    whole = complete(lmsp, text=STORY, max_tokens=12)["choices"][0]["message"]["content"]
    stop = whole.split()[-2]
    stopped = complete(lmsp, text=STORY, max_tokens=12, stop=[stop])["choices"][0]

    assert len({completion["choices"][0]["message"]["content"] for completion in sampled}) == 1
    assert stopped["message"]["content"] == whole[: whole.index(stop)]
    assert stopped["finish_reason"] == "stop"


def test_b7_6_tools(lmsp):
    function = {name: WEATHER[name] for name in ("name", "description", "parameters")}
    more = {"tools": [{"type": "function", "function": function}], "tool_choice": "required", "max_tokens": 120}

    (choice,) = complete(lmsp, **more)["choices"]

    (call, *_) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER["parameters"])
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    turns = [{"role": "user", "content": "What is the weather in Oslo?"}, choice["message"], result]
    assert complete(lmsp, messages=turns, tools=more["tools"], max_tokens=8)["choices"]


def test_b7_6_response_format(lmsp):
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}

    (choice,) = complete(lmsp, response_format=format, max_tokens=60)["choices"]

    jsonschema.validate(json.loads(choice["message"]["content"]), schema)


@pytest.mark.parametrize(
    ("more", "status", "code"),
    [
        ({"model": "none-such"}, 404, "model_not_found"),
        ({"temperature": 9}, 400, "invalid_request"),
        ({"messages": []}, 400, "invalid_request"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_b7_6_its_problems_also_carry_error(lmsp, more, status, code, streamed):
    problem = refused(lmsp.post("/chat/completions", chat(lmsp, stream=streamed, **more)), status, code)

    assert problem["error"]["message"] == problem["detail"]
    assert problem["error"]["code"] == code
    assert {"type", "param"} <= problem["error"].keys()
