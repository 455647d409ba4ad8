"""The client against a scripted service on loopback. With a real service: test_handlers.py."""

import json
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lmsp_jupyter import errors, events, sse
from lmsp_jupyter.client import Client
from lmsp_jupyter.protocol import FunctionCall, FunctionCallOutput, Message, OutputText, Reasoning, SummaryText

TOKEN = "s3cret-token"

SERVICE = {
    "object": "service",
    "name": "scripted",
    "version": "0",
    "lmsp_versions": ["1.0"],
    "capabilities": [],
    "engines": [],
    "default_model": "tiny",
    "limits": {"queue": 1, "body": 1, "event_retention": 1, "task_retention": 1},
}

MODEL = {
    "id": "org/tiny:q4",
    "object": "model",
    "engine": "llama_cpp",
    "capabilities": [],
    "context_length": 2048,
    "size_bytes": 1,
    "quantization": "q4_0",
    "source": "ollama",
    "state": "available",
    "error": None,
}


class ScriptedService:
    """Calls `routes[(method, path)]` with the handler; keeps what it was sent in `requests`."""

    def __init__(self):
        self.routes = {("GET", "/lmsp/v1"): answer(200, SERVICE)}
        self.requests = []
        self.left = threading.Event()
        self.released = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self):
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def do_GET(self):
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                service.requests.append((self.command, self.path, self.headers, body))
                missing = answer(404, errors.NotFound().document())
                service.routes.get((self.command, self.path), missing)(self)

            do_POST = do_GET

            def log_message(self, *args):
                """Nothing on stderr."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.service = self
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def streams(self, *steps, **options):
        self.routes["POST", "/lmsp/v1/responses"] = stream(*steps, **options)

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @property
    def body(self):
        """The body of the last request that had one."""
        return [body for *_, body in self.requests if body is not None][-1]


def answer(status, content, content_type="application/json", **headers):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()

    def route(handler):
        handler.send_response(status)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(data)

    return route


def stream(*steps, size=None, chunked=True):
    """An event stream: bytes are sent (in pieces of `size`), seconds waited, functions called."""

    def route(handler):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        if chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        handler.close_connection = True
        handler.end_headers()
        for step in steps:
            if isinstance(step, bytes):
                for start in range(0, len(step), size or len(step)):
                    piece = step[start : start + (size or len(step))]
                    if chunked:
                        piece = b"%x\r\n%s\r\n" % (len(piece), piece)
                    handler.wfile.write(piece)
            elif callable(step):
                if step(handler) is False:
                    return
            else:
                time.sleep(step)
        if chunked:
            handler.wfile.write(b"0\r\n\r\n")

    return route


def until_left(handler):
    """Send nothing until the client has closed its connection."""
    handler.connection.settimeout(10)
    if handler.connection.recv(1) == b"":
        handler.server.service.left.set()
    return False


def until_released(handler):
    """Send nothing and look at nothing until the test is over."""
    handler.server.service.released.wait(10)
    return False


def die(handler):
    """Cut the connection in the middle of the body."""
    return False


def frame(number, name, **data):
    return sse.encode(number, name, json.dumps(data))


def frames(kinds):
    """The frames of typed events, numbered."""
    return b"".join(sse.encode(number, event.name, events.encode(event)) for number, event in enumerate(kinds, 1))


def whole(text, **final):
    """A response in the events of chapter 6 alone (A3.2)."""
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    done = item | {"content": [{"type": "output_text", "text": text}]}
    middle = len(text) // 2
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    return b"".join(
        (
            frame(1, "response.created", response_id="resp_1", status="in_progress"),
            frame(2, "response.output_item.added", response_id="resp_1", output_index=0, item=item),
            delta(3, text[:middle]),
            delta(4, text[middle:]),
            frame(5, "response.output_item.done", response_id="resp_1", output_index=0, item=done),
            final_frame(6, usage=usage, **final),
        )
    )


def delta(number, text):
    return frame(number, "response.output_text.delta", response_id="resp_1", item_id="msg_1", delta=text)


def final_frame(number, status="completed", **more):
    return frame(number, f"response.{status}", response_id="resp_1", status=status, **more)


def started(text):
    """A response that has begun and is not done."""
    return b"".join(frame + b"\n\n" for frame in whole(text + text).split(b"\n\n")[:3])


@pytest.fixture
def service():
    service = ScriptedService()
    yield service
    service.close()


@pytest.fixture
def client(service):
    with Client(service.url, TOKEN) as client:
        yield client


# What is sent.


@pytest.mark.chapter6
def test_A1_1_a_request_has_the_version_the_bearer_and_a_json_body(service, client):
    service.streams(whole("Hi"))
    client.respond("hello")
    method, path, headers, body = service.requests[-1]
    assert (method, path) == ("POST", "/lmsp/v1/responses")
    assert headers["LMSP-Version"] == "1.0"
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert headers["Content-Type"] == "application/json"
    content = [{"type": "input_text", "text": "hello"}]
    message = {"type": "message", "role": "user", "content": content}
    assert body == {"model": "tiny", "input": [message], "stream": True}


@pytest.mark.ours
def test_B2_4_sampling_goes_into_extensions_and_what_is_none_is_not_sent(service, client):
    service.streams(whole("Hi"))
    client.respond(
        "hello",
        model="other",
        temperature=0,
        max_output_tokens=5,
        top_p=0.5,
        seed=0,
        stop=["\n"],
        top_k=None,
        reasoning=False,
    )
    body = service.body
    assert body.keys() == {
        "model",
        "input",
        "stream",
        "temperature",
        "max_output_tokens",
        "extensions",
    }
    assert (body["model"], body["temperature"], body["max_output_tokens"]) == ("other", 0, 5)
    assert body["extensions"] == {
        "lmsp_jupyter": {
            "top_p": 0.5,
            "seed": 0,
            "stop": ["\n"],
            "reasoning": {"enabled": False},
        }
    }
    assert [path for _, path, *_ in service.requests] == ["/lmsp/v1/responses"]


@pytest.mark.chapter6
def test_A1_3_system_stands_in_front_and_items_of_a_response_go_back(service, client):
    service.streams(whole("Hi"))
    earlier = [
        Reasoning(id="rs_1", summary=[SummaryText(text="hm")]),
        Message(role="assistant", content=[OutputText(text="Hello")]),
    ]
    question = {"role": "user", "content": "why?"}
    client.respond([*earlier, question], system="Be brief.")
    system, reasoning, message, user = service.body["input"]
    assert system["role"] == "system"
    assert system["content"][0]["text"] == "Be brief."
    assert reasoning == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "hm"}],
    }
    assert message.keys() == {"type", "role", "content"}
    assert user == question


@pytest.mark.chapter6
def test_A5_5_a_call_goes_back_as_received_with_what_it_came_to(service, client):
    service.streams(whole("Hi"))
    call = FunctionCall(id="fc_1", call_id="call_1", name="add", arguments='{"a": 1}', status="completed")
    client.respond([{"role": "user", "content": "1 + 1?"}, call, FunctionCallOutput(call_id="call_1", output="2")])
    assert service.body["input"][1:] == [
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "add",
            "arguments": '{"a": 1}',
            "status": "completed",
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "2"},
    ]


def test_an_unknown_option_names_the_closest_and_sends_nothing(service, client):
    with pytest.raises(TypeError, match="did you mean temperature"):
        client.respond("hello", temprature=0)
    assert service.requests == []


def test_no_default_model_tells_how_to_get_one(service, client):
    service.routes["GET", "/lmsp/v1"] = answer(200, SERVICE | {"default_model": None})
    with pytest.raises(errors.ModelNotFound, match=r"jupyter lmsp pull smollm2:135m"):
        client.respond("hello")


def test_escapes_of_the_base_url_are_kept(service):
    service.routes["GET", "/user/a%40b/lmsp/v1"] = answer(200, SERVICE)
    for url in ("user/a%40b/", "user/a%40b", "user/a%40b/lmsp/v1", "user/a%40b/lmsp/v1/"):
        with Client(service.url + url) as client:
            assert client.service().name == "scripted"
            assert client.base_url == service.url + "user/a%40b/lmsp/v1"


def test_loopback_is_never_asked_through_a_proxy(service, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    for url in (service.url, service.url.replace("127.0.0.1", "localhost")):
        with Client(url) as client:
            assert client.service().name == "scripted"


def test_cookies_are_never_sent_back(service, client):
    service.routes["GET", "/lmsp/v1"] = answer(200, SERVICE, Set_Cookie="username=x; Path=/")
    client.service()
    client.service()
    assert "Cookie" not in service.requests[-1][2]


# Service and models.


@pytest.mark.ours
def test_N1_7_close_while_the_service_is_silent_ends_it_at_its_first_word(service, client):
    asked = threading.Event()

    def late(handler):
        asked.set()
        assert service.released.wait(20)
        stream(started("Hello"))(handler)

    service.routes["POST", "/lmsp/v1/responses"] = late
    opened = client.stream("hi")
    thread = threading.Thread(target=opened.__enter__)
    thread.start()
    assert asked.wait(20)
    opened.close()
    service.released.set()
    thread.join(20)

    assert not thread.is_alive()
    assert list(opened) == []
    assert opened.response.status == "cancelled"


def test_N1_3_an_input_is_counted_without_generating(service, client):
    counted = {"object": "response.input_tokens", "input_tokens": 34}
    service.routes["POST", "/lmsp/v1/responses/input_tokens"] = answer(200, counted)

    assert client.count_tokens("Name a prime.", system="Be brief.") == 34
    assert [item["role"] for item in service.body["input"]] == ["system", "user"]


def test_B1_1_the_service_and_B1_2_its_models(service, client):
    service.routes["GET", "/lmsp/v1/models"] = answer(200, {"object": "list", "data": [MODEL]})
    service.routes["GET", "/lmsp/v1/models/org/tiny:q4"] = answer(200, MODEL)
    assert client.service().default_model == "tiny"
    assert [model.id for model in client.models.list()] == ["org/tiny:q4"]
    assert client.models.get("org/tiny:q4").context_length == 2048


@pytest.mark.ours
def test_B1_2_an_unknown_model_is_the_services_problem(service, client):
    problem = errors.ModelNotFound("No model 'a?b'; did you mean tiny?")
    service.routes["GET", "/lmsp/v1/models/a%3Fb"] = answer(404, problem.document())
    with pytest.raises(errors.ModelNotFound, match="did you mean tiny"):
        client.models.get("a?b")


# Streams.


@pytest.mark.chapter6
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, None])
def test_A3_2_a_stream_of_chapter_6_cut_anywhere(service, client, size):
    text = "Grüße, 👩‍👧 wörld"
    service.streams(whole(text), size=size)
    with client.stream("hello") as stream:
        seen = list(stream)
    assert [event.sequence_number for event in seen] == [1, 2, 3, 4, 5, 6]
    assert "".join(event.delta for event in seen if isinstance(event, events.TextDelta)) == text
    assert isinstance(seen[-1], events.Completed)
    response = stream.response
    assert (response.id, response.status, response.text) == ("resp_1", "completed", text)
    assert response.usage.total_tokens == 5


@pytest.mark.ours
def test_B7_1_the_response_is_the_fold_of_the_events(service, client):
    composer = events.Composer("resp_2")
    made = [
        events.Created(response_id="resp_2"),
        *composer.reasoning("hm"),
        *composer.text("Hi"),
        *composer.incomplete("max_output_tokens", None),
    ]
    service.streams(frames(made))
    response = client.respond("hello")
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert [item.text for item in response.output] == ["hm", "Hi"]


@pytest.mark.chapter6
def test_A5_4_a_call_is_an_item_of_the_response(service, client):
    composer = events.Composer("resp_2")
    made = [events.Created(response_id="resp_2"), *composer.call("add"), *composer.arguments('{"a": ')]
    service.streams(frames([*made, *composer.arguments("1}"), *composer.called(), *composer.completed(None)]))
    response = client.respond("hello")
    (call,) = response.output
    assert isinstance(call, FunctionCall)
    assert (call.name, call.arguments, call.status) == ("add", '{"a": 1}', "completed")
    assert response.text == ""


@pytest.mark.ours
def test_B0_7_a_call_that_is_not_whole_when_the_stream_is_left_is_dropped(service, client):
    composer = events.Composer("resp_2")
    made = [events.Created(response_id="resp_2"), *composer.text("Hi"), *composer.call("add")]
    service.streams(frames([*made, *composer.arguments('{"a": ')]), until_left)
    with client.stream("hello") as stream:
        while not isinstance(next(stream), events.ArgumentsDelta):
            pass
        assert isinstance(stream.response.output[-1], FunctionCall)
    assert [item.text for item in stream.response.output] == ["Hi"]


@pytest.mark.chapter6
def test_A3_4_unknown_events_and_members_are_ignored(service, client):
    unknown = frame(9, "response.something.new", what="ever") + sse.encode(9, "other", "not JSON")
    service.streams(unknown, started("Hi"), unknown, final_frame(10, novel={"a": 1}))
    with client.stream("hello") as stream:
        names = [event.name for event in stream]
    assert names == [
        "response.created",
        "response.output_item.added",
        "response.output_text.delta",
        "response.completed",
    ]


@pytest.mark.ours
def test_B4_1_heartbeats_reset_the_read_timeout(service):
    service.streams(started("Hi"), *[0.2, sse.PING] * 4, final_frame(9))
    with Client(service.url, timeout=0.5) as client:
        assert client.respond("hello").text == "Hi"


def test_silence_in_a_stream_is_an_error_that_says_so(service):
    service.streams(started("Hi"), until_released)
    with Client(service.url, timeout=0.3) as client, client.stream("hello") as stream:
        with pytest.raises(errors.ServiceUnreachable, match="silent"):
            list(stream)
        assert stream.response.text == "Hi"


def test_silence_is_allowed_for_less_time_once_a_stream_has_begun(service, client, monkeypatch):
    monkeypatch.setattr("lmsp_jupyter.client.SILENCE_SECONDS", 0.3)
    service.streams(started("Hi"), until_released)
    begun = time.monotonic()
    with pytest.raises(errors.ServiceUnreachable, match="silent"):
        client.respond("hello")
    assert time.monotonic() - begun < 5


def test_events_arrive_when_they_are_sent(service, client):
    service.streams(started("Hi"), until_left)
    with client.stream("hello") as stream:
        assert [next(stream).sequence_number for _ in range(3)] == [1, 2, 3]
        assert stream.response.text == "Hi"
        assert stream.response.status == "in_progress"


# Leaving.


@pytest.mark.chapter6
def test_A3_5_leaving_the_context_closes_the_connection(service, client):
    service.streams(started("Hi"), until_left)
    with client.stream("hello") as stream:
        for event in stream:
            if isinstance(event, events.TextDelta):
                break
    assert service.left.wait(5)
    assert (stream.response.status, stream.response.text) == ("cancelled", "Hi")
    assert list(stream) == []


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, ZeroDivisionError])
def test_an_exception_closes_the_connection(service, client, interrupt):
    service.streams(started("Hi"), until_left)
    stream = client.stream("hello")

    def fail_inside():
        with stream:
            next(stream)
            next(stream)
            next(stream)
            raise interrupt

    with pytest.raises(interrupt):
        fail_inside()
    assert service.left.wait(5)
    assert stream.response.status == "cancelled"


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_N1_7_ctrl_c_while_waiting_closes_the_connection(service):
    service.streams(started("Hi"), until_left)
    code = (
        "import sys\n"
        "from lmsp_jupyter.client import Client\n"
        "with Client(sys.argv[1]) as client:\n"
        "    try:\n"
        "        with client.stream('hello') as stream:\n"
        "            for event in stream:\n"
        "                print(event.name, flush=True)\n"
        "    except KeyboardInterrupt:\n"
        "        print(stream.response.status, stream.response.text, flush=True)\n"
        "        sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, service.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(2)
        assert process.stdout.readline() == "cancelled Hi\n"
        assert service.left.wait(5), "the connection is open while the process lives"


def test_another_thread_can_close_a_stream_that_waits(service, client):
    service.streams(started("Hi"), until_left)
    stream = client.stream("hello")
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(stream))
    reader.start()
    while stream.response.text != "Hi":
        time.sleep(0.01)
    time.sleep(0.1)
    stream.close()
    reader.join(5)
    assert not reader.is_alive()
    assert len(seen) == 3
    assert stream.response.status == "cancelled"
    assert service.left.wait(5)


def test_a_stream_that_was_closed_before_it_began_sends_nothing(service, client):
    stream = client.stream("hello", model="tiny")
    stream.close()
    assert list(stream) == []
    assert service.requests == []


def test_leaving_after_the_end_changes_nothing(service, client):
    service.streams(whole("Hi"))
    with client.stream("hello") as stream:
        list(stream)
    stream.close()
    assert stream.response.status == "completed"


# Failures.


@pytest.mark.chapter6
@pytest.mark.parametrize("name", ["response.failed", "error"])
def test_A3_2_a_failure_is_yielded_and_then_raised(service, client, name):
    problem = errors.EngineCrashed("The engine died.").document()
    service.streams(started("Hi"), frame(9, name, response_id="resp_1", error=problem))
    with client.stream("hello") as stream:
        assert [next(stream).name for _ in range(4)][-1] == name
        with pytest.raises(errors.EngineCrashed, match="died"):
            next(stream)
    assert stream.response.text == "Hi"
    assert stream.response.status == ("failed" if name == "response.failed" else "in_progress")
    with pytest.raises(errors.EngineCrashed):
        client.respond("hello")


@pytest.mark.chapter6
def test_A2_4_a_refusal_is_the_problem_with_its_pointers(service, client):
    problem = errors.BadRequest("too hot", errors=[("/temperature", "too hot")])
    service.routes["POST", "/lmsp/v1/responses"] = answer(
        400, problem.document("/lmsp/v1/responses"), "application/problem+json"
    )
    with pytest.raises(errors.BadRequest, match="too hot") as caught:
        client.respond("hello", temperature=9)
    assert caught.value.param == "/temperature"
    with pytest.raises(errors.BadRequest), client.stream("hello"):
        pytest.fail("there is no stream")


@pytest.mark.parametrize(
    ("status", "content", "content_type", "kind", "hint"),
    [
        (502, b"<html>Bad Gateway</html>", "text/html", errors.ServiceUnreachable, "proxy"),
        (500, b"", "text/plain", errors.ServiceUnreachable, "500"),
        (404, b"<html>", "text/html", errors.ServiceUnreachable, "Install lmsp_jupyter"),
        (401, {"message": "no"}, "application/json", errors.Unauthorized, "LMSP_TOKEN"),
        (403, {"message": "Forbidden"}, "application/json", errors.Forbidden, "LMSP_TOKEN"),
        (200, b"<html>Log in</html>", "text/html", errors.ServiceUnreachable, "speak LMSP"),
        (200, {"object": "else"}, "application/json", errors.ServiceUnreachable, "speak LMSP"),
    ],
)
def test_answers_that_are_not_lmsp(service, client, status, content, content_type, kind, hint):
    not_lmsp = answer(status, content, content_type)
    service.routes["GET", "/lmsp/v1"] = service.routes["POST", "/lmsp/v1/responses"] = not_lmsp
    for call in (client.service, lambda: client.respond("hello", model="tiny")):
        with pytest.raises(kind, match=hint) as caught:
            call()
        assert type(caught.value) is kind


def test_a_login_page_is_not_followed(service, client):
    service.routes["GET", "/lmsp/v1"] = answer(302, b"", Location=service.url + "login")
    with pytest.raises(errors.Unauthorized, match="login"):
        client.service()
    assert len(service.requests) == 1


@pytest.mark.parametrize("chunked", [True, False])
def test_a_stream_that_dies_is_an_error_and_keeps_what_it_had(service, client, chunked):
    service.streams(started("Hi"), die, chunked=chunked)
    with (
        client.stream("hello") as stream,
        pytest.raises(errors.ServiceUnreachable, match="again"),
    ):
        list(stream)
    assert (stream.response.status, stream.response.text) == ("in_progress", "Hi")


def test_a_stream_that_ends_without_a_final_event_is_an_error(service, client):
    service.streams(started("Hi"))
    with pytest.raises(errors.ServiceUnreachable, match="ended before"):
        client.respond("hello")


@pytest.mark.parametrize("data", ["{", '{"response_id": 1}', "[]", ""])
def test_data_that_is_not_what_its_type_says_is_an_error(service, client, data):
    broken = sse.encode(4, "response.output_text.delta", data)
    service.streams(started("Hi"), broken, final_frame(5))
    with pytest.raises(errors.ServiceUnreachable, match="speak LMSP"):
        client.respond("hello")


@pytest.fixture
def refusing_url():
    """A port that is bound, so no one else's, and does not listen."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/"


def test_a_connection_that_is_refused_says_what_to_do(refusing_url):
    with (
        Client(refusing_url) as client,
        pytest.raises(errors.ServiceUnreachable, match="jupyter lmsp serve"),
    ):
        client.service()


def test_a_connection_that_breaks_before_an_answer(service, client):
    def cut(handler):
        handler.close_connection = True

    service.routes["GET", "/lmsp/v1"] = cut
    with pytest.raises(errors.ServiceUnreachable, match="broke"):
        client.service()


# Secrets, threads, imports.


def test_the_token_is_in_no_repr_no_error_and_no_log(service, refusing_url, caplog):
    caplog.set_level("DEBUG")
    service.routes["GET", "/lmsp/v1"] = answer(403, {"message": "Forbidden"})
    for url in (service.url, refusing_url, refusing_url + f"?token={TOKEN}"):
        with Client(url, TOKEN) as client:
            assert TOKEN not in repr(client) + repr(client._address)
            with pytest.raises(errors.Problem) as caught:
                client.service()
            assert TOKEN not in str(caught.value.document())
    assert caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("token", ["tökén", "two\nlines", "\0"])
def test_a_token_that_cannot_be_sent_is_refused_without_showing_it(token):
    with pytest.raises(errors.Unauthorized) as caught:
        Client("http://127.0.0.1:9", token)
    assert token not in str(caught.value)
    assert caught.value.__cause__ is None


def test_one_client_serves_several_threads(service, client):
    service.streams(whole("Hi there"), size=11)
    texts = []
    threads = [threading.Thread(target=lambda: texts.append(client.respond("hello").text)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert texts == ["Hi there"] * 8


def test_importing_the_client_leaves_the_server_alone():
    code = (
        "import sys, lmsp_jupyter.client\n"
        "sys.exit(' '.join({'jupyter_server', 'tornado', 'IPython'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
