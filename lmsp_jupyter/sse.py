"""Server-sent events (WHATWG HTML, 9.2): encoding a frame and decoding a stream. No I/O; no knowledge of LMSP."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

PING = b": ping\n"
"""A heartbeat: a comment without a blank line, since a blank line would dispatch an event in some clients (B4.1)."""


def encode(id: int, event: str, data: str) -> bytes:
    """One event as a frame. `data` is one line, ASCII only (B4.1)."""
    return f"id: {id}\nevent: {event}\ndata: {data}\n\n".encode("ascii")


@dataclass(frozen=True)
class Message:
    """One dispatched event. `id` is the last id that the stream named, "" before any."""

    event: str
    data: str
    id: str


class Decoder:
    """Bytes in, messages out, cut anywhere: in a frame, a line ending or a character."""

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._line = ""
        self._after_cr = False
        self._data: list[str] = []
        self._event = ""
        self._id = ""

    def feed(self, chunk: bytes) -> list[Message]:
        """The messages that `chunk` completes. An unfinished one at the end of the stream is dropped."""
        messages = []
        for line in self._lines(self._text.decode(chunk)):
            if line:
                self._field(line)
            elif message := self._dispatch():
                messages.append(message)
        return messages

    def _lines(self, text: str) -> list[str]:
        """Complete lines. A CR ends a line at once; an LF right after it, even in the next chunk, is part of it."""
        if self._after_cr and text:
            text = text.removeprefix("\n")
            self._after_cr = False
        self._after_cr = self._after_cr or text.endswith("\r")
        *lines, self._line = (self._line + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return lines

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value

    def _dispatch(self) -> Message | None:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        return Message(event=event or "message", data="\n".join(data), id=self._id) if data else None
