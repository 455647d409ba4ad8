"""The events of a response (A3, B7.1): from an engine's deltas to events, and from events to the response.

`Composer` turns what an engine says into events, `Fold` turns events into the response object; live streams,
synchronous answers and clients all see a response through that one fold. Numbering is the log's job.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from .errors import Document, Problem
from .protocol import (
    FunctionCall,
    FunctionCallOutput,
    IncompleteDetails,
    IncompleteReason,
    Item,
    ItemStatus,
    Message,
    OutputText,
    Reasoning,
    Response,
    ResponseStatus,
    SummaryText,
    Usage,
    Wire,
    new_id,
)


class Event(Wire, kw_only=True):
    """Base of all events. `sequence_number` is the event's id: dense, from 1, given when it is logged (A4.1)."""

    final: ClassVar[bool] = False

    sequence_number: int = 0

    @property
    def name(self) -> str:
        """The event's name on the wire, such as `response.created`."""
        return str(type(self).__struct_config__.tag)


class Entry(NamedTuple):
    """One event as it is sent: its number, its name and its data as one line of JSON."""

    id: int
    event: str
    data: str


class Created(Event, tag="response.created", kw_only=True):
    response_id: str
    status: ResponseStatus = "in_progress"
    response: Response | None = None


class Queued(Event, tag="response.queued", kw_only=True):
    """The request waits for the model; `position` 1 is next."""

    response_id: str
    position: int
    response: Response | None = None


class InProgress(Event, tag="response.in_progress", kw_only=True):
    response_id: str
    status: ResponseStatus = "in_progress"
    response: Response | None = None


class Progress(Event, tag="response.progress", kw_only=True):
    """Work before the first token: `loading` counts bytes, `prompt` counts tokens."""

    response_id: str
    phase: Literal["loading", "prompt"]
    done: int
    total: int


class ItemAdded(Event, tag="response.output_item.added", kw_only=True):
    response_id: str
    output_index: int
    item: Item


class TextDelta(Event, tag="response.output_text.delta", kw_only=True):
    response_id: str
    item_id: str
    delta: str
    output_index: int = 0
    content_index: int = 0
    logprobs: list[Any] = msgspec.field(default_factory=list)


class TextDone(Event, tag="response.output_text.done", kw_only=True):
    response_id: str
    item_id: str
    text: str
    output_index: int = 0
    content_index: int = 0
    logprobs: list[Any] = msgspec.field(default_factory=list)


class PartAdded(Event, tag="response.content_part.added", kw_only=True):
    response_id: str
    item_id: str
    part: OutputText
    output_index: int = 0
    content_index: int = 0


class PartDone(Event, tag="response.content_part.done", kw_only=True):
    response_id: str
    item_id: str
    part: OutputText
    output_index: int = 0
    content_index: int = 0


class ReasoningDelta(Event, tag="response.reasoning_summary_text.delta", kw_only=True):
    response_id: str
    item_id: str
    delta: str
    output_index: int = 0
    summary_index: int = 0


class ReasoningDone(Event, tag="response.reasoning_summary_text.done", kw_only=True):
    response_id: str
    item_id: str
    text: str
    output_index: int = 0
    summary_index: int = 0


class SummaryPartAdded(Event, tag="response.reasoning_summary_part.added", kw_only=True):
    response_id: str
    item_id: str
    part: SummaryText
    output_index: int = 0
    summary_index: int = 0


class SummaryPartDone(Event, tag="response.reasoning_summary_part.done", kw_only=True):
    response_id: str
    item_id: str
    part: SummaryText
    output_index: int = 0
    summary_index: int = 0


class ArgumentsDelta(Event, tag="response.function_call_arguments.delta", kw_only=True):
    """A piece of a call's arguments; the whole comes in `response.output_item.done` (A5.4)."""

    response_id: str
    item_id: str
    delta: str
    output_index: int = 0


class ArgumentsDone(Event, tag="response.function_call_arguments.done", kw_only=True):
    response_id: str
    item_id: str
    function: str = msgspec.field(name="name")
    arguments: str
    output_index: int = 0


class ItemDone(Event, tag="response.output_item.done", kw_only=True):
    response_id: str
    output_index: int
    item: Item


class Final(Event, kw_only=True):
    """Base of the events after which a stream closes (A3.3)."""

    final: ClassVar[bool] = True

    response_id: str
    status: ResponseStatus
    usage: Usage | None = None
    response: Response | None = None


class Completed(Final, tag="response.completed", kw_only=True):
    status: ResponseStatus = "completed"


class Incomplete(Final, tag="response.incomplete", kw_only=True):
    incomplete_details: IncompleteDetails
    status: ResponseStatus = "incomplete"


class Failed(Final, tag="response.failed", kw_only=True):
    error: Document
    status: ResponseStatus = "failed"


class Cancelled(Final, tag="response.cancelled", kw_only=True):
    status: ResponseStatus = "cancelled"


class Error(Event, tag="error", kw_only=True):
    """A problem tied to no single response; the stream ends (A3.2)."""

    final: ClassVar[bool] = True

    error: Document


_KINDS: dict[str, type[Event]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (
        Created,
        Queued,
        InProgress,
        Progress,
        ItemAdded,
        PartAdded,
        TextDelta,
        TextDone,
        PartDone,
        SummaryPartAdded,
        ReasoningDelta,
        ReasoningDone,
        SummaryPartDone,
        ArgumentsDelta,
        ArgumentsDone,
        ItemDone,
        Completed,
        Incomplete,
        Failed,
        Cancelled,
        Error,
    )
}


def encode(event: Event) -> str:
    """The event's `data`: one line of ASCII JSON (B4.1)."""
    return json.dumps(msgspec.to_builtins(event), separators=(",", ":"))


def decode(name: str, id: str, data: str) -> Event | None:
    """The event of a frame, or None for a type that is not known, which a client ignores (A3.4).

    Raises `msgspec.DecodeError` for data that is not what its type says.
    """
    kind = _KINDS.get(name)
    if kind is None:
        return None
    event = msgspec.json.decode(data, type=kind)
    if not event.sequence_number and id.isdecimal():
        event.sequence_number = int(id)
    return event


class Composer:
    """What is said about one response, as events, in order; every item that is opened is closed (B0.6), but for a
    call that is cut (B0.7)."""

    def __init__(self, response_id: str) -> None:
        self._response_id = response_id
        self._index = -1
        self._open: Item | None = None
        self._pieces: list[str] = []

    def text(self, delta: str) -> list[Event]:
        """Text of the answer: a delta of the open message, which is opened if need be."""
        events = [] if isinstance(self._open, Message) else self._start_message()
        self._pieces.append(delta)
        return [*events, TextDelta(delta=delta, **self._place)]

    def reasoning(self, delta: str) -> list[Event]:
        """Text of the model's reasoning, an item of its own."""
        events: list[Event] = []
        if not isinstance(self._open, Reasoning):
            events = self._start(Reasoning(id=new_id("rs"), summary=[], status="in_progress"))
            events.append(SummaryPartAdded(part=SummaryText(text=""), **self._place))
        self._pieces.append(delta)
        return [*events, ReasoningDelta(delta=delta, **self._place)]

    def call(self, name: str) -> list[Event]:
        """A call begins; what is open is closed."""
        item_id, call_id = new_id("fc"), new_id("call")
        return self._start(FunctionCall(id=item_id, call_id=call_id, name=name, arguments="", status="in_progress"))

    def arguments(self, delta: str) -> list[Event]:
        """A piece of the open call's arguments."""
        self._pieces.append(delta)
        return [ArgumentsDelta(delta=delta, **self._place)]

    def called(self) -> list[Event]:
        """The open call is whole."""
        return self._close("completed")

    @property
    def open_call(self) -> tuple[str, str]:
        """The name and the arguments so far of the call that is open."""
        assert isinstance(self._open, FunctionCall)
        return self._open.name, "".join(self._pieces)

    def completed(self, usage: Usage | None) -> list[Event]:
        """The model stopped by itself; an answer without anything still has its message."""
        empty = self._start_message() if self._index < 0 else []
        return [*empty, *self._close("completed"), Completed(response_id=self._response_id, usage=usage)]

    def incomplete(self, reason: IncompleteReason, usage: Usage | None) -> list[Event]:
        """A limit was met."""
        details = IncompleteDetails(reason=reason)
        final = Incomplete(response_id=self._response_id, usage=usage, incomplete_details=details)
        return [*self._close("incomplete"), final]

    def failed(self, problem: Problem, usage: Usage | None = None) -> list[Event]:
        """The work broke off."""
        final = Failed(response_id=self._response_id, usage=usage, error=problem.document())
        return [*self._close("incomplete"), final]

    def cancelled(self, usage: Usage | None = None) -> list[Event]:
        """The work was called off."""
        return [*self._close("incomplete"), Cancelled(response_id=self._response_id, usage=usage)]

    def resume(self, response: Response) -> None:
        """Go on where a log ended: with the items that `response` has, the last of them perhaps open."""
        self._index = len(response.output) - 1
        last = response.output[-1] if response.output else None
        if last is not None and not isinstance(last, FunctionCallOutput) and last.status == "in_progress":
            self._open, self._pieces = last, [_text_of(last)]

    @property
    def _place(self) -> dict[str, Any]:
        item_id = (self._open and self._open.id) or ""
        return {"response_id": self._response_id, "item_id": item_id, "output_index": self._index}

    def _start_message(self) -> list[Event]:
        events = self._start(Message(id=new_id("msg"), role="assistant", content=[], status="in_progress"))
        return [*events, PartAdded(part=OutputText(text=""), **self._place)]

    def _start(self, item: Item) -> list[Event]:
        # A call that nobody said is whole is none (B0.7).
        events = self._close("incomplete" if isinstance(self._open, FunctionCall) else "completed")
        self._index += 1
        self._open = item
        return [*events, ItemAdded(item=item, response_id=self._response_id, output_index=self._index)]

    def _close(self, status: ItemStatus) -> list[Event]:
        if self._open is None:
            return []
        text, place = "".join(self._pieces), self._place
        item = _with_text(self._open, text, status)
        self._open, self._pieces = None, []
        events: list[Event]
        if isinstance(item, FunctionCall):
            if status == "incomplete":
                self._index -= 1
                return []
            events = [ArgumentsDone(function=item.name, arguments=text, **place)]
        elif isinstance(item, Reasoning):
            events = [
                ReasoningDone(text=text, **place),
                SummaryPartDone(part=SummaryText(text=text), **place),
            ]
        else:
            events = [TextDone(text=text, **place), PartDone(part=OutputText(text=text), **place)]
        return [*events, ItemDone(item=item, response_id=self._response_id, output_index=place["output_index"])]


def _text_of(item: Item) -> str:
    if isinstance(item, Message | Reasoning):
        return item.text
    return item.arguments if isinstance(item, FunctionCall) else item.output


def _with_text(item: Item, text: str, status: ItemStatus | None) -> Item:
    if isinstance(item, Message):
        return Message(id=item.id, role=item.role, content=[OutputText(text=text)], status=status)
    if isinstance(item, Reasoning):
        return Reasoning(id=item.id, summary=[SummaryText(text=text)], status=status)
    if isinstance(item, FunctionCall):
        return msgspec.structs.replace(item, arguments=text, status=status)
    return item


class Fold:
    """Events in, the response so far out. Works for a service that sends part A alone."""

    def __init__(self) -> None:
        self._response = Response(id="")
        self._pieces: dict[int, list[str]] = {}
        self._done: set[int] = set()

    def apply(self, event: Event) -> None:
        """Take one event, in order."""
        response = self._response
        if isinstance(event, Created):
            self._response = msgspec.structs.replace(event.response or response, id=event.response_id, output=[])
        elif isinstance(event, ItemAdded | ItemDone):
            response.output[event.output_index : event.output_index + 1] = [event.item]
            self._pieces.pop(event.output_index, None)
            if isinstance(event, ItemDone):
                self._done.add(event.output_index)
        elif isinstance(event, TextDelta | ReasoningDelta | ArgumentsDelta):
            index = next((i for i, item in enumerate(response.output) if item.id == event.item_id), None)
            if index is not None:
                self._pieces.setdefault(index, []).append(event.delta)
        elif isinstance(event, Final):
            self._end(event)

    def _end(self, event: Final) -> None:
        response = self._response
        response.status = event.status
        response.usage = event.usage
        if event.response is not None:
            response.completed_at = event.response.completed_at
        if isinstance(event, Failed):
            response.error = event.error
        if isinstance(event, Incomplete):
            response.incomplete_details = event.incomplete_details
        # A call that never had its `done` was cut: it is dropped (B0.7).
        cut = {i for i, item in enumerate(response.output) if isinstance(item, FunctionCall)} - self._done
        response.output = [item for i, item in enumerate(response.output) if i not in cut]
        for index in cut:
            self._pieces.pop(index, None)

    @property
    def response(self) -> Response:
        """The response so far, open items with the text that they have."""
        output = list(self._response.output)
        for index, pieces in self._pieces.items():
            if pieces:
                output[index] = _with_text(output[index], "".join(pieces), output[index].status)
        return msgspec.structs.replace(self._response, output=output)
