"""The OpenAI SDK as it is, with nothing but another `base_url` (B7): its calls and its types work."""

import asyncio
import json
import time
from typing import Annotated, Literal, get_args

import httpx
import openai
import pydantic
import pytest
from conformance.own import serve
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseError, ResponseStreamEvent

pytestmark = pytest.mark.ours

STARTER = "smollm2:135m"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SCRIPTS = {
    "hello": [["text", "Hello"], ["text", " 👩‍👧 wörld"]],
    "thinker": [["reasoning", "Hm, "], ["reasoning", "yes."], ["text", "Yes."]],
    "echo": [["echo"]],
    "caller": [["text", CALL[:50]], ["text", CALL[50:]]],
    "speaker": [["text", '{"city": '], ["text", '"Oslo"}']],
    "liar": [["text", "{}"]],
    "breaker": [["text", "Hel"], ["broken", "no more"]],
    "endless": [["repeat", 10_000, "word ", 0.02]],
}
OWN = ("response.progress", "response.cancelled")
"""Events that the SDK does not know; it passes them on."""

EVENTS = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}
"""The SDK's types of events, by their names."""

PLACE = {"model": "endless", "input": "hi", "store": True, "background": True}


class Weather(pydantic.BaseModel):
    city: Literal["Oslo", "Rome"]


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": Weather.model_json_schema() | {"additionalProperties": False},
    "strict": True,
}
CHAT_WEATHER = openai.pydantic_function_tool(Weather, name="get_weather")


@pytest.fixture(scope="module")
def service(starter, tmp_path_factory):
    """The URL and the token of a service with the starter model and the scripted ones; each answers two requests at a
    time."""
    models = tmp_path_factory.mktemp("models")
    (models / "smollm2").mkdir()
    (models / "smollm2" / "135m.gguf").symlink_to(starter)
    for name, steps in SCRIPTS.items():
        (models / f"{name}.script").write_text(json.dumps({"steps": steps}))
    with serve(models, tmp_path_factory.mktemp("service")) as place:
        yield place


@pytest.fixture(scope="module")
def client(service):
    url, token = service
    with openai.OpenAI(base_url=url, api_key=token, max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def http(service):
    """What is sent, without the SDK."""
    url, token = service
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:
        yield http


def data(answer):
    """The objects of an event stream."""
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def required(kind):
    return {name for name, field in kind.model_fields.items() if field.is_required()}


def user(text):
    return {"role": "user", "content": text}


def text_of(events):
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def until(holds):
    """Wait for what another process does; the test's own time limit is the only one."""
    while not holds():
        time.sleep(0.02)


def idle(client, model):
    """Whether nobody uses the model any more."""
    try:
        client.post(f"/models/{model}/unload", cast_to=object)
    except openai.ConflictError:
        return False
    return True


@pytest.fixture
def busy(client):
    """Two responses of the endless model, after which others wait in line; they and what is added are cancelled."""
    responses = [client.responses.create(**PLACE) for _ in range(2)]
    yield responses
    for response in responses:
        client.responses.cancel(response.id)
    until(lambda: idle(client, "endless"))


# The SDK's types, strictly


REQUESTS = [
    {"model": "hello"},
    {"model": "hello", "max_output_tokens": 1},
    {"model": "hello", "store": True, "metadata": {"a": "b"}, "instructions": "Be brief.", "top_p": 0.5},
    {"model": "thinker", "reasoning": {"effort": "low"}},
    {"model": "caller", "tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}},
    {"model": "caller", "tools": [{"type": "function", "name": "get_weather"}], "tool_choice": "required"},
    {"model": "speaker", "text": {"format": {"type": "json_schema", "name": "a", "schema": WEATHER["parameters"]}}},
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_b7_3_a_response_is_what_the_sdk_takes_it_for(http, request_):
    Response.model_validate(http.post("/responses", json={"input": "hi"} | request_).json())


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_b7_1_events_are_what_the_sdk_takes_them_for(http, request_):
    for event in data(http.post("/responses", json={"input": "hi", "stream": True} | request_)):
        if event["type"] not in OWN:
            EVENTS[event["type"]].model_validate(event)


def test_b7_1_a_failed_event_has_what_the_sdk_requires(http):
    """Its codes are LMSP's own, so only the members are compared."""
    failed = data(http.post("/responses", json={"model": "breaker", "input": "hi", "stream": True}))[-1]

    assert failed["type"] == "response.failed"
    assert required(EVENTS["response.failed"]) <= failed.keys()
    assert required(Response) <= failed["response"].keys()
    assert required(ResponseError) <= failed["response"]["error"].keys()


def test_b7_6_completions_and_chunks_are_what_the_sdk_takes_them_for(http):
    for model, more in (("thinker", {}), ("caller", {"tools": [CHAT_WEATHER]}), ("hello", {"max_tokens": 1})):
        body = {"model": model, "messages": [user("hi")]} | more
        ChatCompletion.model_validate(http.post("/chat/completions", json=body).json())
        streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
        for chunk in data(http.post("/chat/completions", json=streamed)):
            ChatCompletionChunk.model_validate(chunk)


def test_b1_2_models_are_what_the_sdk_takes_them_for(http):
    listed = http.get("/models").json()["data"]

    for model in [*listed, http.get(f"/models/{STARTER}").json()]:
        Model.model_validate(model)


# Models


def test_b1_2_models(client):
    listed = list(client.models.list())

    assert {model.id for model in listed} == {STARTER, *SCRIPTS}
    assert client.models.retrieve(STARTER).object == "model"
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("smollm2:136m")
    assert refused.value.code == "model_not_found"


# Responses


def test_b7_a_response(client):
    response = client.responses.create(
        model="hello",
        input="hi",
        instructions="Be brief.",
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=10,
        metadata={"a": "b"},
        truncation="disabled",
        extra_body={"extensions": {"lmsp_jupyter": {"seed": 1}}},
    )

    assert (response.status, response.output_text) == ("completed", "Hello 👩‍👧 wörld")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert (response.instructions, response.temperature, response.top_p) == ("Be brief.", 0.5, 0.9)
    assert (response.max_output_tokens, response.metadata) == (10, {"a": "b"})
    assert (response.error, response.incomplete_details) == (None, None)


def test_b7_a_limit(client):
    response = client.responses.create(model="hello", input="hi", max_output_tokens=1)

    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output_text == "Hello"


def test_b7_1_a_stream(client):
    events = list(client.responses.create(model="hello", input="hi", stream=True))

    assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert text_of(events) == events[-1].response.output_text == "Hello 👩‍👧 wörld"


def test_b7_1_the_stream_helper(client):
    with client.responses.stream(model="thinker", input="hi") as stream:
        events = list(stream)
        response = stream.get_final_response()

    summary = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
    assert summary == ["Hm, ", "yes."]
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].summary[0].text == "Hm, yes."
    assert response.output_text == "Yes."


def test_b7_1_the_stream_helper_waits_in_line(client, busy):
    with client.responses.stream(model="endless", input="hi", max_output_tokens=3) as stream:
        names = []
        for event in stream:
            names.append(event.type)
            if event.type == "response.queued":
                for response in busy:
                    client.responses.cancel(response.id)

    assert names[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert names[-1] == "response.incomplete"


def test_b7_1_an_async_stream(service):
    url, token = service

    async def main():
        async with openai.AsyncOpenAI(base_url=url, api_key=token, max_retries=0) as client:
            stream = await client.responses.create(model="hello", input="hi", stream=True)
            return [event async for event in stream]

    assert text_of(asyncio.run(main())) == "Hello 👩‍👧 wörld"


def test_b7_a_failed_stream_raises(client):
    seen = []
    with pytest.raises(openai.APIError, match="no more") as failed:
        seen.extend(client.responses.create(model="breaker", input="hi", stream=True))

    assert failed.value.code == "engine_failed"


def test_b7_a_failed_response_raises(client):
    with pytest.raises(openai.InternalServerError) as failed:
        client.responses.create(model="breaker", input="hi")

    assert failed.value.code == "engine_failed"


def test_b0_8_leaving_a_stream_stops_the_work(client):
    with client.responses.create(model="endless", input="hi", store=True, stream=True) as stream:
        events = [next(stream) for _ in range(10)]
    until(lambda: idle(client, "endless"))

    response = client.responses.retrieve(events[0].response.id)
    assert response.status == "cancelled"
    assert response.output_text.startswith(text_of(events))


# Stored responses


def test_b6_1_a_stored_response(client):
    made = client.responses.create(model="hello", input=[user("hi"), user("there")], store=True)

    assert client.responses.retrieve(made.id) == made
    items = list(client.responses.input_items.list(made.id))
    assert [item.content[0].text for item in items] == ["hi", "there"]
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.retrieve(made.id)
    assert refused.value.code == "response_not_found"


def test_b6_2_a_continued_response(client):
    first = client.responses.create(model="hello", input="hi", store=True)
    second = client.responses.create(model="echo", input="and then?", previous_response_id=first.id)

    assert second.previous_response_id == first.id
    assert second.output_text == "and then? "
    assert second.usage.input_tokens == len(["hi", "Hello", "👩‍👧", "wörld", "and", "then?"])


def test_b6_4_input_tokens(client):
    counted = client.responses.input_tokens.count(model="hello", input="one two three")

    assert counted.input_tokens == 3


# Background


def test_b7_5_a_response_in_the_background(client):
    response = client.responses.create(model="hello", input="hi", store=True, background=True)

    assert (response.status, response.background) == ("in_progress", True)
    until(lambda: client.responses.retrieve(response.id).status == "completed")
    assert client.responses.retrieve(response.id).output_text == "Hello 👩‍👧 wörld"


def test_b7_5_a_stream_that_is_left_is_resumed(client):
    with client.responses.create(model="hello", input="hi", store=True, background=True, stream=True) as stream:
        seen = [next(stream) for _ in range(2)]
    response_id, after = seen[0].response.id, seen[-1].sequence_number

    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=after))
    with client.responses.stream(response_id=response_id, starting_after=after) as stream:
        assert [event.type for event in stream] == [event.type for event in rest]

    numbers = [event.sequence_number for event in seen + rest]
    assert numbers == list(range(1, len(numbers) + 1))
    assert rest[-1].response.output_text == "Hello 👩‍👧 wörld"


def test_b6_1_a_cancelled_response(client):
    response = client.responses.create(**PLACE)

    assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.retrieve(response.id).status == "cancelled"
    assert list(client.responses.retrieve(response.id, stream=True))[-1].type == "response.cancelled"


# Tools


def test_a5_4_a_call(client):
    response = client.responses.create(model="caller", input="hi", tools=[WEATHER])

    (call,) = response.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Oslo"})


def test_b7_2_a_streamed_call(client):
    with client.responses.stream(model="caller", input="hi", tools=[CHAT_WEATHER]) as stream:
        deltas = [event for event in stream if event.type == "response.function_call_arguments.delta"]
        (call,) = stream.get_final_response().output

    assert "".join(event.delta for event in deltas) == call.arguments == deltas[-1].snapshot
    assert call.parsed_arguments == Weather(city="Oslo")


def test_a5_5_what_a_call_came_to_is_sent_with_the_items(client):
    (call,) = client.responses.create(model="caller", input="hi", tools=[WEATHER]).output
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}

    response = client.responses.create(model="echo", input=[user("hi"), call, output], tools=[WEATHER])

    assert response.output_text == "sunny "


def test_b6_2_what_a_call_came_to_is_sent_with_the_id(client):
    first = client.responses.create(model="caller", input="hi", tools=[WEATHER], store=True)
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sunny"}

    response = client.responses.create(model="echo", input=[output], previous_response_id=first.id)

    assert response.output_text == "sunny "


def test_b0_9_a_required_call_of_a_real_model(client):
    request = {"model": STARTER, "temperature": 0, "tools": [WEATHER], "parallel_tool_calls": False}
    first = client.responses.create(input="Weather in Rome?", tool_choice="required", store=True, **request)
    (call,) = first.output
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}

    second = client.responses.create(
        input=[output], previous_response_id=first.id, tool_choice="none", max_output_tokens=8, **request
    )

    assert (first.status, call.name) == ("completed", "get_weather")
    assert Weather.model_validate_json(call.arguments)
    assert second.output_text


# Schemas


class Fruit(pydantic.BaseModel):
    name: Annotated[str, pydantic.StringConstraints(max_length=20)]
    colour: Literal["red", "green", "yellow"]


def test_b0_11_a_parsed_response(client):
    response = client.responses.parse(model="speaker", input="hi", text_format=Weather)

    assert response.output_parsed == Weather(city="Oslo")


def test_b0_11_an_answer_that_is_not_what_was_asked_for(client):
    with pytest.raises(openai.InternalServerError) as failed:
        client.responses.parse(model="liar", input="hi", text_format=Weather)

    assert failed.value.code == "output_invalid"


def test_b0_9_a_real_model_keeps_to_the_schema(client):
    request = {"model": STARTER, "temperature": 0}

    response = client.responses.parse(input="Name a fruit.", text_format=Fruit, **request)
    completion = client.chat.completions.parse(messages=[user("Name a fruit.")], response_format=Fruit, **request)

    assert isinstance(response.output_parsed, Fruit)
    assert completion.choices[0].message.parsed == response.output_parsed


def test_b7_1_a_real_model_streams(client):
    request = {"model": STARTER, "input": "Name three fruits.", "temperature": 0, "max_output_tokens": 12}

    events = list(client.responses.create(stream=True, **request))

    assert text_of(events) == client.responses.create(**request).output_text != ""


# Chat completions


def test_b7_6_a_chat_completion(client):
    system = {"role": "system", "content": "Be brief."}
    completion = client.chat.completions.create(
        model="hello", messages=[system, user("hi")], temperature=0, seed=1, stop=["."]
    )

    (choice,) = completion.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello 👩‍👧 wörld")
    assert choice.finish_reason == "stop"
    assert completion.usage.prompt_tokens == len(["Be", "brief.", "hi"])


def test_b7_6_a_chat_stream(client):
    stream = client.chat.completions.create(
        model="hello", messages=[user("hi")], stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = stream

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello 👩‍👧 wörld"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert (last.choices, last.usage.completion_tokens) == ([], 2)


def test_b7_6_the_chat_stream_helper(client):
    with client.chat.completions.stream(model="hello", messages=[user("hi")]) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]

    assert "".join(deltas) == "Hello 👩‍👧 wörld"
    assert stream.get_final_completion().choices[0].message.content == "Hello 👩‍👧 wörld"


def test_b7_6_calls(client):
    first = client.chat.completions.create(model="caller", messages=[user("hi")], tools=[CHAT_WEATHER])
    message = first.choices[0].message
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    second = client.chat.completions.create(model="echo", messages=[user("hi"), message, result], tools=[CHAT_WEATHER])

    assert first.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    assert second.choices[0].message.content == "sunny "


def test_b7_6_streamed_calls(client):
    with client.chat.completions.stream(model="caller", messages=[user("hi")], tools=[CHAT_WEATHER]) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    (choice,) = stream.get_final_completion().choices

    assert [event.parsed_arguments for event in done] == [Weather(city="Oslo")]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.parsed_arguments == Weather(city="Oslo")


def test_b7_6_a_parsed_completion(client):
    completion = client.chat.completions.parse(model="speaker", messages=[user("hi")], response_format=Weather)

    assert completion.choices[0].message.parsed == Weather(city="Oslo")
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model="speaker", messages=[user("hi")], response_format=Weather, max_completion_tokens=1
        )


def test_b0_8_leaving_a_chat_stream_stops_the_work(client):
    with client.chat.completions.create(model="endless", messages=[user("hi")], stream=True) as stream:
        for _ in range(3):
            next(stream)

    until(lambda: idle(client, "endless"))


# Errors


@pytest.mark.parametrize(
    ("more", "kind", "code", "param"),
    [
        ({"temperature": 3}, openai.BadRequestError, "invalid_request", "/temperature"),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "unknown_parameter", "/temprature"),
        ({"input": "word " * 5000}, openai.BadRequestError, "context_length_exceeded", "/input"),
        ({"background": True}, openai.BadRequestError, "invalid_request", "/background"),
        ({"model": "helo"}, openai.NotFoundError, "model_not_found", None),
        ({"previous_response_id": "resp_none"}, openai.NotFoundError, "response_not_found", None),
    ],
    ids=["temperature", "temprature", "input", "background", "model", "previous_response_id"],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_b2_2_a_refusal_has_its_code_and_its_parameter(client, more, kind, code, param, streamed):
    with pytest.raises(kind) as refused:
        client.responses.create(**{"model": "hello", "input": "hi", "stream": streamed} | more)

    assert (refused.value.code, refused.value.param) == (code, param)
    assert refused.value.body["detail"] in str(refused.value)


@pytest.mark.parametrize("streamed", [False, True])
def test_b7_6_a_chat_refusal_has_its_code_and_its_parameter(client, streamed):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="hello", messages=[user("hi")], max_tokens=0, stream=streamed)

    error = refused.value
    assert (error.code, error.param, error.type) == ("invalid_request", "/max_tokens", "invalid_request_error")


def test_b7_6_a_failed_chat_stream_raises(client):
    with pytest.raises(openai.APIError, match="no more") as failed:
        list(client.chat.completions.create(model="breaker", messages=[user("hi")], stream=True))

    assert failed.value.code == "engine_failed"


def test_b5_4_a_wrong_token(service):
    with (
        openai.OpenAI(base_url=service[0], api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        client.responses.create(model="hello", input="hi")

    assert refused.value.code == "unauthorized"


def test_b6_2_a_response_that_has_not_ended(client, busy):
    with pytest.raises(openai.ConflictError) as refused:
        client.responses.create(model="echo", input="hi", previous_response_id=busy[0].id)

    assert refused.value.code == "response_in_progress"


def test_b2_3_a_full_queue_says_when_to_come_again(client, busy):
    def crowd():
        while len(busy) < 100:
            busy.append(client.responses.create(**PLACE))

    with pytest.raises(openai.RateLimitError) as refused:
        crowd()

    assert refused.value.code == "queue_full"
    assert int(refused.value.response.headers["Retry-After"]) > 0
