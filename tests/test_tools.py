"""Tools, schemas and reasoning over HTTP: what scripted models say, as items (A5, B0.7 to B0.11, B7.6)."""

import asyncio
import json

import pytest
from streams import body, deltas, stream
from waiting import until

pytestmark = pytest.mark.usefixtures("script")

ADD = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
NOW = {"type": "function", "name": "now"}
ARGUMENTS = '{"a": 1, "b": 2}'
NUMBER = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}


def call(name="add", arguments=ARGUMENTS):
    """A call as models write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CUT = call()[: call().index('"b"')]


def pieces(text, size):
    """Steps that say a text in pieces."""
    return [["text", text[at : at + size]] for at in range(0, len(text), size)]


def ask(model, **more):
    """A request with a tool."""
    return body(model, **{"tools": [ADD, NOW]} | more)


def refused(answer, status, code, pointer=None):
    """Assert that an answer is a problem of this kind."""
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["param"] == pointer


def names(events):
    return [name for _, name, _ in events]


def done(events):
    """The items that were finished."""
    return [data["item"] for _, name, data in events if name == "response.output_item.done"]


# Calls (A5)


@pytest.mark.chapter6
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a5_4_a_call_is_an_item_however_its_text_is_cut(client, script, size):
    script("calls", *pieces(call(), size))

    answer = await client.post("/responses", json=ask("calls"))
    *_, (_, _, final) = events = await stream(client, ask("calls"))

    response = answer.json()
    (item,) = response["output"]
    assert (answer.status_code, response["status"]) == (200, "completed")
    assert item | {"id": None, "call_id": None} == {
        "type": "function_call",
        "id": None,
        "call_id": None,
        "name": "add",
        "arguments": ARGUMENTS,
        "status": "completed",
    }
    assert item["id"].startswith("fc_")
    assert item["call_id"].startswith("call_")
    (streamed,) = done(events)
    assert streamed == item | {"id": streamed["id"], "call_id": streamed["call_id"]}
    assert final["response"]["output"] == [streamed]


@pytest.mark.ours
async def test_b7_2_the_events_of_a_text_and_two_calls(client, script):
    script("calls", ["text", "Wait."], *pieces(f"\n{call()}\n{call('now', '{}')}", 9))
    events = await stream(client, ask("calls"))

    squeezed = [name for name, before in zip(names(events), [None, *names(events)], strict=False) if name != before]
    one_call = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert [name for name in squeezed if name != "response.progress"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        *one_call,
        *one_call,
        "response.completed",
    ]
    assert [id for id, _, _ in events] == list(range(1, len(events) + 1))
    added = [data["item"] for _, name, data in events if name == "response.output_item.added"]
    for index, (opened, item) in enumerate(zip(added, done(events), strict=True)):
        assert opened["id"] == item["id"]
        assert (opened["status"], item["status"]) == ("in_progress", "completed")
        of_item = [data for _, _, data in events if data.get("item_id") == item["id"]]
        assert {data["output_index"] for data in of_item} == {index}
        written = "".join(data["delta"] for data in of_item if data["type"].endswith(".delta"))
        if item["type"] == "function_call":
            assert (opened["call_id"], opened["name"], opened["arguments"]) == (item["call_id"], item["name"], "")
            assert (of_item[-1]["name"], of_item[-1]["arguments"]) == (item["name"], item["arguments"])
            assert written == item["arguments"]
        else:
            assert written == item["content"][0]["text"] == "Wait."
    assert [item.get("name") for item in done(events)] == [None, "add", "now"]
    assert len({item["id"] for item in added}) == 3
    assert len({item["call_id"] for item in added[1:]}) == 2
    assert events[-1][2]["response"]["output"] == done(events)


@pytest.mark.chapter6
async def test_a5_5_the_call_and_what_it_came_to_go_back_as_received(client, script):
    script("calls", ["text", call()])
    script("tells", ["prompt"])
    (item,) = (await client.post("/responses", json=ask("calls"))).json()["output"]
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": '{"sum": 3}'}

    answer = await client.post("/responses", json=ask("tells", input=[{"role": "user", "content": "hi"}, item, output]))

    prompt = json.loads(answer.json()["output"][0]["content"][0]["text"])
    assert [(turn["role"], turn["content"], turn["calls"]) for turn in prompt["turns"]] == [
        ("user", "hi", []),
        ("assistant", "", [{"name": "add", "arguments": ARGUMENTS}]),
        ("tool", '{"sum": 3}', []),
    ]
    assert prompt["turns"][2]["name"] == "add"
    assert [tool["name"] for tool in prompt["tools"]] == ["add", "now"]


@pytest.mark.ours
async def test_b0_9_what_only_looks_like_a_call_is_text(client, script):
    script("echo", ["echo"])
    script("half", ["text", "<tool_"], ["text", "cal"])

    for said in ('<tool_call> {"name": "sub", "arguments": {}} </tool_call> ', "<tool_call> nothing ", "a <tool b "):
        assert deltas(await stream(client, ask("echo", input=said))) == said
    (item,) = done(await stream(client, ask("half")))
    assert item["content"][0]["text"] == "<tool_cal"


@pytest.mark.ours
async def test_b0_9_without_tools_or_choice_nothing_is_a_call(client, script):
    script("calls", ["text", call()])

    for more in ({"tools": []}, {"tool_choice": "none"}):
        events = await stream(client, ask("calls", **more))
        assert deltas(events) == call()
        assert [item["type"] for item in done(events)] == ["message"]


# Limits (B0.7, B0.10)


@pytest.mark.ours
async def test_b0_7_a_call_that_is_cut_by_the_limit_is_dropped(client, script):
    script("calls", ["text", "Wait.\n"], *pieces(call(), 9))
    for tokens, text, begun in ((1, "Wait.\n", False), (3, "Wait.", False), (6, "Wait.", True)):
        request = ask("calls", max_output_tokens=tokens)

        events = await stream(client, request)
        response = (await client.post("/responses", json=request)).json()

        final = events[-1][2]["response"]
        assert names(events)[-1] == "response.incomplete"
        assert final["incomplete_details"] == response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert done(events) == final["output"]
        assert (
            [item["type"] for item in final["output"]] == [item["type"] for item in response["output"]] == ["message"]
        )
        assert response["output"][0]["content"][0]["text"] == deltas(events) == text
        added = [data["item"]["type"] for _, name, data in events if name == "response.output_item.added"]
        assert added == ["message"] + ["function_call"] * begun


@pytest.mark.ours
async def test_b0_7_a_whole_call_before_one_that_is_cut_stays(client, script):
    script("calls", ["text", call()], ["text", CUT], ["text", "never"])

    response = (await client.post("/responses", json=ask("calls", max_output_tokens=2))).json()

    assert response["status"] == "incomplete"
    assert [(item["name"], item["status"]) for item in response["output"]] == [("add", "completed")]


@pytest.mark.ours
async def test_b0_7_a_call_that_is_cancelled_or_breaks_is_dropped_too(app, client, script):
    script("long", ["text", CUT], ["sleep", 600])
    script("breaks", ["text", CUT], ["broken", "no luck"])
    posted = asyncio.ensure_future(stream(client, ask("long")))
    await until(lambda: [run.log.response.output for run in app.runner.runs("long") if run.log.response.output])
    (run,) = app.runner.runs("long")
    await client.post(f"/responses/{run.id}/cancel")

    for events, ending in ((await posted, "cancelled"), (await stream(client, ask("breaks")), "failed")):
        assert names(events)[-1] == f"response.{ending}"
        assert done(events) == events[-1][2]["response"]["output"] == []


@pytest.mark.ours
async def test_b0_10_a_choice_that_meets_the_limit_is_incomplete_without_a_call(client, script):
    script("calls", *pieces(call(), 30))

    for choice in ("required", {"type": "function", "name": "add"}):
        response = (await client.post("/responses", json=ask("calls", tool_choice=choice, max_output_tokens=1))).json()
        assert (response["status"], response["output"]) == ("incomplete", [])


@pytest.mark.ours
async def test_b0_7_a_call_that_never_ends_is_dropped(client, script):
    script("calls", ["text", call(arguments='{"a": 1} and so on')], ["text", call("now", "{}")])

    events = await stream(client, ask("calls"))

    assert [item.get("name") for item in done(events) if item["type"] == "function_call"] == ["now"]
    assert events[-1][2]["response"]["output"] == done(events)


# What is refused (A1.10, B0.10, B0.11)


@pytest.mark.chapter6
async def test_a1_10_what_the_model_lacks_is_refused(client, script):
    script("plain", ["text", "4"], capabilities=[])
    script("calls", ["text", call()], capabilities=["tools"])
    script("shapes", ["text", "4"], capabilities=["structured_output"])

    for model, more, pointer in (
        ("plain", {"tools": [ADD]}, "/tools"),
        ("plain", {"tools": [ADD], "tool_choice": "none"}, "/tools"),
        ("shapes", {"tools": [ADD]}, "/tools"),
        ("plain", {"response_format": NUMBER}, "/response_format"),
        ("calls", {"response_format": NUMBER}, "/response_format"),
    ):
        request = body(model, **more)
        for answer in (
            await client.post("/responses", json=request),
            await client.post("/responses", json=request | {"stream": True}),
            await client.post("/tasks", json={"type": "response", "request": request}),
        ):
            refused(answer, 400, "unsupported_capability", pointer)
    assert (await client.post("/responses", json=body("plain", response_format={"type": "text"}))).status_code == 200


@pytest.mark.ours
async def test_b0_10_tools_that_do_not_fit_together_are_refused(client):
    output = {"type": "function_call_output", "call_id": "call_1", "output": "1"}
    earlier = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}"}
    user = {"role": "user", "content": "hi"}
    broken = NOW | {"parameters": {"type": "object", "properties": {"a": {"type": "nothing"}}}}

    for request, code, pointer in (
        (body(tool_choice="required"), "invalid_request", "/tool_choice"),
        (body(tool_choice={"type": "function", "name": "add"}), "invalid_request", "/tool_choice/name"),
        (ask("hello", tool_choice={"type": "function", "name": "ad"}), "invalid_request", "/tool_choice/name"),
        (body(tools=[ADD, NOW, ADD]), "invalid_request", "/tools/2/name"),
        (body(input=[user, output]), "invalid_request", "/input/1/call_id"),
        (body(input=[user, earlier, earlier]), "invalid_request", "/input/2/call_id"),
        (body(input=[user, earlier, output, output]), "invalid_request", "/input/3/call_id"),
        (body(tools=[broken], tool_choice="none"), "invalid_schema", "/tools/0/parameters/properties/a/type"),
    ):
        refused(await client.post("/responses", json=request), 400, code, pointer)


@pytest.mark.ours
async def test_b0_10_an_old_call_needs_no_output_and_no_json(client, script):
    script("tells", ["prompt"])
    earlier = {"type": "function_call", "call_id": "call_1", "name": "gone", "arguments": "a = 1"}

    answer = await client.post("/responses", json=body("tells", [{"role": "user", "content": "hi"}, earlier]))

    prompt = json.loads(answer.json()["output"][0]["content"][0]["text"])
    assert prompt["turns"][1]["calls"] == [{"name": "gone", "arguments": "a = 1"}]


# What is invalid (B0.11)


@pytest.mark.ours
async def test_b0_11_an_invalid_answer_is_never_completed(client, script):
    script("echo", ["echo"])
    for said, more, mistake in (
        ("four", {"response_format": NUMBER}, "JSON"),
        ("4.5", {"response_format": NUMBER}, "integer"),
        (call(arguments='{"a": 1}'), {"tools": [ADD]}, "'b'"),
        (call().partition("}\n</")[0], {"tools": [ADD]}, "not whole"),
        ("No.", {"tools": [ADD], "tool_choice": "required"}, "no call"),
        ("No.", {"tools": [ADD], "tool_choice": {"type": "function", "name": "add"}}, "no call"),
    ):
        answer = await client.post("/responses", json=body("echo", said, **more))
        *_, (_, name, data) = events = await stream(client, body("echo", said, **more))

        refused(answer, 500, "output_invalid")
        assert mistake in answer.json()["detail"]
        assert (name, data["error"]["code"]) == ("response.failed", "output_invalid")
        assert all(item["type"] == "message" for item in done(events))


@pytest.mark.ours
async def test_b0_11_a_valid_answer_is_completed(client, script):
    script("four", ["text", " 4"])
    script("calls", ["text", call()])

    response = (await client.post("/responses", json=body("four", response_format=NUMBER))).json()
    assert (response["status"], response["output"][0]["content"][0]["text"]) == ("completed", " 4")

    response = (await client.post("/responses", json=ask("calls", response_format=NUMBER))).json()
    assert (response["status"], response["output"][0]["type"]) == ("completed", "function_call")


@pytest.mark.ours
async def test_b0_11_a_limit_or_a_stop_string_makes_it_incomplete(client, script):
    script("half", ["text", "[4,"], ["text", " 5"], ["text", "]"])
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}}

    for more, reason in (
        ({"max_output_tokens": 1}, "max_output_tokens"),
        ({"extensions": {"lmsp_jupyter": {"stop": ["]"]}}}, "stop"),
    ):
        response = (await client.post("/responses", json=body("half", response_format=shape, **more))).json()
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})


# Reasoning (A2.3, B7.2)


@pytest.mark.ours
async def test_b7_2_reasoning_is_streamed_as_its_summary(client, script):
    script("thinks", ["reasoning", "Hm."], ["reasoning", " Add."], ["text", "Sum: "], ["text", call()])

    events = await stream(client, ask("thinks"))

    assert [name for name in names(events) if name != "response.progress"][2:9] == [
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
    ]
    reasoning, message, called = done(events)
    of_item = [data for _, _, data in events if data.get("item_id") == reasoning["id"]]
    assert {(data["output_index"], data["summary_index"]) for data in of_item} == {(0, 0)}
    assert "".join(data["delta"] for data in of_item if "delta" in data) == "Hm. Add."
    assert reasoning["summary"] == [{"type": "summary_text", "text": "Hm. Add."}]
    assert reasoning["id"].startswith("rs_")
    assert message["content"][0]["text"] == "Sum:"
    assert called["type"] == "function_call"
    assert events[-1][2]["response"]["output"] == [reasoning, message, called]


@pytest.mark.ours
async def test_b0_6_reasoning_that_is_cut_is_closed(client, script):
    script("thinks", ["reasoning", "Hm."], ["finish", "length"])

    events = await stream(client, body("thinks"))

    (item,) = done(events)
    assert (item["type"], item["status"]) == ("reasoning", "incomplete")
    assert names(events)[-1] == "response.incomplete"
    assert events[-1][2]["response"]["output"] == [item]


# Chat completions (B7.6)


def chat(model, **more):
    """A chat request with a tool."""
    function = {name: value for name, value in ADD.items() if name != "type"}
    tools = [{"type": "function", "function": each} for each in (function, {"name": "now"})]
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], "tools": tools, **more}


async def chunks(client, request):
    """The chunks of a streaming chat request; the last one is always [DONE]."""
    answer = await client.post("/chat/completions", json=request | {"stream": True})
    assert answer.headers["Content-Type"] == "text/event-stream"
    *frames, done, rest = answer.text.split("\n\n")
    assert all(frame.startswith("data: {") for frame in frames)
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


@pytest.mark.ours
async def test_b7_6_calls_are_told_as_chat_clients_know_them(client, script):
    steps = [["reasoning", "Hm."], ["text", "Wait.\n"], *pieces(call() + "\n" + call("now", "{}"), 9)]
    script("calls", *steps)

    completion = (await client.post("/chat/completions", json=chat("calls"))).json()

    assert (completion["object"], completion["model"]) == ("chat.completion", "calls")
    (choice,) = completion["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Wait."
    assert choice["message"]["reasoning_content"] == "Hm."
    calls = choice["message"]["tool_calls"]
    assert [each["function"] for each in calls] == [
        {"name": "add", "arguments": ARGUMENTS},
        {"name": "now", "arguments": "{}"},
    ]
    assert all(each["type"] == "function" and each["id"].startswith("call_") for each in calls)
    usage = completion["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (
        1,
        len(steps),
        1 + len(steps),
    )


@pytest.mark.ours
async def test_b7_6_streamed_calls_add_up_to_the_same(client, script):
    script("calls", ["reasoning", "Hm."], ["text", "Wait.\n"], *pieces(call() + "\n" + call("now", "{}"), 9))

    *told, end, usage = await chunks(client, chat("calls", stream_options={"include_usage": True}))

    added = [chunk["choices"][0]["delta"] for chunk in told]
    assert added[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in added) == "Wait."
    assert "".join(delta.get("reasoning_content", "") for delta in added) == "Hm."
    calls = [each for delta in added for each in delta.get("tool_calls", [])]
    for index, (name, arguments) in enumerate([("add", ARGUMENTS), ("now", "{}")]):
        first, *rest = [each for each in calls if each["index"] == index]
        assert (first["type"], first["function"]) == ("function", {"name": name, "arguments": ""})
        assert first["id"].startswith("call_")
        assert "".join(each["function"]["arguments"] for each in rest) == arguments
    assert end["choices"][0]["finish_reason"] == "tool_calls"
    assert (usage["choices"], usage["usage"]["prompt_tokens"]) == ([], 1)
    assert len({chunk["id"] for chunk in told}) == 1


@pytest.mark.ours
async def test_b7_6_a_call_that_is_cut_is_dropped_and_the_reason_is_length(client, script):
    script("calls", *pieces(call(), 45), ["text", "never"])
    request = chat("calls", max_tokens=1)

    (choice,) = (await client.post("/chat/completions", json=request)).json()["choices"]
    *_, end = await chunks(client, request)

    assert (choice["finish_reason"], choice["message"].get("tool_calls")) == ("length", None)
    assert end["choices"][0]["finish_reason"] == "length"


@pytest.mark.ours
async def test_b7_6_calls_and_what_they_came_to_go_back_as_received(client, script):
    script("calls", ["text", call()])
    script("tells", ["prompt"])
    called = (await client.post("/chat/completions", json=chat("calls"))).json()["choices"][0]["message"]
    told = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "3"}

    messages = [{"role": "developer", "content": "Be brief."}, *chat("")["messages"], called, told]
    answer = await client.post("/chat/completions", json=chat("tells", messages=messages, seed=7, stop="x"))

    prompt = json.loads(answer.json()["choices"][0]["message"]["content"])
    assert [(turn["role"], turn["content"]) for turn in prompt["turns"]] == [
        ("system", "Be brief."),
        ("user", "hi"),
        ("assistant", ""),
        ("tool", "3"),
    ]
    assert prompt["turns"][2]["calls"] == [{"name": "add", "arguments": ARGUMENTS}]
    assert (prompt["options"]["seed"], prompt["options"]["stop"]) == (7, ["x"])


@pytest.mark.ours
async def test_b7_6_problems_are_told_twice(client, script):
    script("wrong", ["text", "four"])
    script("plain", ["text", "a"], capabilities=[])

    unknown = {"type": "function", "function": {"name": "x"}}

    for request, status, code, pointer in (
        (chat("wrong", response_format=NUMBER), 500, "output_invalid", None),
        (chat("wrong", tool_choice="required"), 500, "output_invalid", None),
        (chat("plain"), 400, "unsupported_capability", "/tools"),
        (chat("nope"), 404, "model_not_found", None),
        (
            chat("wrong", tool_choice=unknown),
            400,
            "invalid_request",
            "/tool_choice/function/name",
        ),
    ):
        answer = await client.post("/chat/completions", json=request)
        refused(answer, status, code, pointer)
        error = answer.json()["error"]
        assert (error["message"], error["code"], error["param"]) == (answer.json()["detail"], code, pointer)
    answer = await client.post("/chat/completions", json=chat("wrong", tool_choice="required", stream=True))
    last = json.loads(answer.text.split("\n\n")[-2].removeprefix("data: "))
    assert last["error"]["code"] == "output_invalid"


@pytest.mark.ours
async def test_b7_6_a_server_that_stops_says_so(app, client, script):
    script("long", ["text", "Once"], ["sleep", 600])
    answers = [
        asyncio.ensure_future(client.post("/chat/completions", json=chat("long", stream=streamed)))
        for streamed in (False, True)
    ]
    await until(lambda: [run.log.response.text for run in app.runner.runs("long")] == ["Once", "Once"])

    await app.runner.close()

    answer, streamed = [await each for each in answers]
    refused(answer, 503, "service_restarted")
    assert json.loads(streamed.text.split("\n\n")[-2].removeprefix("data: "))["error"]["code"] == "service_restarted"


@pytest.mark.ours
async def test_b0_8_a_chat_client_that_leaves_stops_the_work(app, client, script):
    script("long", ["repeat", 10000, "x", 0.005])
    for streamed in (False, True):
        posted = asyncio.ensure_future(client.post("/chat/completions", json=chat("long", stream=streamed)))
        await until(lambda: any(run.log.response.text for run in app.runner.runs("long")))
        (run,) = app.runner.runs("long")

        posted.cancel()

        await until(lambda: app.runner.active == 0)
        assert run.log.response.status == "cancelled"
