"""Stored responses over HTTP: kept, followed, continued and deleted (A2.5, B6, B7.3 to B7.5)."""

import asyncio
import json

import pytest
from streams import body, deltas, stream
from waiting import until

from lmsp_jupyter import sse

pytestmark = pytest.mark.usefixtures("script")

UNKNOWN = "resp_01J8M6Q4W2T7N5R3V9X1Z8B0DF"


async def respond(client, request, **more):
    """The response object of a request."""
    answer = await client.post("/responses", json=request, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def text(response):
    """The text of a response."""
    return "".join(part["text"] for item in response["output"] for part in item.get("content", []))


async def asked(client, request):
    """What the engine is asked by a request to the model `tells`."""
    return json.loads(text(await respond(client, {"model": "tells"} | request)))


def said(turns):
    """Turns of a prompt, shorter."""
    return [(turn["role"], turn["content"]) for turn in turns]


async def follow(client, path, **params):
    """The events of an event route, as (id, name, data)."""
    answer = await client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "text/event-stream"
    return [(int(m.id), m.event, json.loads(m.data)) for m in sse.Decoder().feed(answer.content)]


def refused(answer, status, code):
    """Assert that an answer is a problem of this kind."""
    assert answer.headers["Content-Type"] == "application/problem+json", answer.text
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    return answer.json()


async def speaking(app, model):
    """The one response by a model, once it has text."""
    await until(lambda: any(run.log.response.text for run in app.runner.runs(model)))
    (run,) = app.runner.runs(model)
    return run


@pytest.fixture
def tells(script):
    """A model that says what it is asked."""
    script("tells", ["prompt"])


@pytest.fixture
def long(app, client, script, jp_asyncio_loop):
    """A stored response that goes on for long, and has said something."""
    script("long", ["text", "Once"], ["sleep", 600])

    async def start():
        posted = asyncio.ensure_future(client.post("/responses", json=body("long", store=True)))
        return posted, await speaking(app, "long")

    async def end(posted, run):
        await run.cancel()
        await posted

    posted, run = jp_asyncio_loop.run_until_complete(start())
    yield run.id
    jp_asyncio_loop.run_until_complete(end(posted, run))


# Kept (A1.8, A2.5, B6.1)


@pytest.mark.chapter6
async def test_a2_5_a_response_is_kept_if_it_is_to_be(client):
    kept, other = await respond(client, body(store=True)), await respond(client, body())

    assert kept["store"] is True
    assert (await client.get(f"/responses/{kept['id']}")).json() == kept
    refused(await client.get(f"/responses/{other['id']}"), 404, "response_not_found")
    refused(await client.get(f"/responses/{UNKNOWN}"), 404, "response_not_found")


@pytest.mark.ours
async def test_b6_1_a_response_is_found_from_the_first_event_on(client, script):
    script("slow", ["text", "a"], ["sleep", 0.3], ["text", "b"])
    async with client.stream("POST", "/responses", json=body("slow", store=True, stream=True)) as answer:
        decoder, events = sse.Decoder(), []
        async for chunk in answer.aiter_bytes():
            events += decoder.feed(chunk)
            path = f"/responses/{json.loads(events[0].data)['response_id']}"
            assert (await client.get(path)).status_code == 200
            if events[-1].event == "response.output_text.delta" and len(events) < 8:
                so_far = (await client.get(path)).json()
                assert (so_far["status"], text(so_far)) == ("in_progress", "a")
                assert so_far["output"][0]["status"] == "in_progress"

    assert (await client.get(path)).json() == json.loads(events[-1].data)["response"]
    assert text((await client.get(path)).json()) == "ab"


@pytest.mark.ours
async def test_b6_1_its_input_is_kept(client):
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "1"},
    ]
    response = await respond(client, body(input=items, store=True, instructions="Be kind."))

    listed = (await client.get(f"/responses/{response['id']}/input_items")).json()

    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert [item["type"] for item in listed["data"]] == ["message", "message", "function_call", "function_call_output"]
    assert [item.get("role") for item in listed["data"][:2]] == ["system", "user"]
    assert listed["data"][0]["content"] == [{"type": "input_text", "text": "Be brief."}]
    assert (listed["data"][2]["id"], listed["data"][3]["output"]) == ("fc_1", "1")


@pytest.mark.ours
async def test_b6_1_a_failed_response_is_kept_too(client, script):
    script("breaks", ["text", "a"], ["broken", "no luck"])
    *_, (_, name, data) = await stream(client, body("breaks", store=True))

    kept = (await client.get(f"/responses/{data['response_id']}")).json()

    assert (name, kept["status"], kept["error"]["code"]) == ("response.failed", "failed", "engine_failed")
    assert text(kept) == "a"


@pytest.mark.ours
async def test_b0_8_a_stored_response_whose_client_leaves_is_cancelled(app, client, script):
    script("long", ["repeat", 10000, "x", 0.005])
    events = await stream(client, body("long", store=True), leave_after=8)
    await until(lambda: app.runner.active == 0)

    kept = (await client.get(f"/responses/{events[0][2]['response_id']}")).json()

    assert kept["status"] == "cancelled"
    assert text(kept).startswith(deltas(events))
    assert kept["output"][0]["status"] == "incomplete"


# Cancelled (B6.1)


@pytest.mark.ours
async def test_b6_1_any_running_response_is_cancelled(app, client, script):
    script("long", ["text", "Once"], ["sleep", 600])
    for store in (True, False):
        posted = asyncio.ensure_future(client.post("/responses", json=body("long", store=store)))
        run = await speaking(app, "long")

        cancelled = (await client.post(f"/responses/{run.id}/cancel")).json()

        assert (cancelled["id"], cancelled["status"], text(cancelled)) == (run.id, "cancelled", "Once")
        assert (await posted).json() == cancelled
        await until(lambda: app.runner.active == 0)
        again = await client.post(f"/responses/{run.id}/cancel")
        if store:
            assert again.json() == cancelled == (await client.get(f"/responses/{run.id}")).json()
        else:
            refused(again, 404, "response_not_found")


@pytest.mark.ours
async def test_b6_1_one_that_has_ended_stays_as_it_is(client):
    response = await respond(client, body(store=True))

    assert (await client.post(f"/responses/{response['id']}/cancel")).json() == response
    refused(await client.post(f"/responses/{UNKNOWN}/cancel"), 404, "response_not_found")


# Deleted (B6.1)


@pytest.mark.ours
async def test_b6_1_a_response_is_deleted(client):
    response = await respond(client, body(store=True), headers={"Idempotency-Key": "k"})
    path = f"/responses/{response['id']}"

    assert (await client.delete(path)).status_code == 204

    for answer in (
        await client.get(path),
        await client.get(path, params={"stream": "true"}),
        await client.get(f"{path}/input_items"),
        await client.post(f"{path}/cancel"),
        await client.delete(path),
    ):
        refused(answer, 404, "response_not_found")
    again = await respond(client, body(store=True), headers={"Idempotency-Key": "k"})
    assert again["id"] != response["id"]


@pytest.mark.ours
async def test_b6_1_deleting_empties_its_task(client):
    background = body(store=True, background=True)
    response = await respond(client, background, headers={"Idempotency-Key": "k"})
    await follow(client, f"/tasks/{response['task_id']}/events")

    assert (await client.delete(f"/responses/{response['id']}")).status_code == 204

    task = (await client.get(f"/tasks/{response['task_id']}")).json()
    assert (task["status"], task["response"]) == ("completed", None)
    refused(await client.get(f"/tasks/{response['task_id']}/events"), 410, "event_history_expired")
    refused(await client.get(f"/responses/{response['id']}"), 404, "response_not_found")
    refused(await client.post(f"/responses/{response['id']}/cancel"), 404, "response_not_found")
    again = await respond(client, background, headers={"Idempotency-Key": "k"})
    assert again["id"] != response["id"]


@pytest.mark.ours
async def test_b6_1_a_response_that_runs_is_not_deleted(client, long):
    refused(await client.delete(f"/responses/{long}"), 409, "response_in_progress")

    assert (await client.get(f"/responses/{long}")).json()["status"] == "in_progress"


@pytest.mark.ours
async def test_b6_1_the_response_of_a_task_is_found_only_if_it_is_stored(client):
    for store in (True, False):
        task = (await client.post("/tasks", json={"type": "response", "request": body(store=store)})).json()
        await follow(client, f"/tasks/{task['id']}/events")
        found = await client.get(f"/responses/{task['response_id']}")
        if store:
            assert found.json() == (await client.get(f"/tasks/{task['id']}")).json()["response"]
        else:
            refused(found, 404, "response_not_found")


# Continued (B6.2)


@pytest.mark.ours
async def test_b6_2_inputs_and_outputs_are_carried_and_nothing_else(client, tells):
    first = await respond(
        client,
        body(
            input=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}],
            store=True,
            instructions="Be kind.",
            temperature=0.1,
            tools=[{"type": "function", "name": "f"}],
            extensions={"lmsp_jupyter": {"seed": 7}},
        ),
    )
    items = [{"role": "user", "content": "two"}, {"role": "system", "content": "Be true."}]
    second = await respond(client, body(input=items, store=True, previous_response_id=first["id"]))

    prompt = await asked(client, {"input": "three", "instructions": "Be.", "previous_response_id": second["id"]})

    assert second["previous_response_id"] == first["id"]
    assert said(prompt["turns"]) == [
        ("system", "Be.\n\nBe brief.\n\nBe true."),
        ("user", "one"),
        ("assistant", "Hello 👩‍👧 wörld"),
        ("user", "two"),
        ("assistant", "Hello 👩‍👧 wörld"),
        ("user", "three"),
    ]
    assert (prompt["tools"], prompt["temperature"], prompt["options"]["seed"]) == ([], None, None)
    assert prompt["continue_last"] is False


@pytest.mark.ours
async def test_b6_2_pairs_of_calls_and_outputs_stay_whole(client, script, tells):
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    script("calls", ["reasoning", "Hm."], ["text", f"Wait.\n{call}\n{call}"])
    first = await respond(client, body("calls", store=True, tools=[{"type": "function", "name": "f"}]))
    _, _, one, two = first["output"]
    outputs = [{"type": "function_call_output", "call_id": each["call_id"], "output": "9"} for each in (one, two)]

    link = {"previous_response_id": first["id"]}
    prompt = await asked(client, link | {"input": outputs})

    assert said(prompt["turns"]) == [("user", "hi"), ("assistant", "Wait."), ("tool", "9"), ("tool", "9")]
    assert prompt["turns"][1]["calls"] == [{"name": "f", "arguments": '{"a": 1}'}] * 2
    assert [turn["name"] for turn in prompt["turns"][2:]] == ["f", "f"]
    refused(await client.post("/responses", json=body("tells", outputs * 2, **link)), 400, "invalid_request")
    refused(await client.post("/responses", json=body("tells", [one], **link)), 400, "invalid_request")
    told = await respond(client, body(input=outputs, store=True, **link))
    again = await client.post("/responses", json=body(input=outputs, previous_response_id=told["id"]))
    assert refused(again, 400, "invalid_request")["param"] == "/input/0/call_id"


@pytest.mark.ours
async def test_b6_2_what_was_cut_or_cancelled_is_continued_with_its_partial_text(client, tells, long):
    cut = await respond(client, body(store=True, max_output_tokens=1))
    await client.post(f"/responses/{long}/cancel")

    for link, partial in ((cut["id"], "Hello"), (long, "Once")):
        prompt = await asked(client, {"input": "Go on.", "previous_response_id": link})
        assert said(prompt["turns"]) == [("user", "hi"), ("assistant", partial), ("user", "Go on.")]
        assert prompt["continue_last"] is False


@pytest.mark.ours
async def test_b6_2_what_cannot_be_continued(client, script, long):
    script("breaks", ["broken", "no luck"])
    *_, (_, _, failed) = await stream(client, body("breaks", store=True))
    first = await respond(client, body(store=True))
    second = await respond(client, body(store=True, previous_response_id=first["id"]))
    assert (await client.delete(f"/responses/{first['id']}")).status_code == 204
    unkept = await respond(client, body())

    for link, status, code in (
        (failed["response_id"], 400, "invalid_request"),
        (long, 409, "response_in_progress"),
        (UNKNOWN, 404, "response_not_found"),
        (unkept["id"], 404, "response_not_found"),
        (first["id"], 404, "response_not_found"),
        (second["id"], 404, "response_not_found"),  # a link before it is gone
    ):
        request = body(previous_response_id=link)
        refused(await client.post("/responses", json=request), status, code)
        refused(await client.post("/responses", json=request | {"stream": True}), status, code)
        refused(await client.post("/tasks", json={"type": "response", "request": request}), status, code)
        refused(await client.post("/responses/input_tokens", json=request), status, code)


@pytest.mark.ours
async def test_b6_2_what_is_too_long_is_refused_and_never_cut(client, script):
    script("small", ["text", "a"], context_length=10)
    first = await respond(client, body("small", "word " * 5, store=True))

    answer = await client.post("/responses", json=body("small", "word " * 5, previous_response_id=first["id"]))

    refused(answer, 400, "context_length_exceeded")


# Going on inside (B6.3)


@pytest.mark.ours
async def test_b6_3_an_empty_input_goes_on_inside_the_last_message(client, tells, long):
    cut = await respond(client, body(store=True, max_output_tokens=1))
    await client.post(f"/responses/{long}/cancel")

    for link, partial in ((cut["id"], "Hello"), (long, "Once")):
        rest = await respond(client, body("tells", [], previous_response_id=link, store=True))
        prompt = json.loads(text(rest))
        assert said(prompt["turns"]) == [("user", "hi"), ("assistant", partial)]
        assert prompt["continue_last"] is True
        assert len(rest["output"]) == 1  # the continuation only
        assert rest["output"][0]["id"] != cut["output"][0]["id"]


@pytest.mark.ours
async def test_b6_3_so_does_a_final_assistant_item_that_is_incomplete(client, tells):
    cut = await respond(client, body(max_output_tokens=1))

    prompt = await asked(client, {"input": [{"role": "user", "content": "hi"}, *cut["output"]]})
    other = await asked(
        client, {"input": [{"role": "user", "content": "hi"}, cut["output"][0] | {"status": "completed"}]}
    )

    assert said(prompt["turns"]) == said(other["turns"]) == [("user", "hi"), ("assistant", "Hello")]
    assert (prompt["continue_last"], other["continue_last"]) == (True, False)


@pytest.mark.ours
async def test_b6_3_what_has_nothing_to_go_on_with(client, script):
    whole = await respond(client, body(store=True))

    refused(await client.post("/responses", json=body(input=[])), 400, "invalid_request")
    refused(
        await client.post("/responses", json=body(input=[], previous_response_id=whole["id"])), 400, "invalid_request"
    )


# Background (B7.5)


@pytest.mark.ours
async def test_b7_5_background_is_a_task(client, script):
    script("slow", ["sleep", 0.3], ["text", "a"])

    response = await respond(client, body("slow", store=True, background=True, metadata={"a": "b"}))

    assert (response["status"], response["background"], response["output"]) == ("in_progress", True, [])
    task = (await client.get(f"/tasks/{response['task_id']}")).json()
    assert (task["response_id"], task["metadata"]) == (response["id"], {})
    *_, (last, name, data) = await follow(client, f"/tasks/{task['id']}/events")
    assert (name, data["response"]["task_id"]) == ("response.completed", task["id"])
    kept = (await client.get(f"/responses/{response['id']}")).json()
    assert kept == data["response"]
    assert (kept["metadata"], text(kept)) == ({"a": "b"}, "a")
    assert (await client.get(f"/tasks/{task['id']}")).json()["last_event_id"] == last


@pytest.mark.ours
async def test_b7_5_background_needs_store(client):
    problem = refused(await client.post("/responses", json=body(background=True)), 400, "invalid_request")

    assert problem["param"] == "/background"
    assert (await client.get("/tasks")).json()["data"] == []


@pytest.mark.ours
async def test_b7_5_a_background_stream_outlives_its_client_and_is_resumed_by_either_route(app, client, script):
    script("slow", ["text", "a"], ["sleep", 0.3], ["text", "b"])

    seen = await stream(client, body("slow", store=True, background=True), leave_after=5)
    response_id, task_id = seen[0][2]["response_id"], seen[0][2]["response"]["task_id"]
    after = seen[-1][0]
    by_task = await follow(client, f"/tasks/{task_id}/events", after=after)
    by_response = await follow(client, f"/responses/{response_id}", stream="true", starting_after=after)

    assert by_task == by_response
    assert [id for id, _, _ in seen + by_task] == list(range(1, by_task[-1][0] + 1))
    assert deltas(seen + by_task) == "ab"
    assert by_task[-1][1] == "response.completed"


@pytest.mark.ours
async def test_b7_5_a_response_of_a_task_is_followed_or_replayed(client):
    task = (await client.post("/tasks", json={"type": "response", "request": body(store=True)})).json()
    path = f"/responses/{task['response_id']}"

    live = await follow(client, path, stream="true")
    replayed = await follow(client, path, stream="true", starting_after=0)

    last = live[-1][0]
    assert live == replayed
    assert [id for id, _, _ in live] == list(range(1, last + 1))
    assert (await client.head(path, params={"stream": "true"})).headers["Content-Type"] == "text/event-stream"
    assert (await client.get(path, params={"stream": "true", "starting_after": last})).status_code == 204
    for params in (
        {"stream": "true", "starting_after": last + 1},
        {"stream": "true", "starting_after": -1},
        {"stream": "true", "starting_after": "x"},
        {"stream": "yes"},
    ):
        refused(await client.get(path, params=params), 400, "invalid_request")


@pytest.mark.ours
async def test_b7_5_only_a_response_of_a_task_is_followed(client):
    response = await respond(client, body(store=True))

    refused(await client.get(f"/responses/{response['id']}", params={"stream": "true"}), 400, "invalid_request")
    assert (await client.get(f"/responses/{response['id']}", params={"stream": "false"})).json() == response


# Echoed (B7.3, B7.4)


@pytest.mark.ours
async def test_b7_3_what_nothing_is_said_about_has_its_neutral_value(client):
    response = await respond(client, body())

    usage = response.pop("usage")
    assert {name: usage[name] for name in usage if name.endswith("_tokens")} == {
        "input_tokens": 1,
        "output_tokens": 2,
        "total_tokens": 3,
    }
    assert usage["input_tokens_details"]["cached_tokens"] == 0
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert response.pop("created_at") <= response.pop("completed_at")
    assert response.pop("id")
    assert response.pop("output")
    assert response == {
        "object": "response",
        "status": "completed",
        "model": "hello",
        "error": None,
        "incomplete_details": None,
        "previous_response_id": None,
        "instructions": None,
        "tools": [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}, "verbosity": None},
        "top_p": None,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "top_logprobs": 0,
        "temperature": None,
        "reasoning": {"effort": None, "summary": None, "enabled": None},
        "max_output_tokens": None,
        "max_tool_calls": None,
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
    }


@pytest.mark.ours
async def test_b7_4_what_is_said_is_honoured_and_told_again(client, tells):
    tool = {"type": "function", "name": "f", "description": "F.", "parameters": {"type": "object"}, "strict": True}
    request = {
        "instructions": "Be brief.",
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "parallel_tool_calls": False,
        "max_output_tokens": 2000,
        "tools": [tool],
        "tool_choice": "none",
        "reasoning": {"effort": "none"},
        "metadata": {"a": "b"},
        "truncation": "disabled",
        "service_tier": "auto",
        "top_logprobs": 0,
        "include": [],
        "max_tool_calls": None,
        "user": "ann",
        "safety_identifier": "s",
        "prompt_cache_key": "p",
        "store": True,
    }

    response = await respond(client, body("tells", **request))

    prompt = json.loads(text(response))
    assert said(prompt["turns"]) == [("system", "Be brief."), ("user", "hi")]
    assert (prompt["temperature"], prompt["max_output_tokens"], prompt["tool_choice"]) == (0.5, 2000, "none")
    assert prompt["options"] == {
        "top_p": 0.9,
        "top_k": None,
        "min_p": None,
        "seed": None,
        "stop": None,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "parallel_tool_calls": False,
        "reasoning": {"enabled": False},
    }
    told = ("service_tier", "include", "user", "max_tool_calls", "reasoning")  # not as they were sent
    assert {name: response[name] for name in request if name not in told} == {
        name: value for name, value in request.items() if name not in told
    }
    assert response["reasoning"]["effort"] == "none"
    assert response["service_tier"] == "default"
    assert (await client.get(f"/responses/{response['id']}")).json() == response


@pytest.mark.ours
async def test_b7_4_a_flat_format_is_the_schema_of_the_answer(client, script):
    script("four", ["text", "4"])
    flat = {"type": "json_schema", "name": "n", "schema": {"type": "integer"}, "strict": True}
    nested = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}, "strict": True}}

    for request in (body("four", text={"format": flat}), body("four", response_format=nested)):
        response = await respond(client, request)
        assert response["text"]["format"] == flat | {"description": None}
        assert text(response) == "4"
