"""What a cell shows (N1.5, N1.6): an answer while it is generated, and the one output that stays.

`show` drives a view with the events of a stream. A view knows one way to show: in a cell of its
own, in a cell shared with other output, in a terminal, or only at the end. Asking a model is left
to others.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

import msgspec
from IPython.core.displaypub import CapturingDisplayPublisher, DisplayPublisher

from . import markdown
from .errors import Problem
from .events import Event, Progress, Queued, ReasoningDelta, TextDelta
from .protocol import FunctionCall, Response, new_id

MIME = "application/vnd.lmsp.response+json"

UPDATES_PER_SECOND = 15
GROWTH = 1.125
STEP = 32

_BAR = 20

Clock = Callable[[], float]


class Stream(Protocol):
    """The events of one response, as the client gives them; `response` is their fold so far."""

    @property
    def response(self) -> Response: ...

    def __enter__(self) -> Iterable[Event]: ...

    def __exit__(self, *_: object) -> bool | None: ...


# The answer at its end.


@dataclass(frozen=True)
class Answer:
    """An answer as it ended: the response, what varies from run to run, and what broke it off."""

    response: Response
    metadata: dict[str, Any]
    error: Problem | KeyboardInterrupt | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The output's MIME bundle: equal for equal answers (N1.5)."""
        text = self.response.text.rstrip()
        line = self.usage_line
        return {
            MIME: _document(self.response),
            "text/markdown": "\n\n".join(filter(None, (markdown.close_blocks(text), _muted(line)))),
            "text/plain": "\n\n".join(filter(None, (text, line))),
        }

    @property
    def usage_line(self) -> str:
        """Model, tokens in and out, and why it stopped if not by itself (N1.6)."""
        response = self.response
        parts = [response.model]
        if usage := response.usage:
            parts += [f"{usage.input_tokens} tokens in", f"{usage.output_tokens} out"]
        if response.status == "incomplete" and response.incomplete_details:
            parts.append(f"truncated: {response.incomplete_details.reason}")
        elif response.status == "failed" and response.error:
            parts.append(f"failed: {response.error.get('code')}")
        elif response.status != "completed":
            parts.append(response.status)
        return " · ".join(filter(None, parts))


def _document(response: Response) -> dict[str, Any]:
    output = [
        {name: value for name, value in msgspec.to_builtins(item).items() if name != "id"} for item in response.output
    ]
    usage = response.usage
    return {
        "version": 1,
        "model": response.model,
        "status": response.status,
        "output": output,
        "usage": usage and {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
        "incomplete_details": msgspec.to_builtins(response.incomplete_details),
    }


def _muted(line: str) -> str:
    escaped = re.sub(r"[^\w\s.,:/·-]|_", r"\\\g<0>", line)
    return f"<sub>{escaped}</sub>"


class Stopwatch:
    """The times and positions of one answer that only its reader knows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock()
        self._first: float | None = None
        self._last: float | None = None
        self._event_id: int | None = None

    def note(self, event: Event) -> None:
        """Take one event, as it arrives."""
        self._event_id = event.sequence_number or self._event_id
        if isinstance(event, TextDelta | ReasoningDelta):
            self._last = self._clock()
            if self._first is None:
                self._first = self._last

    def metadata(self, response: Response) -> dict[str, Any]:
        """What stands in the output's metadata under our MIME type (N1.5)."""
        usage = response.usage
        return {
            "response_id": response.id,
            "task_id": None,
            "last_event_id": self._event_id,
            "created_at": response.created_at,
            "timings": {
                "time_to_first_token": self._first and round(self._first - self._started, 3),
                "tokens_per_second": self._speed(usage.output_tokens if usage else 0),
            },
            "cached_tokens": usage and usage.input_tokens_details.cached_tokens,
        }

    def _speed(self, tokens: int) -> float | None:
        """Tokens after the first, over the time that they took."""
        if self._first is None or self._last is None or self._last <= self._first or tokens < 2:
            return None
        return round((tokens - 1) / (self._last - self._first), 2)


def show(stream: Stream, view: View, clock: Clock = time.monotonic) -> Answer:
    """Show a stream to its end, or to what breaks it off; that comes back as the answer's `error`.

    Leaving the stream cancels what still runs (B0.8). Of an answer that failed before its first
    text, nothing is shown: the error says it all.
    """
    stopwatch = Stopwatch(clock)
    error: Problem | KeyboardInterrupt | None = None
    try:
        with stream as events:
            for event in events:
                stopwatch.note(event)
                if isinstance(event, TextDelta):
                    view.text(event.delta)
                elif label := _label(event):
                    view.progress(label)
    except (Problem, KeyboardInterrupt) as raised:
        error = raised
    response = _ended(stream.response, error)
    answer = Answer(response, {MIME: stopwatch.metadata(response)}, error)
    if response.text or (response.id and not isinstance(error, Problem)):
        view.finish(answer)
    else:
        view.abandon()
    return answer


def _ended(response: Response, error: Problem | KeyboardInterrupt | None) -> Response:
    """A response that its reader left, or lost, no longer says that it is in progress. A call that is not whole is
    dropped (B0.7)."""
    if error is None:
        return response
    changes: dict[str, Any] = {
        "output": [
            msgspec.structs.replace(item, status="incomplete") if item.status == "in_progress" else item
            for item in response.output
            if not (isinstance(item, FunctionCall) and item.status == "in_progress")
        ]
    }
    if response.status == "in_progress":
        lost = {"status": "failed", "error": error.document()} if isinstance(error, Problem) else None
        changes |= lost or {"status": "cancelled"}
    return msgspec.structs.replace(response, **changes)


# Before the first token.


def _label(event: Event) -> str:
    """What an event says about work that is not text yet, "" for nothing."""
    if isinstance(event, Queued):
        return f"Waiting for the model: number {event.position} in line"
    if isinstance(event, Progress):
        if event.phase == "loading":
            counted = f"{event.done / 1e6:.0f} of {event.total / 1e6:.0f} MB"
            return f"Loading the model {_bar(event)} {counted}"
        return f"Reading the prompt {_bar(event)} {event.done} of {event.total} tokens"
    return "Thinking …" if isinstance(event, ReasoningDelta) else ""


def _bar(event: Progress) -> str:
    filled = max(0, min(_BAR, _BAR * event.done // event.total)) if event.total > 0 else 0
    return "█" * filled + "░" * (_BAR - filled)


# Ways to show.


class Throttle:
    """Says yes at most so many times a second."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._interval = 1 / per_second
        self._clock = clock
        self._next = clock()

    def __call__(self) -> bool:
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._interval
        return True


class Publisher(Protocol):
    """What is used of IPython's display publisher."""

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
    ) -> None: ...

    def clear_output(self, wait: bool = False) -> None: ...


class View(Protocol):
    """A way to show one answer."""

    def progress(self, label: str) -> None:
        """Say what goes on while there is no text; gone as soon as there is."""

    def text(self, delta: str) -> None:
        """Show more of the answer."""

    def finish(self, answer: Answer) -> None:
        """Leave the answer as it ended, and nothing else."""

    def abandon(self) -> None:
        """Leave nothing."""


class OwnCell:
    """In a cell that holds nothing else: a text stream, cleared at the end for the one output.

    Every byte of the answer is streamed once. Text waits here until it is due: ipykernel starts a
    timer at the first write after each flush, and writes between flushes breed timers until each
    write is a message of its own.
    """

    def __init__(self, publisher: Publisher, out: TextIO, clock: Clock = time.monotonic) -> None:
        self._publisher = publisher
        self._out = out
        self._due = Throttle(UPDATES_PER_SECOND, clock)
        self._label = ""
        self._held: list[str] = []
        self._began = False

    def progress(self, label: str) -> None:
        if self._began or label == self._label or not self._due():
            return
        if self._label:
            self._publisher.clear_output(wait=True)
        self._label = label
        self._put(f"{label}\n")

    def text(self, delta: str) -> None:
        self._held.append(delta)
        if self._due():
            if self._label and not self._began:
                self._publisher.clear_output(wait=True)
            self._began = True
            self._put("".join(self._held))
            self._held.clear()

    def finish(self, answer: Answer) -> None:
        self.abandon(wait=True)
        self._publisher.publish(answer.data, answer.metadata)

    def abandon(self, wait: bool = False) -> None:
        if self._began or self._label:
            self._publisher.clear_output(wait=wait)

    def _put(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class SharedCell:
    """In a cell with other output: one display, updated in place with the whole text so far.

    It is updated when the text has grown by an eighth: the bytes stay within nine times the text,
    and twice the text never takes more than 2.2 times the bytes, wherever the updates happen to
    fall.
    """

    def __init__(self, publisher: Publisher, clock: Clock = time.monotonic) -> None:
        self._publisher = publisher
        self._due = Throttle(UPDATES_PER_SECOND, clock)
        self._display_id = new_id("display")
        self._label = ""
        self._pieces: list[str] = []
        self._size = 0
        self._next_size = 0.0
        self._shown = False

    def progress(self, label: str) -> None:
        if not self._pieces and label != self._label and self._due():
            self._label = label
            self._put({"text/plain": label})

    def text(self, delta: str) -> None:
        self._pieces.append(delta)
        self._size += len(delta)
        if self._size >= self._next_size and self._due():
            self._next_size = max(self._size * GROWTH, self._size + STEP)
            self._put({"text/plain": "".join(self._pieces)})

    def finish(self, answer: Answer) -> None:
        self._put(answer.data, answer.metadata)

    def abandon(self) -> None:
        if self._shown:
            self._put({"text/plain": ""})

    def _put(self, data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        transient = {"display_id": self._display_id}
        self._publisher.publish(data, metadata, transient=transient, update=self._shown)
        self._shown = True


class Terminal:
    """In a terminal: the text as it comes, then the usage line; progress only if stderr is one."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._label = ""
        self._last = ""

    def progress(self, label: str) -> None:
        if self._err.isatty() and not self._last and label != self._label:
            self._label = label
            self._err.write(f"\r\x1b[K{label}")
            self._err.flush()

    def text(self, delta: str) -> None:
        self.abandon()
        self._out.write(delta)
        self._out.flush()
        self._last = delta or self._last

    def finish(self, answer: Answer) -> None:
        self.abandon()
        gap = "" if not self._last else "\n" if self._last.endswith("\n") else "\n\n"
        self._out.write(f"{gap}{answer.usage_line}\n")
        self._out.flush()

    def abandon(self) -> None:
        if self._label:
            self._label = ""
            self._err.write("\r\x1b[K")
            self._err.flush()


@dataclass
class OnlyEnd:
    """Nothing until the answer is complete."""

    publisher: Publisher

    def progress(self, label: str) -> None: ...

    def text(self, delta: str) -> None: ...

    def finish(self, answer: Answer) -> None:
        self.publisher.publish(answer.data, answer.metadata)

    def abandon(self) -> None: ...


def choose_view(shell: Any, *, owned: bool, live: bool) -> View:
    """The view for a shell; `owned`: the cell holds nothing else; `live`: the answer may stream."""
    publisher = shell.display_pub
    if not live or isinstance(publisher, CapturingDisplayPublisher):
        return OnlyEnd(publisher)
    if type(publisher) is DisplayPublisher:
        return Terminal(sys.stdout, sys.stderr)
    return OwnCell(publisher, sys.stdout) if owned else SharedCell(publisher)
