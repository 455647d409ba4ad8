"""What all routes share: who may come in, how a body is read, and every refusal as a problem document."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http.client import responses
from typing import Any, TypeVar

import msgspec
from jupyter_server.auth import User
from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import ensure_async
from tornado import web

from .. import errors, operations
from ..approvals import Approvals
from ..auth import PREFIX, Caller, Tokens, caller_of
from ..journal import Journal
from ..keys import Keys, Replay, Reservation, digest, key_of
from ..parsing import check_version, parse
from ..protocol import LMSP_VERSIONS, Request, Service, Wire
from ..run import Run
from ..runner import Runner
from ..store import Key

_T = TypeVar("_T")
_W = TypeVar("_W", bound=Wire)

_BEARER = re.compile(r"(?:bearer|token)\s+(?P<token>.+)", re.IGNORECASE)
_ALLOWED_HEADERS = "Accept, Authorization, Content-Type, Idempotency-Key, Last-Event-ID, LMSP-Version, X-XSRFToken"
_EXPOSED_HEADERS = "Idempotency-Replayed, LMSP-Version, Location, Retry-After"
_BY_STATUS = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    413: errors.PayloadTooLarge,
}


@dataclass(frozen=True)
class House:
    """What the routes work with."""

    runner: Runner
    journal: Journal
    tokens: Tokens
    keys: Keys
    approvals: Approvals
    service: Service


class LMSPHandler(APIHandler):
    """Base of the routes. `path` is the route's template in the table of operations."""

    auth_resource = "lmsp"

    def initialize(self, house: House, path: str) -> None:
        self.house = house
        self.path = path
        self.caller: Caller | None = None
        self._left = False
        self._stopped = False
        self._work: asyncio.Task[None] | None = None

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("LMSP-Version", LMSP_VERSIONS[0])

    async def prepare(self, *_: Any, **__: Any) -> None:
        if self.request.method == "OPTIONS":
            self.current_user = self._jupyter_current_user = None
            return
        if not self.check_host():
            raise errors.Forbidden("The Host header does not name this server.")
        match = _BEARER.fullmatch(self.request.headers.get("Authorization", ""))
        token = match["token"].strip() if match else ""
        caller: Caller | None
        if token.startswith(PREFIX):
            caller = await self.house.journal.call(self.house.tokens.find, token)
            if caller is None:
                raise _unauthorized(sent_token=True)  # whatever cookie comes with it
            self._admit(User(username="lmsp", display_name="LMSP token"))
        else:
            await self._authenticate(sent_token=match is not None)
            caller = await caller_of(self)
        self.caller = caller
        check_version(self.request.headers.get("LMSP-Version"))
        if scope := operations.scope_of(self.path, self.request.method or ""):
            caller.require(scope)

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
            raise _unauthorized(sent_token)
        action = "read" if self.request.method in ("GET", "HEAD") else "write"
        allowed = self.authorizer.is_authorized(self, self.current_user, action, self.auth_resource)
        if not await ensure_async(allowed):
            raise errors.Forbidden(f"You may not {action} the resource lmsp of this server.")

    @property
    def known(self) -> Caller:
        """Who calls; `prepare` has seen to it."""
        assert self.caller is not None
        return self.caller

    def set_cors_headers(self) -> None:
        super().set_cors_headers()
        self.set_header("Access-Control-Expose-Headers", _EXPOSED_HEADERS)

    @allow_unauthenticated
    def options(self, *args: str) -> None:
        """The preflight of a browser; origins are allowed as the Jupyter server is configured (B4.2)."""
        self.set_cors_headers()
        super().options(*args)
        self.set_header("Access-Control-Allow-Methods", self._allowed)
        self.set_header("Access-Control-Allow-Headers", _ALLOWED_HEADERS)
        self.set_status(204)
        self.finish()

    async def head(self, *args: str) -> None:
        """Every GET route answers HEAD (B4.2); tornado leaves the body out."""
        if type(self).get is web.RequestHandler.get:
            raise web.HTTPError(405)
        await ensure_async(self.get(*args))

    async def read(self, parser: Callable[[bytes, int], _T]) -> _T:
        """What `parser` makes of the JSON body; in a thread, since a large one takes a while."""
        kind = self.request.headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise errors.UnsupportedMediaType(f"Send the request as application/json, not {kind}.")
        return await asyncio.to_thread(parser, self.request.body, self.house.service.limits.body)

    async def read_as(self, kind: type[_W]) -> _W:
        """The body as a wire type."""
        return await self.read(lambda body, limit: parse(body, kind, limit))

    async def reserve(self) -> Reservation | Replay | None:
        """What the request's idempotency key stands for; None without one (B2.5)."""
        header = key_of(self.request.headers.get("Idempotency-Key"))
        if header is None:
            return None
        key = Key(owner=self.known.owner, method="POST", path=self.path, key=header)
        return await self.house.keys.reserve(key, await asyncio.to_thread(digest, self.request.body))

    async def start(
        self, request: Request, reservation: Reservation | None, metadata: dict[str, str] | None = None
    ) -> Run:
        """Begin to answer, with `metadata` as a task; a refusal gives the key back."""
        key = reservation.key if reservation else None
        try:
            return await self.house.runner.start(
                request, self.known.owner, self.known.owners, metadata=metadata, key=key
            )
        except BaseException:
            if reservation:
                await reservation.release()
            raise

    def integer(self, name: str, default: int, low: int, high: int | None = None) -> int:
        """A number in the query. Raises `BadRequest`."""
        said = self.get_query_argument(name, None)
        if said is None:
            return default
        if not re.fullmatch(r"-?[0-9]{1,18}", said) or int(said) < low or (high is not None and int(said) > high):
            upper = "" if high is None else f" to {high}"
            raise errors.BadRequest(f"{name} is a whole number from {low}{upper}, not {said[:40]!r}.")
        return int(said)

    def send(self, body: Wire, status: int = 200) -> None:
        """Answer with an object of the protocol."""
        self.send_json(msgspec.json.encode(body), status)

    def send_json(self, body: bytes, status: int = 200) -> None:
        self.set_status(status)
        self.finish(body)

    def send_nothing(self) -> None:
        self.set_status(204)
        self.finish()

    async def work(self, doing: Coroutine[Any, Any, None]) -> None:
        """Answer by `doing`, which is cancelled when the client leaves (B0.8) or its token is no longer valid."""
        self._work = asyncio.create_task(doing)
        if self._left:
            self._stop()
        with self.house.tokens.watch(self.known, self._stop):
            try:
                await self._work
            except asyncio.CancelledError:
                self._break_off()

    def _break_off(self) -> None:
        """End an answer whose work was cancelled."""
        if self._left:
            return
        if self.house.tokens.still_valid(self.known):
            raise errors.ModelUnavailable("The server is stopping.") from None
        if not self._headers_written:
            raise _unauthorized(sent_token=True) from None
        self.detach().close()

    def on_connection_close(self) -> None:
        self._left = True
        self._stop()

    def _stop(self) -> None:
        """Cancel the work, once: what it does at its end is not to be broken off."""
        if self._work is not None and not self._stopped:
            self._stopped = True
            self._work.cancel()

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        problem = self._problem(status_code, kwargs.get("exc_info", (None, None, None))[1])
        self.set_status(problem.status)
        if getattr(self, "_jupyter_current_user", None):
            self.set_cors_headers()
        for name, value in problem.headers.items():
            self.set_header(name, value)
        document = self.problem_document(problem)
        self.finish(msgspec.json.encode(document), set_content_type="application/problem+json")

    def problem_document(self, problem: errors.Problem) -> errors.Document:
        return problem.document(instance=self.request.path)

    @property
    def _allowed(self) -> str:
        """The methods of this route, for `Allow`."""
        return ", ".join(operations.methods_of(self.path))

    def _problem(self, status_code: int, error: BaseException | None) -> errors.Problem:
        if isinstance(error, errors.Problem):
            return error
        if status_code == 405:
            return errors.MethodNotAllowed(
                f"{self.request.method} is not allowed here; use {self._allowed}.", headers={"Allow": self._allowed}
            )
        kind = _BY_STATUS.get(status_code, errors.Problem)
        detail = (isinstance(error, web.HTTPError) and error.log_message) or responses.get(status_code, "")
        return kind(detail if status_code < 500 else "The service met an unexpected error; the server's log has it.")

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, errors.Problem):
            super().log_exception(typ, value, tb)
        elif value.status >= 500:
            self.log.warning("%s %s: %s: %s", self.request.method, self.request.path, value.code, value.detail)


def _unauthorized(sent_token: bool) -> errors.Unauthorized:
    challenge = 'Bearer error="invalid_token"' if sent_token else "Bearer"
    detail = "The token is not valid here." if sent_token else "Send a token as 'Authorization: Bearer …', or log in."
    return errors.Unauthorized(detail, headers={"WWW-Authenticate": challenge})


class NotFoundHandler(LMSPHandler):
    """Whatever else is under `/lmsp/`."""

    async def prepare(self, *_: Any, **__: Any) -> None:
        await super().prepare()
        if self.request.method != "OPTIONS":
            raise errors.NotFound(f"There is nothing at {self.request.path}; GET lmsp/v1 describes the service.")
