"""What is on disk and what is being written, as one: the runs that are tasks, stored, or under an idempotency key.

Whoever reads a run, its maker included, follows it here: a live one from its log, another server's by polling the
store, an ended one from the store (B3.4, B3.5). The store is synchronous; all its work is done in one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import msgspec

from .errors import (
    BadRequest,
    EventHistoryExpired,
    Problem,
    ResponseInProgress,
    ResponseNotFound,
    ServiceRestarted,
    StorageUnavailable,
    TaskNotFinished,
    TaskNotFound,
)
from .events import Composer, Created, Entry
from .log import Log
from .protocol import Request, Response, Task, TaskStatus, new_id
from .store import Key, Record, Store

POLL = 0.25
"""Seconds between two looks at the log of another server's run (B3.7)."""

CANCEL_SECONDS = 5.0
"""Seconds of silence of another server's run after which a cancel is no longer waited for."""

CHUNK = 1000
"""Events that are read from the store at a time."""

logger = logging.getLogger(__name__)

ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})

_P = ParamSpec("_P")
_T = TypeVar("_T")
Owners = Collection[str]


class Journal:
    """Retentions in seconds: events after their run has ended, tasks after theirs (B3.10)."""

    def __init__(self, store: Store, *, event_retention: int, task_retention: int) -> None:
        self.event_retention = event_retention
        self.task_retention = task_retention
        self._store = store
        self._thread = ThreadPoolExecutor(1, "lmsp-store")
        self._live: dict[str, Log] = {}
        self._unwritten: dict[str, Problem] = {}
        self._waiting: list[Record] = []
        self._closed = False

    async def call(self, do: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Do something with the store, in its thread. Raises `StorageUnavailable`."""
        if self._closed:
            raise StorageUnavailable("The server is stopping.")
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: do(*args, **kwargs))

    # Writing

    async def open(
        self,
        response: Response,
        request: Request,
        owner: str,
        *,
        metadata: dict[str, str] | None = None,
        key: Key | None = None,
    ) -> Log:
        """The log of a new run on disk, with its `response.created`; with `metadata` it is a task (B3.8)."""
        task_id = None if metadata is None else new_id("task")
        if task_id and response.background:
            response.task_id = task_id

        async def commit(batch: Sequence[Entry], so_far: Response | None) -> None:
            if batch[0].id > 1:
                await self._commit(response.id, batch, so_far)
                return
            record = Record(
                id=response.id,
                owner=owner,
                model=response.model,
                status="queued",
                created_at=response.created_at,
                stored=request.store,
                task_id=task_id,
                metadata=metadata or {},
                previous=request.previous_response_id,
                request=msgspec.json.encode(request),
                response=msgspec.json.encode(so_far),
                last_event_id=len(batch),
            )
            await self.call(self._store.create, record, batch, key)

        log = Log(commit)
        creating = asyncio.ensure_future(log.append(Created(response_id=response.id, response=response)))
        try:
            await asyncio.shield(creating)
        except asyncio.CancelledError:
            # The store's thread goes on, so the run is there all the same, and nobody makes it.
            await creating
            try:
                await log.append(*Composer(response.id).cancelled())
            except StorageUnavailable as problem:
                self._unwritten[response.id] = problem
            raise
        self._live[response.id] = log
        return log

    async def _commit(self, run_id: str, batch: Sequence[Entry], so_far: Response | None) -> None:
        started = any(entry.event == "response.in_progress" for entry in batch)
        ended = so_far is not None and so_far.status in ENDED
        taken = await self.call(
            self._store.append,
            run_id,
            batch,
            status=so_far.status if so_far else None,
            started_at=int(time.time()) if started else None,
            completed_at=so_far.completed_at if so_far else None,
            response=msgspec.json.encode(so_far) if ended else None,
        )
        if not taken:
            raise StorageUnavailable("The response was ended by another server.")

    def release(self, run_id: str) -> None:
        """The run is made: its log is read from the store from now on."""
        log = self._live.pop(run_id, None)
        if log is not None and log.broken:
            self._unwritten[run_id] = log.broken

    # Finding

    async def response(self, owners: Owners, response_id: str) -> Record:
        """A stored response's run. Raises `ResponseNotFound`."""
        record = await self.call(self._store.run, response_id)
        if record is None or record.owner not in owners or not record.stored or not record.response:
            raise ResponseNotFound(f"There is no stored response {response_id!r}.")
        return record

    async def running(self, owners: Owners, response_id: str) -> Record:
        """The run of any response on disk, stored or not. Raises `ResponseNotFound`."""
        record = await self.call(self._store.run, response_id)
        if record is None or record.owner not in owners:
            raise ResponseNotFound(f"There is no response {response_id!r}.")
        return record

    async def task(self, owners: Owners, task_id: str) -> Record:
        """A task's run. Raises `TaskNotFound`."""
        record = await self.call(self._store.task, task_id)
        if record is None or record.owner not in owners:
            raise TaskNotFound(f"There is no task {task_id!r}.")
        return record

    async def tasks(
        self, owners: Owners, *, status: TaskStatus | None, model: str | None, limit: int, after: str | None
    ) -> list[Record]:
        """Tasks, newest first."""
        return await self.call(self._store.tasks, owners, status=status, model=model, limit=limit, after=after)

    async def response_of(self, record: Record) -> Response | None:
        """The response so far; None when it was deleted."""
        log = self._live.get(record.id)
        if log is not None and record.status not in ENDED:
            return log.response
        if not record.response:
            return None
        if record.status in ENDED:
            return msgspec.json.decode(record.response, type=Response)
        return (await self._restored(record.id)).response

    async def task_of(self, record: Record, *, whole: bool = True) -> Task:
        """The task object; a listing leaves the response out."""
        response = await self.response_of(record) if whole or record.status == "failed" else None
        if response and response.status in ENDED and record.status not in ENDED:
            record = await self.task([record.owner], record.task_id or "")  # it ended in between
        ended = record.completed_at
        return Task(
            id=record.task_id or "",
            status=record.status,
            created_at=record.created_at,
            started_at=record.started_at,
            completed_at=ended,
            model=record.model,
            response_id=record.id,
            response=response if whole else msgspec.UNSET,
            error=response.error if response else None,
            last_event_id=record.last_event_id,
            events_expire_at=None if ended is None else ended + self.event_retention,
            metadata=record.metadata,
        )

    # Following

    def check_position(self, record: Record, after: int) -> bool:
        """Whether there is, or will be, anything above `after`. Raises `BadRequest`, `EventHistoryExpired` (B3.4)."""
        if after > record.last_event_id:
            raise BadRequest(f"There is no event {after} yet; the last one is {record.last_event_id}.")
        if after == record.last_event_id and record.status in ENDED:
            return False
        if record.events_dropped:
            raise EventHistoryExpired("The events are no longer kept; fetch the result itself.")
        return True

    async def follow(
        self, record: Record, after: int = 0, patience: float | None = None
    ) -> AsyncGenerator[list[Entry], None]:
        """The run's entries above `after`, in batches of what is there, to the final one; an empty batch says that
        `patience` seconds passed in silence."""
        log = self._live.get(record.id)
        if log is not None:
            async for batch in log.follow(after, patience):
                yield batch
            return
        silent = 0.0
        while True:
            batch = await self.call(self._store.entries, record.id, after, CHUNK)
            if batch:
                after, silent = batch[-1].id, 0.0
                yield batch
                continue
            if await self.call(self._store.is_over, record.id, after):
                return
            await asyncio.sleep(POLL)
            silent += POLL
            if patience is not None and silent >= patience:
                silent = 0.0
                yield []

    # Ending

    async def ask_to_cancel(self, record: Record) -> None:
        """Cancel another server's run: a flag in the store, and waiting until it is done, but not for ever, since that
        server may hang (B3.7)."""
        await self.call(self._store.request_cancel, record.id)
        async with contextlib.aclosing(self.follow(record, record.last_event_id, CANCEL_SECONDS)) as batches:
            async for batch in batches:
                if not batch:
                    return

    async def cancels(self) -> list[str]:
        """Runs of ours that another server wants cancelled."""
        return await self.call(self._store.cancels) if self._live else []

    async def delete_task(self, record: Record) -> None:
        """Raises `TaskNotFinished` while it runs (B3.3)."""
        if record.status not in ENDED:
            raise TaskNotFinished(f"The task {record.task_id} runs; cancel it first.")
        await self.call(self._store.delete_task, record.task_id or "")

    async def delete_response(self, record: Record) -> None:
        """Also empties its task and its idempotency record (B6.1). Raises `ResponseInProgress` while it runs."""
        if record.status not in ENDED:
            raise ResponseInProgress(f"The response {record.id} is being made; cancel it first.")
        await self.call(self._store.delete_response, record.id)

    async def recover(self) -> list[tuple[Record, Log]]:
        """Take over what dead servers left: what they worked on is failed, tasks that waited are given back to be
        made, with their logs (B3.6, B3.7)."""
        for record in await self.call(self._store.adopt):
            if record.status == "queued" and record.task_id:
                self._waiting.append(record)
            else:
                restarted = ServiceRestarted("The service ended while it worked on this; send the request again.")
                self._unwritten[record.id] = restarted
        await self._write()
        waiting = [(record, await self._restored(record.id)) for record in self._waiting]
        self._live.update({record.id: log for record, log in waiting})
        self._waiting.clear()
        return waiting

    async def tend(self) -> None:
        """What has to be done now and then: say what could not be written, and drop what is no longer kept."""
        await self._write()
        await self.call(
            self._store.sweep,
            int(time.time()),
            event_retention=self.event_retention,
            task_retention=self.task_retention,
        )

    async def close(self) -> None:
        """Final: from here on nothing can be read or written."""
        if not self._closed:
            await self.call(self._store.close)
            self._closed = True
            self._thread.shutdown()

    async def _write(self) -> None:
        """Say the ends that could not be written before."""
        for run_id, problem in list(self._unwritten.items()):
            try:
                await self._fail(run_id, problem)
            except StorageUnavailable:
                raise
            except Exception:  # a log that cannot be read any more is not to keep the others up
                logger.exception("The end of the response %s could not be written.", run_id)
            del self._unwritten[run_id]

    async def _fail(self, run_id: str, problem: Problem) -> None:
        """End a run whose maker is gone, its open items closed first (B0.6)."""
        record = await self.call(self._store.run, run_id)
        if record is None or record.status in ENDED:
            return
        log = await self._restored(run_id)
        composer = Composer(run_id)
        composer.resume(log.response)
        await log.append(*composer.failed(problem))

    async def _restored(self, run_id: str) -> Log:
        log = Log(partial(self._commit, run_id))
        log.restore(await self._all(run_id))
        return log

    async def _all(self, run_id: str) -> list[Entry]:
        entries: list[Entry] = []
        while batch := await self.call(self._store.entries, run_id, len(entries), CHUNK):
            entries += batch
        return entries
