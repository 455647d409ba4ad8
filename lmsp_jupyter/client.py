"""The Python client of an LMSP service: requests out, typed responses and events in.

Whatever goes wrong is a `Problem`: the service's own, or `ServiceUnreachable`, `Unauthorized` or
`Forbidden` where what answers, if anything, is no LMSP service. Where it is, `discovery` finds out.
"""

from __future__ import annotations

import builtins
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from . import discovery, events, sse
from .errors import (
    Document,
    Forbidden,
    ModelNotFound,
    Problem,
    ServiceUnreachable,
    Unauthorized,
    from_document,
)
from .protocol import InputTokens, Item, Model, ModelList, Options, Response, Service, closest

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0
LOADING_SECONDS = 600.0
SILENCE_SECONDS = 60.0

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

_T = TypeVar("_T")

Input = str | list[dict[str, Any] | Item]


class Generation(TypedDict, total=False):
    """What a request may set beside its input; None leaves it to the service and the model.

    `model` is an id, else the service's default model is used; `system` a system message in front
    of the input; `max_output_tokens` at least 1; `temperature` 0 to 2; `top_p` and `min_p` 0 to 1;
    `top_k` in tokens, 0 for all; `seed` 0 to 2**32 - 1; `stop` strings at which an answer ends; the
    penalties -2 to 2; `reasoning` False asks a model that thinks aloud to answer at once.

    >>> options: Generation = {"temperature": 0, "seed": 1}
    >>> client.respond("Name a prime.", **options).text                # doctest: +SKIP
    'Seven.'
    """

    model: str | None
    system: str | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    stop: list[str] | None
    frequency_penalty: float | None
    presence_penalty: float | None
    reasoning: bool | None


class Client:
    """A client of the service that `discovery.find` finds; safe to use from several threads.

    `base_url` is that of a service or of the Jupyter server with it; with `start` False none is
    started. `timeout` in seconds is how long the service may be silent, by default 600 until a
    response begins (a model may be loaded first) and 60 in all else. Raises `ServiceUnreachable`.

    >>> with Client() as client:                                       # doctest: +SKIP
    ...     print(client.respond("Name a prime.", max_output_tokens=20).text)
    """

    def __init__(
        self,
        base_url: str | None = None,
        token: str | None = None,
        *,
        start: bool = True,
        timeout: float | None = None,
    ) -> None:
        self._token = token
        self._start = start
        self._timeout = timeout
        self._http = httpx.Client(
            # Jupyter answers a token with a login cookie: never send it back.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            # None is the direct way, whatever proxy the environment names.
            mounts={f"all://{host}": None for host in _LOOPBACK},
        )
        try:
            self._address = discovery.find(self._http, base_url, token, start=start)
        except BaseException:
            self._http.close()
            raise
        self.models = Models(self)

    @property
    def base_url(self) -> str:
        """The service's URL, ending in `/lmsp/v1`.

        >>> with Client("http://localhost:8888/") as client:
        ...     client.base_url
        'http://localhost:8888/lmsp/v1'
        """
        return self._address.base_url

    def service(self) -> Service:
        """What the service says of itself: its version, engines, default model and limits.

        >>> client.service().default_model                             # doctest: +SKIP
        'smollm2:135m'
        """
        return self._get("", Service)

    def respond(self, input: Input, **options: Unpack[Generation]) -> Response:
        """The response to `input`, a prompt or a list of items, when it is whole.

        It is the fold of `stream`, whose heartbeats keep a long answer alive on its way through
        proxies. `options` are those of `Generation`. Raises the problem of a refusal or a failure.

        >>> client.respond("Name a prime.", system="Be brief.").text   # doctest: +SKIP
        'Seven.'
        """
        with self.stream(input, **options) as stream:
            for _ in stream:
                pass
            return stream.response

    def stream(self, input: Input, **options: Unpack[Generation]) -> ResponseStream:
        """The events of the response to `input`, as they happen; entering it sends the request.

        >>> with client.stream("Tell me a story.") as stream:          # doctest: +SKIP
        ...     for event in stream:
        ...         if isinstance(event, events.TextDelta):
        ...             print(event.delta, end="", flush=True)
        """
        return ResponseStream(self, self._body(input, options))

    def count_tokens(self, input: Input, **options: Unpack[Generation]) -> int:
        """The tokens that `input` would take of the context, template included. Generates nothing.

        >>> client.count_tokens("Name a prime.")                       # doctest: +SKIP
        34
        """
        body = self._body(input, options)
        return self._ask("POST", "/responses/input_tokens", InputTokens, body, read=LOADING_SECONDS).input_tokens

    def close(self) -> None:
        """Close the connections. The service goes on.

        >>> Client("http://localhost:8888/").close()
        """
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    def _body(self, input: Input, options: Generation) -> bytes:
        for name in options.keys() - Generation.__annotations__.keys():
            hint = " or ".join(closest(name, Generation.__annotations__))
            raise TypeError(f"{name!r} is no option" + (f"; did you mean {hint}?" if hint else "."))
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        items = [_message("user", input)] if isinstance(input, str) else [_sent(i) for i in input]
        if "system" in given:
            items.insert(0, _message("system", given["system"]))
        if "reasoning" in given:
            given["reasoning"] = {"enabled": given["reasoning"]}
        model = given.get("model") or self._default_model()
        body = {"model": model, "input": items, "stream": True}
        body |= {n: given[n] for n in ("max_output_tokens", "temperature") if n in given}
        if sampling := {n: given[n] for n in Options.__struct_fields__ if n in given}:
            body["extensions"] = {"lmsp_jupyter": sampling}
        return json.dumps(body).encode()

    def _default_model(self) -> str:
        model = self.service().default_model
        if model is None:
            raise ModelNotFound("The service has no model yet. Get one with `jupyter lmsp pull smollm2:135m`.")
        return model

    def _get(self, path: str, kind: type[_T]) -> _T:
        return self._ask("GET", path, kind, read=ANSWER_SECONDS)

    def _ask(self, method: str, path: str, kind: type[_T], body: bytes | None = None, *, read: float) -> _T:
        response = self._send(method, path, body, read=read)
        try:
            with _translated():
                return msgspec.json.decode(response.read(), type=kind)
        except msgspec.MsgspecError as error:
            raise _not_lmsp(response, str(error)) from None
        finally:
            response.close()

    def _send(self, method: str, path: str, body: bytes | None = None, *, read: float) -> httpx.Response:
        """An answer whose body is yet to be read and closed. Raises what an error one reports."""
        with _translated():
            address = self._address
            try:
                response = self._try(address, method, path, body, read)
            except httpx.ConnectError:
                if address.fixed:
                    raise
                # The service may have ended, being idle. Nothing was sent: this repeats nothing.
                address = discovery.find(self._http, None, self._token, start=self._start)
                self._address = address
                response = self._try(address, method, path, body, read)
            if response.is_success:
                return response
            try:
                response.read()
            finally:
                response.close()
            raise _problem(response)

    def _try(
        self,
        address: discovery.Address,
        method: str,
        path: str,
        body: bytes | None,
        read: float,
    ) -> httpx.Response:
        request = self._http.build_request(
            method,
            address.base_url + path,
            headers=address.headers | ({"Content-Type": "application/json"} if body else {}),
            content=body,
            timeout=httpx.Timeout(self._timeout or read, connect=CONNECT_SECONDS, pool=None),
        )
        return self._http.send(request, stream=True)


class Models:
    """The models of a service, as `client.models`.

    >>> [model.id for model in client.models.list()]                   # doctest: +SKIP
    ['smollm2:135m']
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> builtins.list[Model]:
        """All models that the service knows; one that cannot be read says why in `error`.

        >>> client.models.list()[0].state                              # doctest: +SKIP
        'available'
        """
        return self._client._get("/models", ModelList).data

    def get(self, id: str) -> Model:
        """The model with this id. Raises `ModelNotFound`, which names the closest ids.

        >>> client.models.get("smollm2:135m").context_length           # doctest: +SKIP
        8192
        """
        return self._client._get(f"/models/{quote(id, safe='/:')}", Model)


class ResponseStream:
    """The events of one response, in order: a context manager and an iterator.

    Every event of a known type is yielded, the final one too; going on after one that reports a
    failure raises that problem, so that a plain loop cannot miss it. Leaving the context closes the
    connection, which cancels the response if it still runs; so it is with an error or an interrupt.

    >>> with client.stream("Count to a million.") as stream:           # doctest: +SKIP
    ...     for event in stream:
    ...         if len(stream.response.text) > 100:
    ...             break
    >>> stream.response.status                                         # doctest: +SKIP
    'cancelled'
    """

    def __init__(self, client: Client, body: bytes) -> None:
        self._client = client
        self._body = body
        self._fold = events.Fold()
        self._answer: httpx.Response | None = None
        self._ended = False
        self._closed = False
        self._events = self._read()

    @property
    def response(self) -> Response:
        """The response so far: partial after a failure, `cancelled` if it was left before its end.

        >>> stream.response.text                                       # doctest: +SKIP
        'Seven.'
        """
        return self._fold.response

    def close(self) -> None:
        """Close the connection, and end the work with it; from another thread, end its iteration.

        >>> stream.close()                                             # doctest: +SKIP
        """
        self._closed = True
        if self._answer is None:
            return
        if not self._ended:
            self._ended = True
            self._fold.apply(events.Cancelled(response_id=self.response.id))
            _hang_up(self._answer)
        self._answer.close()

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[events.Event]:
        return self

    def __next__(self) -> events.Event:
        if self._closed:
            raise StopIteration
        return next(self._events)

    def _open(self) -> httpx.Response:
        if self._answer is None:
            answer = self._client._send("POST", "/responses", self._body, read=LOADING_SECONDS)
            if not answer.headers.get("Content-Type", "").startswith("text/event-stream"):
                answer.close()
                raise _not_lmsp(answer, "the answer is no event stream")
            # From here on there are heartbeats (B4.1); httpx knows one limit for all reads.
            answer.request.extensions["timeout"]["read"] = self._client._timeout or SILENCE_SECONDS
            self._answer = answer
            if self._closed:
                self.close()  # it was called while the service had not answered yet
        return self._answer

    def _read(self) -> Iterator[events.Event]:
        answer = self._open()
        try:
            for event in _decoded(answer):
                self._fold.apply(event)
                self._ended = event.final
                yield event
                if isinstance(event, events.Failed | events.Error):
                    raise from_document(event.error)
                if event.final:
                    return
            raise ServiceUnreachable(
                f"The stream from {answer.url} ended before the response did. The service may have "
                "been stopped; send the request again."
            )
        except (Problem, httpx.StreamError):
            if self._closed:
                return
            self._ended = True
            raise
        finally:
            answer.close()


def _decoded(answer: httpx.Response) -> Iterator[events.Event]:
    decoder = sse.Decoder()
    with _translated():
        for chunk in answer.iter_bytes():
            for message in decoder.feed(chunk):
                try:
                    event = events.decode(message.event, message.id, message.data)
                except msgspec.MsgspecError as error:
                    raise _not_lmsp(answer, f"{message.event}: {error}") from None
                if event is not None:
                    yield event


def _message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _sent(item: dict[str, Any] | Item) -> dict[str, Any]:
    """An item as it is sent: a typed one without the members that it does not have."""
    if isinstance(item, dict):
        return item
    return {name: value for name, value in msgspec.to_builtins(item).items() if value is not None}


def _hang_up(answer: httpx.Response) -> None:
    """Wake a thread that waits for data; closing the socket would leave it waiting."""
    if network := answer.extensions.get("network_stream"):
        with suppress(OSError):
            network.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of httpx as problems. Their texts may hold a header, so the token: keep them out."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise ServiceUnreachable(
            f"Nothing answers at {error.request.url} ({error}). Start its server again, or start a "
            "service with `jupyter lmsp serve` and make a new Client()."
        ) from None
    except httpx.ReadTimeout as error:
        raise ServiceUnreachable(
            f"{error.request.url} has been silent for too long. See whether the service runs; "
            "a slow one may need a larger timeout=."
        ) from None
    except httpx.RequestError as error:
        raise ServiceUnreachable(
            f"The connection to {error.request.url} broke ({type(error).__name__}). The service "
            "may have been stopped; send the request again."
        ) from None


def _not_lmsp(response: httpx.Response, reason: str) -> ServiceUnreachable:
    return ServiceUnreachable(
        f"What answers at {response.url} does not speak LMSP 1.0 ({reason}). Check the URL, the "
        "token and the versions of lmsp_jupyter on both sides."
    )


def _problem(response: httpx.Response) -> Problem:
    """The problem that an error answer reports, or what one means that is not LMSP's."""
    document = _json_object(response)
    if "code" in document:
        return from_document(document)
    answer = f"{response.url} answers {response.status_code} {response.reason_phrase}"
    credentials = "Give a valid token as token= or in LMSP_TOKEN."
    if response.status_code == 401:
        return Unauthorized(f"{answer}. {credentials}")
    if response.status_code == 403:
        return Forbidden(f"{answer}: the token or the host is refused. {credentials}")
    if response.is_redirect:
        return Unauthorized(f"{answer}: the way to a login page, most likely. {credentials}")
    if response.status_code == 404:
        return ServiceUnreachable(
            f"{answer}: there is no LMSP service. Install lmsp_jupyter where that Jupyter server "
            "runs, or check the URL."
        )
    return ServiceUnreachable(
        f"{answer} and no problem document: that of a proxy, most likely. See whether the service behind it runs."
    )


def _json_object(response: httpx.Response) -> Document:
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(response.content, type=dict[str, Any])
    return {}
