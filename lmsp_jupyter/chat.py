"""Chat completions (B7.6): the same requests, responses and events in another shape. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import msgspec

from .errors import BadRequest, Document, Problem
from .events import ArgumentsDelta, Event, Failed, Final, Incomplete, ItemAdded, ReasoningDelta, TextDelta
from .parsing import read, read_request
from .protocol import (
    Fraction,
    FunctionCall,
    FunctionName,
    JSONSchema,
    Metadata,
    Penalty,
    PositiveInt,
    Reasoning,
    Request,
    Response,
    Strict,
    TextFormat,
    Usage,
)
from .strict_json import MAX_BODY_BYTES, point, read_json, refuse

DONE = b"data: [DONE]\n\n"
"""What ends a stream of chunks."""


class Function(Strict, kw_only=True):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(Strict, tag="function", kw_only=True):
    function: Function


class NamedFunction(Strict, kw_only=True):
    name: str


class NamedChatTool(Strict, tag="function", kw_only=True):
    function: NamedFunction


class JSONObjectFormat(Strict, tag="json_object", kw_only=True):
    """Any JSON object."""


class ChatSchemaFormat(Strict, tag="json_schema", kw_only=True):
    json_schema: JSONSchema


class StreamOptions(Strict, kw_only=True):
    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class ChatRequest(Strict, kw_only=True):
    """The body of `POST /chat/completions`."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Fraction | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] | None = None
    stop: str | list[str] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    tools: list[ChatTool] = msgspec.field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | NamedChatTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | JSONObjectFormat | ChatSchemaFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    metadata: Metadata | None = None
    # accepted with a value that changes nothing,
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    # accepted and ignored.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


def parse_chat(body: bytes, max_bytes: int = MAX_BODY_BYTES) -> tuple[ChatRequest, Request]:
    """A chat request as it came and as the request that it stands for. Raises `BadRequest`, `PayloadTooLarge`; its
    pointers are those of the chat request."""
    chat = read(read_json(body, max_bytes), ChatRequest)
    items = [item for _, item in _placed(chat)]
    with pointing_into(chat):
        return chat, read_request(_body(chat) | {"input": items})


@contextmanager
def pointing_into(chat: ChatRequest) -> Iterator[None]:
    """Let refusals of the request point into the chat request that it came from."""
    try:
        yield
    except BadRequest as problem:
        point(problem, lambda pointer: _chat_pointer(pointer, chat))
        raise


def _placed(chat: ChatRequest) -> list[tuple[str, dict[str, Any]]]:
    """All items, each with its place in the chat request."""
    return [placed for index, message in enumerate(chat.messages) for placed in _items(f"/messages/{index}", message)]


def _items(pointer: str, message: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The items that a message stands for, each with its place in the chat request."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        output = {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": content}
        return [(pointer, output)]
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        refuse(f"{pointer}/tool_calls", "tool_calls is an array.")
    items = [(pointer, {"type": "message", "role": role, "content": content})]
    if calls and not content:
        items = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        place = f"{pointer}/tool_calls/{index}"
        if not isinstance(function, dict):
            refuse(f"{place}/function", "A tool call has a function with its name and arguments.")
        item = {"type": "function_call", "call_id": call.get("id")} | {
            name: function.get(name) for name in ("name", "arguments")
        }
        items.append((place, item))
    return items


def _body(chat: ChatRequest) -> dict[str, Any]:
    """The members of the request that the chat request stands for, but for its input."""
    if chat.max_tokens and chat.max_completion_tokens and chat.max_tokens != chat.max_completion_tokens:
        refuse("/max_tokens", "max_tokens and max_completion_tokens are the same; say it once.")
    stop = [chat.stop] if isinstance(chat.stop, str) else chat.stop
    body = {
        "model": chat.model,
        "stream": chat.stream,
        "max_output_tokens": chat.max_completion_tokens or chat.max_tokens,
        "temperature": chat.temperature,
        "top_p": chat.top_p,
        "frequency_penalty": chat.frequency_penalty,
        "presence_penalty": chat.presence_penalty,
        "parallel_tool_calls": chat.parallel_tool_calls,
        "metadata": chat.metadata,
        "tools": [{"type": "function"} | msgspec.to_builtins(tool.function) for tool in chat.tools],
        "response_format": _response_format(chat),
        "extensions": {"lmsp_jupyter": {"seed": chat.seed, "stop": stop}},
    }
    if isinstance(chat.tool_choice, NamedChatTool):
        body["tool_choice"] = {"type": "function", "name": chat.tool_choice.function.name}
    elif chat.tool_choice:
        body["tool_choice"] = chat.tool_choice
    if chat.reasoning_effort:
        body["reasoning"] = {"effort": chat.reasoning_effort}
    return body


def _response_format(chat: ChatRequest) -> dict[str, Any] | None:
    if isinstance(chat.response_format, JSONObjectFormat):
        return {"type": "json_schema", "json_schema": {"name": "object", "schema": {"type": "object"}}}
    return msgspec.to_builtins(chat.response_format) if chat.response_format else None


_MEMBERS = {
    ("function_call", "/call_id"): "/id",
    ("function_call", "/name"): "/function/name",
    ("function_call", "/arguments"): "/function/arguments",
    ("function_call_output", "/call_id"): "/tool_call_id",
    ("function_call_output", "/output"): "/content",
}
"""Members of items that have other names in a chat request."""


def _chat_pointer(pointer: str, chat: ChatRequest) -> str:
    """Where a chat request has what is at `pointer` in the request."""
    if found := re.match(r"/input/(\d+)", pointer):
        place, item = _placed(chat)[int(found[1])]
        return place + re.sub(
            r"^/\w+", lambda member: _MEMBERS.get((item["type"], member[0]), member[0]), pointer[found.end() :]
        )
    for told, said in (
        *([(r"^/extensions/lmsp_jupyter/stop/0\b", "/stop")] if isinstance(chat.stop, str) else []),
        (r"^/input\b", "/messages"),
        (r"^/max_output_tokens\b", "/max_completion_tokens" if chat.max_completion_tokens else "/max_tokens"),
        (r"^/extensions/lmsp_jupyter\b", ""),
        (r"^/tools/(\d+)\b", r"/tools/\1/function"),
        (r"^/tool_choice/name\b", "/tool_choice/function/name"),
    ):
        pointer = re.sub(told, said, pointer)
    return pointer


def completion(response: Response) -> Document:
    """The `chat.completion` object of a response that has ended."""
    calls = [item for item in response.output if isinstance(item, FunctionCall)]
    reasoning = "".join(item.text for item in response.output if isinstance(item, Reasoning))
    message: Document = {"role": "assistant", "content": response.text or (None if calls else ""), "refusal": None}
    if calls:
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    if reasoning:
        message["reasoning_content"] = reasoning
    reason = response.incomplete_details.reason if response.incomplete_details else None
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": _finish_reason(reason, calls=bool(calls) and response.status != "cancelled"),
    }
    return {
        "id": response.id,
        "object": "chat.completion",
        "created": response.created_at,
        "model": response.model,
        "choices": [choice],
        "usage": _usage(response.usage),
        "system_fingerprint": None,
    }


class Chunks:
    """The events of a response as `chat.completion.chunk` objects, framed for the wire."""

    def __init__(self, response: Response, *, include_usage: bool) -> None:
        self._frame = {
            "id": response.id,
            "object": "chat.completion.chunk",
            "created": response.created_at,
            "model": response.model,
            "system_fingerprint": None,
        } | ({"usage": None} if include_usage else {})
        self._include_usage = include_usage
        self._calls: dict[str, int] = {}

    def first(self) -> bytes:
        """What opens the stream."""
        return self._chunk({"role": "assistant", "content": ""})

    def take(self, event: Event) -> bytes:
        """The frames of one event; often none."""
        if isinstance(event, TextDelta):
            return self._chunk({"content": event.delta})
        if isinstance(event, ReasoningDelta):
            return self._chunk({"reasoning_content": event.delta})
        if isinstance(event, ItemAdded) and isinstance(event.item, FunctionCall):
            index = self._calls.setdefault(event.item.id or "", len(self._calls))
            function = {"name": event.item.name, "arguments": ""}
            call = {"index": index, "id": event.item.call_id, "type": "function", "function": function}
            return self._chunk({"tool_calls": [call]})
        if isinstance(event, ArgumentsDelta):
            call = {"index": self._calls[event.item_id], "function": {"arguments": event.delta}}
            return self._chunk({"tool_calls": [call]})
        return self._end(event) if isinstance(event, Final) else b""

    def _end(self, event: Final) -> bytes:
        if isinstance(event, Failed):
            return _data({"error": error_of(event.error)})
        reason = event.incomplete_details.reason if isinstance(event, Incomplete) else None
        called = bool(self._calls) and event.status != "cancelled"
        frames = self._chunk({}, _finish_reason(reason, calls=called))
        if self._include_usage:
            frames += _data(self._frame | {"choices": [], "usage": _usage(event.usage)})
        return frames + DONE

    def _chunk(self, delta: Document, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _data(self._frame | {"choices": [choice]})


def error_of(document: Document) -> Document:
    """The member `error` with which chat clients know a problem."""
    kind = "invalid_request_error" if document.get("status", 500) < 500 else "server_error"
    return {
        "message": document.get("detail"),
        "type": kind,
        "code": document.get("code"),
        "param": document.get("param"),
    }


def chat_document(problem: Problem, instance: str) -> Document:
    """A problem document with that member."""
    document = problem.document(instance)
    return document | {"error": error_of(document)}


def _finish_reason(incomplete: str | None, *, calls: bool) -> str:
    if incomplete not in (None, "stop"):
        return "length"
    return "tool_calls" if calls else "stop"


def _usage(usage: Usage | None) -> Document | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.input_tokens_details.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.output_tokens_details.reasoning_tokens},
    }


def _data(body: Document) -> bytes:
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n".encode("ascii")
