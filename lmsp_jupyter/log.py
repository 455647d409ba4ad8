"""The event log of one response, in memory: appended before anyone is told, followed by any number of readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from . import events
from .events import Created, Event, Final, Fold, InProgress
from .protocol import Response


class Entry(NamedTuple):
    """One event as it is sent: its number, its name and its data as one line of JSON."""

    id: int
    event: str
    data: str


class Log:
    """Numbers, encodes and keeps events; `follow` is the one way to read them, live or later (A4.1, B3.5)."""

    def __init__(self) -> None:
        self.ended = False
        self._entries: list[Entry] = []
        self._fold = Fold()
        self._appended = asyncio.Event()

    @property
    def response(self) -> Response:
        """The response so far."""
        return self._fold.response

    def append(self, event: Event) -> None:
        """Log `event` under the next number and wake the readers. After a final event nothing is taken any more."""
        if self.ended:
            return
        event.sequence_number = len(self._entries) + 1
        data = events.encode(event)  # before it changes anything: what cannot be encoded takes no number (B3.8)
        self._fold.apply(event)
        if isinstance(event, Created | InProgress | Final):
            event.response = self.response
            data = events.encode(event)
        self._entries.append(Entry(event.sequence_number, event.name, data))
        self.ended = event.final
        self._appended.set()
        self._appended = asyncio.Event()

    async def follow(self, after: int = 0, patience: float | None = None) -> AsyncIterator[list[Entry]]:
        """All entries numbered above `after`, to the final one, in batches of what is there.

        An empty batch says that `patience` seconds passed in silence; None waits for ever.
        """
        while True:
            appended = self._appended
            if batch := self._entries[after:]:
                after += len(batch)
                yield batch
            elif self.ended:
                return
            else:
                try:
                    await asyncio.wait_for(appended.wait(), patience)
                except asyncio.TimeoutError:
                    yield []
