"""A5: calls of tools, which the client runs."""

import json

import pytest

from . import sse
from .api import WEATHER, calls, message

pytestmark = [pytest.mark.chapter6, pytest.mark.needs("tools")]

QUESTION = "What is the weather in Oslo?"
TIME = {
    "type": "function",
    "name": "get_time",
    "description": "Get the time.",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}


def ask(lmsp, **more):
    return lmsp.ask(QUESTION, **{"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 500} | more)


@pytest.fixture(scope="module")
def response(lmsp):
    """A response that calls."""
    return lmsp.respond(ask(lmsp))


def test_a5_1_the_service_runs_nothing(response):
    assert not [item for item in response["output"] if item["type"] == "function_call_output"]


def test_a5_2_and_a2_3_a_call_is_an_item_and_the_response_is_completed(response):
    assert response["status"] == "completed"
    assert calls(response)
    for call in calls(response):
        assert call["name"] == "get_weather"
        assert isinstance(call["id"], str)
        assert isinstance(call["call_id"], str)
        assert isinstance(json.loads(call["arguments"]), dict)


@pytest.mark.parametrize("choice", [None, "auto"])
def test_a5_3_with_auto_the_model_is_free(lmsp, choice):
    response = lmsp.respond(ask(lmsp, tool_choice=choice, max_output_tokens=lmsp.enough))

    assert response["status"] in ("completed", "incomplete")


def test_a5_3_with_none_there_is_no_call(lmsp):
    assert calls(lmsp.respond(ask(lmsp, tool_choice="none", max_output_tokens=lmsp.enough))) == []


@pytest.mark.parametrize("name", ["get_weather", "get_time"])
def test_a5_3_a_function_is_chosen_by_its_name(lmsp, name):
    response = lmsp.respond(ask(lmsp, tools=[WEATHER, TIME], tool_choice={"type": "function", "name": name}))

    assert {call["name"] for call in calls(response)} == {name}


def test_a5_4_in_a_stream_a_call_arrives_whole(lmsp):
    events = lmsp.stream(ask(lmsp))

    (call, *_) = calls({"output": sse.items(events)})
    assert events[-1].name == "response.completed"
    assert call["name"] == "get_weather"
    assert call["call_id"]
    assert isinstance(json.loads(call["arguments"]), dict)


def test_a5_5_the_output_goes_back_with_the_call_as_it_was_received(lmsp, response):
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": '{"temperature_c": 3}'}
        for call in calls(response)
    ]
    context = [message(QUESTION), *response["output"], *outputs]

    answer = lmsp.respond(ask(lmsp, input=context, tool_choice="auto", max_output_tokens=lmsp.enough))

    assert answer["status"] in ("completed", "incomplete")
    assert answer["usage"]["input_tokens"] > response["usage"]["input_tokens"]
