"""What one connection of a page follows: tasks by their events, lists by their changes (B8.1).

Messages of the page come in as text, messages to it go out as values. The socket, who may follow what, and how events
and lists are read are left to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Annotated, Any

import msgspec

from .errors import Problem, QueueFull
from .events import Entry
from .parsing import read
from .protocol import Strict, Wire
from .strict_json import read_json

MAX_FOLLOWED = 256
"""Tasks and lists that one connection follows at the same time."""

MAX_MESSAGE = 65_536
"""Bytes of a page's message."""

MAX_ARRAY = 500
"""Events in one array: a long log leaves room for others in between."""

Message = dict[str, Any]
"""A message to the page. What is JSON already stands in it as `msgspec.Raw`, which `msgspec.json.encode` takes over."""

log = logging.getLogger(__name__)


class Follow(Strict, kw_only=True):
    """Follow a list, or a task's events numbered above `after`."""

    follow: str
    after: Annotated[int, msgspec.Meta(ge=0)] = 0


class Unfollow(Strict, kw_only=True):
    """Follow this task or list no longer; nothing if it is not followed."""

    unfollow: str


class Following:
    """Everything that one connection follows, each by a reader of its own.

    `send` sends one array of messages and returns when there is room for more; it is never called twice at a time, so
    a page that reads slowly stops its own readers and holds a batch of each, no more. It keeps quiet about a connection
    that is closed, and `close` is called.

    `follow` gives the entries of a task above a number, in batches, to the last one; an empty batch is skipped.
    `lists` gives, by the name of a list, its items by their ids. A `Problem` that either raises goes to the page and
    ends that one reader. Lists are read every `poll` seconds.
    """

    def __init__(
        self,
        send: Callable[[list[Message]], Awaitable[None]],
        follow: Callable[[str, int], AsyncGenerator[list[Entry], None]],
        lists: Mapping[str, Callable[[], Awaitable[Mapping[str, Wire]]]],
        poll: float = 0.5,
    ) -> None:
        self._send = send
        self._follow = follow
        self._lists = lists
        self._poll = poll
        self._turn = asyncio.Lock()
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    async def take(self, message: str | bytes) -> None:
        """Do what a message of the page asks for; one that is not understood is answered with an error."""
        label: Message = {}
        try:
            text = message.encode("utf-8", "surrogatepass") if isinstance(message, str) else message
            data = read_json(text, MAX_MESSAGE)
            if "unfollow" in data:
                await self._stop(read(data, Unfollow).unfollow)
            else:
                label = self._label(data.get("follow"))
                wanted = read(data, Follow)
                await self._start(wanted.follow, wanted.after)
        except Problem as problem:
            for name in label.values():
                await self._stop(name)
            await self._say(label | {"error": problem.document()})

    def _label(self, name: Any) -> Message:
        """What messages about this list or task begin with."""
        if not isinstance(name, str):
            return {}
        return {"list" if name in self._lists else "task_id": name}

    async def close(self) -> None:
        """Stop all readers, for good. `send` may call it too, and so a reader."""
        self._closed = True
        for reader in self._readers.values():
            reader.cancel()
        if others := set(self._readers.values()) - {asyncio.current_task()}:
            await asyncio.wait(others)

    async def _start(self, name: str, after: int) -> None:
        """Follow a task or a list, from the beginning or from a new position if it is followed already."""
        await self._stop(name)
        label = self._label(name)
        if len(self._readers) >= MAX_FOLLOWED:
            full = QueueFull(f"One connection follows {MAX_FOLLOWED} things at most; unfollow some.")
            await self._say(label | {"error": full.document()})
        elif not self._closed:
            arrays = self._changes(name) if name in self._lists else self._events(name, after)
            self._readers[name] = asyncio.create_task(self._read(name, label, arrays))

    async def _stop(self, name: str) -> None:
        """Stop a reader; once this returns, nothing more of it is sent."""
        if reader := self._readers.pop(name, None):
            reader.cancel()
            await asyncio.wait([reader])

    async def _read(self, name: str, label: Message, arrays: AsyncGenerator[list[Message], None]) -> None:
        try:
            async with contextlib.aclosing(arrays):
                async for array in arrays:
                    await self._say(*array)
        except Problem as problem:
            await self._say(label | {"error": problem.document()})
        except Exception:
            log.exception("Following %s broke off.", name)
            unexpected = Problem("The service met an unexpected error; the server's log has it.")
            await self._say(label | {"error": unexpected.document()})
        finally:
            if self._readers.get(name) is asyncio.current_task():
                del self._readers[name]

    async def _events(self, task_id: str, after: int) -> AsyncGenerator[list[Message], None]:
        async with contextlib.aclosing(self._follow(task_id, after)) as batches:
            async for batch in batches:
                for start in range(0, len(batch), MAX_ARRAY):
                    yield [
                        {"task_id": task_id, "id": entry.id, "event": entry.event, "data": msgspec.Raw(entry.data)}
                        for entry in batch[start : start + MAX_ARRAY]
                    ]
        yield [{"task_id": task_id, "ended": True}]

    async def _changes(self, name: str) -> AsyncGenerator[list[Message], None]:
        """The whole list, empty or not, then what differs."""
        told: dict[str, bytes] | None = None
        while True:
            items = {id: msgspec.json.encode(item) for id, item in (await self._lists[name]()).items()}
            if items != told:
                before = told or {}
                changed = [msgspec.Raw(item) for id, item in items.items() if before.get(id) != item]
                yield [{"list": name, "changed": changed, "gone": [id for id in before if id not in items]}]
                told = items
            await asyncio.sleep(self._poll)

    async def _say(self, *messages: Message) -> None:
        async with self._turn:
            await self._send(list(messages))
