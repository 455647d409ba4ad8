"""Tasks (B3)."""

from __future__ import annotations

import asyncio
from typing import cast, get_args

import msgspec

from ..errors import BadRequest, Problem
from ..journal import ENDED
from ..keys import Replay, Reservation
from ..parsing import parse_task
from ..protocol import Request, Task, TaskList, TaskStatus
from ..run import Run
from .base import LMSPHandler
from .streams import StreamHandler


class TasksHandler(LMSPHandler):
    """`/lmsp/v1/tasks` (B3.1, B3.3)."""

    async def post(self) -> None:
        request, metadata = await self.read(parse_task)
        await self.work(self._create(request, metadata))

    async def _create(self, request: Request, metadata: dict[str, str]) -> None:
        reserved = await self.reserve()
        if isinstance(reserved, Replay):
            self.set_header("Idempotency-Replayed", "true")
            self._accept(reserved.body)
            return
        run = await self.start(request, reserved, metadata)
        self._accept(await asyncio.shield(self._keep(run, reserved)))

    async def _keep(self, run: Run, reserved: Reservation | None) -> bytes:
        """The body of the answer, kept under its key: who leaves now and asks again is told of the same task."""
        journal = self.house.journal
        try:
            task = await journal.task_of(await journal.running(self.known.owners, run.id))
            body = msgspec.json.encode(task)
            if reserved:
                await reserved.keep(202, body)
        except Problem:
            if reserved:
                await reserved.release()
            raise
        return body

    def _accept(self, body: bytes) -> None:
        task_id = msgspec.json.decode(body, type=Task).id
        self.set_header("Location", f"{self.base_url}lmsp/v1/tasks/{task_id}")
        self.send_json(body, 202)

    async def get(self) -> None:
        status = self.get_query_argument("status", None)
        if status is not None and status not in get_args(TaskStatus):
            raise BadRequest(f"status is one of {', '.join(get_args(TaskStatus))}, not {status[:40]!r}.")
        limit = self.integer("limit", 20, 1, 100)
        records = await self.house.journal.tasks(
            self.known.owners,
            status=cast("TaskStatus | None", status),
            model=self.get_query_argument("model", None),
            limit=limit + 1,
            after=self.get_query_argument("after", None),
        )
        page = records[:limit]
        more = len(records) > limit
        self.send(
            TaskList(
                data=[await self.house.journal.task_of(record, whole=False) for record in page],
                has_more=more,
                next=page[-1].task_id if more else None,
            )
        )


class TaskHandler(LMSPHandler):
    """`/lmsp/v1/tasks/{id}` (B3.3)."""

    async def get(self, task_id: str) -> None:
        journal = self.house.journal
        self.send(await journal.task_of(await journal.task(self.known.owners, task_id)))

    async def delete(self, task_id: str) -> None:
        journal = self.house.journal
        await journal.delete_task(await journal.task(self.known.owners, task_id))
        self.send_nothing()


class CancelTaskHandler(LMSPHandler):
    """`POST /lmsp/v1/tasks/{id}/cancel` (B3.3)."""

    async def post(self, task_id: str) -> None:
        journal = self.house.journal
        record = await journal.task(self.known.owners, task_id)
        if record.status not in ENDED:
            await self.house.runner.cancel(record.id, self.known.owners)
            record = await journal.task(self.known.owners, task_id)
        self.send(await journal.task_of(record))


class TaskEventsHandler(StreamHandler):
    """`GET /lmsp/v1/tasks/{id}/events` (A4, B3.4). A follower that leaves never cancels the task."""

    async def get(self, task_id: str) -> None:
        await self.follow(await self.house.journal.task(self.known.owners, task_id), self._position())

    def _position(self) -> int:
        """`after`, which wins, or `Last-Event-ID` (A4.2)."""
        if self.get_query_argument("after", None) is not None:
            return self.integer("after", 0, 0)
        header = self.request.headers.get("Last-Event-ID", "").strip() or "0"
        if not header.isascii() or not header.isdecimal() or len(header) > 18:
            raise BadRequest(f"Last-Event-ID is the number of an event, not {header[:40]!r}.")
        return int(header)
