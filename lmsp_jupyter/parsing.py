"""Reading requests from JSON: leniently where B0.2 says so, strictly everywhere else.

After this everything is typed and each setting stands in one place; every refusal is a problem with a JSON pointer.
What a request means beside its own text (does the model exist, does the prompt fit) is left to the runner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import UnionType
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin

import msgspec

from . import schemas
from .errors import BadRequest, InvalidSchema, UnknownParameter, UnsupportedContent, UnsupportedVersion
from .protocol import (
    LMSP_VERSIONS,
    FlatJSONSchemaFormat,
    FunctionCall,
    JSONSchema,
    JSONSchemaFormat,
    Message,
    NamedTool,
    Options,
    ReasoningOptions,
    Request,
    Role,
    Strict,
    TaskRequest,
    TextFormat,
    Wire,
    closest,
)
from .strict_json import MAX_BODY_BYTES, escape, point, read_json, refuse

_T = TypeVar("_T", bound=Wire)

_ITEMS = ("message", "reasoning", "function_call", "function_call_output")
_TEXT_PARTS = ("text", "input_text", "output_text")


def parse_request(body: bytes, max_bytes: int = MAX_BODY_BYTES) -> Request:
    """The request in a JSON body. Raises `BadRequest` or one of its kinds, `PayloadTooLarge`."""
    return read_request(read_json(body, max_bytes))


def parse_task(body: bytes, max_bytes: int = MAX_BODY_BYTES) -> tuple[Request, dict[str, str]]:
    """The request of a task and the task's metadata (B3.1), refused exactly where `parse_request` refuses."""
    task = read(read_json(body, max_bytes), TaskRequest)
    with _inside("/request"):
        return read_request(task.request), task.metadata


def parse(body: bytes, kind: type[_T], max_bytes: int = MAX_BODY_BYTES) -> _T:
    """Another kind of body."""
    return read(read_json(body, max_bytes), kind)


def read_request(data: dict[str, Any]) -> Request:
    """The request in JSON that has been read."""
    request = read(data | _lenient_input(data.get("input")), Request)
    if not request.input and request.previous_response_id is None:
        refuse("/input", "The input is empty.")
    if not any(isinstance(item, Message | FunctionCall) for item in request.input) and not request.previous_response_id:
        refuse("/input", "The input has no message.")
    if request.background and not request.store:
        refuse("/background", "background needs store: true.")
    _settle_options(request)
    _settle_format(request)
    _check_tools(request)
    return request


def read(data: dict[str, Any], kind: type[_T]) -> _T:
    """`data` as a wire type: null is absent, and a member that a strict part does not have is refused (B0.2)."""
    try:
        return msgspec.convert(_tidy(data, kind, ""), kind)
    except msgspec.ValidationError as error:
        _translate(str(error))


def check_version(version: str | None) -> None:
    """Raise `UnsupportedVersion` for a value of `LMSP-Version` that is not served; none means 1.0 (B2.1)."""
    if version is not None and version.strip() not in LMSP_VERSIONS:
        raise UnsupportedVersion(
            f"LMSP version {version!r} is not supported; send LMSP-Version: {', '.join(LMSP_VERSIONS)}.",
            extra={"supported_versions": LMSP_VERSIONS},
        )


# Lenient items (B0.2)


def _lenient_input(content: Any) -> dict[str, Any]:
    """The member `input`: a string is a user's message."""
    if content == "":
        refuse("/input", "The input is empty.")
    if isinstance(content, str):
        content = [{"type": "message", "role": "user", "content": content}]
    if isinstance(content, list):
        content = [_lenient_item(f"/input/{index}", item) for index, item in enumerate(content)]
    return {"input": content}


def _lenient_item(pointer: str, item: Any) -> Any:
    """A role makes a message, a string is one part, developer is system, null is absent."""
    if not isinstance(item, dict):
        return item
    item = {name: value for name, value in item.items() if value is not None}
    kind = item.setdefault("type", "message" if "role" in item else None)
    if kind not in _ITEMS:
        refuse(f"{pointer}/type", f"{kind!r} is not a type of item; use {', '.join(map(repr, _ITEMS))}.")
    if kind == "reasoning":
        item.setdefault("summary", [])
    elif kind == "function_call_output" and isinstance(item.get("output"), list):
        item["output"] = "".join(_text(f"{pointer}/output/{i}", part) for i, part in enumerate(item["output"]))
    elif kind == "message":
        _make_lenient_message(pointer, item)
    return item


def _make_lenient_message(pointer: str, item: dict[str, Any]) -> None:
    if item.get("role") == "developer":
        item["role"] = "system"
    if item.get("role") not in get_args(Role):
        refuse(f"{pointer}/role", f"{item.get('role')!r} is not a role; use {', '.join(get_args(Role))}.")
    if item["role"] == "assistant":
        item.setdefault("content", [])
    part_type = "output_text" if item["role"] == "assistant" else "input_text"
    content = item.get("content")
    if isinstance(content, str):
        item["content"] = [{"type": part_type, "text": content}]
    elif isinstance(content, list):
        item["content"] = [_lenient_part(f"{pointer}/content/{i}", p, part_type) for i, p in enumerate(content)]


def _text(pointer: str, part: Any) -> str:
    """The text of one part of a call's output."""
    part = _lenient_part(pointer, part, "output_text")
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        refuse(pointer, "A part of an output is a text: {'type': 'output_text', 'text': …}.")
    return text


def _lenient_part(pointer: str, part: Any, part_type: str) -> Any:
    if isinstance(part, str):
        return {"type": part_type, "text": part}
    if isinstance(part, dict) and isinstance(kind := part.get("type"), str):
        if kind in _TEXT_PARTS:
            return {"type": part_type, "text": part.get("text")}
        refuse(pointer, f"Content of type {kind!r} is not supported; LMSP 1.0 defines text only.", UnsupportedContent)
    return part


# One place for each setting (B0.5)


def _settle_options(request: Request) -> None:
    """What Responses clients say at the top (B7.4) goes into the options."""
    for name in ("top_p", "presence_penalty", "frequency_penalty", "parallel_tool_calls"):
        _settle(request.options, name, getattr(request, name), f"/{name}")
    if request.reasoning is not None:
        enabled = request.reasoning.enabled
        if request.reasoning.effort is not None:
            wanted = request.reasoning.effort != "none"
            if enabled not in (None, wanted):
                refuse("/reasoning", "effort and enabled contradict each other.")
            enabled = wanted
        if enabled is not None:
            _settle(request.options, "reasoning", ReasoningOptions(enabled=enabled), "/reasoning")


def _settle(options: Options, name: str, value: Any, pointer: str) -> None:
    if value is None:
        return
    if getattr(options, name) not in (None, value):
        refuse(pointer, f"{name} is given twice, with different values; say it once.")
    setattr(options, name, value)


def _settle_format(request: Request) -> None:
    """`text.format` is `response_format` in another shape (B7.4)."""
    said = request.text.format if request.text else None
    if isinstance(said, FlatJSONSchemaFormat):
        shape = JSONSchema(name=said.name, schema=said.schema, description=said.description, strict=said.strict)
        chosen: TextFormat | JSONSchemaFormat | None = JSONSchemaFormat(json_schema=shape)
        pointer = "/text/format/schema"
    else:
        chosen, pointer = said, "/response_format/json_schema/schema"
    if said is not None and request.response_format not in (None, chosen):
        refuse("/text/format", "The format is given twice, with different values; say it once.")
    request.response_format = request.response_format or chosen
    if request.schema is not None:
        schemas.check(request.schema, pointer)


# Tools (B0.10)


def _check_tools(request: Request) -> None:
    names: dict[str, None] = {}
    for index, tool in enumerate(request.tools):
        if tool.name in names:
            refuse(f"/tools/{index}/name", f"There are two tools named {tool.name!r}.")
        names[tool.name] = None
        if tool.parameters is not None:
            tool.parameters = {"type": "object"} | tool.parameters
            pointer = f"/tools/{index}/parameters"
            if tool.parameters["type"] != "object":
                refuse(f"{pointer}/type", "The parameters of a function are an object.", InvalidSchema)
            schemas.check(tool.parameters, pointer)
    choice = request.tool_choice
    if isinstance(choice, NamedTool):
        if choice.name not in names:
            hint = " or ".join(map(repr, closest(choice.name, names)))
            refuse(
                "/tool_choice/name", f"There is no tool {choice.name!r}" + (f"; did you mean {hint}?" if hint else ".")
            )
    elif choice == "required" and not names:
        refuse("/tool_choice", "A call is required, but there are no tools.")


# Strictness


def _tidy(value: Any, kind: Any, pointer: str) -> Any:
    """`value` without members that are null; what a strict part does not have is refused."""
    if isinstance(value, list):
        (element,) = get_args(kind)[:1] or (None,)
        return [_tidy(each, element, f"{pointer}/{index}") for index, each in enumerate(value)]
    struct = _struct(value, kind)
    if struct is None:
        return value
    fields = _fields(struct)
    tagged = struct.__struct_config__.tag_field
    for name in value:
        if issubclass(struct, Strict) and name not in fields and name != tagged:
            detail = f"{name!r} is not a parameter here{_hint(name, fields)}"
            refuse(f"{pointer}/{escape(name)}", detail, UnknownParameter)
    return {
        name: _tidy(each, fields.get(name), f"{pointer}/{escape(name)}")
        for name, each in value.items()
        if each is not None
    }


@cache
def _fields(struct: type[Wire]) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def _struct(value: Any, kind: Any) -> type[Wire] | None:
    """The wire type that `value` is to be, of those that the annotation `kind` names."""
    if not isinstance(value, dict):
        return None
    if get_origin(kind) in (Union, UnionType):
        known = [each for each in get_args(kind) if isinstance(each, type) and issubclass(each, Wire)]
        tags = {each.__struct_config__.tag: each for each in known}
        tag = value.get("type")
        return tags.get(tag if isinstance(tag, str) and tag in tags else None)
    return kind if isinstance(kind, type) and issubclass(kind, Wire) else None


def _hint(name: str, known: dict[str, Any]) -> str:
    match = closest(name, known)[:1]
    return f"; did you mean {match[0]!r}?" if match else f"; there are {', '.join(known)}."


# Refusals


@contextmanager
def _inside(prefix: str) -> Iterator[None]:
    """Pointers of what is refused, as seen from the body that holds it at `prefix`."""
    try:
        yield
    except BadRequest as problem:
        point(problem, lambda pointer: prefix + pointer)
        raise


_PATH = re.compile(r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$")

_JSON_TYPES = {"float": "a number", "int": "an integer", "str": "a string", "bool": "a boolean"}
_JSON_TYPE = re.compile(r"`(float|int|str|bool)`")


def _translate(message: str) -> NoReturn:
    """Refuse with what msgspec says, in JSON's words and with a pointer for its path."""
    place = _PATH.search(message)
    path = place["path"].partition("[...]")[0] if place else ""  # it stands for any member of a map
    pointer = re.sub(r"[.\[]", "/", path.replace("]", ""))
    message = message[: place.start()] if place else message
    if missing := _MISSING.match(message):
        refuse(f"{pointer}/{missing['name']}", f"{missing['name']!r} is required.")
    refuse(pointer, _JSON_TYPE.sub(lambda match: _JSON_TYPES[match[1]], message.replace(" | null`", "`")) + ".")
