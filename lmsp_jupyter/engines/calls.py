"""Tool calls and schemas in the text of a model: the grammar that it must follow, and the reader that finds the calls.

A call is written as Hermes models write it, and this module alone knows how:

    <tool_call>
    {"name": "add", "arguments": {"a": 1, "b": 2}}
    </tool_call>

What a schema means is left to `schemas`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from .. import patterns, schemas
from ..errors import EngineFailed
from ..protocol import NamedTool, Tool
from . import (
    Broken,
    Call,
    CallArguments,
    CallEnded,
    CallStarted,
    Emit,
    Finished,
    Output,
    Prompt,
    Text,
    Turn,
)
from .stops import overlap
from .thoughts import THINK, THINK_END, Thinking

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MARKERS = (OPEN, CLOSE, THINK, THINK_END)
"""What stands between the parts of an answer; in many vocabularies each is a token of its own."""

MAX_CALLS = 8
"""Calls in one answer."""

_ANY_OBJECT = {"type": "object"}


def shown(prompt: Prompt) -> list[Tool]:
    """The tools that the model is told of."""
    return [] if prompt.tool_choice == "none" else prompt.tools


def definitions(prompt: Prompt) -> list[dict[str, Any]]:
    """The tools as chat templates take them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.parameters or _ANY_OBJECT,
            },
        }
        for tool in shown(prompt)
    ]


def hermes_turns(prompt: Prompt) -> list[Turn]:
    """The turns for a template that knows no tools: they are told in the system's turn, calls and what they came to as
    text."""
    turns: list[Turn] = []
    for role, group in groupby(prompt.turns, key=lambda turn: turn.role):
        if role == "tool":
            responses = [f"<tool_response>\n{turn.content}\n</tool_response>" for turn in group]
            turns.append(Turn("user", "\n".join(responses)))
        else:
            turns += [
                Turn(role, "\n".join([*filter(None, [turn.content]), *map(_written, turn.calls)])) for turn in group
            ]
    if tools := definitions(prompt):
        if turns and turns[0].role == "system":
            turns[0].content += f"\n\n{_told(tools)}"
        else:
            turns.insert(0, Turn("system", _told(tools)))
    return turns


def _written(call: Call) -> str:
    return f'{OPEN}\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n{CLOSE}'


def _told(tools: list[dict[str, Any]]) -> str:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"# Tools\n\nThese functions can be called:\n<tools>\n{listed}\n</tools>\n\n"
        f"To call one, write its name and its arguments as JSON:\n"
        f'{OPEN}\n{{"name": "…", "arguments": {{…}}}}\n{CLOSE}'
    )


# The grammar


def is_constrained(prompt: Prompt) -> bool:
    """Whether there is a grammar for the answer."""
    return bool(shown(prompt)) or prompt.schema is not None


def grammar(
    prompt: Prompt,
    *,
    markers: Mapping[str, int] = {},
    end_tokens: Sequence[int] = (),
    thinking: Thinking = "no",
    layout: dict[str, Any] = schemas.LAYOUT,
) -> str | None:
    """The grammar of the answer, for llguidance; None where everything is allowed (B0.9).

    `markers` are the ids of those of `MARKERS` that are tokens of their own. `end_tokens` may end the answer beside
    the one that the engine takes for the end. `thinking` is the free section before the grammar: the model may begin
    one, or the prompt has (`open`). `layout` is how JSON is written, for an engine whose llguidance is older.
    """
    if not is_constrained(prompt):
        return None
    tools = shown(prompt)
    rules: list[str] = []
    calls = _calls(prompt, tools, markers, rules, layout) if tools else None
    may_answer = calls is None or prompt.tool_choice == "auto"
    if not may_answer:
        answer = calls
    elif prompt.schema is not None:
        rules.append(f"json: {_json(prompt.schema, layout)}")
        answer = f"json | {calls}" if calls else "json"
    else:
        answer = _text_or(f"{calls}", markers, rules)
    thought = _thought(markers, rules, thinking)
    ends = " | ".join(f"<[{token}]>" for token in end_tokens)
    start = f"start: {thought} ({answer})" + (f" ({ends})?" if ends else "")
    return "\n".join(["%llguidance {}", start, *rules])


def _calls(
    prompt: Prompt, tools: list[Tool], markers: Mapping[str, int], rules: list[str], layout: dict[str, Any]
) -> str:
    """One call or several; `calls` is the rule of all but the first marker."""
    if isinstance(choice := prompt.tool_choice, NamedTool):
        tools = [tool for tool in tools if tool.name == choice.name]
    names = [f"call_{index}" for index in range(len(tools))]
    for name, tool in zip(names, tools, strict=True):
        head = json.dumps(f'\n{{"name": {json.dumps(tool.name)}, "arguments": ')
        rules.append(f"{name}: {head} {_json(tool.parameters or _ANY_OBJECT, layout)}")
    close = f'"}}\\n" {_marker(CLOSE, markers)}'
    rules.append(f"call: ({' | '.join(names)}) {close}")
    more = f' ("\\n" {_marker(OPEN, markers)} call){{0,{MAX_CALLS - 1}}}' if prompt.parallel else ""
    rules.append(f"calls: call{more}")
    return f"{_marker(OPEN, markers)} calls"


def _text_or(calls: str, markers: Mapping[str, int], rules: list[str]) -> str:
    """Text that has no marker, or text and then calls."""
    rules.append(f"TEXT: /(?s:.*)/ & ~/(?s:.*){OPEN}(?s:.*)/")
    if OPEN in markers:
        return f"TEXT ({calls})?"
    rules.append(f"open[lazy]: /(?s:.*){OPEN}/")
    return "TEXT | open calls"


def _thought(markers: Mapping[str, int], rules: list[str], thinking: Thinking) -> str:
    if thinking == "no":
        return ""
    if THINK_END in markers:
        rules.append(f"thought: /(?s:.*)/ <[{markers[THINK_END]}]> /\\n{{0,2}}/")
    else:
        rules.append("thought: thoughts /\\n{0,2}/")
        rules.append(f"thoughts[lazy]: /(?s:.*){re.escape(THINK_END).replace('/', chr(92) + '/')}/")
    return "thought" if thinking == "open" else f"({_marker(THINK, markers)} thought)?"


def _marker(text: str, markers: Mapping[str, int]) -> str:
    """llguidance never matches an added token from its text, so that is named by its id."""
    return f"<[{markers[text]}]>" if text in markers else json.dumps(text)


def _json(schema: dict[str, Any], layout: dict[str, Any]) -> str:
    return f"%json {json.dumps(schemas.enforced(schema, layout))}"


class Guard:
    """Follows an answer, without its reasoning, along its grammar: an engine whose grammar fails goes on without."""

    def __init__(self, prompt: Prompt) -> None:
        """Raises `EngineFailed` where there is no grammar for the prompt, or none that works."""
        from llguidance import LLMatcher

        self._matcher = LLMatcher(patterns.byte_tokenizer(), grammar(prompt) or "", log_level=0)
        if self._matcher.is_error():
            raise EngineFailed("The schema or the tools cannot be made into a grammar.")

    def allows(self, text: str) -> bool:
        """Whether the answer may go on with this text."""
        data = list(text.encode())
        return bool(self._matcher.try_consume_tokens(data) == len(data))

    @property
    def may_end(self) -> bool:
        """Whether the answer so far is a whole one."""
        return bool(self._matcher.is_accepting())


# The reader

_NAME = re.compile(r'"([\w.-]{1,128})"', re.ASCII)
_PART_OF_NAME = re.compile(r'"[\w.-]{0,128}', re.ASCII)
_SPACE = re.compile(r"[ \t\r\n]*")


class Calls:
    """An `Emit` that passes on what an engine says to `emit`, with the calls in its text told as such.

    A call ends with its JSON; one that is cut never does. What only looks like one is given back as text. White space
    that separates calls from text and from each other is dropped.
    """

    def __init__(self, prompt: Prompt, emit: Emit) -> None:
        self._emit = emit
        self._names = {tool.name for tool in shown(prompt)}
        self._only_calls = prompt.tool_choice != "auto"  # may follow
        self._held = ""
        self._tokens = 0
        self._read = self._read_text
        self._arguments = _Nesting()

    def __call__(self, output: Output) -> None:
        if not self._names:
            self._emit(output)
        elif isinstance(output, Text):
            self._held += output.text
            self._tokens = output.tokens
            while self._read():
                pass
        else:
            if isinstance(output, Finished | Broken):
                self._end(cut=not (isinstance(output, Finished) and output.reason == "stop"))
            self._emit(output)

    # Each reads on in what is held, and returns whether there may be more to read.

    def _read_text(self) -> bool:
        marker = self._held.find(OPEN)
        if marker < 0:
            # White space and the start of a marker may turn out to belong to a call.
            keep = overlap(self._held, OPEN)
            self._say_text(len(self._held[: len(self._held) - keep].rstrip()))
            return False
        self._say_text(len(self._held[:marker].rstrip()))
        self._read = self._read_head
        return True

    def _read_head(self) -> bool:
        """What is held begins with white space and a marker."""
        marker = self._held.find(OPEN)
        head = _head(self._held, marker + len(OPEN))
        if head is None:
            return False
        name, end = head
        if name in self._names:
            self._held = self._held[end:]
            self._emit(CallStarted(name, self._tokens))
            self._arguments = _Nesting()
            self._read = self._read_arguments
        else:
            self._say_text(marker + len(OPEN))
            self._read = self._read_text
        return True

    def _read_arguments(self) -> bool:
        end = self._arguments.end(self._held)
        piece = self._held if end is None else self._held[:end]
        if piece:
            self._emit(CallArguments(piece, self._tokens))
        self._held = self._held[len(piece) :]
        if end is None:
            return False
        self._read = self._read_tail
        return True

    def _read_tail(self) -> bool:
        """The brace that ends a call; without it the call is none, and what follows is text."""
        start = _after_space(self._held, 0)
        if start == len(self._held):
            return False
        if self._held[start] == "}":
            self._held = self._held[start + 1 :]
            self._only_calls = True
            self._emit(CallEnded())
            self._read = self._read_close
        else:
            self._read = self._read_text
        return True

    def _read_close(self) -> bool:
        start = _after_space(self._held, 0)
        rest = self._held[start:]
        if CLOSE.startswith(rest):
            if rest == CLOSE:
                self._held, self._read = "", self._read_text
            return False
        self._held = rest.removeprefix(CLOSE)
        self._read = self._read_text
        return True

    def _end(self, *, cut: bool) -> None:
        """Say what is held as text, unless it is a piece of a call."""
        if self._read == self._read_text:
            is_call = self._only_calls and OPEN.startswith(self._held.strip())
        else:
            is_call = cut or self._read != self._read_head
        if not is_call:
            self._say_text(len(self._held))

    def _say_text(self, length: int) -> None:
        if length:
            self._emit(Text(self._held[:length], self._tokens))
            self._held = self._held[length:]


class _Nesting:
    """Finds the end of a JSON object in pieces of a text."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """The index behind the object that began in the pieces so far, None where it goes on."""
        for index, char in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = char == "\\"
                self._in_string = char != '"'
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return index + 1
        return None


def _head(text: str, at: int) -> tuple[str | None, int] | None:
    """The name of the call that begins in `text` at `at`, None where there is none, and where its arguments begin.
    None where the text ends too early to tell."""
    name: str | None = None
    for part in ("{", '"name"', ":", _NAME, ",", '"arguments"', ":", "{"):
        at = _after_space(text, at)
        if isinstance(part, str):
            if not text.startswith(part, at):
                return None if part.startswith(text[at:]) else (None, at)
            at += len(part)
        elif found := part.match(text, at):
            name, at = found[1], found.end()
        else:
            return None if _PART_OF_NAME.fullmatch(text, at) or at == len(text) else (None, at)
    return name, at - 1


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at
