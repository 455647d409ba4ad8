"""The event log of one response: appended, on disk too where it is kept there, before anyone is told, and followed by
any number of readers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from . import events
from .errors import Problem
from .events import Created, Entry, Event, Final, Fold, InProgress, Queued
from .protocol import Response
from .waiting import heard

Commit = Callable[[Sequence[Entry], Response | None], Awaitable[None]]
"""Write entries to disk, and the response as it is with them where they change more than its output."""


class Log:
    """Numbers, encodes and keeps events; `follow` is the one way to read them, live or later (A4.1, B3.5).

    `append` is not for several at once: who writes takes turns. `broken` is why nothing can be written any more (B3.9).
    """

    def __init__(self, commit: Commit | None = None) -> None:
        self.ended = False
        self.broken: Problem | None = None
        self._commit = commit
        self._entries: list[Entry] = []
        self._fold = Fold()
        self._appended = asyncio.Event()

    @property
    def response(self) -> Response:
        """The response so far."""
        return self._fold.response

    @property
    def last(self) -> int:
        """The number of the last event."""
        return len(self._entries)

    def restore(self, entries: Sequence[Entry]) -> None:
        """Take what a log on disk holds, from its first entry."""
        for entry in entries:
            if (event := events.decode(entry.event, str(entry.id), entry.data)) is not None:
                self._fold.apply(event)
                self.ended = event.final
        self._entries.extend(entries)

    async def append(self, *batch: Event) -> None:
        """Log events under the next numbers and wake the readers. After a final event nothing is taken any more."""
        if not batch or self.ended or self.broken:
            return
        entries = self._encode(batch)
        if self._commit is not None:
            turns = any(isinstance(event, Created | InProgress | Final) for event in batch)
            await self._commit(entries, self.response if turns else None)
        self._entries += entries
        self.ended = batch[-1].final
        self._wake()

    def break_off(self, problem: Problem) -> None:
        """End the log without a final event, unless it has one: its readers are let go."""
        self.broken = None if self.ended else self.broken or problem
        self._wake()

    async def follow(self, after: int = 0, patience: float | None = None) -> AsyncGenerator[list[Entry], None]:
        """All entries numbered above `after`, to the final one, in batches of what is there.

        An empty batch says that `patience` seconds passed in silence; None waits for ever.
        """
        while True:
            appended = self._appended
            if batch := self._entries[after:]:
                after += len(batch)
                yield batch
            elif self.ended or self.broken:
                return
            elif not await heard(appended, patience):
                yield []

    def _encode(self, batch: Sequence[Event]) -> list[Entry]:
        """The events as they are sent. All are encoded before one changes anything, so that what cannot be encoded
        takes no number (B3.8)."""
        for number, event in enumerate(batch, len(self._entries) + 1):
            event.sequence_number = number
        coded = [events.encode(event) for event in batch]
        for index, event in enumerate(batch):
            self._fold.apply(event)
            if isinstance(event, Created | Queued | InProgress | Final):
                event.response = self.response
                if isinstance(event, Final):
                    event.response.completed_at = int(time.time())
                    self._fold.apply(event)
                coded[index] = events.encode(event)
        return [Entry(event.sequence_number, event.name, data) for event, data in zip(batch, coded, strict=True)]

    def _wake(self) -> None:
        self._appended.set()
        self._appended = asyncio.Event()
