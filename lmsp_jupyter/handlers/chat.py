"""Chat completions (B7.6)."""

from __future__ import annotations

import contextlib

import msgspec
from tornado.iostream import StreamClosedError

from .. import errors, events, sse
from ..chat import ChatRequest, Chunks, chat_document, completion, parse_chat, pointing_into
from ..protocol import Request
from ..run import Run
from .streams import EVENT_STREAM, HEARTBEAT, StreamHandler


class ChatHandler(StreamHandler):
    """`POST /lmsp/v1/chat/completions`."""

    async def post(self) -> None:
        chat, request = await self.read(parse_chat)
        await self.work(self._complete(chat, request))

    async def _complete(self, chat: ChatRequest, request: Request) -> None:
        with pointing_into(chat):
            run = await self.house.runner.start(request, self.known.owner, self.known.owners)
        try:
            await (self._stream_chunks(chat, run) if chat.stream else self._answer(run))
        finally:
            await run.cancel()

    async def _answer(self, run: Run) -> None:
        self.send_json(msgspec.json.encode(completion(await run.result())))

    async def _stream_chunks(self, chat: ChatRequest, run: Run) -> None:
        chunks = Chunks(run.log.response, include_usage=chat.include_usage)
        self.open_stream()
        with contextlib.suppress(StreamClosedError):
            self.write(chunks.first())
            await self.flush()
            async for batch in run.log.follow(patience=HEARTBEAT):
                if not batch:
                    self.write(sse.PING)
                for entry in batch:
                    if event := events.decode(entry.event, str(entry.id), entry.data):
                        self.write(chunks.take(event))
                await self.flush()
            if run.log.broken:
                self.write(chunks.take(events.Failed(response_id=run.id, error=run.log.broken.document())))
            self.finish(set_content_type=EVENT_STREAM)

    def problem_document(self, problem: errors.Problem) -> errors.Document:
        return chat_document(problem, self.request.path)
