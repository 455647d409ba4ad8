"""Responses (A2, A3, B6, B7.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import msgspec

from ..errors import BadRequest, StorageUnavailable
from ..events import Entry
from ..keys import Replay, Reservation
from ..parsing import parse_request
from ..protocol import InputItems, InputTokens, Request
from ..run import Run
from .base import LMSPHandler
from .streams import HEARTBEAT, StreamHandler, error_entry


class ResponsesHandler(StreamHandler):
    """`POST /lmsp/v1/responses`, synchronous (A2), streaming (A3) or as a task (B7.5)."""

    async def post(self) -> None:
        request = await self.read(parse_request)
        await self.work(self._respond(request))

    async def _respond(self, request: Request) -> None:
        reserved = await self.reserve()
        if isinstance(reserved, Replay):
            await self._replay(reserved)
        elif request.background:
            await self._respond_by_task(request, reserved)
        else:
            await self._respond_here(request, reserved)

    async def _respond_here(self, request: Request, reservation: Reservation | None) -> None:
        """The response belongs to the connection: a client that leaves stops the work (B0.8)."""
        run = await self.start(request, reservation)
        try:
            await (self.stream(_direct(run)) if request.stream else self._answer(run))
        finally:
            with suppress(StorageUnavailable):  # its log is broken off then, and ended later
                await run.cancel()
            if reservation:
                await _settle(reservation, run, request)

    async def _answer(self, run: Run) -> None:
        self.send(await run.result())

    async def _respond_by_task(self, request: Request, reservation: Reservation | None) -> None:
        run = await self.start(request, reservation, metadata={})
        body = msgspec.json.encode(run.log.response)
        if reservation:
            # Who leaves now and asks again is told of the same response.
            await asyncio.shield(reservation.keep(200, b"" if request.stream else body))
        if request.stream:
            await self.stream(run.log.follow(patience=HEARTBEAT))
        else:
            self.send_json(body)

    async def _replay(self, replay: Replay) -> None:
        self.set_header("Idempotency-Replayed", "true")
        if replay.body or replay.run_id is None:
            self.send_json(replay.body, replay.status)
            return
        record = await self.house.journal.running(self.known.owners, replay.run_id)
        await self.stream(self.house.journal.follow(record, patience=HEARTBEAT))


async def _direct(run: Run) -> AsyncGenerator[list[Entry], None]:
    """The run's events, and an `error` event where its log could not go on."""
    last = 0
    async for batch in run.log.follow(patience=HEARTBEAT):
        last = batch[-1].id if batch else last
        yield batch
    if run.log.broken:
        yield [error_entry(run.log.broken, last)]


async def _settle(reservation: Reservation, run: Run, request: Request) -> None:
    """Keep the answer under its key if it may be told again, else give the key back (B2.5)."""
    response = run.log.response
    whole = response.status in ("completed", "incomplete")
    if run.log.ended and (whole or (response.status == "cancelled" and run.cancelled_by_route)):
        await reservation.keep(200, b"" if request.stream else msgspec.json.encode(response))
    elif run.log.ended and response.status == "failed":
        reservation.forget()
    else:
        await reservation.release()


class InputTokensHandler(LMSPHandler):
    """`POST /lmsp/v1/responses/input_tokens`: what a request would take, without generating anything (B6.4)."""

    async def post(self) -> None:
        request = await self.read(parse_request)
        self.send(InputTokens(input_tokens=await self.house.runner.count(request, self.known.owners)))


class ResponseHandler(StreamHandler):
    """`/lmsp/v1/responses/{id}` (A2.5, B6.1, B7.5)."""

    async def get(self, response_id: str) -> None:
        record = await self.house.journal.response(self.known.owners, response_id)
        if self._wants_stream():
            if record.task_id is None:
                raise BadRequest("Only the response of a task can be followed; ask for this one without stream.")
            await self.follow(record, self.integer("starting_after", 0, 0))
            return
        response = await self.house.journal.response_of(record)
        assert response is not None  # a deleted one is not found
        self.send(response)

    def _wants_stream(self) -> bool:
        said = self.get_query_argument("stream", "false").lower()
        if said not in ("true", "false"):
            raise BadRequest(f"stream is true or false, not {said[:40]!r}.")
        return said == "true"

    async def delete(self, response_id: str) -> None:
        journal = self.house.journal
        await journal.delete_response(await journal.response(self.known.owners, response_id))
        self.send_nothing()


class InputItemsHandler(LMSPHandler):
    """`GET /lmsp/v1/responses/{id}/input_items` (B6.1)."""

    async def get(self, response_id: str) -> None:
        record = await self.house.journal.response(self.known.owners, response_id)
        items = msgspec.json.decode(record.request, type=Request).input
        self.send(
            InputItems(data=items, first_id=items[0].id if items else None, last_id=items[-1].id if items else None)
        )


class CancelResponseHandler(LMSPHandler):
    """`POST /lmsp/v1/responses/{id}/cancel` (B6.1)."""

    async def post(self, response_id: str) -> None:
        self.send(await self.house.runner.cancel(response_id, self.known.owners))
