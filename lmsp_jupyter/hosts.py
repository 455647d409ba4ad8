"""The models that are loaded: their workers, who may use them and in which order, and which of them has to go.

A model is loaded at its first use and unloaded when it has been idle for long, or when another needs its memory, least
recently used first, never under a request (B1.3).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from .catalog import Entry
from .engines import Settings
from .errors import EngineCrashed, EngineFailed, ModelBusy, ModelUnavailable, Problem
from .protocol import Model
from .worker import Worker


class Place:
    """Somebody's place in a line; `positions` tells how it moves."""

    def __init__(self) -> None:
        self.position = 0
        self._moved = asyncio.Event()
        self.served = False

    def move(self, position: int) -> None:
        """To `position`; 0 is being served."""
        self.position, self.served = position, position == 0
        self._moved.set()

    async def positions(self) -> AsyncIterator[int]:
        """The positions in line, 1 is next, until it is this one's turn."""
        while not self.served:
            self._moved.clear()
            yield self.position
            await self._moved.wait()


class Slots:
    """Admission to one engine: so many at a time, the others in line."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._line: deque[Place] = deque()

    @contextmanager
    def place(self) -> Iterator[Place]:
        """A place in the line, and a slot once it is served; leaving gives either back."""
        place = Place()
        if self._free:
            self._free -= 1
            place.move(0)
        else:
            self._line.append(place)
            place.move(len(self._line))
        try:
            yield place
        finally:
            if place.served:
                self._give()
            else:
                self._line.remove(place)
                self._announce()

    def _give(self) -> None:
        if self._line:
            self._line.popleft().move(0)
            self._announce()
        else:
            self._free += 1

    def _announce(self) -> None:
        for position, place in enumerate(self._line, 1):
            place.move(position)


class Host:
    """What is held for one model: its worker (or the attempt to get one) and its slots."""

    def __init__(self, entry: Entry, settings: Settings) -> None:
        self.entry = entry
        self.slots = Slots(settings.parallel)
        self.loading: asyncio.Task[Worker] | None = None
        self.users = 0
        self.used = time.monotonic()

    @contextmanager
    def use(self) -> Iterator[None]:
        """Keep the model from being unloaded."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self.used = time.monotonic()

    @property
    def worker(self) -> Worker | None:
        """The worker, if it is there and well."""
        task = self.loading
        if task is None or not task.done() or task.cancelled() or task.exception():
            return None
        return task.result() if task.result().alive else None

    @property
    def problem(self) -> Problem | None:
        """Why the last attempt to load failed."""
        task = self.loading
        error = task.exception() if task and task.done() and not task.cancelled() else None
        return error if isinstance(error, Problem) else None

    @property
    def is_loading(self) -> bool:
        return self.loading is not None and not self.loading.done()

    @property
    def busy(self) -> bool:
        return self.users > 0 or self.is_loading


class Hosts:
    """The hosts by model id. `memory` bounds the sizes of loaded models together, in bytes; `idle` is how long an
    unused one stays, in seconds, 0 for ever."""

    def __init__(self, settings: Settings, *, memory: int, idle: float) -> None:
        self._settings = settings
        self._memory = memory
        self._idle = idle
        self._hosts: dict[str, Host] = {}

    def of(self, entry: Entry) -> Host:
        """The host of a model."""
        host = self._hosts.setdefault(entry.model.id, Host(entry, self._settings))
        if host.worker is None and not host.is_loading:
            host.entry = entry  # its file may be another by now
        return host

    def get(self, model_id: str) -> Host | None:
        """The host of a model that was asked for before."""
        return self._hosts.get(model_id)

    @property
    def users(self) -> int:
        """Those who use, or wait for, any model."""
        return sum(host.users for host in self._hosts.values())

    async def worker(self, host: Host) -> Worker:
        """The model's worker, loaded if need be; those who ask while it loads wait for the same one. Raises
        `ModelUnavailable`."""
        if host.loading is None or (host.loading.done() and host.worker is None):
            host.loading = asyncio.create_task(self._load(host))
        try:
            return await asyncio.shield(host.loading)
        except (EngineCrashed, EngineFailed) as error:
            raise ModelUnavailable(f"The model {host.entry.model.id!r} could not be loaded. {error.detail}") from None

    async def unload(self, model_id: str) -> None:
        """End the model's process, if there is one. Raises `ModelBusy` while it is in use."""
        host = self._hosts.get(model_id)
        if host is not None and host.busy:
            raise ModelBusy(f"{model_id!r} is in use; cancel its responses or wait until they have ended.")
        if host is not None:
            await self._end(host)

    async def unload_idle(self) -> None:
        """Unload what has not been used for so long."""
        now = time.monotonic()
        for host in list(self._hosts.values()):
            if self._idle and host.worker and not host.busy and now - host.used >= self._idle:
                await self._end(host)

    def with_state(self, model: Model) -> Model:
        """The model with the state that it is in."""
        host = self._hosts.get(model.id)
        if host is None or model.state == "failed":
            return model
        if host.is_loading:
            model.state = "loading"
        elif host.problem:
            model.state, model.error = "failed", host.problem.document()
        elif host.worker:
            model.state = "loaded"
        return model

    async def close(self) -> None:
        """End all workers."""
        for host in self._hosts.values():
            if host.loading and not host.loading.done():
                host.loading.cancel()
        await asyncio.gather(*(host.loading for host in self._hosts.values() if host.loading), return_exceptions=True)
        await asyncio.gather(*(host.worker.close() for host in self._hosts.values() if host.worker))

    async def _load(self, host: Host) -> Worker:
        await self._make_room(host)
        return await Worker.start(host.entry.engine, host.entry.path, self._settings)

    async def _make_room(self, host: Host) -> None:
        needed = host.entry.model.size_bytes or 0
        while needed + sum(_size(other) for other in self._in_memory() if other is not host) > self._memory:
            idle = [other for other in self._in_memory() if not other.busy]
            if not idle:
                return  # the machine may still have what our bound does not know of
            await self._end(min(idle, key=lambda other: other.used))

    def _in_memory(self) -> list[Host]:
        """What is loaded, or being loaded."""
        return [host for host in self._hosts.values() if host.worker or host.is_loading]

    async def _end(self, host: Host) -> None:
        worker, host.loading = host.worker, None
        if worker is not None:
            await worker.close()


def _size(host: Host) -> int:
    return host.entry.model.size_bytes or 0
