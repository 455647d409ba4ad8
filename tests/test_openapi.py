"""The OpenAPI document (B1.5): it is valid, it is whole, and it says what is accepted."""

import json

import jsonschema
import msgspec
import pytest
import schemathesis
from jsonschema import Draft202012Validator

from lmsp_jupyter import events, protocol
from lmsp_jupyter.chat import parse_chat
from lmsp_jupyter.errors import BadRequest, ModelNotFound
from lmsp_jupyter.openapi import document
from lmsp_jupyter.operations import OPERATIONS
from lmsp_jupyter.parsing import parse, parse_request, parse_task

pytestmark = pytest.mark.ours

DOCUMENT = document("http://localhost:8888/lmsp/v1")
SCHEMAS = DOCUMENT["components"]["schemas"]


def validator(name):
    return Draft202012Validator(DOCUMENT | {"$ref": f"#/components/schemas/{name}"})


def references(value):
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        yield from value.get("discriminator", {}).get("mapping", {}).values()
        value = value.values()
    if isinstance(value, dict | list) or not isinstance(value, str | int | float | None):
        for each in value:
            yield from references(each)


def test_b1_5_the_document_is_valid_openapi():
    schemathesis.openapi.from_dict(document("http://localhost:8888/lmsp/v1")).validate()

    assert DOCUMENT["openapi"].startswith("3.1.")


@pytest.mark.parametrize("name", SCHEMAS)
def test_b1_5_every_schema_is_a_schema(name):
    Draft202012Validator.check_schema(SCHEMAS[name])


def test_b1_5_the_document_is_json_and_always_the_same():
    assert json.dumps(document("/lmsp/v1")) == json.dumps(document("/lmsp/v1"))


def test_b1_5_the_document_names_its_server():
    assert DOCUMENT["servers"] == [{"url": "http://localhost:8888/lmsp/v1"}]


def test_b1_5_every_operation_is_described():
    described = {(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods}

    assert described == {(each.path or "/", each.method.lower()) for each in OPERATIONS}


def test_b1_5_every_operation_has_an_id_of_its_own():
    ids = [operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()]

    assert len(ids) == len(set(ids))


def test_b1_5_every_reference_leads_somewhere_and_every_schema_is_referred_to():
    found = set(references(DOCUMENT))
    components = {
        f"#/components/{kind}/{name}"
        for kind, named in DOCUMENT["components"].items()
        for name in named
        if kind != "securitySchemes"
    }

    assert found == components


def test_b1_5_the_operations_of_a_token_are_told_by_its_scopes():
    assert DOCUMENT["paths"]["/tasks"]["post"]["security"] == [{"bearer": ["tasks:create"]}]


def parameters(path, method):
    return {each.get("name", each.get("$ref")): each for each in DOCUMENT["paths"][path][method]["parameters"]}


def test_b2_1_every_operation_takes_and_answers_the_version():
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            assert {"$ref": "#/components/parameters/LMSP-Version"} in operation["parameters"]
            assert all("LMSP-Version" in answer["headers"] for answer in operation["responses"].values())


@pytest.mark.parametrize("path", ["/responses", "/tasks"])
def test_b2_5_an_idempotency_key_is_taken(path):
    schema = parameters(path, "post")["Idempotency-Key"]["schema"]

    for key in ("k", "8e03978e-40d5-43dd-bc93-6894a57f9324", '"a key"', "k" * 255):
        jsonschema.validate(key, schema)
    for key in ("", " k", "é", "k" * 256):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(key, schema)


def test_a4_2_a_task_is_resumed_by_header_or_query():
    taken = parameters("/tasks/{task_id}/events", "get")

    assert (taken["after"]["in"], taken["Last-Event-ID"]["in"]) == ("query", "header")


def content(path, method, status="200"):
    return DOCUMENT["paths"][path][method]["responses"][status].get("content", {})


def test_a3_1_a_response_is_an_object_or_an_event_stream():
    assert set(content("/responses", "post")) == {"application/json", "text/event-stream"}
    assert set(content("/responses/{response_id}", "get")) == {"application/json", "text/event-stream"}
    assert set(content("/chat/completions", "post")) == {"application/json", "text/event-stream"}
    assert set(content("/tasks/{task_id}/events", "get")) == {"text/event-stream"}


def test_b3_4_nothing_left_is_an_answer_without_a_body():
    assert content("/tasks/{task_id}/events", "get", "204") == {}


def test_b3_1_a_task_is_answered_with_its_place():
    answer = DOCUMENT["paths"]["/tasks"]["post"]["responses"]["202"]

    assert {"Location", "Idempotency-Replayed", "LMSP-Version"} == set(answer["headers"])


# What is accepted

MESSAGE = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}

ACCEPTED = {
    "a string as input": {"input": "Hello"},
    "an item as chapter 6 has it": {
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]
    },
    "an item with a role and no type": {"input": [MESSAGE]},
    "an item whose type is null": {"input": [MESSAGE | {"type": None}]},
    "content of strings": {"input": [{"role": "user", "content": ["Hello", {"type": "text", "text": "!"}]}]},
    "the role developer": {"input": [{"role": "developer", "content": "Be brief."}, MESSAGE]},
    "an assistant's message without content": {"input": [MESSAGE, {"role": "assistant", "content": None}]},
    "an assistant's message as it was received": {
        "input": [
            MESSAGE,
            {
                "type": "message",
                "id": "msg_1",
                "status": "incomplete",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}],
                "phase": "final",
            },
        ]
    },
    "reasoning as it was received": {
        "input": [
            MESSAGE,
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}], "content": None},
        ]
    },
    "reasoning without a summary": {"input": [MESSAGE, {"type": "reasoning", "encrypted_content": "x"}]},
    "a call and its output": {
        "input": [MESSAGE, CALL | {"id": None}, {"type": "function_call_output", "call_id": "c", "output": "1"}]
    },
    "an output of parts": {
        "input": [
            MESSAGE,
            CALL,
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "1"}]},
        ]
    },
    "null for everything that is optional": {
        "input": "Hello",
        **{
            field.encode_name: None
            for field in msgspec.structs.fields(protocol.Request)
            if field.name not in ("model", "input")
        },
    },
    "a tool": {"input": "Hello", "tools": [TOOL | {"strict": True}, {"type": "function", "name": "g"}]},
    "a tool by name": {"input": "Hello", "tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}},
    "a schema": {"input": "Hello", "response_format": SCHEMA},
    "a flat schema": {
        "input": "Hello",
        "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}, "strict": None}},
    },
    "null in what is optional itself": {
        "input": "Hello",
        "reasoning": {"effort": None},
        "text": {"format": None},
        "extensions": {"lmsp_jupyter": {"reasoning": {"enabled": None}}},
    },
    "extensions of others": {"input": "Hello", "extensions": {"acme": 5, "lmsp_jupyter": {"top_k": 5, "seed": None}}},
    "nothing more to say": {"input": [], "previous_response_id": "resp_1"},
    "metadata": {"input": "Hello", "metadata": {"a": "b"}, "store": True, "user": "ada", "truncation": "disabled"},
}

REFUSED = {
    "no model": {"input": "Hello", "model": None},
    "an empty model": {"input": "Hello", "model": ""},
    "no input": {},
    "empty input": {"input": ""},
    "input that is neither a string nor items": {"input": 5},
    "an item that is a string": {"input": ["Hello"]},
    "an item without a role or a type": {"input": [{"content": "Hello"}]},
    "an item of an unknown type": {"input": [{"type": "image", "role": "user", "content": "Hello"}]},
    "an unknown role": {"input": [{"role": "tool", "content": "Hello"}]},
    "a user's message without content": {"input": [{"role": "user"}]},
    "content of null": {"input": [{"role": "user", "content": None}]},
    "content that is no text": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
    "a part without text": {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
    "a call without its id": {"input": [MESSAGE, {"type": "function_call", "name": "f", "arguments": "{}"}]},
    "an output that is an object": {
        "input": [MESSAGE, CALL, {"type": "function_call_output", "call_id": "c", "output": {}}]
    },
    "an unknown status": {"input": [MESSAGE | {"status": "done"}]},
    "an unknown member": {"input": "Hello", "max_tokens": 5},
    "an unknown member of a tool": {"input": "Hello", "tools": [TOOL | {"parametres": {}}]},
    "a tool with a strange name": {"input": "Hello", "tools": [TOOL | {"name": "f g"}]},
    "an unknown choice": {"input": "Hello", "tool_choice": "any"},
    "a schema without a name": {
        "input": "Hello",
        "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
    },
    "an unknown option": {"input": "Hello", "extensions": {"lmsp_jupyter": {"top": 5}}},
    "an unknown member of what is optional itself": {"input": "Hello", "reasoning": {"budget": 5}},
    "a string for a number": {"input": "Hello", "temperature": "1"},
    "a boolean for a number": {"input": "Hello", "temperature": True},
    "a number out of its range": {"input": "Hello", "temperature": 3},
    "no tokens": {"input": "Hello", "max_output_tokens": 0},
    "a string for a boolean": {"input": "Hello", "stream": "true"},
    "a value that would change something": {"input": "Hello", "truncation": "auto"},
    "metadata that is no string": {"input": "Hello", "metadata": {"a": 1}},
}


def body(members):
    return {"model": "hello"} | members


@pytest.mark.parametrize("members", ACCEPTED.values(), ids=ACCEPTED)
def test_b0_2_what_is_accepted_is_valid(members):
    parse_request(json.dumps(body(members)).encode())

    validator("Request").validate(body(members))
    validator("TaskRequest").validate({"type": "response", "request": body(members), "metadata": None})


@pytest.mark.parametrize("members", REFUSED.values(), ids=REFUSED)
def test_b0_2_what_is_not_valid_is_refused(members):
    with pytest.raises(BadRequest):
        parse_request(json.dumps(body(members)).encode())

    assert not validator("Request").is_valid(body(members))
    assert not validator("TaskRequest").is_valid({"type": "response", "request": body(members)})


def read(name, data):
    body = json.dumps(data).encode()
    return parse_chat(body) if name == "ChatRequest" else parse(body, getattr(protocol, name))


OTHERS = {
    "TokenRequest": (
        [{"name": "n", "scopes": ["models:read"]}, {"name": "n", "scopes": ["tasks:read"], "expires_in": None}],
        [{"name": "n"}, {"name": "n", "scopes": ["tools:execute"]}, {"name": "n", "scopes": ["tasks:read"], "x": 1}],
    ),
    "ApprovalRequest": (
        [{"tool": "t", "arguments": "{}"}, {"tool": "t", "arguments": "{}", "task_id": "task_1", "expires_in": None}],
        [{"tool": "t"}, {"tool": "t", "arguments": {}}, {"tool": "t", "arguments": "{}", "expires_in": 0}],
    ),
    "ChatRequest": (
        [
            {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stop": ["."], "tools": None},
            {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "tool_choice": "none", "n": 1},
            {
                "model": "m",
                "messages": [
                    {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                    {"role": "user", "content": "Hello", "name": "ada"},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                        ],
                    },
                    {"role": "tool", "tool_call_id": "c", "content": "1"},
                ],
            },
        ],
        [
            {"model": "m"},
            {"model": "m", "messages": []},
            {"model": "m", "messages": [{"role": "user"}]},
            {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "n": 2},
            {"model": "m", "messages": [{"role": "user", "content": "Hello"}, {"role": "tool", "content": "1"}]},
        ],
    ),
    "ApprovalAnswer": ([{"decision": "always"}], [{}, {"decision": None}, {"decision": "yes"}]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_b0_2_other_bodies_are_valid_where_they_are_accepted(name):
    accepted, refused = OTHERS[name]
    for data in accepted:
        read(name, data)
        validator(name).validate(data)
    for data in refused:
        with pytest.raises(BadRequest):
            read(name, data)
        assert not validator(name).is_valid(data)


def test_b3_1_a_task_is_valid_where_it_is_accepted():
    task = {"type": "response", "request": body({"input": "Hello"})}
    parse_task(json.dumps(task).encode())
    validator("TaskRequest").validate(task)

    for wrong in (task | {"type": "batch"}, task | {"requests": []}, {"type": "response"}):
        with pytest.raises(BadRequest):
            parse_task(json.dumps(wrong).encode())
        assert not validator("TaskRequest").is_valid(wrong)


# What is sent


def sent(value):
    return json.loads(msgspec.json.encode(value))


def test_a2_2_a_response_is_valid_and_whole():
    message = protocol.Message(
        role="assistant", content=[protocol.OutputText(text="Hi")], id="msg_1", status="completed"
    )
    call = protocol.FunctionCall(call_id="c", name="f", arguments="{}")
    usage = protocol.Usage(input_tokens=1, output_tokens=1, total_tokens=2)
    response = sent(protocol.Response(id="resp_1", model="m", output=[message, call], usage=usage))

    validator("Response").validate(response)
    for member in ("id", "object", "created_at", "status", "model", "output", "usage", "error", "incomplete_details"):
        assert not validator("Response").is_valid({name: value for name, value in response.items() if name != member})


def test_b0_2_answers_are_never_in_a_lenient_form():
    response = sent(protocol.Response(id="resp_1", model="m"))

    assert not validator("Response").is_valid(response | {"output": [MESSAGE]})
    assert not validator("Response").is_valid(response | {"output": "Hello"})


def test_b2_2_an_error_is_a_problem():
    problem = ModelNotFound("There is no such model.", errors=[("/model", "No.")]).document("/lmsp/v1/responses")
    response = sent(protocol.Response(id="resp_1", model="m", status="failed", error=problem))

    validator("Problem").validate(problem)
    validator("Response").validate(response)
    assert not validator("Response").is_valid(response | {"error": {"message": "No."}})
    assert not validator("Problem").is_valid(problem | {"code": "service_unreachable"})


def test_b3_2_a_task_is_valid_with_and_without_its_response():
    task = protocol.Task(id="task_1", status="queued", created_at=1, model="m", response_id="resp_1")

    validator("Task").validate(sent(task))
    validator("Task").validate(sent(task) | {"response": None})
    assert "response" not in sent(task)


def test_b7_1_every_event_is_valid():
    composer = events.Composer("resp_1")
    told = [events.Created(response_id="resp_1", response=protocol.Response(id="resp_1", model="m"))]
    told += [events.Queued(response_id="resp_1", position=1), *composer.reasoning("Hm"), *composer.text("Hi")]
    told += [*composer.call("f"), *composer.arguments("{}"), *composer.called(), *composer.completed(None)]
    told += composer.failed(ModelNotFound())

    for event in told:
        validator("Event").validate(json.loads(events.encode(event)))
        assert not validator("Event").is_valid(json.loads(events.encode(event)) | {"type": "response.none"})
