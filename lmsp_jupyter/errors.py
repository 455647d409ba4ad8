"""The tree of problems (RFC 9457, LMSP B2.2 and B2.3): what can go wrong, once for server and client.

Each class is one stable `code` with the HTTP `status` that a synchronous request would get and a `title`.
The server raises them, the wire carries `document()`, the client raises them again with `from_document`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

Document = dict[str, Any]

TYPE_PREFIX = "urn:lmsp:problem:"


class Problem(Exception):
    """Anything that the service or the client reports; catch this to catch all of them.

    `detail` says what is wrong with this request and what to do about it. `errors` are pairs of a JSON
    pointer into the request and what is wrong there. `extra` are further members of the document, and
    `headers` go with it when it is an HTTP answer.
    """

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(
        self,
        detail: str = "",
        *,
        errors: list[tuple[str, str]] | None = None,
        extra: Document | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.detail = detail or f"{self.title}."
        self.errors = errors or []
        self.extra = extra or {}
        self.headers = headers or {}
        super().__init__(self.detail)

    @property
    def param(self) -> str | None:
        """The first JSON pointer into the request, or None where no member of it is to blame."""
        return self.errors[0][0] if self.errors else None

    def document(self, instance: str | None = None) -> Document:
        """The problem document of B2.2; `instance` is the path of the request that met it."""
        document: Document = {
            "type": TYPE_PREFIX + self.code,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
            "code": self.code,
            "message": self.detail,
            "param": self.param,
        }
        if self.errors:
            document["errors"] = [{"pointer": pointer, "detail": detail} for pointer, detail in self.errors]
        return document | self.extra


class BadRequest(Problem):
    """The request cannot be carried out as it was sent."""

    code = "invalid_request"
    status = 400
    title = "Invalid request"


class UnknownParameter(BadRequest):
    """A member that the request does not have; the closest one is named."""

    code = "unknown_parameter"
    title = "Unknown parameter"


class UnsupportedContent(BadRequest):
    """Content that is not text."""

    code = "unsupported_content"
    title = "Unsupported content"


class UnsupportedCapability(BadRequest):
    """The request needs a capability that the model or the service lacks (A1.10)."""

    code = "unsupported_capability"
    title = "Unsupported capability"


class UnsupportedVersion(BadRequest):
    """`LMSP-Version` names a version that is not served (B2.1)."""

    code = "unsupported_version"
    title = "Unsupported LMSP version"


class InvalidSchema(BadRequest):
    """A JSON Schema that cannot be enforced to the letter; the keyword is pointed at (B0.11)."""

    code = "invalid_schema"
    title = "Invalid schema"


class ContextLengthExceeded(BadRequest):
    """The input leaves no room for one token of output (A1.11, B0.4)."""

    code = "context_length_exceeded"
    title = "Context length exceeded"


class Unauthorized(Problem):
    """No credentials, or credentials that are not valid (B5.4)."""

    code = "unauthorized"
    status = 401
    title = "Unauthorized"


class Forbidden(Problem):
    """Refused for its origin, host or XSRF token, or by the server's authorizer."""

    code = "forbidden"
    status = 403
    title = "Forbidden"


class InsufficientScope(Problem):
    """The token's scopes do not reach so far; the one that is lacking is named (B5.4)."""

    code = "insufficient_scope"
    status = 403
    title = "Insufficient scope"


class NotFound(Problem):
    """No such resource."""

    code = "not_found"
    status = 404
    title = "Not found"


class ModelNotFound(NotFound):
    """No model has this id; the closest ids are named."""

    code = "model_not_found"
    title = "Model not found"


class ResponseNotFound(NotFound):
    """No stored response of the caller's has this id (A2.5)."""

    code = "response_not_found"
    title = "Response not found"


class TaskNotFound(NotFound):
    """No task of the caller's has this id."""

    code = "task_not_found"
    title = "Task not found"


class MethodNotAllowed(Problem):
    """The resource has no such method."""

    code = "method_not_allowed"
    status = 405
    title = "Method not allowed"


class RequestInProgress(Problem):
    """The first request with this idempotency key still runs (B2.5)."""

    code = "request_in_progress"
    status = 409
    title = "Request in progress"


class ResponseInProgress(Problem):
    """The response to continue from has not ended (B6.2)."""

    code = "response_in_progress"
    status = 409
    title = "Response in progress"


class TaskNotFinished(Problem):
    """The task runs; cancel it first (B3.3)."""

    code = "task_not_finished"
    status = 409
    title = "Task not finished"


class ModelBusy(Problem):
    """The model answers requests and cannot be unloaded (B1.3)."""

    code = "model_busy"
    status = 409
    title = "Model busy"


class EventHistoryExpired(Problem):
    """The events that were asked for are no longer kept (A4.3)."""

    code = "event_history_expired"
    status = 410
    title = "Event history expired"


class PayloadTooLarge(Problem):
    """The body is larger than the service reads (B2.6)."""

    code = "payload_too_large"
    status = 413
    title = "Payload too large"


class UnsupportedMediaType(Problem):
    """The body is not JSON."""

    code = "unsupported_media_type"
    status = 415
    title = "Unsupported media type"


class IdempotencyKeyReused(Problem):
    """The idempotency key came with another body before (B2.5)."""

    code = "idempotency_key_reused"
    status = 422
    title = "Idempotency key reused"


class QueueFull(Problem):
    """Too many requests wait for the model already."""

    code = "queue_full"
    status = 429
    title = "Queue full"


class EngineFailed(Problem):
    """The engine reported an error for this request and lives on."""

    code = "engine_failed"
    title = "Engine failed"


class OutputInvalid(Problem):
    """The answer is not what the schema asks for, in spite of the grammar (B0.11)."""

    code = "output_invalid"
    title = "Output invalid"


class EngineCrashed(Problem):
    """The process of the model died; the next request starts a new one."""

    code = "engine_crashed"
    status = 502
    title = "Engine crashed"


class ModelUnavailable(Problem):
    """The model cannot be loaded."""

    code = "model_unavailable"
    status = 503
    title = "Model unavailable"


class ServiceRestarted(Problem):
    """The service ended while it worked on the response (B3.6)."""

    code = "service_restarted"
    status = 503
    title = "Service restarted"


class StorageUnavailable(Problem):
    """The service's database cannot be read or written."""

    code = "storage_unavailable"
    status = 507
    title = "Storage unavailable"


class ServiceUnreachable(Problem):
    """The client found no service, or lost its connection to it. Never sent by a service."""

    code = "service_unreachable"
    status = 503
    title = "Service unreachable"


def _tree(root: type[Problem]) -> Iterator[type[Problem]]:
    yield root
    for branch in root.__subclasses__():
        yield from _tree(branch)


PROBLEMS: dict[str, type[Problem]] = {problem.code: problem for problem in _tree(Problem)}

_OWN_MEMBERS = frozenset(Problem("").document()) | {"errors"}


def _text(document: Document, name: str) -> str:
    """A member that is text, or "": one of another type is ignored (RFC 9457, 3.1)."""
    value = document.get(name)
    return value if isinstance(value, str) else ""


def from_document(document: Document) -> Problem:
    """The exception that a problem document stands for; an unknown code becomes a plain `Problem` with it."""
    code = _text(document, "code")
    status = document.get("status")
    kind = PROBLEMS.get(code)
    if kind is None:
        kind = type(
            "Problem",
            (Problem,),
            {
                "code": code or Problem.code,
                "status": status if type(status) is int else Problem.status,
                "title": _text(document, "title") or Problem.title,
            },
        )
    entries = document.get("errors")
    return kind(
        _text(document, "detail"),
        errors=[
            (_text(entry, "pointer"), _text(entry, "detail"))
            for entry in (entries if isinstance(entries, list) else [])
            if isinstance(entry, dict)
        ],
        extra={name: value for name, value in document.items() if name not in _OWN_MEMBERS},
    )
