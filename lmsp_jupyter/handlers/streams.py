"""Server-sent events over HTTP (B4.1)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from tornado.iostream import StreamClosedError

from .. import sse
from ..errors import Problem
from ..events import Entry, Error, encode
from ..store import Record
from .base import LMSPHandler

HEARTBEAT = 10.0
"""Seconds of silence after which a stream sends a comment (B4.1)."""

EVENT_STREAM = "text/event-stream"


class StreamHandler(LMSPHandler):
    """A route that can answer with a stream."""

    async def stream(self, batches: AsyncGenerator[list[Entry], None], *, waiting: bool = False) -> None:
        """Send batches as they come, a heartbeat for an empty one; with `waiting` a heartbeat at once, since there is
        nothing to read yet (B3.4)."""
        self.open_stream()
        async with contextlib.aclosing(batches):
            if self.request.method != "HEAD":
                with contextlib.suppress(StreamClosedError):
                    await self._send(batches, sse.PING if waiting else b"")
            self.finish(set_content_type=EVENT_STREAM)

    async def _send(self, batches: AsyncGenerator[list[Entry], None], first: bytes) -> None:
        self.write(first)
        await self.flush()
        async for batch in batches:
            self.write(b"".join(sse.encode(*entry) for entry in batch) or sse.PING)
            await self.flush()

    async def follow(self, record: Record, after: int) -> None:
        """Answer with the events above `after` (B3.4)."""
        journal = self.house.journal
        if journal.check_position(record, after):
            batches = journal.follow(record, after, HEARTBEAT)
            await self.work(self.stream(batches, waiting=after == record.last_event_id))
        else:
            self.send_nothing()

    def open_stream(self) -> None:
        """The headers of a stream."""
        self.set_header("Content-Type", EVENT_STREAM)
        self.set_header("Cache-Control", "no-store, no-transform")
        self.set_header("X-Accel-Buffering", "no")
        self.set_header("Content-Encoding", "identity")  # where the server compresses, it leaves this alone (B4.1)


def error_entry(problem: Problem, after: int) -> Entry:
    """The event that ends a direct stream whose log cannot go on (A3.2, B3.9)."""
    event = Error(error=problem.document(), sequence_number=after + 1)
    return Entry(event.sequence_number, event.name, encode(event))
