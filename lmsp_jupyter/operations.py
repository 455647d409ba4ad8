"""The table of all operations under `/lmsp/v1`: what each is called, needs, takes and answers.

Routing, scopes and the OpenAPI document all come from here, so that they agree. What an operation does is left to
the handlers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from .chat import ChatRequest
from .errors import (
    BadRequest,
    ContextLengthExceeded,
    EngineCrashed,
    EngineFailed,
    EventHistoryExpired,
    Forbidden,
    IdempotencyKeyReused,
    InsufficientScope,
    InvalidSchema,
    ModelBusy,
    ModelNotFound,
    ModelUnavailable,
    NotFound,
    OutputInvalid,
    PayloadTooLarge,
    Problem,
    QueueFull,
    RequestInProgress,
    ResponseInProgress,
    ResponseNotFound,
    StorageUnavailable,
    TaskNotFinished,
    TaskNotFound,
    Unauthorized,
    UnknownParameter,
    UnsupportedCapability,
    UnsupportedContent,
    UnsupportedMediaType,
    UnsupportedVersion,
)
from .events import Event
from .protocol import (
    Approval,
    ApprovalAnswer,
    ApprovalRequest,
    Health,
    InputItems,
    InputTokens,
    Model,
    ModelList,
    Request,
    Response,
    Scope,
    Service,
    Task,
    TaskList,
    TaskRequest,
    TaskStatus,
    Token,
    TokenList,
    TokenRequest,
)

Kind = Any
"""A type as annotations write it: a wire type, a union, or one with msgspec's constraints."""


@dataclass(frozen=True)
class Parameter:
    """A parameter beside those in the path, which are all required strings; these are all optional."""

    name: str
    kind: Kind
    summary: str
    place: Literal["query", "header"] = "query"


@dataclass(frozen=True)
class Operation:
    """One method of one path. `path` is a template relative to `/lmsp/v1`.

    `scope` None: the handler decides by what is asked for. `answers` are the bodies of the answers by status, None
    for no body; `streams` is what the data of each event holds where status 200 can be an event stream. `problems` are
    those that are met beside `EVERYWHERE`.
    """

    method: str
    path: str
    scope: Scope | None
    summary: str
    answers: Mapping[int, Kind | None]
    request: type | None = None
    problems: tuple[type[Problem], ...] = ()
    parameters: tuple[Parameter, ...] = ()
    streams: Kind | None = None

    @property
    def keyed(self) -> bool:
        """Whether it takes an idempotency key (B2.5)."""
        return _KEY in self.parameters


EVERYWHERE: tuple[type[Problem], ...] = (
    BadRequest,
    UnsupportedVersion,
    Unauthorized,
    Forbidden,
    InsufficientScope,
    Problem,
    StorageUnavailable,
)
"""Problems that any operation can meet."""

_BODY = (UnknownParameter, PayloadTooLarge, UnsupportedMediaType)
_LOAD = (ModelNotFound, QueueFull, EngineFailed, EngineCrashed, ModelUnavailable)
_RUN = (
    *_BODY,
    *_LOAD,
    UnsupportedContent,
    UnsupportedCapability,
    InvalidSchema,
    ContextLengthExceeded,
    OutputInvalid,
)
_CONTINUE = (ResponseNotFound, ResponseInProgress)
_KEYED = (RequestInProgress, IdempotencyKeyReused)

_EventId = Annotated[int, Meta(ge=0)]
_KEY = Parameter(
    "Idempotency-Key",
    Annotated[str, Meta(pattern=r"^[!-~]([ -~]{0,253}[!-~])?$")],
    "Run this request once, however often it is sent (B2.5).",
    place="header",
)
_AFTER = (
    Parameter("after", _EventId, "Send only events that are numbered above this; it wins over Last-Event-ID (A4.2)."),
    Parameter("Last-Event-ID", _EventId, "As `after`, where a browser sends it.", place="header"),
)
_FOLLOW = (
    Parameter("stream", bool, "Follow the response as an event stream (B7.5)."),
    Parameter("starting_after", _EventId, "With `stream`: send only events that are numbered above this."),
)
_PAGE = (
    Parameter("status", TaskStatus, "Only tasks with this status."),
    Parameter("model", str, "Only tasks of this model."),
    Parameter("limit", Annotated[int, Meta(ge=1, le=100)], "Tasks on a page; 20 where nothing is said."),
    Parameter("after", str, "The `next` of the page before."),
)
_WAIT = Parameter("wait", Annotated[int, Meta(ge=0, le=30)], "Seconds to wait for a decision; 0 where nothing is said.")

OPERATIONS = (
    Operation("GET", "", "models:read", "Describe the service", {200: Service}),
    Operation("GET", "/health", "models:read", "Tell whether the service answers", {200: Health}),
    Operation("GET", "/openapi.json", "models:read", "Describe the operations: this document", {200: dict}),
    # Models
    Operation("GET", "/models", "models:read", "List the models", {200: ModelList}),
    Operation(
        "POST",
        "/models/{model_id}/load",
        "models:manage",
        "Load a model, and wait until it is loaded",
        {200: Model},
        problems=_LOAD,
    ),
    Operation(
        "POST",
        "/models/{model_id}/unload",
        "models:manage",
        "Unload a model",
        {200: Model},
        problems=(ModelNotFound, ModelBusy),
    ),
    Operation("GET", "/models/{model_id}", "models:read", "Describe a model", {200: Model}, problems=(ModelNotFound,)),
    # Responses
    Operation(
        "POST",
        "/responses",
        "responses:create",
        "Make a response",
        {200: Response},
        request=Request,
        problems=(*_RUN, *_CONTINUE, *_KEYED),
        parameters=(_KEY,),
        streams=Event,
    ),
    Operation(
        "POST",
        "/responses/input_tokens",
        "responses:create",
        "Count the tokens of a request's input",
        {200: InputTokens},
        request=Request,
        problems=(*_RUN, *_CONTINUE),
    ),
    Operation(
        "GET",
        "/responses/{response_id}/input_items",
        "responses:read",
        "List the input of a stored response",
        {200: InputItems},
        problems=(ResponseNotFound,),
    ),
    Operation(
        "POST",
        "/responses/{response_id}/cancel",
        "responses:create",
        "Cancel a running response",
        {200: Response},
        problems=(ResponseNotFound,),
    ),
    Operation(
        "GET",
        "/responses/{response_id}",
        "responses:read",
        "Fetch or follow a stored response",
        {200: Response, 204: None},
        problems=(ResponseNotFound, EventHistoryExpired),
        parameters=_FOLLOW,
        streams=Event,
    ),
    Operation(
        "DELETE",
        "/responses/{response_id}",
        "responses:create",
        "Delete a stored response",
        {204: None},
        problems=(ResponseNotFound, ResponseInProgress),
    ),
    # Tasks
    Operation(
        "POST",
        "/tasks",
        "tasks:create",
        "Make a response as a task",
        {202: Task},
        request=TaskRequest,
        problems=(*_RUN, *_CONTINUE, *_KEYED),
        parameters=(_KEY,),
    ),
    Operation("GET", "/tasks", "tasks:read", "List the tasks, newest first", {200: TaskList}, parameters=_PAGE),
    Operation(
        "GET",
        "/tasks/{task_id}/events",
        "tasks:read",
        "Follow a task",
        {200: None, 204: None},
        problems=(TaskNotFound, EventHistoryExpired),
        parameters=_AFTER,
        streams=Event,
    ),
    Operation(
        "POST", "/tasks/{task_id}/cancel", "tasks:cancel", "Cancel a task", {200: Task}, problems=(TaskNotFound,)
    ),
    Operation("GET", "/tasks/{task_id}", "tasks:read", "Fetch a task", {200: Task}, problems=(TaskNotFound,)),
    Operation(
        "DELETE",
        "/tasks/{task_id}",
        "tasks:create",
        "Delete a finished task",
        {204: None},
        problems=(TaskNotFound, TaskNotFinished),
    ),
    # Tokens
    Operation("POST", "/tokens", "tokens:manage", "Mint a token", {201: Token}, request=TokenRequest, problems=_BODY),
    Operation("GET", "/tokens", "tokens:manage", "List the tokens", {200: TokenList}),
    Operation("DELETE", "/tokens/{token_id}", "tokens:manage", "Revoke a token", {204: None}, problems=(NotFound,)),
    # Approvals
    Operation(
        "POST",
        "/approvals",
        "responses:create",
        "Ask whether a tool may be run",
        {201: Approval},
        request=ApprovalRequest,
        problems=_BODY,
    ),
    Operation(
        "GET",
        "/approvals/{approval_id}",
        "responses:create",
        "Wait for the decision",
        {200: Approval},
        problems=(NotFound,),
        parameters=(_WAIT,),
    ),
    Operation(
        "POST",
        "/approvals/{approval_id}",
        "responses:create",
        "Decide whether the tool may be run",
        {200: Approval},
        request=ApprovalAnswer,
        problems=(*_BODY, NotFound),
    ),
    # Neighbours and pages
    Operation(
        "POST",
        "/chat/completions",
        "responses:create",
        "Make a response in the shape of chat completions",
        {200: dict},
        request=ChatRequest,
        problems=_RUN,
        streams=dict,
    ),
    Operation("GET", "/events", None, "Follow many things on one WebSocket (B8)", {101: None}),
)
"""All operations, in the order in which their paths are to be matched."""

PATHS = tuple(dict.fromkeys(operation.path for operation in OPERATIONS))
"""All path templates, in the order in which they are to be matched."""


def pattern(path: str) -> str:
    """The regular expression of a path template, for tornado: a group for each id, in order.

    The id of a model may hold slashes (B1.2).
    """
    return re.sub(r"\\{(\w+)\\}", lambda id: "(.+)" if id[1] == "model_id" else "([^/]+)", re.escape(path))


def methods_of(path: str) -> tuple[str, ...]:
    """The methods that a path answers, HEAD and OPTIONS among them (B4.2)."""
    methods = [operation.method for operation in OPERATIONS if operation.path == path]
    return (*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS")


def scope_of(path: str, method: str) -> Scope | None:
    """The scope that a request needs (B5.3). None: the path has no such method, or it depends on what is asked for."""
    wanted = (path, "GET" if method == "HEAD" else method)
    return next((each.scope for each in OPERATIONS if (each.path, each.method) == wanted), None)
