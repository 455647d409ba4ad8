"""Chat completions as requests, responses and events (B7.6)."""

import json

import pytest

from lmsp_jupyter.chat import Chunks, chat_document, completion, parse_chat
from lmsp_jupyter.errors import (
    BadRequest,
    EngineCrashed,
    InvalidSchema,
    PayloadTooLarge,
    QueueFull,
    UnknownParameter,
    UnsupportedContent,
)
from lmsp_jupyter.events import Composer, Created, Fold, InProgress, Queued
from lmsp_jupyter.parsing import parse_request
from lmsp_jupyter.protocol import Response, Usage

pytestmark = pytest.mark.ours

USAGE = Usage(input_tokens=3, output_tokens=2, total_tokens=5)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
USER = {"role": "user", "content": "Hi."}


def parse(*messages, **members):
    body = {"model": "m", "messages": messages or [USER]} | members
    return parse_chat(json.dumps(body).encode())


def translated(*messages, **members):
    return parse(*messages, **members)[1]


def request(**members):
    """The request that a chat request should stand for."""
    return parse_request(json.dumps({"model": "m", "input": [USER]} | members).encode())


def refusal(*messages, **members):
    with pytest.raises(BadRequest) as caught:
        parse(*messages, **members)
    return caught.value


def tool(name="f", **members):
    return {"type": "function", "function": {"name": name} | members}


def calls(*ids, name="f", arguments="{}", **more):
    function = {"name": name, "arguments": arguments}
    made = [{"id": id, "type": "function", "function": function} for id in ids]
    return {"role": "assistant", "tool_calls": made} | more


def output(id, content="1"):
    return {"role": "tool", "tool_call_id": id, "content": content}


# From a chat request to a request.


@pytest.mark.parametrize(
    ("members", "meant"),
    [
        ({}, {}),
        ({"stream": True}, {"stream": True}),
        ({"max_tokens": 5}, {"max_output_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_output_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 5}, {"max_output_tokens": 5}),
        ({"temperature": 0}, {"temperature": 0}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"frequency_penalty": 1, "presence_penalty": -1}, {"frequency_penalty": 1, "presence_penalty": -1}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"metadata": {"a": "b"}}, {"metadata": {"a": "b"}}),
        ({"seed": 7}, {"extensions": {"lmsp_jupyter": {"seed": 7}}}),
        ({"stop": "\n"}, {"extensions": {"lmsp_jupyter": {"stop": ["\n"]}}}),
        ({"stop": ["a", "b"]}, {"extensions": {"lmsp_jupyter": {"stop": ["a", "b"]}}}),
        ({"reasoning_effort": "none"}, {"reasoning": {"effort": "none"}}),
        ({"reasoning_effort": "high"}, {"reasoning": {"effort": "high"}}),
        (
            {"tools": [tool(description="Does it.", parameters=SCHEMA, strict=True)]},
            {
                "tools": [
                    {"type": "function", "name": "f", "description": "Does it.", "parameters": SCHEMA, "strict": True}
                ]
            },
        ),
        (
            {"tools": [tool()], "tool_choice": "required"},
            {"tools": [{"type": "function", "name": "f"}], "tool_choice": "required"},
        ),
        (
            {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "f"}},
        ),
        ({"response_format": {"type": "text"}}, {"response_format": {"type": "text"}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        ),
    ],
    ids=str,
)
def test_members_are_those_of_a_request(members, meant):
    assert translated(**members) == request(**meant)


def test_a_json_object_is_any_object():
    assert translated(response_format={"type": "json_object"}).schema == {"type": "object"}


@pytest.mark.parametrize(
    "member",
    [
        {"n": 1},
        {"logprobs": False},
        {"store": False},
        {"service_tier": "auto"},
        {"user": "ann"},
        {"safety_identifier": "x"},
        {"prompt_cache_key": "x"},
        {"stream_options": {"include_usage": True}},
    ],
    ids=str,
)
def test_what_changes_nothing_is_accepted(member):
    assert translated(**member) == request()


@pytest.mark.parametrize(
    "member",
    [
        *("stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop"),
        *("frequency_penalty", "presence_penalty", "tools", "tool_choice", "parallel_tool_calls", "response_format"),
        *("reasoning_effort", "metadata", "n", "logprobs", "store", "user"),
    ],
)
def test_b0_2_null_means_absent(member):
    assert translated(**{member: None}) == request()


def test_usage_in_a_stream_is_told_when_it_is_asked_for():
    assert parse(stream_options={"include_usage": True})[0].include_usage
    assert not parse(stream_options={})[0].include_usage
    assert not parse()[0].include_usage


def test_messages_become_items():
    said = translated(
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Wh"}, {"type": "text", "text": "y?"}], "name": "ann"},
        {"role": "assistant", "content": "Because."},
        USER,
    )

    assert [(item.role, item.text) for item in said.input] == [
        ("system", "Be brief."),
        ("system", "Be kind."),
        ("user", "Why?"),
        ("assistant", "Because."),
        ("user", "Hi."),
    ]


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}], ids=str)
def test_calls_without_a_text_are_calls_alone(content):
    said = translated(USER, calls("a", "b", **content), output("a"), output("b", "2"))

    assert said == request(
        input=[
            USER,
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            {"type": "function_call_output", "call_id": "b", "output": "2"},
        ]
    )


def test_calls_with_a_text_follow_it():
    said = translated(USER, calls("a", content="Let me see."), output("a"))

    assert [type(item).__name__ for item in said.input] == ["Message", "Message", "FunctionCall", "FunctionCallOutput"]


def test_an_output_in_parts_is_their_text_joined():
    parts = [{"type": "text", "text": "Ei"}, {"type": "text", "text": "ns"}]

    assert translated(USER, calls("a"), output("a", parts)).input[-1].output == "Eins"


# Refusals.


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"model": ""}, "/model"),
        ({"messages": []}, "/messages"),
        ({"messages": "Hi."}, "/messages"),
        ({"messages": ["Hi."]}, "/messages/0"),
        ({"max_tokens": 0}, "/max_tokens"),
        ({"max_completion_tokens": 0}, "/max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "/max_tokens"),
        ({"temperature": 3}, "/temperature"),
        ({"seed": -1}, "/seed"),
        ({"stop": 5}, "/stop"),
        ({"stop": ["a", ""]}, "/stop/1"),
        ({"n": 2}, "/n"),
        ({"logprobs": True}, "/logprobs"),
        ({"store": True}, "/store"),
        ({"stream_options": {"include_usage": 1}}, "/stream_options/include_usage"),
        ({"tools": [{"type": "function"}]}, "/tools/0/function"),
        ({"tools": [tool("two words")]}, "/tools/0/function/name"),
        ({"tools": [tool("f"), tool("f")]}, "/tools/1/function/name"),
        ({"tool_choice": "required"}, "/tool_choice"),
        (
            {"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "/tool_choice/function/name",
        ),
        ({"tool_choice": {"type": "function", "name": "f"}}, "/tool_choice/name"),
        ({"response_format": {"type": "xml"}}, "/response_format/type"),
    ],
    ids=str,
)
def test_a_pointer_is_the_chat_requests_own(members, pointer):
    assert refusal(**members).param == pointer


@pytest.mark.parametrize(
    ("messages", "pointer"),
    [
        ([USER, {"role": "cook", "content": "Hi."}], "/messages/1/role"),
        ([USER, {"content": "Hi."}], "/messages/1/role"),
        ([USER, {"role": "user"}], "/messages/1/content"),
        ([USER, {"role": "user", "content": [{"type": "text"}]}], "/messages/1/content/0/text"),
        ([USER, {"role": "tool", "content": "1"}], "/messages/1/tool_call_id"),
        ([USER, {"role": "tool", "tool_call_id": "a"}], "/messages/1/content"),
        ([USER, calls("a", "b", content="So."), {"role": "cook", "content": ""}], "/messages/2/role"),
        ([USER, {"role": "assistant", "tool_calls": {"a": 1}}], "/messages/1/tool_calls"),
        ([USER, {"role": "assistant", "tool_calls": ["f"]}], "/messages/1/tool_calls/0/function"),
        ([output("a")], "/messages"),
    ],
    ids=str,
)
def test_a_pointer_into_a_message_is_the_chat_requests_own(messages, pointer):
    assert refusal(*messages).param == pointer


@pytest.mark.parametrize(
    ("call", "pointer"),
    [
        ({"function": {"name": "f", "arguments": "{}"}}, "/id"),
        ({"id": "b", "function": {"arguments": "{}"}}, "/function/name"),
        ({"id": "b", "function": {"name": "f"}}, "/function/arguments"),
    ],
    ids=str,
)
def test_a_pointer_into_a_tool_call_is_the_chat_requests_own(call, pointer):
    messages = calls("a")
    messages["tool_calls"].append({"type": "function"} | call)

    assert refusal(USER, messages).param == f"/messages/1/tool_calls/1{pointer}"


def test_a_pointer_to_a_single_stop_string_is_the_chat_requests_own():
    assert refusal(stop="").param == "/stop"


def test_the_words_of_a_problem_point_where_it_does():
    problem = refusal(USER, {"role": "cook", "content": "Hi."})

    assert "/input" not in problem.detail
    assert problem.param in problem.detail


def test_kinds_of_problems_are_those_of_a_request():
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    problem = refusal(USER, image)
    assert type(problem) is UnsupportedContent
    assert problem.param == "/messages/1/content/0"

    problem = refusal(USER, calls("a"), output("a", [{"type": "image_url"}]))
    assert type(problem) is UnsupportedContent
    assert problem.param == "/messages/2/content/0"

    problem = refusal(tools=[tool(parameters={"properties": {"a": {"not": {}}}})])
    assert type(problem) is InvalidSchema
    assert problem.param == "/tools/0/function/parameters/properties/a/not"

    chosen = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}
    problem = refusal(response_format=chosen)
    assert type(problem) is InvalidSchema
    assert problem.param == "/response_format/json_schema/schema/not"

    problem = refusal(max_token=5)
    assert type(problem) is UnknownParameter
    assert problem.param == "/max_token"
    assert "'max_tokens'" in problem.detail


def test_b2_6_a_body_that_is_too_large_is_refused():
    with pytest.raises(PayloadTooLarge):
        parse_chat(b'{"model":"m","messages":[]}', max_bytes=5)


# From a response to a completion.


SAID = {
    "nothing": [],
    "text": [("text", "Be"), ("text", "cause.")],
    "reasoning, then text": [("reasoning", "Hm"), ("reasoning", "m."), ("text", "So.")],
    "a call": [("call", "f"), ("arguments", '{"a":'), ("arguments", "1}"), ("called",)],
    "text, then two calls": [
        ("text", "Let me see."),
        *[("call", "f"), ("arguments", "{}"), ("called",)],
        *[("call", "g"), ("called",)],
    ],
    "a cut call": [("call", "f"), ("arguments", '{"a":')],
}


def events(said, ending="completed"):
    composer = Composer("resp_1")
    endings = {
        "completed": lambda: composer.completed(USAGE),
        "max_output_tokens": lambda: composer.incomplete("max_output_tokens", USAGE),
        "context_length": lambda: composer.incomplete("context_length", USAGE),
        "stop": lambda: composer.incomplete("stop", USAGE),
        "failed": lambda: composer.failed(EngineCrashed("It died."), USAGE),
        "cancelled": lambda: composer.cancelled(USAGE),
    }
    started = [
        Created(response_id="resp_1", response=Response(id="resp_1", created_at=1, model="m")),
        Queued(response_id="resp_1", position=1),
        InProgress(response_id="resp_1"),
    ]
    return [
        *started,
        *(event for kind, *delta in said for event in getattr(composer, kind)(*delta)),
        *endings[ending](),
    ]


def response(said, ending="completed"):
    return folded(events(said, ending))


def folded(stream):
    fold = Fold()
    for event in stream:
        fold.apply(event)
    return fold.response


def test_a_completion_is_the_whole_answer():
    assert completion(response(SAID["text"])) == {
        "id": "resp_1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Because.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        "system_fingerprint": None,
    }


def message_of(said, ending="completed"):
    (choice,) = completion(response(said, ending))["choices"]
    return choice["message"], choice["finish_reason"]


def test_an_answer_without_a_word_is_an_empty_text():
    assert message_of(SAID["nothing"])[0]["content"] == ""


def test_reasoning_stands_beside_the_text():
    message, _ = message_of(SAID["reasoning, then text"])

    assert (message["content"], message["reasoning_content"]) == ("So.", "Hmm.")


def test_calls_are_tool_calls():
    answer = response(SAID["a call"])
    message, reason = message_of(SAID["a call"])

    assert (message["content"], reason) == (None, "tool_calls")
    (call,) = completion(answer)["choices"][0]["message"]["tool_calls"]
    assert call == {
        "id": answer.output[0].call_id,
        "type": "function",
        "function": {"name": "f", "arguments": '{"a":1}'},
    }


def test_calls_may_follow_a_text():
    message, reason = message_of(SAID["text, then two calls"])

    assert (message["content"], reason) == ("Let me see.", "tool_calls")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f", "g"]


@pytest.mark.parametrize(
    ("ending", "finish_reason"),
    [("completed", "stop"), ("max_output_tokens", "length"), ("context_length", "length"), ("stop", "stop")],
)
def test_the_end_has_a_reason(ending, finish_reason):
    assert message_of(SAID["text"], ending)[1] == finish_reason


def test_b0_7_a_call_that_is_cut_is_not_told():
    message, reason = message_of(SAID["a cut call"], "max_output_tokens")

    assert reason == "length"
    assert "tool_calls" not in message


def test_usage_that_is_not_known_is_null():
    assert completion(Response(id="resp_1"))["usage"] is None


def test_a_completion_is_a_message_of_the_next_request():
    message, _ = message_of(SAID["text, then two calls"])
    ids = [call["id"] for call in message["tool_calls"]]

    said = translated(USER, message, *map(output, ids))

    assert [type(item).__name__ for item in said.input[1:]] == [
        *("Message", "FunctionCall", "FunctionCall"),
        *("FunctionCallOutput", "FunctionCallOutput"),
    ]


# From events to chunks.


def frames(stream, include_usage=False):
    """The data of every frame that is sent of a stream."""
    framed = Chunks(stream[0].response, include_usage=include_usage)
    sent = b"".join([framed.first(), *map(framed.take, stream)])
    assert sent.isascii()
    assert sent.endswith(b"\n\n")
    parts = sent.decode().removesuffix("\n\n").split("\n\n")
    assert all(part.startswith("data: ") for part in parts)
    return [part.removeprefix("data: ") for part in parts]


def chunks_of(said, ending="completed", **more):
    return chunks(events(said, ending), **more)


def chunks(stream, **more):
    *told, done = frames(stream, **more)
    assert done == "[DONE]"
    return [json.loads(each) for each in told]


def put_together(received):
    """The message that a chat client makes of its chunks."""
    message = {"role": None, "content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in received:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["role"] = delta.get("role") or message["role"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append(call | {"function": dict(call["function"])})
                else:
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


@pytest.mark.parametrize("said", [each for name, each in SAID.items() if name != "a cut call"], ids=str)
def test_chunks_put_together_are_the_completion(said):
    stream = events(said)
    whole = completion(folded(stream))["choices"][0]["message"]

    message = put_together(chunks(stream))

    assert message["role"] == whole["role"]
    assert message["content"] == (whole["content"] or "")
    assert message["reasoning_content"] == whole.get("reasoning_content", "")
    assert [{name: call[name] for name in ("id", "type", "function")} for call in message["tool_calls"]] == whole.get(
        "tool_calls", []
    )


def test_every_chunk_has_its_frame():
    for chunk in chunks_of(SAID["text"]):
        assert (chunk["id"], chunk["object"], chunk["created"], chunk["model"]) == (
            "resp_1",
            "chat.completion.chunk",
            1,
            "m",
        )
        assert "usage" not in chunk
        assert [choice["index"] for choice in chunk["choices"]] == [0]


def test_the_first_chunk_opens_the_message_and_the_last_ends_it():
    first, *between, last = chunks_of(SAID["text"])

    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"] for chunk in between] == [{"content": "Be"}, {"content": "cause."}]
    assert last["choices"][0]["delta"] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in (first, *between, last)] == [None, None, None, "stop"]


def test_a_call_opens_with_its_name_and_goes_on_with_its_arguments():
    _, opened, *pieces, last = chunks_of(SAID["a call"])

    (call,) = opened["choices"][0]["delta"]["tool_calls"]
    assert (call["index"], call["type"], call["function"]) == (0, "function", {"name": "f", "arguments": ""})
    assert call["id"].startswith("call_")
    assert [piece["choices"][0]["delta"]["tool_calls"] for piece in pieces] == [
        [{"index": 0, "function": {"arguments": text}}] for text in ('{"a":', "1}")
    ]
    assert last["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("ending", "finish_reason"),
    [("completed", "stop"), ("max_output_tokens", "length"), ("context_length", "length"), ("stop", "stop")],
)
def test_the_last_chunk_says_how_it_ended(ending, finish_reason):
    assert chunks_of(SAID["text"], ending)[-1]["choices"][0]["finish_reason"] == finish_reason


def test_b0_7_a_call_that_is_cut_ends_as_its_length():
    assert chunks_of(SAID["a cut call"], "max_output_tokens")[-1]["choices"][0]["finish_reason"] == "length"


def test_b0_7_a_call_that_is_cancelled_is_not_to_be_made():
    assert chunks_of(SAID["a cut call"], "cancelled")[-1]["choices"][0]["finish_reason"] != "tool_calls"


def test_usage_comes_last_and_alone_if_it_is_asked_for():
    *told, last = chunks_of(SAID["text"], include_usage=True)

    assert {chunk["usage"] for chunk in told} == {None}
    assert told[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 5


def test_a_failure_ends_the_stream_with_its_error():
    *_, last = frames(events(SAID["text"], "failed"))

    assert json.loads(last) == {
        "error": {"message": "It died.", "type": "server_error", "code": "engine_crashed", "param": None}
    }


# Problems.


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (BadRequest("No.", errors=[("/messages/0", "No.")]), "invalid_request_error"),
        (QueueFull("Later."), "invalid_request_error"),
        (EngineCrashed("It died."), "server_error"),
    ],
    ids=lambda each: getattr(each, "code", None),
)
def test_a_problem_also_has_the_error_of_chat_clients(problem, kind):
    document = chat_document(problem, "/lmsp/v1/chat/completions")

    assert {name: document[name] for name in document if name != "error"} == problem.document(
        "/lmsp/v1/chat/completions"
    )
    assert document["error"] == {
        "message": problem.detail,
        "type": kind,
        "code": problem.code,
        "param": problem.param,
    }
