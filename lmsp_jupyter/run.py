"""One response in the making: what the engine says becomes events, until a final one; cancel, and validation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from . import schemas
from .engines import (
    Broken,
    CallArguments,
    CallEnded,
    CallStarted,
    Finished,
    Output,
    Prompt,
    PromptProgress,
    ReasoningText,
    Text,
)
from .errors import OutputInvalid, Problem, StorageUnavailable, from_document
from .events import Composer, Event, Progress, Queued
from .log import Log
from .protocol import FunctionCall, IncompleteReason, InputTokensDetails, Item, Message, NamedTool, Response, Usage
from .worker import Generation, Worker


class Run:
    """One response in the making."""

    def __init__(self, id: str, model: str, owner: str, prompt: Prompt, log: Log) -> None:
        self.id = id
        self.model = model
        self.owner = owner
        self.prompt = prompt
        self.log = log
        self.task: asyncio.Task[None] | None = None
        self.cancelled_by_route = False
        self._composer = Composer(id)
        self._generation: Generation | None = None
        self._usage: Usage | None = None
        self._turn = asyncio.Lock()

    async def say(self, compose: Callable[[Composer], list[Event]]) -> None:
        """Append what `compose` makes, unless the response has ended: composing and appending are one step.

        Raises `StorageUnavailable`, and the log is broken off: what was composed is lost to it (B3.9).
        """
        async with self._turn:
            if self.log.ended or self.log.broken:
                return
            try:
                await self.log.append(*compose(self._composer))
            except StorageUnavailable as problem:
                self.log.break_off(problem)
                raise

    async def cancel(self) -> None:
        """End the response now, and the work when the engine's current batch ends (B0.8, B3.3)."""
        try:
            await self.say(lambda composer: composer.cancelled(self._usage))
        finally:
            self.stop()

    def queued(self, position: int, _: Composer) -> list[Event]:
        return [Queued(response_id=self.id, position=position)]

    def stop(self) -> None:
        """Stop the work, whatever it is at."""
        if self._generation is not None:
            self._generation.cancel()
        elif self.task is not None:
            self.task.cancel()

    async def fail(self, problem: Problem, usage: Usage | None = None) -> None:
        await self.say(lambda composer: composer.failed(problem, usage or self._usage))

    async def generate(self, worker: Worker) -> None:
        """Ask the engine, and say what it says."""
        if self.log.ended:
            return
        self._generation = worker.generate(self.prompt)
        async for batch in self._generation.batches():
            last = batch[-1]
            ended = isinstance(last, Finished | Broken)
            if self.log.broken:
                self.stop()
            else:
                await self._tell(batch[:-1] if ended else batch)
            if isinstance(last, Finished):
                await self._finish(last)
            elif isinstance(last, Broken):
                await self.fail(from_document(last.problem), last.usage)

    async def result(self) -> Response:
        """The response once it has ended (A2.1). Raises the problem that it failed with, or that broke its log off."""
        async for _ in self.log.follow():
            pass
        if self.log.broken:
            raise self.log.broken
        if error := self.log.response.error:
            raise from_document(error)
        return self.log.response

    async def _tell(self, outputs: Sequence[Output]) -> None:
        """Say what the engine says. A call that its tool does not take ends the response."""
        start = 0
        for at, output in enumerate(outputs):
            if isinstance(output, CallEnded):
                await self.say(partial(self._compose, outputs[start:at]))
                start = at
                if self.log.ended or self.log.broken:
                    return
                if mistake := await asyncio.to_thread(self._mistake_in_call, *self._composer.open_call):
                    self.stop()
                    await self.fail(OutputInvalid(f"The model's call is not what its tool takes: {mistake}"))
                    return
        if outputs:
            await self.say(partial(self._compose, outputs[start:]))

    def _compose(self, outputs: Sequence[Output], composer: Composer) -> list[Event]:
        events: list[Event] = []
        for output in outputs:
            self._count(output)
            events += self._events(composer, output)
        return events

    def _events(self, composer: Composer, output: Output) -> list[Event]:
        if isinstance(output, Text):
            return composer.text(output.text)
        if isinstance(output, ReasoningText):
            return composer.reasoning(output.text)
        if isinstance(output, CallStarted):
            return composer.call(output.name)
        if isinstance(output, CallArguments):
            return composer.arguments(output.text)
        if isinstance(output, CallEnded):
            return composer.called()
        assert isinstance(output, PromptProgress)
        return [Progress(response_id=self.id, phase="prompt", done=output.done, total=output.total)]

    def count_input(self, tokens: int | None, cached: int = 0) -> None:
        """Keep what is counted so far, for an end that comes from elsewhere (B0.5)."""
        if tokens is not None:
            details = InputTokensDetails(cached_tokens=cached)
            self._usage = Usage(input_tokens=tokens, output_tokens=0, total_tokens=tokens, input_tokens_details=details)

    def _count(self, output: Output) -> None:
        if isinstance(output, PromptProgress):
            self.count_input(output.total, output.cached)
        elif self._usage and (tokens := getattr(output, "tokens", 0)):
            self._usage.output_tokens = tokens
            self._usage.total_tokens = self._usage.input_tokens + tokens

    def _mistake_in_call(self, name: str, arguments: str) -> str | None:
        tool = next((tool for tool in self.prompt.tools if tool.name == name), None)
        if tool is None:
            return f"there is no tool {name!r}."
        return schemas.mistake_in(arguments, tool.parameters or {"type": "object"})

    async def _finish(self, finished: Finished) -> None:
        usage = finished.usage
        if finished.reason == "cancelled":
            await self.say(lambda composer: composer.cancelled(usage))
        elif finished.reason == "length":
            await self.say(lambda composer: composer.incomplete(_limit(self.prompt, usage), usage))
        elif (mistake := await asyncio.to_thread(self._mistake, self.log.response.output)) is None:
            await self.say(lambda composer: composer.completed(usage))
        elif finished.by_string:
            await self.say(lambda composer: composer.incomplete("stop", usage))
        else:
            await self.fail(OutputInvalid(f"The answer is not what was asked for: {mistake}"), usage)

    def _mistake(self, output: Sequence[Item]) -> str | None:
        """What is wrong with the answer under the schema and the choice of tools, now that the model stopped."""
        calls = [item for item in output if isinstance(item, FunctionCall)]
        texts = [item.text for item in output if isinstance(item, Message)]
        if calls and calls[-1].status != "completed":
            return "a call is not whole."
        if not calls and (self.prompt.tool_choice == "required" or isinstance(self.prompt.tool_choice, NamedTool)):
            return "there is no call."
        if self.prompt.schema is None or (calls and not texts):
            return None
        return schemas.mistake_in("".join(texts), self.prompt.schema)


def _limit(prompt: Prompt, usage: Usage | None) -> IncompleteReason:
    limit = prompt.max_output_tokens
    return "max_output_tokens" if limit and usage and usage.output_tokens >= limit else "context_length"
