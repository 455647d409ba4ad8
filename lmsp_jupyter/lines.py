"""What is typed after `%lmsp` and `%%lmsp` (N1.1, N1.4): options, their values, and text.

Options stand first; what comes after them is never parsed. Two input transformers keep IPython from
eating text: a question mark at a line's end (help), and `>>>` at a body's beginning (prompts).
"""

from __future__ import annotations

import json
import keyword
import math
import re
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from IPython.core.inputtransformer2 import EscapedCommand

from .errors import BadRequest
from .protocol import closest


class LineError(BadRequest):
    """A line or a cell that cannot be read; nothing was sent."""

    title = "Cannot read this"


@dataclass(frozen=True)
class Options:
    """The options of one line; None where the line is silent."""

    model: str | None = None
    system: str | None = None
    temperature: float | None = None
    max_output_tokens: int | None = None
    seed: int | None = None
    output: str | None = None
    strict: bool = False
    dry_run: bool = False
    no_stream: bool = False


def _number(value: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _variable(value: str) -> str:
    if not value.isidentifier() or keyword.iskeyword(value):
        raise ValueError(value)
    return value


@dataclass(frozen=True)
class Option:
    """One option. `value` names what it takes, "" for a switch; `kind` says it in an error."""

    field: str
    flags: tuple[str, ...]
    help: str
    value: str = ""
    kind: str = ""
    read: Callable[[str], Any] = str


OPTIONS = (
    Option("model", ("-m", "--model"), "the model that answers", "MODEL"),
    Option("system", ("-s", "--system"), "instructions that stand before the prompt", "SYSTEM"),
    Option(
        "temperature",
        ("-t", "--temperature"),
        "0 repeats itself, up to 2",
        "T",
        "a number",
        _number,
    ),
    Option(
        "max_output_tokens",
        ("-n", "--max-output-tokens"),
        "stop after so many tokens",
        "N",
        "a whole number",
        int,
    ),
    Option("seed", ("--seed",), "makes sampling repeatable", "N", "a whole number", int),
    Option(
        "output",
        ("-o", "--output"),
        "a variable for the response",
        "VAR",
        "a name of Python",
        _variable,
    ),
    Option("strict", ("--strict",), "a truncated answer is an error"),
    Option("dry_run", ("--dry-run",), "show the prompt and its tokens, generate nothing"),
    Option("no_stream", ("--no-stream",), "show the answer when it is complete"),
)

FLAGS = {flag: option for option in OPTIONS for flag in option.flags}

_FLAG = re.compile(r"--?[A-Za-z][^\s=]*")


def parse(line: str) -> tuple[Options, str]:
    """The options at the beginning of `line`, and the text after them. Raises `LineError`.

    White space ends a value. A value that starts with a quote runs to the next such quote before
    white space; one that starts as JSON runs to its end. Backslashes stay. `--` ends the options.
    """
    given: dict[str, Any] = {}
    rest = line.strip()
    while match := _FLAG.match(rest):
        option = FLAGS.get(match[0])
        if option is None:
            raise LineError(f"{match[0]} is not an option; {_hint(match[0])} Put -- before text that starts with -.")
        rest = rest[match.end() :]
        if option.value:
            raw, rest = _value(option, match[0], rest.removeprefix("=").lstrip())
            given[option.field] = _read(option, match[0], raw)
        elif rest.startswith("="):
            raise LineError(f"{match[0]} takes no value.")
        else:
            given[option.field] = True
        rest = rest.lstrip()
    if re.match(r"--(?:\s|$)", rest):
        rest = rest[2:].lstrip()
    return Options(**given), rest


def _hint(flag: str) -> str:
    found = closest(flag, FLAGS)[:1] if flag.startswith("--") or len(flag) > 2 else []
    return f"did you mean {found[0]}?" if found else f"the options are {', '.join(FLAGS)}."


def _value(option: Option, flag: str, rest: str) -> tuple[str, str]:
    """The raw value at the beginning of `rest`, and what follows it."""
    if rest[:1] in ("'", '"') and rest:
        end = re.compile(rf"{rest[0]}(?=\s|$)").search(rest, 1)
        if end is None:
            raise LineError(f"The value of {flag} has no closing {rest[0]}.")
        return rest[1 : end.start()], rest[end.end() :]
    if rest[:1] in ("{", "[") and (length := _json_length(rest)):
        return rest[:length], rest[length:]
    word = rest.split(maxsplit=1)[0] if rest else ""
    if not word or word in FLAGS:
        raise LineError(f"{flag} needs a value: {flag} {option.value}.")
    return word, rest[len(word) :]


def _json_length(text: str) -> int:
    """How much of `text` is a JSON value that stands alone, 0 for none."""
    try:
        end = json.JSONDecoder().raw_decode(text)[1]
    except (ValueError, RecursionError):
        return 0
    return end if not text[end : end + 1].strip() else 0


def _read(option: Option, flag: str, raw: str) -> Any:
    try:
        return option.read(raw)
    except ValueError:
        raise LineError(f"{flag} takes {option.kind}, not {raw!r}.") from None


def split_cell(code: str) -> tuple[str, str] | None:
    """The line and the body of a cell that is a `%%lmsp` cell, else None."""
    match = re.match(
        r"(?:[ \t]*\r?\n)*%%lmsp(?:[ \t]+(?P<line>[^\r\n]*))?(?:\r?\n(?P<body>.*))?$",
        code,
        re.DOTALL,
    )
    return (match["line"] or "", match["body"] or "") if match else None


def is_sole_ask(code: str, line: str) -> bool:
    """Whether `%lmsp` with `line` is all that the cell does."""
    statements = [text.strip() for text in code.splitlines() if text.strip() and not text.strip().startswith("#")]
    return len(statements) == 1 and statements[0].removeprefix("%") == f"lmsp {line.strip()}"


class WholeCell:
    """Takes a `%%lmsp` cell before IPython's own transformers strip prompts from its body.

    Completeness checks skip it (`has_side_effects`): they have to see that it is a cell magic.
    """

    has_side_effects = True

    def __call__(self, lines: list[str]) -> list[str]:
        parts = split_cell("".join(lines))
        if parts is None:
            return lines
        # IPython refuses an empty body with a message that leaves no error in the notebook
        line, body = parts[0], parts[1] or "\n"
        return [f"get_ipython().run_cell_magic('lmsp', {line!r}, {body!r})\n"]


class AskLine(EscapedCommand):
    """Takes `%lmsp ask …` before a question mark at its end turns it into a request for help."""

    priority = 4  # the help transformer has 5

    @classmethod
    def find(cls, tokens_by_line: list[list[tokenize.TokenInfo]]) -> AskLine | None:
        for line in tokens_by_line:
            tokens = [token for token in line if token.type not in (tokenize.INDENT, tokenize.DEDENT)]
            if [token.string for token in tokens[:3]] == ["%", "lmsp", "ask"]:
                return cls(tokens[0].start)
        return None
