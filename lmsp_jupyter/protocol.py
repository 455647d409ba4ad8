"""The wire types of LMSP 1.0: what requests, items, responses, tasks and models look like in JSON.

Types follow the specification's field names. `parsing` reads requests into them; what a request means (does the
model exist, does the prompt fit) is left to the runner.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from ulid import ULID

from .errors import Document

LMSP_VERSIONS = ["1.0"]

MAX_NAME = 200
"""Characters above which a text is not compared with names, since that takes time as the square."""

Capability = Literal["tools", "structured_output", "reasoning", "conversations"]
Role = Literal["system", "user", "assistant"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
TaskStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
IncompleteReason = Literal["max_output_tokens", "context_length", "stop"]
Scope = Literal[
    "models:read",
    "models:manage",
    "responses:create",
    "responses:read",
    "tasks:create",
    "tasks:read",
    "tasks:cancel",
    "tokens:manage",
]

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
FunctionName = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_.-]{1,128}\Z")]
Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]
"""Up to 16 pairs of strings, kept and given back (B3.2)."""


def new_id(prefix: str) -> str:
    """A fresh id such as `resp_01J8…`: the prefix and a ULID (B0.1)."""
    return f"{prefix}_{ULID()}"


def closest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of `known` that `name` may have meant, best first; none for what is no name at all."""
    if len(name) > MAX_NAME:
        return []
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)


class Wire(msgspec.Struct, kw_only=True):
    """An object of the protocol; members that are not declared are ignored."""


class Strict(Wire, kw_only=True):
    """A part of a request in which a member that is not declared is an error (B0.2)."""


# Items (A1.3, A2.3): the same types go in and come out.


class InputText(Wire, tag="input_text", kw_only=True):
    text: str


class OutputText(Wire, tag="output_text", kw_only=True):
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class Message(Wire, tag="message", kw_only=True):
    role: Role
    content: list[InputText | OutputText]
    id: str | None = None
    status: ItemStatus | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


class SummaryText(Wire, tag="summary_text", kw_only=True):
    text: str


class Reasoning(Wire, tag="reasoning", kw_only=True):
    summary: list[SummaryText]
    id: str | None = None
    status: ItemStatus | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.summary)


class FunctionCall(Wire, tag="function_call", kw_only=True):
    """A call that the client is to make; `arguments` is JSON as text (A5.4)."""

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: ItemStatus | None = None


class FunctionCallOutput(Wire, tag="function_call_output", kw_only=True):
    """What the client's call came to; `output` is usually JSON as text (A5.5)."""

    call_id: str
    output: str
    id: str | None = None
    status: ItemStatus | None = None


Item = Message | Reasoning | FunctionCall | FunctionCallOutput


# The request (A1, B2.4, B7.4).


class TextFormat(Strict, tag="text", kw_only=True):
    """Free text."""


class JSONSchema(Strict, kw_only=True):
    name: Name
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class JSONSchemaFormat(Strict, tag="json_schema", kw_only=True):
    """JSON that is valid under the schema, to the letter (B0.11)."""

    json_schema: JSONSchema


class FlatJSONSchemaFormat(JSONSchema, tag="json_schema", kw_only=True):
    """The same in the shape of `text.format` (B7.4)."""


class TextOptions(Strict, kw_only=True):
    format: TextFormat | FlatJSONSchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class Tool(Strict, tag="function", kw_only=True):
    """A function of the client's (A5.2). `parameters` is the JSON Schema of its arguments; None allows any object."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(Strict, tag="function", kw_only=True):
    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool


class ReasoningOptions(Strict, kw_only=True):
    enabled: bool = True


class ReasoningEffort(Strict, kw_only=True):
    """`reasoning` at the top of a request (B7.4): effort `none` turns it off, any other on."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    enabled: bool | None = None


class Options(Strict, kw_only=True):
    """`extensions.lmsp_jupyter` (B2.4): what of sampling LMSP itself does not name. None is the model's default."""

    top_p: Fraction | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    min_p: Fraction | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] | None = None
    stop: list[Annotated[str, msgspec.Meta(min_length=1)]] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None


class Extensions(Wire, kw_only=True):
    lmsp_jupyter: Options = msgspec.field(default_factory=Options)


class Request(Strict, kw_only=True):
    """The body of `POST /responses`. `temperature` None is the model's own, else 0.8 (B0.5); `max_output_tokens`
    None is the rest of the context window.

    What can be said in two places is, once it is parsed, in `extensions.lmsp_jupyter` and `response_format`.
    """

    model: Annotated[str, msgspec.Meta(min_length=1)]
    input: list[Item]
    stream: bool = False
    max_output_tokens: PositiveInt | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    response_format: TextFormat | JSONSchemaFormat | None = None
    tools: list[Tool] = []
    tool_choice: ToolChoice = "auto"
    store: bool = False
    previous_response_id: str | None = None
    extensions: Extensions = msgspec.field(default_factory=Extensions)
    # What Responses clients also send (B7.4): honoured,
    instructions: str | None = None
    top_p: Fraction | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningEffort | None = None
    text: TextOptions | None = None
    metadata: Metadata = {}
    background: bool = False
    # accepted with a value that changes nothing,
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    top_logprobs: Literal[0] | None = None
    include: Annotated[list[str], msgspec.Meta(max_length=0)] | None = None
    max_tool_calls: None = None
    # accepted and ignored.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def options(self) -> Options:
        return self.extensions.lmsp_jupyter

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON Schema that the answer must be valid under, or None."""
        chosen = self.response_format
        return chosen.json_schema.schema if isinstance(chosen, JSONSchemaFormat) else None


# The response (A2.2, B7.3).


class InputTokensDetails(Wire, kw_only=True):
    """`cache_write_tokens` stands for what other services bill; here it is 0."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(Wire, kw_only=True):
    reasoning_tokens: int = 0


class Usage(Wire, kw_only=True):
    """Tokens, as the engine counted them."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails = msgspec.field(default_factory=InputTokensDetails)
    output_tokens_details: OutputTokensDetails = msgspec.field(default_factory=OutputTokensDetails)


class IncompleteDetails(Wire, kw_only=True):
    reason: str


class Response(Wire, kw_only=True):
    """Times in Unix seconds; `error` a problem document when `failed`. From `completed_at` on: B7.3."""

    id: str
    object: Literal["response"] = "response"
    created_at: int = 0
    status: ResponseStatus = "in_progress"
    model: str = ""
    output: list[Item] = []
    usage: Usage | None = None
    error: Document | None = None
    incomplete_details: IncompleteDetails | None = None
    completed_at: int | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    tools: list[Tool] = []
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    text_options: TextOptions = msgspec.field(default_factory=lambda: TextOptions(format=TextFormat()), name="text")
    reasoning: ReasoningEffort | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float = 0
    frequency_penalty: float = 0
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    top_logprobs: int = 0
    truncation: str = "disabled"
    service_tier: str = "default"
    store: bool = False
    background: bool = False
    metadata: Metadata = {}
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    task_id: str | UnsetType = UNSET

    @property
    def text(self) -> str:
        """The text of all messages, joined."""
        return "".join(item.text for item in self.output if isinstance(item, Message))


class InputTokens(Wire, kw_only=True):
    """What `POST /responses/input_tokens` answers: the tokens that the request's input would take (B6.4)."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class InputItems(Wire, kw_only=True):
    """What `GET /responses/{id}/input_items` answers (B6.1)."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


# Tasks (B3).


class TaskRequest(Strict, kw_only=True):
    """The body of `POST /tasks`; `request` is a body of `POST /responses`."""

    type: Literal["response"]
    request: dict[str, Any]
    metadata: Metadata = {}


class Task(Wire, kw_only=True):
    """Times in Unix seconds. `response` is the response so far; a listing leaves it out (B3.2, B3.3)."""

    id: str
    object: Literal["task"] = "task"
    type: Literal["response"] = "response"
    status: TaskStatus
    created_at: int
    started_at: int | None = None
    completed_at: int | None = None
    model: str
    response_id: str
    response: Response | UnsetType | None = UNSET
    error: Document | None = None
    last_event_id: int = 0
    events_expire_at: int | None = None
    metadata: Metadata = {}


class TaskList(Wire, kw_only=True):
    """A page of tasks, newest first; `next` is the `after` of the next page."""

    object: Literal["list"] = "list"
    data: list[Task]
    has_more: bool = False
    next: str | None = None


# The service and its models (B1.1, B1.2).


class Engine(Wire, kw_only=True):
    name: str
    available: bool
    reason: str | None = None
    fix: str | None = None


class Limits(Wire, kw_only=True):
    """`queue` in waiting requests a model, `body` in bytes, retentions in seconds."""

    queue: int
    body: int
    event_retention: int
    task_retention: int


class Service(Wire, kw_only=True):
    object: Literal["service"] = "service"
    name: str
    version: str
    lmsp_versions: list[str]
    capabilities: list[str]
    engines: list[Engine]
    default_model: str | None
    limits: Limits


class Health(Wire, kw_only=True):
    object: Literal["health"] = "health"
    status: Literal["ok"] = "ok"


class Model(Wire, kw_only=True):
    """`context_length` in tokens is what one request gets; `source` is a kind of place, never a path. `created` in Unix
    seconds and `owned_by` are for OpenAI's clients (B7)."""

    id: str
    object: Literal["model"] = "model"
    engine: str
    capabilities: list[Capability]
    context_length: int | None
    size_bytes: int | None
    quantization: str | None
    source: str
    state: Literal["available", "loading", "loaded", "failed"] = "available"
    error: Document | None = None
    created: int = 0
    owned_by: str = "lmsp"


class ModelList(Wire, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]


# Tokens (B5.2) and approvals (B9).


class TokenRequest(Strict, kw_only=True):
    """`expires_in` in seconds; None is for ever."""

    name: Name
    scopes: Annotated[list[Scope], msgspec.Meta(min_length=1)]
    expires_in: Annotated[int, msgspec.Meta(ge=1, le=100 * 366 * 86400)] | None = None


class Token(Wire, kw_only=True):
    """`token` itself is told once, when it is made. Times in Unix seconds."""

    id: str
    object: Literal["token"] = "token"
    name: str
    scopes: list[Scope]
    created_at: int
    expires_at: int | None = None
    token: str | UnsetType = UNSET


class TokenList(Wire, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Token]


Decision = Literal["allow", "always", "deny"]


class ApprovalRequest(Strict, kw_only=True):
    """A kernel asks whether it may run `tool` with `arguments`, JSON as text; `expires_in` in seconds."""

    tool: Name
    arguments: Annotated[str, msgspec.Meta(max_length=65536)]
    task_id: str | None = None
    response_id: str | None = None
    expires_in: Annotated[int, msgspec.Meta(ge=1, le=86400)] = 300


class ApprovalAnswer(Strict, kw_only=True):
    decision: Decision


class Approval(Wire, kw_only=True):
    """`decision` is None while it is pending; one that has expired is a denial. Times in Unix seconds."""

    id: str
    object: Literal["approval"] = "approval"
    tool: str
    arguments: str
    task_id: str | None = None
    response_id: str | None = None
    created_at: int
    expires_at: int
    decision: Decision | None = None
