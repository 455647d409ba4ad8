"""B0.7, B0.9, B0.10: calls of tools, enforced for every model."""

import json

import jsonschema
import pytest

from . import sse
from .api import WEATHER, calls, message, refused

pytestmark = pytest.mark.ours

QUESTION = "What is the weather in Oslo?"
NOW = {
    "type": "function",
    "name": "now",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
CALL = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Oslo"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}


def ask(lmsp, **more):
    return lmsp.ask(QUESTION, **{"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 120} | more)


def test_b0_7_a_call_that_is_cut_is_dropped(lmsp):
    events = lmsp.stream(ask(lmsp, max_output_tokens=4))

    assert events[-1].name == "response.incomplete"
    assert events[-1].data["incomplete_details"] == {"reason": "max_output_tokens"}
    assert calls({"output": sse.items(events)}) == []
    assert calls(events[-1].data["response"]) == []


def test_b0_9_every_model_has_tools_and_structured_output(lmsp):
    models = [model for model in lmsp.get("/models").json()["data"] if model["state"] != "failed"]

    assert models
    for model in models:
        assert {"tools", "structured_output"} <= set(model["capabilities"])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_b0_9_arguments_keep_to_their_schema(lmsp, choice):
    response = lmsp.respond(ask(lmsp, tool_choice=choice))

    assert response["status"] == "completed"
    assert calls(response)
    for call in calls(response):
        assert call["name"] == "get_weather"
        jsonschema.validate(json.loads(call["arguments"]), WEATHER["parameters"])


def test_b0_9_a_function_without_parameters_is_called_with_an_object(lmsp):
    (call, *_) = calls(lmsp.respond(ask(lmsp, tools=[NOW])))

    assert (call["name"], json.loads(call["arguments"])) == ("now", {})


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"tools": None}, "/tool_choice"),
        ({"tools": []}, "/tool_choice"),
        ({"tools": None, "tool_choice": {"type": "function", "name": "get_weather"}}, "/tool_choice/name"),
        ({"tool_choice": {"type": "function", "name": "get_whether"}}, "/tool_choice/name"),
        ({"tools": [WEATHER, WEATHER]}, "/tools/1/name"),
    ],
)
def test_b0_10_choices_and_names_that_do_not_fit(lmsp, more, pointer):
    problem = refused(lmsp.post("/responses", ask(lmsp, **more)), 400, "invalid_request")

    # A choice without tools may be blamed as a whole or for its name.
    assert pointer.startswith(problem["param"])
    assert problem["param"] != ""


def test_b0_10_required_that_hits_the_limit_is_incomplete_without_a_call(lmsp):
    response = lmsp.respond(ask(lmsp, max_output_tokens=4))

    assert (response["status"], calls(response)) == ("incomplete", [])


@pytest.mark.parametrize(
    "context",
    [
        [message(QUESTION), OUTPUT],
        [message(QUESTION), OUTPUT, CALL],
        [message(QUESTION), CALL, CALL | {"arguments": "{}"}],
        [message(QUESTION), CALL, OUTPUT | {"call_id": "call_2"}],
    ],
)
def test_b0_10_outputs_without_a_call_and_repeated_call_ids(lmsp, context):
    refused(lmsp.post("/responses", ask(lmsp, input=context)), 400, "invalid_request")


@pytest.mark.parametrize(
    "context",
    [
        [message(QUESTION), CALL],
        [message(QUESTION), CALL, message("Never mind.")],
        [message(QUESTION), CALL | {"arguments": "Oslo, please"}, OUTPUT],
        [message(QUESTION), CALL, OUTPUT],
    ],
)
def test_b0_10_what_is_accepted_of_old_calls(lmsp, context):
    lmsp.respond(ask(lmsp, input=context, tool_choice="auto", max_output_tokens=1))


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_b0_10_parameters_that_cannot_be_enforced(lmsp, choice):
    broken = WEATHER | {"parameters": {"type": "object", "properties": {"city": {"type": "town"}}}}

    problem = refused(lmsp.post("/responses", ask(lmsp, tools=[broken], tool_choice=choice)), 400, "invalid_schema")

    assert problem["param"].startswith("/tools/0/parameters")
