"""The OpenAPI 3.1 document of the service (B1.5), made from the wire types and the table of operations.

Schemas are what msgspec makes of the types, and what types cannot say: the lenient forms in which requests are
accepted (B0.2), and that answers are sent whole. Sending it is left to the handlers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, reduce
from operator import or_
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from . import errors
from .events import Event
from .operations import EVERYWHERE, OPERATIONS, Kind, Operation, Parameter
from .protocol import LMSP_VERSIONS, Strict, Wire

Schema = dict[str, Any]

_T = TypeVar("_T")

_STRING: Schema = {"type": "string"}


def document(server_url: str) -> Schema:
    """The whole document. `server_url` is the service's own, ending in `/lmsp/v1`."""
    return _document() | {"servers": [{"url": server_url}]}


@cache
def _document() -> Schema:
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path or "/", {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Local Model Service Protocol",
            "version": LMSP_VERSIONS[-1],
            "description": "Language models on this machine. Every GET also answers HEAD.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The server's token, or an LMSP token with the scope that the operation names.",
                }
            },
            "parameters": {"LMSP-Version": _VERSION},
            "headers": _HEADERS,
            "schemas": {"Problem": _problem()} | _answer_schemas() | _request_schemas(),
        },
    }


# Operations

_VERSION: Schema = {
    "name": "LMSP-Version",
    "in": "header",
    "description": "The version that the client speaks; 1.0 where nothing is said (B2.1).",
    "schema": {"enum": LMSP_VERSIONS},
}
_HEADERS: dict[str, Schema] = {
    "LMSP-Version": {"required": True, "schema": {"enum": LMSP_VERSIONS}},
    "Location": {"required": True, "description": "The path of the task.", "schema": {"type": "string"}},
    "Idempotency-Replayed": {"description": "This is the first answer again (B2.5).", "schema": {"enum": ["true"]}},
    "Retry-After": {"description": "Seconds after which to try again.", "schema": {"type": "integer", "minimum": 0}},
    "WWW-Authenticate": {"required": True, "schema": {"type": "string", "pattern": "^Bearer"}},
}
_HEADER_OF = {
    errors.Unauthorized: "WWW-Authenticate",
    errors.RequestInProgress: "Retry-After",
    errors.QueueFull: "Retry-After",
}


def _ref(kind: str, name: str) -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


def _schema(kind: Kind) -> Schema:
    return _ref("schemas", kind.__name__) if issubclass(kind, Wire) else msgspec.json.schema(kind)


def _operation(operation: Operation) -> Schema:
    described: Schema = {
        "operationId": re.sub(r"\W+", "_", f"{operation.method.lower()}{operation.path}").strip("_"),
        "summary": operation.summary,
        "security": [{"bearer": [operation.scope] if operation.scope else []}],
        "parameters": [
            _ref("parameters", "LMSP-Version"),
            *(_id(name) for name in re.findall(r"{(\w+)}", operation.path)),
            *(_parameter(each) for each in operation.parameters),
        ],
    }
    if operation.request is not None:
        content = {"application/json": {"schema": _schema(operation.request)}}
        described["requestBody"] = {"required": True, "content": content}
    described["responses"] = _answers(operation) | _problems(operation)
    return described


def _id(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _parameter(parameter: Parameter) -> Schema:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.summary,
        "schema": msgspec.json.schema(parameter.kind),
    }


def _answers(operation: Operation) -> Schema:
    headers = ["Idempotency-Replayed"] if operation.keyed else []
    answers: Schema = {}
    for status, kind in operation.answers.items():
        content: Schema = {}
        if kind is not None:
            content["application/json"] = {"schema": _schema(kind)}
        if status == 200 and operation.streams is not None:
            content["text/event-stream"] = {"schema": _frame(operation.streams)}
        answers[str(status)] = _answer(operation.summary, content, *headers, *(["Location"] if status == 202 else []))
    return answers


def _problems(operation: Operation) -> Schema:
    problems = (*EVERYWHERE, *operation.problems)
    answers: Schema = {}
    for status in sorted({problem.status for problem in problems}):
        of_status = [problem for problem in problems if problem.status == status]
        codes = {"properties": {"code": {"enum": [problem.code for problem in of_status]}}}
        content = {"application/problem+json": {"schema": {"allOf": [_ref("schemas", "Problem"), codes]}}}
        headers = [_HEADER_OF[problem] for problem in of_status if problem in _HEADER_OF]
        answers[str(status)] = _answer("; ".join(problem.title for problem in of_status), content, *headers)
    return answers


def _answer(description: str, content: Schema, *headers: str) -> Schema:
    answer = {
        "description": description,
        "headers": {name: _ref("headers", name) for name in ("LMSP-Version", *headers)},
    }
    return answer | ({"content": content} if content else {})


def _frame(kind: Kind) -> Schema:
    """One event of a stream, as its fields; `data` is JSON as text."""
    if kind is not Event:
        return _object({"data": _STRING})
    content = {"contentMediaType": "application/json", "contentSchema": _ref("schemas", "Event")}
    number = {"type": "string", "pattern": "^[1-9][0-9]*$"}
    return _object({"id": number, "event": _STRING, "data": _STRING | content})


# Schemas


def _components(kinds: list[Kind], suffix: str = "") -> tuple[tuple[Schema, ...], dict[str, Schema]]:
    """What msgspec makes of `kinds` and of all that they refer to; references end in `suffix`."""
    references, schemas = msgspec.json.schema_components(kinds, ref_template=_ref("schemas", "{name}" + suffix)["$ref"])
    for schema in schemas.values():
        del schema["title"]  # its name again
        for member in schema["properties"].values():
            if "pattern" in member:
                member["pattern"] = member["pattern"].replace(r"\Z", "$")  # which JSON Schema does not know
    return references, schemas


def _tree(root: type[_T]) -> Iterator[type[_T]]:
    yield root
    for branch in root.__subclasses__():
        yield from _tree(branch)


def _problem() -> Schema:
    """B2.2."""
    string_or_null = {"type": ["string", "null"]}
    problem = _object(
        {
            "type": _STRING,
            "title": _STRING,
            "status": {"type": "integer"},
            "detail": _STRING,
            "instance": string_or_null,
            "code": {"enum": [code for code in errors.PROBLEMS if code != errors.ServiceUnreachable.code]},
            "message": _STRING,
            "param": string_or_null,
        }
    )
    pointed = _object({"pointer": _STRING, "detail": _STRING})
    problem["properties"]["errors"] = {"type": "array", "items": pointed}
    return problem


def _answer_schemas() -> dict[str, Schema]:
    """What the service sends, it sends whole: a member is required unless it can be unset."""
    kinds = [kind for operation in OPERATIONS for kind in operation.answers.values() if kind is not None]
    event = reduce(or_, (kind for kind in _tree(Event) if kind.__struct_config__.tag))
    (reference, *_), schemas = _components([event, *kinds])
    wire = {kind.__name__: kind for kind in _tree(Wire)}
    for name, schema in schemas.items():
        may_be_unset = {field.encode_name for field in msgspec.structs.fields(wire[name]) if field.default is UNSET}
        schema["required"] = [member for member in schema["properties"] if member not in may_be_unset]
        if "error" in schema["properties"]:
            problem = _ref("schemas", "Problem")
            schema["properties"]["error"] = problem if name in ("Failed", "Error") else _or_null(problem)
    return {"Event": reference} | schemas


def _request_schemas() -> dict[str, Schema]:
    """What the service accepts. Types that answers hold as well have names of their own here, ending in Param."""
    bodies = {operation.request.__name__: operation.request for operation in OPERATIONS if operation.request}
    _, schemas = _components(list(bodies.values()), "Param")
    strict = {kind.__name__ for kind in _tree(Strict)}
    for name, schema in schemas.items():
        for member in schema["properties"].keys() - schema["required"]:
            schema["properties"][member] = _or_null(schema["properties"][member])
        if name in strict:
            schema["additionalProperties"] = False
    _make_lenient(schemas)
    return {name if name in bodies else f"{name}Param": schema for name, schema in schemas.items()}


def _make_lenient(schemas: dict[str, Schema]) -> None:
    """The forms of B0.2 and of chat messages, which are no types of the protocol: they are read into some."""
    del schemas["InputText"], schemas["OutputText"]
    schemas["Text"] = _object({"type": {"enum": ["input_text", "output_text", "text"]}, "text": _STRING})
    parts = {"type": "array", "items": {"anyOf": [_STRING, _ref("schemas", "TextParam")]}}
    text: Schema = {"anyOf": [_STRING, parts]}
    spoken = {"role": {"enum": ["system", "developer", "user"]}, "content": text}
    answered = {"role": {"const": "assistant"}, "content": _or_null(text)}

    members = schemas["Message"]["properties"] | {"type": {"enum": ["message", None]}}
    said = [_object(members | spoken, "role", "content"), _object(members | answered, "role")]
    schemas["Message"] = {"anyOf": said}
    reasoning = schemas["Reasoning"]
    reasoning["required"].remove("summary")
    reasoning["properties"]["summary"] = _or_null(reasoning["properties"]["summary"])
    schemas["FunctionCallOutput"]["properties"]["output"] = text
    request = schemas["Request"]["properties"]
    del request["input"]["items"]["discriminator"]  # a message needs no type
    request["input"] = {"anyOf": [{"type": "string", "minLength": 1}, request["input"]]}
    schemas["TaskRequest"]["properties"]["request"] = _ref("schemas", "Request")

    call = _object({"id": _STRING, "function": _object({"name": _STRING, "arguments": _STRING})})
    calls = _or_null({"type": "array", "items": call})
    schemas["ChatRequest"]["properties"]["messages"]["items"] = {
        "anyOf": [
            _object(spoken),
            _object(answered | {"tool_calls": calls}, "role"),
            _object({"role": {"const": "tool"}, "tool_call_id": _STRING, "content": text}),
        ]
    }


def _object(members: Schema, *required: str) -> Schema:
    """An object that needs the `required` members; all of them where none is named."""
    return {"type": "object", "properties": dict(members), "required": list(required or members)}


def _or_null(schema: Schema) -> Schema:
    """Null for an optional member means absent (B0.2)."""
    null = {"type": "null"}
    return schema if schema.get("type") == "null" or null in schema.get("anyOf", []) else {"anyOf": [schema, null]}
