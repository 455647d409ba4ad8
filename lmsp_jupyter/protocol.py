"""The wire types of LMSP 1.0, and reading them from JSON: after `parse_request` everything is typed.

Types follow the specification's field names. Requests are read leniently where B0.2 says so and strictly
everywhere else; every refusal is a problem with a JSON pointer. Meaning (does the model exist, does the
prompt fit) is left to the runner.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NoReturn, get_args

import msgspec
from ulid import ULID

from .errors import (
    Document,
    UnknownParameter,
    UnsupportedCapability,
    UnsupportedContent,
    UnsupportedVersion,
)
from .strict_json import MAX_BODY_BYTES, escape, read_json, refuse

LMSP_VERSIONS = ["1.0"]

MAX_NAME = 200
"""Characters above which a text is not compared with names, since that takes time as the square."""

Capability = Literal["tools", "structured_output", "reasoning", "conversations"]
Role = Literal["system", "user", "assistant"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
IncompleteReason = Literal["max_output_tokens", "context_length"]

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


def new_id(prefix: str) -> str:
    """A fresh id such as `resp_01J8…`: the prefix and a ULID (B0.1)."""
    return f"{prefix}_{ULID()}"


class Wire(msgspec.Struct, kw_only=True):
    """An object of the protocol; members that are not declared are ignored."""


class Strict(Wire, kw_only=True):
    """A part of a request in which a member that is not declared is an error (B0.2); see `_check_members`."""


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


Item = Message | Reasoning


# The request (A1, B2.4).


class TextFormat(Strict, kw_only=True):
    type: Literal["text"] = "text"


class ReasoningOptions(Strict, kw_only=True):
    enabled: bool = True


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
    None is the rest of the context window."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    input: Annotated[list[Item], msgspec.Meta(min_length=1)]
    stream: bool = False
    max_output_tokens: PositiveInt | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    response_format: TextFormat | None = None
    store: bool = False
    extensions: Extensions = msgspec.field(default_factory=Extensions)


# The response (A2.2).


class InputTokensDetails(Wire, kw_only=True):
    cached_tokens: int = 0


class Usage(Wire, kw_only=True):
    """Tokens, as the engine counted them."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails = msgspec.field(default_factory=InputTokensDetails)


class IncompleteDetails(Wire, kw_only=True):
    reason: str


class Response(Wire, kw_only=True):
    """`created_at` in Unix seconds; `error` a problem document when `failed`."""

    id: str
    object: Literal["response"] = "response"
    created_at: int = 0
    status: ResponseStatus = "in_progress"
    model: str = ""
    output: list[Item] = []
    usage: Usage | None = None
    error: Document | None = None
    incomplete_details: IncompleteDetails | None = None

    @property
    def text(self) -> str:
        """The text of all messages, joined."""
        return "".join(item.text for item in self.output if isinstance(item, Message))


class InputTokens(Wire, kw_only=True):
    """What `POST /responses/input_tokens` answers: the tokens that the request's input would take."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


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


class Model(Wire, kw_only=True):
    """`context_length` in tokens is what one request gets; `source` is a kind of place, never a path."""

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


class ModelList(Wire, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]


# Reading.


def parse_request(body: bytes, max_bytes: int = MAX_BODY_BYTES) -> Request:
    """The request in a JSON body. Raises `BadRequest` or one of its kinds, `PayloadTooLarge`."""
    data = read_json(body, max_bytes)
    _refuse_capabilities(data)
    request = _convert(_lenient_request(data))
    if not any(isinstance(item, Message) for item in request.input):
        refuse("/input", "The input has no message.")
    return request


def check_version(version: str | None) -> None:
    """Raise `UnsupportedVersion` for a value of `LMSP-Version` that is not served; none means 1.0 (B2.1)."""
    if version is not None and version.strip() not in LMSP_VERSIONS:
        raise UnsupportedVersion(
            f"LMSP version {version!r} is not supported; send LMSP-Version: {', '.join(LMSP_VERSIONS)}.",
            extra={"supported_versions": LMSP_VERSIONS},
        )


def closest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of `known` that `name` may have meant, best first; none for what is no name at all."""
    if len(name) > MAX_NAME:
        return []
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)


def _refuse_capabilities(data: dict[str, Any]) -> None:
    """What this service does not do yet is refused as A1.10 says, never ignored."""
    for member, capability, neutral in (
        ("tools", "tools", [None, []]),
        ("tool_choice", "tools", [None, "none", "auto"]),
        ("previous_response_id", "conversations", [None]),
    ):
        if data.get(member) not in neutral:
            refuse(f"/{member}", f"{member} needs the capability {capability}.", UnsupportedCapability)
        data.pop(member, None)
    response_format = data.get("response_format")
    if isinstance(response_format, dict) and response_format.get("type") == "json_schema":
        detail = "A json_schema response_format needs the capability structured_output."
        refuse("/response_format", detail, UnsupportedCapability)


def _lenient_request(data: dict[str, Any]) -> dict[str, Any]:
    """B0.2 at the top of a request: null means absent, a string is a user message."""
    extensions = data.get("extensions")
    if isinstance(extensions, dict):
        data["extensions"] = {vendor: value for vendor, value in extensions.items() if value is not None}
    _check_members(data)
    content = data.get("input")
    if isinstance(content, str):
        if not content:
            refuse("/input", "The input is empty.")
        data["input"] = [{"type": "message", "role": "user", "content": content}]
    if isinstance(data.get("input"), list):
        data["input"] = [_lenient_item(f"/input/{index}", item) for index, item in enumerate(data["input"])]
    return data


def _lenient_item(pointer: str, item: Any) -> Any:
    """B0.2 for an item: a role makes a message, a string is one part, developer is system, null is absent."""
    if not isinstance(item, dict):
        return item
    item = {name: value for name, value in item.items() if value is not None}
    kind = item.setdefault("type", "message" if "role" in item else None)
    if kind in ("function_call", "function_call_output"):
        refuse(pointer, f"A {kind} item needs the capability tools.", UnsupportedCapability)
    if kind not in ("message", "reasoning"):
        refuse(f"{pointer}/type", f"{kind!r} is not a type of item; use 'message'.")
    if kind == "reasoning":
        item.setdefault("summary", [])
    if kind == "message":
        if item.get("role") == "developer":
            item["role"] = "system"
        if item.get("role") not in get_args(Role):
            refuse(f"{pointer}/role", f"{item.get('role')!r} is not a role; use {', '.join(get_args(Role))}.")
        if item.get("role") == "assistant":
            item.setdefault("content", [])
        part_type = "output_text" if item.get("role") == "assistant" else "input_text"
        content = item.get("content")
        if isinstance(content, str):
            item["content"] = [{"type": part_type, "text": content}]
        elif isinstance(content, list):
            item["content"] = [_lenient_part(f"{pointer}/content/{i}", p, part_type) for i, p in enumerate(content)]
    return item


def _lenient_part(pointer: str, part: Any, part_type: str) -> Any:
    if isinstance(part, str):
        return {"type": part_type, "text": part}
    if isinstance(part, dict) and isinstance(kind := part.get("type"), str):
        if kind in ("text", "input_text", "output_text"):
            return {"type": part_type, "text": part.get("text")}
        refuse(pointer, f"Content of type {kind!r} is not supported; LMSP 1.0 defines text only.", UnsupportedContent)
    return part


_STRICT: dict[tuple[str, ...], type[Strict]] = {
    (): Request,
    ("response_format",): TextFormat,
    ("extensions", "lmsp_jupyter"): Options,
    ("extensions", "lmsp_jupyter", "reasoning"): ReasoningOptions,
}


def _check_members(data: dict[str, Any]) -> None:
    """In the strict parts of a request, refuse members that they do not have and drop those that are null."""
    for path, kind in _STRICT.items():
        part: Any = data
        for name in path:
            part = part.get(name) if isinstance(part, dict) else None
        if not isinstance(part, dict):
            continue
        for name in [name for name in part if name not in kind.__struct_fields__]:
            pointer = "".join(f"/{escape(each)}" for each in (*path, name))
            refuse(pointer, f"{name!r} is not a parameter here{_hint(name, kind)}", UnknownParameter)
        for name in [name for name, value in part.items() if value is None]:
            del part[name]


def _hint(name: str, kind: type[Strict]) -> str:
    known = kind.__struct_fields__
    match = closest(name, known)[:1]
    return f"; did you mean {match[0]!r}?" if match else f"; there are {', '.join(known)}."


_PATH = re.compile(r" - at `(?:key in )?\$(?P<path>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$")

_JSON_TYPES = {"float": "a number", "int": "an integer", "str": "a string", "bool": "a boolean"}
_JSON_TYPE = re.compile(r"`(float|int|str|bool)`")


def _convert(data: dict[str, Any]) -> Request:
    try:
        return msgspec.convert(data, Request)
    except msgspec.ValidationError as error:
        _translate(str(error))


def _translate(message: str) -> NoReturn:
    """Refuse with what msgspec says, in JSON's words and with a pointer for its path."""
    place = _PATH.search(message)
    pointer = re.sub(r"[.\[]", "/", place["path"].replace("]", "")) if place else ""
    message = message[: place.start()] if place else message
    if missing := _MISSING.match(message):
        refuse(f"{pointer}/{missing['name']}", f"{missing['name']!r} is required.")
    refuse(pointer, _JSON_TYPE.sub(lambda match: _JSON_TYPES[match[1]], message.replace(" | null`", "`")) + ".")
