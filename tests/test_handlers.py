"""The routes over HTTP, on a real Jupyter server with scripted models. Real models: test_starter.py."""

import asyncio
import json
import os
import re
import signal
import threading

import pytest
from streams import body, stream
from waiting import until

from lmsp_jupyter import Client
from lmsp_jupyter.handlers import responses
from lmsp_jupyter.strict_json import MAX_BODY_BYTES

pytestmark = pytest.mark.usefixtures("script")


# The service and its models


@pytest.mark.ours
async def test_b1_1_the_service_describes_itself(client):
    answer = await client.get("")

    service = answer.json()
    assert (service["object"], service["lmsp_versions"]) == ("service", ["1.0"])
    assert service["capabilities"] == ["conversations", "tasks"]
    assert service["default_model"] == "hello"
    assert service["limits"] == {
        "queue": 2,
        "body": MAX_BODY_BYTES,
        "event_retention": 3600,
        "task_retention": 30 * 86400,
    }
    engines = {engine["name"]: engine for engine in service["engines"]}
    assert engines["scripted"] == {"name": "scripted", "available": True, "reason": None, "fix": None}
    assert "llama_cpp" in engines


@pytest.mark.ours
async def test_b1_2_models_are_listed_with_their_state(client, script):
    script("wont", load={"error": "no such tensor"})
    await client.post("/responses", json=body())
    await client.post("/responses", json=body("wont"))

    listed = (await client.get("/models")).json()

    states = {model["id"]: model["state"] for model in listed["data"]}
    assert listed["object"] == "list"
    assert states == {"hello": "loaded", "wont": "failed"}
    one = (await client.get("/models/wont")).json()
    assert one["error"]["code"] == "model_unavailable"
    assert "no such tensor" in one["error"]["detail"]
    assert "path" not in one
    assert (await client.get("")).json()["default_model"] == "hello"
    assert one["engine"] == "scripted"


@pytest.mark.ours
async def test_b1_2_an_unknown_model_names_the_closest(client):
    for answer in (await client.get("/models/helo"), await client.post("/responses", json=body("helo"))):
        assert answer.status_code == 404
        assert answer.json()["code"] == "model_not_found"
        assert "hello" in answer.json()["detail"]


@pytest.mark.ours
@pytest.mark.parametrize("path", ["org/name:7b", "org%2Fname:7b", "org%2Fname%3A7b"])
async def test_b1_2_ids_with_a_slash_come_raw_or_escaped(client, models, path):
    (models / "org" / "name").mkdir(parents=True)
    (models / "org" / "name" / "7b.script").write_text('{"steps": []}')

    assert (await client.get(f"/models/{path}")).json()["id"] == "org/name:7b"


# Synchronous answers


@pytest.mark.chapter6
async def test_a2_the_answer_is_a_response_object(client):
    answer = await client.post("/responses", json=body(input="one two"))

    response = answer.json()
    assert answer.status_code == 200
    assert re.fullmatch(r"resp_[0-9A-HJKMNP-TV-Z]{26}", response["id"])
    assert (response["object"], response["status"], response["model"]) == ("response", "completed", "hello")
    assert response["usage"]["input_tokens"] == 2
    assert response["usage"]["output_tokens"] == 2
    assert response["usage"]["total_tokens"] == 4
    assert response["error"] is None
    assert response["incomplete_details"] is None
    (message,) = response["output"]
    assert (message["type"], message["role"], message["content"][0]["type"]) == ("message", "assistant", "output_text")
    assert message["content"][0]["text"] == "Hello 👩‍👧 wörld"


@pytest.mark.chapter6
async def test_a2_2_a_limit_makes_it_incomplete(client):
    response = (await client.post("/responses", json=body(max_output_tokens=1))).json()

    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert response["output"][0]["status"] == "incomplete"


@pytest.mark.ours
async def test_b0_4_a_full_window_is_incomplete_too(client, script):
    script("full", ["text", "a"], ["finish", "length"])

    response = (await client.post("/responses", json=body("full"))).json()

    assert response["incomplete_details"] == {"reason": "context_length"}


@pytest.mark.chapter6
async def test_a2_4_a_failure_is_a_problem_and_no_response(client, script):
    script("breaks", ["text", "a"], ["broken", "no luck"])

    answer = await client.post("/responses", json=body("breaks"))

    assert answer.status_code == 500
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "engine_failed"
    assert answer.json()["detail"] == "no luck"


@pytest.mark.chapter6
async def test_a2_3_reasoning_is_an_item_of_its_own(client, script):
    script("thinks", ["reasoning", "Hm."], ["reasoning", " Yes."], ["text", "Four."])

    items = (await client.post("/responses", json=body("thinks"))).json()["output"]

    assert [item["type"] for item in items] == ["reasoning", "message"]
    assert items[0]["summary"] == [{"type": "summary_text", "text": "Hm. Yes."}]


# Streams


@pytest.mark.chapter6
async def test_a3_a_stream_tells_the_same_as_the_answer(client):
    await client.post("/responses", json=body())
    events = await stream(client, body())

    assert [id for id, _, _ in events] == list(range(1, len(events) + 1))
    assert [name for _, name, _ in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    data = [data for _, _, data in events]
    response_id = data[0]["response_id"]
    assert all(each["response_id"] == response_id for each in data)
    assert data[0]["status"] == "in_progress"
    assert data[2]["item"]["content"] == []
    item = data[8]["item"]
    assert {each["item_id"] for each in data[3:8]} == {item["id"]} == {data[2]["item"]["id"]}
    assert "".join(each["delta"] for each in data[4:6]) == item["content"][0]["text"] == "Hello 👩‍👧 wörld"
    assert data[-1]["status"] == "completed"
    assert data[-1]["usage"]["output_tokens"] == 2
    assert data[-1]["response"]["output"] == [item]


@pytest.mark.ours
async def test_b7_1_data_repeats_the_name_and_the_number(client):
    for id, name, data in await stream(client, body()):
        assert (data["type"], data["sequence_number"]) == (name, id)


@pytest.mark.ours
async def test_b4_1_the_frames_are_plain_ascii_lines(client):
    async with client.stream("POST", "/responses", json=body(stream=True)) as answer:
        assert answer.headers["Cache-Control"] == "no-store, no-transform"
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert answer.headers["Content-Encoding"] == "identity"
        text = (await answer.aread()).decode("ascii")

    assert "\r" not in text
    assert all(re.fullmatch(r"id: \d+\nevent: [a-z_.]+\ndata: \{.*\}", frame) for frame in text.split("\n\n")[:-1])


@pytest.mark.ours
async def test_b4_1_silence_is_filled_with_comments(client, script, monkeypatch):
    monkeypatch.setattr("lmsp_jupyter.handlers.responses.HEARTBEAT", 0.05)
    script("slow", ["sleep", 0.5], ["text", "a"])

    async with client.stream("POST", "/responses", json=body("slow", stream=True)) as answer:
        text = (await answer.aread()).decode()

    assert ": ping\n" in text
    assert ": ping\n\n" not in text
    assert text.endswith("\n\n")


@pytest.mark.ours
async def test_b0_4_a_stream_opens_before_the_model_is_loaded(client, script):
    script("slow", ["text", "a"], load={"sleep": 0.3})

    names = [(name, data.get("phase")) for _, name, data in await stream(client, body("slow"))]

    assert names[:4] == [
        ("response.created", None),
        ("response.in_progress", None),
        ("response.progress", "loading"),
        ("response.progress", "loading"),
    ]


@pytest.mark.ours
async def test_b0_4_a_load_that_fails_after_opening_fails_the_stream(client, script):
    script("wont", load={"error": "no such tensor"})

    *_, (_, name, data) = await stream(client, body("wont"))

    assert name == "response.failed"
    assert data["error"]["code"] == "model_unavailable"
    assert data["error"]["status"] == 503


@pytest.mark.ours
@pytest.mark.parametrize("how", [{"error": "no such tensor"}, {"crash": True}])
async def test_b0_4_a_load_that_fails_before_opening_is_503(client, script, how):
    script("wont", load=how, context_length=100)

    answer = await client.post("/responses", json=body("wont", stream=True))

    assert answer.status_code == 503
    assert answer.json()["code"] == "model_unavailable"


@pytest.mark.chapter6
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("warm", [False, True])
async def test_a1_11_a_prompt_that_does_not_fit_is_refused(client, script, streamed, warm):
    script("small", ["echo"], context_length=10)
    if warm:
        await client.post("/responses", json=body("small"))

    fits = await client.post("/responses", json=body("small", input="word " * 9))
    refused = await client.post("/responses", json=body("small", input="word " * 10, stream=streamed))

    assert fits.status_code == 200
    assert refused.status_code == 400
    assert refused.json()["code"] == "context_length_exceeded"
    assert "10 tokens" in refused.json()["detail"]


@pytest.mark.ours
async def test_b0_4_many_short_messages_are_counted_before_the_stream_opens(client, script):
    script("small", ["echo"], context_length=2100)
    messages = [{"role": "user", "content": "a b"}] * 1100

    answer = await client.post("/responses", json=body("small", messages, stream=True))

    assert (answer.status_code, answer.json()["code"]) == (400, "context_length_exceeded")


@pytest.mark.ours
async def test_n1_3_the_tokens_of_an_input_are_counted_without_generating(app, client, script):
    script("small", ["echo"], context_length=10)

    answer = await client.post("/responses/input_tokens", json=body("small", input="word " * 30))

    assert answer.json() == {"object": "response.input_tokens", "input_tokens": 30}
    assert app.runner.active == 0


# Leaving


@pytest.mark.ours
@pytest.mark.parametrize("streamed", [False, True])
async def test_b0_8_a_client_that_leaves_stops_the_work(app, client, script, streamed):
    script("long", ["repeat", 10000, "x", 0.005])
    post = client.post("/responses", json=body("long")) if not streamed else stream(client, body("long"))
    posted = asyncio.ensure_future(post)
    await until(lambda: app.runner.runs("long"))
    (run,) = app.runner.runs("long")
    await until(lambda: len(run.log.response.text) >= 5)
    seen = len(run.log.response.text)

    posted.cancel()

    await until(lambda: app.runner.active == 0)
    assert run.log.response.status == "cancelled"
    assert run.log.response.usage.output_tokens < seen + 200


@pytest.mark.ours
@pytest.mark.parametrize("streamed", [False, True])
async def test_b0_8_a_client_that_leaves_while_its_request_is_read_starts_nothing(app, client, monkeypatch, streamed):
    reading, left = threading.Event(), threading.Event()
    parse = responses.parse_request
    heard, close = asyncio.Event(), responses.ResponsesHandler.on_connection_close

    def hear(handler):
        close(handler)
        heard.set()

    def slowly(*arguments):
        reading.set()
        assert left.wait(20)
        return parse(*arguments)

    monkeypatch.setattr(responses, "parse_request", slowly)
    monkeypatch.setattr(responses.ResponsesHandler, "on_connection_close", hear)
    start, started = app.runner.start, []
    monkeypatch.setattr(
        app.runner,
        "start",
        lambda request, *more, **options: started.append(request) or start(request, *more, **options),
    )
    posted = asyncio.ensure_future(client.post("/responses", json=body(stream=streamed)))
    await until(reading.is_set)
    posted.cancel()
    await heard.wait()
    left.set()

    assert (await client.post("/responses", json=body(input="second"))).status_code == 200
    assert [request.input[0].text for request in started] == ["second"]


@pytest.mark.ours
async def test_b0_8_leaving_while_waiting_or_loading(app, client, script):
    script("long", ["sleep", 600])
    script("loads", ["text", "a"], load={"sleep": 1}, context_length=100)
    posts = [asyncio.ensure_future(client.post("/responses", json=body("long"))) for _ in range(4)]
    posts += [asyncio.ensure_future(client.post("/responses", json=body("loads")))]
    await until(lambda: app.runner.active == 5)

    for post in posts:
        post.cancel()

    await until(lambda: app.runner.active == 0)
    assert (await client.post("/responses", json=body("loads"))).status_code == 200


@pytest.mark.ours
async def test_a_full_queue_is_told_with_retry_after(app, client, script):
    script("long", ["sleep", 600])
    posts = [asyncio.ensure_future(client.post("/responses", json=body("long"))) for _ in range(4)]
    await until(lambda: app.runner.active == 4)

    answer = await client.post("/responses", json=body("long", stream=True))

    assert (answer.status_code, answer.json()["code"]) == (429, "queue_full")
    assert int(answer.headers["Retry-After"]) > 0
    for post in posts:
        post.cancel()
    await until(lambda: app.runner.active == 0)


@pytest.mark.ours
async def test_b3_8_who_waits_is_told_the_place_in_line(app, client, script):
    script("slow", ["sleep", 0.3], ["text", "a"])
    await client.post("/responses", json=body("slow"))

    streams = await asyncio.gather(*(stream(client, body("slow")) for _ in range(4)))

    places = [[data["position"] for _, name, data in events if name == "response.queued"] for events in streams]
    assert sorted(places) == [[], [], [1], [2, 1]] or sorted(places) == [[], [], [1], [2]]
    assert all(events[-1][1] == "response.completed" for events in streams)


# Crashes


@pytest.mark.ours
async def test_a_crash_fails_the_stream_and_the_next_request_succeeds(client, script):
    script("dies", ["text", "a"], ["crash"])
    events = await stream(client, body("dies"))
    assert [name for _, name, _ in events[-2:]] == ["response.output_item.done", "response.failed"]
    assert events[-2][2]["item"]["status"] == "incomplete"
    assert events[-1][2]["error"]["code"] == "engine_crashed"

    script("dies", ["text", "alive"])

    assert (await client.post("/responses", json=body("dies"))).json()["output"][0]["content"][0]["text"] == "alive"


@pytest.mark.ours
async def test_a_crash_spares_those_who_wait(app, client, script):
    script("dies", ["text", "a"], ["sleep", 600])
    posted = [asyncio.ensure_future(stream(client, body("dies"))) for _ in range(3)]
    await until(
        lambda: app.runner.active == 3 and sum(bool(run.log.response.text) for run in app.runner.runs("dies")) == 2
    )
    script("dies", ["text", "alive"])

    os.kill(app.runner.hosts.get("dies").worker.pid, signal.SIGKILL)

    ends = sorted(events[-1][1] for events in await asyncio.gather(*posted))
    assert ends == ["response.completed", "response.failed", "response.failed"]


# Versions, problems, methods


@pytest.mark.ours
async def test_b2_1_every_answer_carries_the_version(client):
    answers = [
        await client.get(""),
        await client.get("/models/nope"),
        await client.get("/nowhere"),
        await client.options("/responses"),
        await client.post("/responses", json=body()),
        await client.get("", headers={"Authorization": "Bearer wrong"}),
    ]

    assert [answer.headers["LMSP-Version"] for answer in answers] == ["1.0"] * len(answers)


@pytest.mark.ours
async def test_b2_1_another_version_is_refused(client):
    answer = await client.get("", headers={"LMSP-Version": "2.0"})

    assert (answer.status_code, answer.json()["code"]) == (400, "unsupported_version")
    assert answer.json()["supported_versions"] == ["1.0"]
    assert (await client.get("", headers={"LMSP-Version": "1.0"})).status_code == 200


@pytest.mark.ours
async def test_b2_2_a_refusal_is_a_problem_document(client, jp_base_url):
    answer = await client.post("/responses", json=body(temperature=True))

    problem = answer.json()
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert problem["type"].endswith("invalid_request")
    assert problem["status"] == answer.status_code == 400
    assert problem["instance"] == f"{jp_base_url}lmsp/v1/responses"
    assert problem["message"] == problem["detail"]
    assert problem["param"] == problem["errors"][0]["pointer"] == "/temperature"


@pytest.mark.ours
@pytest.mark.parametrize("value", ["true", '"1"', "NaN", "-1", "2.1", "Infinity", "1e999"])
async def test_b0_5_a_bad_temperature_has_a_pointer(client, value):
    content = f'{{"model": "hello", "input": "hi", "temperature": {value}}}'
    answer = await client.post("/responses", content=content, headers={"Content-Type": "application/json"})

    assert (answer.status_code, answer.json()["param"]) == (400, "/temperature")


@pytest.mark.ours
async def test_b0_2_an_unknown_parameter_names_the_closest(client):
    answer = await client.post("/responses", json=body(max_tokens=5))

    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_parameter")
    assert "max_output_tokens" in answer.json()["detail"]


@pytest.mark.ours
async def test_b2_6_a_body_too_large(client):
    content = json.dumps(body(input="x" * MAX_BODY_BYTES)).encode()
    answer = await client.post("/responses", content=content, headers={"Content-Type": "application/json"})

    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


@pytest.mark.ours
async def test_b2_3_only_json_is_read(client):
    answer = await client.post("/responses", data={"model": "hello"})

    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


@pytest.mark.ours
@pytest.mark.parametrize("path", ["/nowhere", "/responses/a/b", "/../", "/models//"])
async def test_b2_3_nothing_there(client, path):
    answer = await client.get(path)

    assert answer.status_code == 404
    assert answer.json()["code"] in ("not_found", "model_not_found")


@pytest.mark.ours
async def test_b2_3_methods(client):
    answer = await client.delete("/models")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS"

    answer = await client.get("/responses")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST, OPTIONS")
    assert (await client.head("/responses")).status_code == 405


@pytest.mark.ours
@pytest.mark.parametrize("path", ["", "/models", "/models/hello"])
async def test_b4_2_head_on_every_get_route(client, path):
    answer = await client.head(path)

    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 0


@pytest.mark.ours
async def test_b4_2_a_preflight_needs_no_credentials(client, jp_auth_header):
    del client.headers["Authorization"]
    answer = await client.options(
        "/responses", headers={"Origin": "http://other", "Access-Control-Request-Method": "POST"}
    )

    assert answer.status_code == 204
    allowed = answer.headers["Access-Control-Allow-Headers"].lower()
    assert all(name in allowed for name in ("authorization", "idempotency-key", "lmsp-version", "last-event-id"))
    assert answer.headers.get("Access-Control-Allow-Origin", "") not in ("*", "http://other")


# Credentials


@pytest.mark.ours
@pytest.mark.parametrize("path", ["", "/models", "/models/hello", "/nowhere"])
async def test_b5_4_no_credentials(client, path):
    del client.headers["Authorization"]
    answer = await client.get(path)

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.headers["Content-Type"] == "application/problem+json"


@pytest.mark.ours
async def test_b5_4_bad_credentials(client):
    answer = await client.post("/responses", json=body(), headers={"Authorization": "Bearer wrong"})

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'


@pytest.mark.ours
async def test_b5_1_an_lmsp_token_opens_lmsp_and_nothing_else(app, client, jp_serverapp, jp_base_url):
    client.headers["Authorization"] = f"Bearer {app.tokens.mint_for_kernel()}"

    assert (await client.post("/responses", json=body())).status_code == 200
    assert "Set-Cookie" not in (await client.get("")).headers
    other = f"http://127.0.0.1:{jp_serverapp.port}{jp_base_url}api/contents"
    assert (await client.get(other)).status_code == 403


@pytest.mark.ours
async def test_b5_1_a_cookie_needs_the_xsrf_token(client, jp_serverapp, jp_base_url):
    token = client.headers.pop("Authorization")
    await client.get(f"http://127.0.0.1:{jp_serverapp.port}{jp_base_url}login")  # a page sets the XSRF cookie
    await client.get("", headers={"Authorization": token})  # a token logs the browser in
    assert (await client.get("")).status_code == 200

    refused = await client.post("/responses", json=body())
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")

    token = next(value for name, value in client.cookies.items() if name == "_xsrf")
    assert (await client.post("/responses", json=body(), headers={"X-XSRFToken": token})).status_code == 200


@pytest.mark.ours
async def test_b5_4_another_host_is_forbidden(client):
    answer = await client.get("", headers={"Host": "evil.example"})

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.ours
async def test_b5_4_another_origin_is_forbidden(client, jp_serverapp, jp_base_url):
    token = client.headers.pop("Authorization")
    await client.get(f"http://127.0.0.1:{jp_serverapp.port}{jp_base_url}login")
    await client.get("", headers={"Authorization": token})
    xsrf = next(value for name, value in client.cookies.items() if name == "_xsrf")
    headers = {"X-XSRFToken": xsrf, "Origin": "http://evil.example"}

    answer = await client.post("/responses", json=body(), headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.ours
async def test_b5_7_kernels_are_told_where_and_how(app, client, jp_serverapp, monkeypatch):
    monkeypatch.setenv("LMSP_BASE_URL", "")
    monkeypatch.setenv("LMSP_TOKEN", "")
    await app._start_jupyter_server_extension(jp_serverapp)

    assert os.environ["LMSP_BASE_URL"].endswith("/lmsp/v1")
    assert app.tokens.find(os.environ["LMSP_TOKEN"]) is not None


@pytest.mark.ours
@pytest.mark.parametrize("ip", ["", "*", "0.0.0.0", "::"])
async def test_b5_7_the_kernels_token_never_goes_by_the_name_of_the_host(app, jp_serverapp, monkeypatch, ip):
    monkeypatch.setenv("LMSP_BASE_URL", "")
    monkeypatch.setenv("LMSP_TOKEN", "")
    monkeypatch.setattr(jp_serverapp, "ip", ip)

    await app._start_jupyter_server_extension(jp_serverapp)

    assert os.environ["LMSP_BASE_URL"].startswith(f"http://localhost:{jp_serverapp.port}/")


@pytest.mark.ours
async def test_b1_1_a_model_that_failed_to_load_stays_the_default(client, models):
    (models / "hello.script").write_text('{"steps": [], "load": {"crash": true}}')
    await client.post("/responses", json=body())

    assert (await client.get("/models/hello")).json()["state"] == "failed"
    assert (await client.get("")).json()["default_model"] == "hello"


@pytest.mark.chapter6
async def test_a2_4_a_server_that_stops_says_so(app, client, script):
    script("long", ["text", "a"], ["sleep", 600])
    script("loads", load={"sleep": 2}, context_length=100)
    running = asyncio.ensure_future(client.post("/responses", json=body("long")))
    loading = asyncio.ensure_future(client.post("/responses", json=body("loads")))
    await until(lambda: app.runner.active == 2 and app.runner.runs("long"))
    (run,) = app.runner.runs("long")
    await until(lambda: run.log.response.text and app.runner.hosts.get("loads"))

    await app.runner.close()

    assert ((await running).status_code, (await running).json()["code"]) == (503, "service_restarted")
    assert ((await loading).status_code, (await loading).json()["code"]) == (503, "model_unavailable")


@pytest.mark.ours
async def test_b1_2_a_name_that_is_none_is_not_repeated_whole(client):
    answer = await client.post("/responses", json=body("x" * 1_000_000))

    assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
    assert len(answer.content) < 2000


@pytest.mark.ours
async def test_b5_1_our_own_client_is_let_in_where_there_is_no_token(app, jp_serverapp, jp_base_url, monkeypatch):
    monkeypatch.setattr(jp_serverapp.identity_provider, "token", "")

    def respond():
        with Client(f"http://127.0.0.1:{jp_serverapp.port}{jp_base_url}") as client:
            return client.respond("hi", model="hello").text

    assert (await asyncio.to_thread(respond)).startswith("Hello")


class TestCompressed:
    """A server that compresses its answers."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        jp_server_config["ServerApp"]["tornado_settings"] = {"compress_response": True}
        return jp_server_config

    @pytest.mark.ours
    async def test_b4_1_streams_are_never_compressed(self, client):
        request = body(stream=True)
        async with client.stream("POST", "/responses", json=request, headers={"Accept-Encoding": "gzip"}) as answer:
            raw = b"".join([chunk async for chunk in answer.aiter_raw()])

        assert raw.startswith(b"id: 1\nevent: response.created\n")
