"""The routes of `/lmsp/`: JSON in; JSON or server-sent events out; authentication; nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import re
from http.client import responses
from typing import Any

import msgspec
from jupyter_server.auth import User
from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import ensure_async
from tornado import web
from tornado.iostream import StreamClosedError

from . import errors, sse
from .auth import Tokens
from .protocol import LMSP_VERSIONS, InputTokens, ModelList, Request, Service, Wire, check_version, parse_request
from .runner import Run, Runner

HEARTBEAT = 10.0
"""Seconds of silence after which a stream sends a comment (B4.1)."""

_BEARER = re.compile(r"(?:bearer|token)\s+(?P<token>.+)", re.IGNORECASE)
_METHODS = {"get": "GET, HEAD", "post": "POST"}
_BY_STATUS = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    413: errors.PayloadTooLarge,
}


class LMSPHandler(APIHandler):
    """Base of the routes: who may come in, and every refusal as a problem document (B2.2, B5.4)."""

    auth_resource = "lmsp"

    def initialize(self, runner: Runner, tokens: Tokens, service: Service) -> None:
        self.runner = runner
        self.tokens = tokens
        self.service = service

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("LMSP-Version", LMSP_VERSIONS[0])

    async def prepare(self) -> None:  # type: ignore[override]  # Jupyter's own takes an argument of its own
        if self.request.method == "OPTIONS":
            self.current_user = self._jupyter_current_user = None
            return
        if not self.check_host():
            raise errors.Forbidden("The Host header does not name this server.")
        match = _BEARER.fullmatch(self.request.headers.get("Authorization", ""))
        if match and self.tokens.knows(match["token"].strip()):
            self._admit(User(username="lmsp", display_name="LMSP token"))
        else:
            await self._authenticate(sent_token=match is not None)
        check_version(self.request.headers.get("LMSP-Version"))

    def _admit(self, user: User) -> None:
        """Let the bearer of an LMSP token in. A token proves that no other site's page sent the request."""
        self.current_user = self._jupyter_current_user = user
        self._token_authenticated = True
        self.set_cors_headers()

    async def _authenticate(self, sent_token: bool) -> None:
        try:
            await super().prepare()
        except web.HTTPError as refusal:
            if self.current_user:
                detail = refusal.log_message or "The origin or the XSRF token of the request is not accepted."
                raise errors.Forbidden(detail) from None
        if not self.current_user:
            challenge = 'Bearer error="invalid_token"' if sent_token else "Bearer"
            raise errors.Unauthorized(
                "Send the server's token as 'Authorization: Bearer …', or log in."
                if not sent_token
                else "The token is not valid here.",
                headers={"WWW-Authenticate": challenge},
            )
        action = "read" if self.request.method in ("GET", "HEAD") else "write"
        allowed = self.authorizer.is_authorized(self, self.current_user, action, self.auth_resource)
        if not await ensure_async(allowed):
            raise errors.Forbidden(f"You may not {action} the resource lmsp of this server.")

    @allow_unauthenticated
    def options(self, *args: str) -> None:
        """The preflight of a browser; origins are allowed as the Jupyter server is configured (B4.2)."""
        self.set_cors_headers()
        super().options(*args)
        self.set_header("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS")
        self.set_header(
            "Access-Control-Allow-Headers",
            "Accept, Authorization, Content-Type, Idempotency-Key, Last-Event-ID, LMSP-Version, X-XSRFToken",
        )
        self.set_status(204)
        self.finish()

    async def head(self, *args: str) -> None:
        """Every GET route answers HEAD (B4.2); tornado leaves the body out."""
        if type(self).get is web.RequestHandler.get:
            raise web.HTTPError(405)
        await ensure_async(self.get(*args))

    async def read_request(self) -> Request:
        """The request in the body; read in a thread, since a large one takes a while."""
        kind = self.request.headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise errors.UnsupportedMediaType(f"Send the request as application/json, not {kind}.")
        return await asyncio.to_thread(parse_request, self.request.body, self.service.limits.body)

    def send(self, body: Wire) -> None:
        """Answer with an object of the protocol."""
        self.finish(msgspec.json.encode(body))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        problem = self._problem(status_code, kwargs.get("exc_info", (None, None, None))[1])
        self.set_status(problem.status)
        if getattr(self, "_jupyter_current_user", None):
            self.set_cors_headers()
        for name, value in problem.headers.items():
            self.set_header(name, value)
        document = problem.document(instance=self.request.path)
        self.finish(msgspec.json.encode(document), set_content_type="application/problem+json")

    def _problem(self, status_code: int, error: BaseException | None) -> errors.Problem:
        if isinstance(error, errors.Problem):
            return error
        if status_code == 405:
            allowed = [
                names
                for method, names in _METHODS.items()
                if getattr(type(self), method) is not getattr(web.RequestHandler, method)
            ]
            allow = ", ".join([*allowed, "OPTIONS"])
            return errors.MethodNotAllowed(
                f"{self.request.method} is not allowed here; use {allow}.", headers={"Allow": allow}
            )
        kind = _BY_STATUS.get(status_code, errors.Problem)
        detail = (isinstance(error, web.HTTPError) and error.log_message) or responses.get(status_code, "")
        return kind(detail if status_code < 500 else "The service met an unexpected error; the server's log has it.")

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, errors.Problem) or value.status >= 500:
            super().log_exception(typ, value, tb)


class ServiceHandler(LMSPHandler):
    """`GET /lmsp/v1` (B1.1)."""

    async def get(self) -> None:
        default = self.service.default_model or await self.runner.first_model()
        self.send(msgspec.structs.replace(self.service, default_model=default))


class ModelsHandler(LMSPHandler):
    """`GET /lmsp/v1/models` (B1.2)."""

    async def get(self) -> None:
        self.send(ModelList(data=await self.runner.models()))


class ModelHandler(LMSPHandler):
    """`GET /lmsp/v1/models/{id}` (B1.2)."""

    async def get(self, model_id: str) -> None:
        self.send(await self.runner.model(model_id))


class ResponsesHandler(LMSPHandler):
    """`POST /lmsp/v1/responses`, synchronous (A2) or streaming (A3). A client that leaves stops the work (B0.8)."""

    _left = False
    _work: asyncio.Task[None] | None = None

    async def post(self) -> None:
        request = await self.read_request()
        if self._left:
            return
        self._work = asyncio.create_task(self._respond(request))
        try:
            await self._work
        except asyncio.CancelledError:
            if not self._left:
                raise errors.ModelUnavailable("The server is stopping.") from None

    async def _respond(self, request: Request) -> None:
        run = await self.runner.start(request)
        try:
            await (self._stream(run) if request.stream else self._answer(run))
        finally:
            run.cancel()

    async def _answer(self, run: Run) -> None:
        async for _ in run.log.follow():
            pass
        response = run.log.response
        if response.error:
            raise errors.from_document(response.error)
        if not self._left:
            self.send(response)

    async def _stream(self, run: Run) -> None:
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-store, no-transform")
        self.set_header("X-Accel-Buffering", "no")
        self.set_header("Content-Encoding", "identity")  # where the server compresses, it leaves this alone (B4.1)
        with contextlib.suppress(StreamClosedError):
            async for batch in run.log.follow(patience=HEARTBEAT):
                self.write(b"".join(sse.encode(*entry) for entry in batch) or sse.PING)
                await self.flush()
            self.finish(set_content_type="text/event-stream")

    def on_connection_close(self) -> None:
        self._left = True
        if self._work is not None:
            self._work.cancel()


class InputTokensHandler(LMSPHandler):
    """`POST /lmsp/v1/responses/input_tokens`: what a request would take, without generating anything."""

    async def post(self) -> None:
        request = await self.read_request()
        self.send(InputTokens(input_tokens=await self.runner.count(request)))


class NotFoundHandler(LMSPHandler):
    """Whatever else is under `/lmsp/`."""

    async def prepare(self) -> None:  # type: ignore[override]  # as above
        await super().prepare()
        if self.request.method != "OPTIONS":
            raise errors.NotFound(f"There is nothing at {self.request.path}; GET lmsp/v1 describes the service.")


def routes(runner: Runner, tokens: Tokens, service: Service) -> list[tuple[str, type[LMSPHandler], dict[str, Any]]]:
    """The routes, relative to the server's base URL."""
    state = {"runner": runner, "tokens": tokens, "service": service}
    table: list[tuple[str, type[LMSPHandler]]] = [
        (r"lmsp/v1/?", ServiceHandler),
        (r"lmsp/v1/models/?", ModelsHandler),
        (r"lmsp/v1/models/(.+)", ModelHandler),
        (r"lmsp/v1/responses", ResponsesHandler),
        (r"lmsp/v1/responses/input_tokens", InputTokensHandler),
        (r"lmsp(?:/.*)?", NotFoundHandler),
    ]
    return [(path, handler, state) for path, handler in table]
