"""The WebSocket on which a page follows everything (B8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any

import msgspec
from jupyter_server.base.websocket import WebSocketMixin
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from ..errors import BadRequest
from ..events import Entry
from ..following import Following
from ..protocol import Scope, Wire
from .base import LMSPHandler

RECENT_TASKS = 100
"""Tasks that the list of tasks holds."""


class EventsHandler(WebSocketMixin, WebSocketHandler, LMSPHandler):
    """`GET /lmsp/v1/events`: scopes are asked for by what is followed (B5.3)."""

    _following: Following | None = None
    _closing: asyncio.Task[None] | None = None

    async def get(self, *args: Any, **kwargs: Any) -> None:
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise BadRequest("This is a WebSocket: send Upgrade: websocket.")
        await WebSocketHandler.get(self, *args, **kwargs)

    def open(self, *args: Any, **kwargs: Any) -> None:
        super().open(*args, **kwargs)
        self._following = Following(self._send, self._follow, self._lists())
        self._watching = ExitStack()
        self._watching.enter_context(self.house.tokens.watch(self.known, self.close))

    async def on_message(self, message: str | bytes) -> None:
        if self._following is not None:
            await self._following.take(message)

    def on_close(self) -> None:
        if self._following is not None:
            self._watching.close()
            self._closing = asyncio.create_task(self._following.close())

    async def _send(self, messages: list[dict[str, Any]]) -> None:
        try:
            await self.write_message(msgspec.json.encode(messages).decode())
        except WebSocketClosedError:
            return  # `on_close` ends the following

    async def _follow(self, task_id: str, after: int) -> AsyncGenerator[list[Entry], None]:
        self.known.require("tasks:read")
        journal = self.house.journal
        record = await journal.task(self.known.owners, task_id)
        if journal.check_position(record, after):
            async for batch in journal.follow(record, after):
                yield batch

    def _lists(self) -> Mapping[str, Callable[[], Awaitable[Mapping[str, Wire]]]]:
        def needing(
            scope: Scope, items: Callable[[], Awaitable[Mapping[str, Wire]]]
        ) -> Callable[[], Awaitable[Mapping[str, Wire]]]:
            async def allowed() -> Mapping[str, Wire]:
                self.known.require(scope)
                return await items()

            return allowed

        return {
            "tasks": needing("tasks:read", self._tasks),
            "models": needing("models:read", self._models),
            "approvals": needing("responses:create", self._approvals),
        }

    async def _tasks(self) -> Mapping[str, Wire]:
        journal = self.house.journal
        records = await journal.tasks(self.known.owners, status=None, model=None, limit=RECENT_TASKS, after=None)
        return {record.task_id or "": await journal.task_of(record, whole=False) for record in records}

    async def _models(self) -> Mapping[str, Wire]:
        return {model.id: model for model in await self.house.runner.models()}

    async def _approvals(self) -> Mapping[str, Wire]:
        return self.house.approvals.pending(self.known.owners)
