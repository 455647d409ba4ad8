"""The seam between the service and what runs a model: one `Engine` protocol, and the choice of an engine.

An engine is a module registered under the entry point group `lmsp_jupyter.engines` that has the members of
`EngineModule`. The server imports these modules, so they import their libraries inside `load`, which only a
worker calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from ..errors import Document, ModelUnavailable
from ..protocol import Capability, Options, Tool, ToolChoice, Usage

GROUP = "lmsp_jupyter.engines"

log = logging.getLogger(__name__)


class Call(msgspec.Struct):
    """A call that the model made earlier; `arguments` is JSON as text."""

    name: str
    arguments: str


class Turn(msgspec.Struct):
    """One message of a prompt, as chat templates take it. A `tool` turn is what a call came to, and names its tool."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: list[Call] = []
    name: str | None = None


class Prompt(msgspec.Struct, kw_only=True):
    """What is asked of an engine. None means the model's own default, for `max_output_tokens` the rest of the
    context window.

    `tools` are shown to the model. `tool_choice` is one of `auto`, `none`, `required` or `NamedTool`; with
    `parallel` it may make several calls. `schema` is the JSON Schema of the answer's text. With `continue_last` the
    last turn is the assistant's and is gone on with (B6.3).
    """

    turns: list[Turn]
    max_output_tokens: int | None = None
    temperature: float | None = None
    options: Options = msgspec.field(default_factory=Options)
    tools: list[Tool] = []
    tool_choice: ToolChoice = "auto"
    parallel: bool = True
    schema: dict[str, Any] | None = None
    continue_last: bool = False


# What is said about a prompt, in order: any number of the first six, then one of the last two.


class PromptProgress(msgspec.Struct, tag="progress"):
    """Tokens of the prompt that are processed. `done` includes the `cached` ones."""

    done: int
    total: int
    cached: int = 0


class Text(msgspec.Struct, tag="text"):
    """Text of the answer; never part of a code point. `tokens` are those generated so far, 0 where unknown."""

    text: str
    tokens: int = 0


class ReasoningText(msgspec.Struct, tag="reasoning"):
    """Text of the model's reasoning."""

    text: str
    tokens: int = 0


class CallStarted(msgspec.Struct, tag="call"):
    """The model began to call a tool; its arguments follow. An engine says only text: calls are found in it."""

    name: str
    tokens: int = 0


class CallArguments(msgspec.Struct, tag="arguments"):
    """A piece of the open call's arguments, JSON as text."""

    text: str
    tokens: int = 0


class CallEnded(msgspec.Struct, tag="called"):
    """The open call is whole. A call that is cut never has this."""


class Finished(msgspec.Struct, tag="finished"):
    """The end: the model stopped (`stop`, stop strings included), met a limit (`length`), or was cancelled."""

    reason: Literal["stop", "length", "cancelled"]
    usage: Usage | None = None
    by_string: bool = False
    """Whether a stop string of the request's made it stop."""


class Broken(msgspec.Struct, tag="broken"):
    """The end: the engine could not do it, and goes on with other prompts."""

    problem: Document
    usage: Usage | None = None


Output = PromptProgress | Text | ReasoningText | CallStarted | CallArguments | CallEnded | Finished | Broken
Emit = Callable[[Output], None]
Cancel = Callable[[], None]


class Settings(msgspec.Struct, kw_only=True):
    """How to load a model.

    `context_length`: upper bound in tokens for one request; the model's own where that is smaller.
    `parallel`: requests that are generated at the same time. `threads`: CPU threads, None for the engine's choice.
    """

    context_length: int = 8192
    parallel: int = 4
    threads: int | None = None


class Engine(Protocol):
    """A loaded model. Methods may be called from any thread."""

    context_length: int
    """Tokens that one request gets, prompt and output together."""

    capabilities: list[Capability]

    def count(self, prompt: Prompt) -> int:
        """Exactly the tokens that the prompt will take, template included. Raises `Problem`."""

    def submit(self, prompt: Prompt, emit: Emit) -> Cancel:
        """Queue the prompt and return at once; `emit` is called from the engine's threads, or, where the prompt never
        started, from the one that cancels or closes. The function that is returned cancels at the end of the engine's
        current batch, whatever it is doing; then `Finished` follows."""

    def close(self) -> None:
        """End all work and free the model."""


@dataclass(frozen=True)
class Unavailable:
    """Why an engine cannot run here, and the command or change that mends it."""

    reason: str
    fix: str


@dataclass(frozen=True)
class Facts:
    """What a model's file tells without loading it. `context_length` in tokens, None where it does not say."""

    context_length: int | None
    quantization: str | None
    capabilities: tuple[Capability, ...] = ()


class EngineModule(Protocol):
    """What an engine's module has at its top level."""

    SUFFIX: str
    """Of the files that hold its models, such as `.gguf`."""

    def unavailable(self) -> Unavailable | None:
        """None where the engine can run."""

    def inspect(self, path: Path) -> Facts:
        """Read the facts of a model file. Raises `OSError` or `ValueError` for what is not one."""

    def load(self, path: Path, settings: Settings) -> Engine:
        """Load the model. Raises `Problem` with the reason where it cannot be."""


class _Unimportable:
    """Stands for an engine whose module cannot be imported, so that it is told and harms nothing else."""

    SUFFIX = "\0"

    def __init__(self, name: str, error: ImportError) -> None:
        self._unavailable = Unavailable(f"The module of the engine {name} cannot be imported.", "pip check")
        log.warning("The engine %s cannot be imported: %s", name, error)

    def unavailable(self) -> Unavailable:
        return self._unavailable

    def inspect(self, path: Path) -> Facts:
        raise ValueError(self._unavailable.reason)

    def load(self, path: Path, settings: Settings) -> Engine:
        raise ModelUnavailable(self._unavailable.reason)


def load_module(name: str) -> EngineModule:
    """The engine of that name."""
    (entry,) = entry_points(group=GROUP, name=name)
    try:
        module: EngineModule = entry.load()
    except ImportError as error:
        return _Unimportable(name, error)
    return module


@cache
def installed() -> dict[str, EngineModule]:
    """The engines that are installed, by name."""
    return {name: load_module(name) for name in sorted({entry.name for entry in entry_points(group=GROUP)})}
