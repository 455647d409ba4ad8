"""An LMSP service as a client sees it: requests in the form of chapter 6 go in, answers and events come out."""

from __future__ import annotations

import json
import time
import uuid
from collections import deque
from contextlib import contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx
import websocket

from . import sse

PATIENCE = 120.0
"""Seconds to wait for what must come; a slow machine is no failure."""

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class Service:
    """A service at `url`, asked with `token`; `model` is the one to ask, or None for the service's default.

    `capabilities` are those of the service and of the model; `tells` is whether both say which they have; `enough` is
    the tokens that a short answer may take.
    """

    def __init__(self, url, token, model=None):
        self.url = url.rstrip("/")
        self.token = token
        # No cookie is kept: a request has the credentials that it shows.
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        self.http = httpx.Client(headers=bearer(token), cookies=no_cookies, timeout=PATIENCE, trust_env=False)
        self.description = self._describe("")
        self.model = model or self.description.get("default_model")
        about = self._describe(f"/models/{self.model}")
        self.tells = "capabilities" in self.description and "capabilities" in about
        self.capabilities = {*self.description.get("capabilities", []), *about.get("capabilities", [])}
        self.context_length = about.get("context_length")
        # A model that reasons does so before it answers.
        self.enough = 1000 if "reasoning" in self.capabilities else 24

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()

    def _describe(self, path):
        """What the service says about itself or a model; nothing where it does not."""
        answer = self.get(path)
        described = answer.status_code == 200 and "json" in answer.headers.get("Content-Type", "")
        return answer.json() if described else {}

    # HTTP

    def request(self, method, path="", **options):
        return self.http.request(method, self.url + path, **options)

    def get(self, path="", **options):
        return self.request("GET", path, **options)

    def post(self, path, json=None, **options):
        return self.request("POST", path, json=json, **options)

    def delete(self, path, **options):
        return self.request("DELETE", path, **options)

    @contextmanager
    def open(self, method, path, **options):
        """The events of a stream as they come; it is left at the end of the block."""
        with self.http.stream(method, self.url + path, **options) as answer:
            assert answer.status_code == 200, answer.read()
            yield sse.read(answer.iter_bytes())

    # Responses

    def ask(self, prompt="Name three fruits.", /, **more):
        """A request in the form of A1 for a short answer; members that are None are left out."""
        request = {"model": self.model, "input": [message(prompt)], "max_output_tokens": self.enough, "temperature": 0}
        request |= more
        return {name: value for name, value in request.items() if value is not None}

    def respond(self, request, **options):
        """The response object of a request."""
        answer = self.post("/responses", request, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream(self, request, **options):
        """All events of a streaming request."""
        answer = self.post("/responses", request | {"stream": True}, **options)
        assert answer.status_code == 200, answer.text
        assert answer.headers["Content-Type"].partition(";")[0] == "text/event-stream"
        return list(sse.read([answer.content]))

    def size(self, input, **more):
        """The tokens of an input, as the usage of a response tells them."""
        return self.respond(self.ask(input=input, max_output_tokens=1, **more))["usage"]["input_tokens"]

    # Tasks

    def make_task(self, request, **more):
        answer = self.post("/tasks", {"type": "response", "request": request} | more)
        assert answer.status_code == 202, answer.text
        return answer.json()

    def task(self, task):
        answer = self.get(f"/tasks/{task['id']}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def follow(self, task, headers=None, **params):
        """The events of a task, to its end."""
        answer = self.get(f"/tasks/{task['id']}/events", params=params, headers=headers)
        assert answer.status_code == 200, answer.text
        return list(sse.read([answer.content]))

    def finish(self, request, **more):
        """A task that has finished."""
        task = self.make_task(request, **more)
        self.follow(task)
        return self.task(task)

    def remove_task(self, task):
        """Leave nothing of a task that may still run."""
        self.post(f"/tasks/{task['id']}/cancel")
        self.delete(f"/tasks/{task['id']}")

    # Tokens and the WebSocket

    def mint(self, *scopes, **more):
        """A token of these scopes."""
        answer = self.post("/tokens", {"name": "conformance", "scopes": list(scopes)} | more)
        assert answer.status_code == 201, answer.text
        return answer.json()

    @contextmanager
    def connect(self, token=None, **options):
        """The one WebSocket of a page (B8.1)."""
        header = [f"Authorization: Bearer {token or self.token}"]
        url = self.url.replace("http", "ws", 1) + "/events"
        connection = websocket.create_connection(url, **{"header": header, "timeout": PATIENCE} | options)
        try:
            yield Socket(connection)
        finally:
            connection.close()


class Socket:
    """Messages of the WebSocket: each of the client's is an object, each of the server's an array of objects."""

    def __init__(self, connection):
        self._connection = connection
        self._received = deque()

    def send(self, **message):
        self._connection.send(json.dumps(message))

    def __iter__(self):
        """The objects of the arrays, in order, for ever."""
        return self

    def __next__(self):
        while not self._received:
            batch = json.loads(self._connection.recv())
            assert isinstance(batch, list), batch
            self._received += batch
        return self._received.popleft()


def message(text, role="user"):
    """A message in the form of A1.3."""
    part = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": part, "text": text}]}


def structured(schema, name="answer"):
    """A `response_format` (A1.6)."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def said(response):
    """The text of a response."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def calls(response):
    """The calls of a response."""
    return [item for item in response["output"] if item["type"] == "function_call"]


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def key():
    """A fresh idempotency key, as a header."""
    return {"Idempotency-Key": uuid.uuid4().hex}


def refused(answer, status, code, pointer=None):
    """Assert that an answer is a problem document of B2.2 with this status, code and, if given, pointer."""
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"].partition(";")[0] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["code"]) == (status, code), problem
    if pointer is not None:
        assert problem["param"] == problem["errors"][0]["pointer"] == pointer, problem
    return problem


def until(ask, holds):
    """Ask again and again until the answer holds; gives that answer."""
    end = time.monotonic() + PATIENCE
    while not holds(answer := ask()):
        assert time.monotonic() < end, f"waited too long; the last answer: {answer}"
        time.sleep(0.05)
    return answer
