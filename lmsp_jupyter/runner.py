"""Running requests: admission, loading, the queue, generation, cancel. One path for every shape of answer.

`Runner.start` refuses what must be refused before anything is sent and returns a `Run`; its log is followed by
whoever wants to read it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .catalog import Catalog, Entry
from .engines import Broken, Finished, Prompt, PromptProgress, ReasoningText, Settings, Text, Turn
from .errors import ContextLengthExceeded, EngineCrashed, ModelUnavailable, Problem, QueueFull, from_document
from .events import Composer, Created, Event, InProgress, Progress, Queued
from .log import Log
from .protocol import IncompleteReason, Message, Model, Request, Response, Usage, new_id
from .worker import Generation, Worker

TEMPLATE_TOKENS = 1024
"""More tokens than any chat template adds to a short prompt (B0.4)."""

TURN_TOKENS = 32
"""More tokens than a chat template puts around one message."""

log = logging.getLogger(__name__)


class Run:
    """One response in the making."""

    def __init__(self, model: str) -> None:
        self.id = new_id("resp")
        self.log = Log()
        self.task: asyncio.Task[None] | None = None
        self.generation: Generation | None = None
        self.log.append(
            Created(
                response_id=self.id,
                response=Response(id=self.id, created_at=int(time.time()), model=model),
            )
        )

    def append(self, events: list[Event]) -> None:
        for event in events:
            self.log.append(event)

    def cancel(self) -> None:
        """Stop the work, whatever it is at; the log ends with `response.cancelled` when it has stopped (B0.8)."""
        if self.log.ended:
            return
        if self.generation is not None:
            self.generation.cancel()
        elif self.task is not None:
            self.task.cancel()


class Slots:
    """Admission to one engine: so many at a time, the others in line."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._line: deque[tuple[asyncio.Future[None], Callable[[int], None]]] = deque()

    async def take(self, moved: Callable[[int], None]) -> None:
        """Wait for a slot. `moved` is told the place in line, 1 is next, whenever it changes."""
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        place = (turn, moved)
        self._line.append(place)
        moved(len(self._line))
        try:
            await turn
        except asyncio.CancelledError:
            if place in self._line:
                self._line.remove(place)
                self._announce()
            else:
                self.give()
            raise

    def give(self) -> None:
        """Return a slot; it goes to who is next."""
        if not self._line:
            self._free += 1
            return
        self._line.popleft()[0].set_result(None)
        self._announce()

    def _announce(self) -> None:
        for position, (_, moved) in enumerate(self._line, 1):
            moved(position)


class Host:
    """What the runner holds for one model: its worker (or the attempt to get one), its slots, its runs."""

    def __init__(self, settings: Settings) -> None:
        self.slots = Slots(settings.parallel)
        self.loading: asyncio.Task[Worker] | None = None
        self.runs: set[Run] = set()

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


class Runner:
    """`queue_limit`: requests that may wait for one model beyond those that run."""

    def __init__(self, catalog: Catalog, settings: Settings, queue_limit: int = 64) -> None:
        self.catalog = catalog
        self.queue_limit = queue_limit
        self._settings = settings
        self._hosts: dict[str, Host] = {}

    async def start(self, request: Request) -> Run:
        """Begin to answer. Raises `Problem` where the request is refused before a stream opens (A1.11, B0.4)."""
        entry = await asyncio.to_thread(self._entry, request)
        host = self._host(entry)
        if len(host.runs) >= self._settings.parallel + self.queue_limit:
            raise QueueFull(
                f"{entry.model.id!r} has {len(host.runs)} requests to answer already; try again in a moment.",
                headers={"Retry-After": "5"},
            )
        run = Run(entry.model.id)
        host.runs.add(run)
        try:
            prompt = prompt_of(request)
            limit = entry.model.context_length
            fits_surely = limit is not None and _size(prompt) + TEMPLATE_TOKENS <= limit
            if host.worker or not fits_surely:
                await self._check_length(await self._worker(entry, host), prompt)
        except BaseException:
            host.runs.discard(run)
            raise
        run.task = asyncio.create_task(self._drive(run, entry, host, prompt))
        return run

    async def count(self, request: Request) -> int:
        """The tokens that the request's input takes, template included, whether they fit or not. Loads the model."""
        entry = await asyncio.to_thread(self._entry, request)
        worker = await self._worker(entry, self._host(entry))
        return await worker.count(prompt_of(request))

    @property
    def active(self) -> int:
        """Responses in the making."""
        return sum(len(host.runs) for host in self._hosts.values())

    async def models(self) -> list[Model]:
        """The models of the catalog, with the states that they are in."""
        return [self._with_state(model) for model in await asyncio.to_thread(self.catalog.models)]

    async def first_model(self) -> str | None:
        """The first model whose file can be read; one that failed to load is tried again when it is asked."""
        models = await asyncio.to_thread(self.catalog.models)
        return next((model.id for model in models if model.state != "failed"), None)

    async def model(self, model_id: str) -> Model:
        """One model. Raises `ModelNotFound`."""
        return self._with_state((await asyncio.to_thread(self.catalog.find, model_id)).model)

    async def close(self) -> None:
        """End all work and all workers."""
        tasks: list[asyncio.Task[Any]] = [run.task for host in self._hosts.values() for run in host.runs if run.task]
        tasks += [host.loading for host in self._hosts.values() if host.loading and not host.loading.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(host.worker.close() for host in self._hosts.values() if host.worker))

    def _entry(self, request: Request) -> Entry:
        entry = self.catalog.find(request.model)
        if entry.model.error is not None:
            raise from_document(entry.model.error)
        return entry

    def _host(self, entry: Entry) -> Host:
        return self._hosts.setdefault(entry.model.id, Host(self._settings))

    def _with_state(self, model: Model) -> Model:
        host = self._hosts.get(model.id)
        if host is None or model.state == "failed":
            return model
        if host.loading and not host.loading.done():
            model.state = "loading"
        elif host.problem:
            model.state, model.error = "failed", host.problem.document()
        elif worker := host.worker:
            model.state, model.capabilities = "loaded", worker.capabilities
        return model

    async def _worker(self, entry: Entry, host: Host) -> Worker:
        """The model's worker, loaded if need be; those who ask while it loads wait for the same one."""
        if host.loading is None or (host.loading.done() and host.worker is None):
            start = Worker.start(entry.engine, entry.path, self._settings)
            host.loading = asyncio.create_task(start)
        try:
            return await asyncio.shield(host.loading)
        except EngineCrashed as crash:
            raise ModelUnavailable(f"The model {entry.model.id!r} could not be loaded. {crash.detail}") from None

    async def _check_length(self, worker: Worker, prompt: Prompt) -> None:
        tokens = await worker.count(prompt)
        if tokens >= worker.context_length:
            detail = (
                f"The input takes {tokens} tokens; the context of {worker.context_length} tokens must also hold one "
                "of output. Shorten the input, or choose a model with a longer context."
            )
            raise ContextLengthExceeded(detail, errors=[("/input", detail)])

    async def _drive(self, run: Run, entry: Entry, host: Host, prompt: Prompt) -> None:
        composer = Composer(run.id)
        try:
            await host.slots.take(lambda position: run.append([Queued(response_id=run.id, position=position)]))
            try:
                run.append([InProgress(response_id=run.id)])
                worker = host.worker or await self._load_with_progress(run, entry, host, prompt)
                await self._generate(run, composer, worker, prompt)
            finally:
                host.slots.give()
        except asyncio.CancelledError:
            run.append(composer.cancelled())
        except Problem as problem:
            run.append(composer.failed(problem))
        except Exception:
            log.exception("A response could not be made.")
            run.append(composer.failed(Problem("The service met an unexpected error; its log has it.")))
        finally:
            host.runs.discard(run)

    async def _load_with_progress(self, run: Run, entry: Entry, host: Host, prompt: Prompt) -> Worker:
        size = entry.model.size_bytes or 0
        run.append([Progress(response_id=run.id, phase="loading", done=0, total=size)])
        worker = await self._worker(entry, host)
        run.append([Progress(response_id=run.id, phase="loading", done=size, total=size)])
        await self._check_length(worker, prompt)
        return worker

    async def _generate(self, run: Run, composer: Composer, worker: Worker, prompt: Prompt) -> None:
        run.generation = worker.generate(prompt)
        async for output in run.generation:
            if isinstance(output, Text):
                run.append(composer.text(output.text))
            elif isinstance(output, ReasoningText):
                run.append(composer.reasoning(output.text))
            elif isinstance(output, PromptProgress):
                run.append([Progress(response_id=run.id, phase="prompt", done=output.done, total=output.total)])
            elif isinstance(output, Finished):
                run.append(_end(composer, prompt, output))
            elif isinstance(output, Broken):
                run.append(composer.failed(from_document(output.problem), output.usage))


def prompt_of(request: Request) -> Prompt:
    """What the engine is asked: messages as turns, the system's joined into one in front. Earlier reasoning is not
    shown to the model again."""
    messages = [item for item in request.input if isinstance(item, Message)]
    system = "\n\n".join(message.text for message in messages if message.role == "system")
    limit = request.max_output_tokens
    turns = [Turn(message.role, message.text) for message in messages if message.role != "system"]
    return Prompt(
        turns=[Turn("system", system), *turns] if system else turns,
        max_output_tokens=limit and min(limit, 2**31 - 1),
        temperature=request.temperature,
        options=request.extensions.lmsp_jupyter,
    )


def _size(prompt: Prompt) -> int:
    """At least the tokens of the prompt without what a template adds once."""
    return sum(len(turn.content.encode()) + TURN_TOKENS for turn in prompt.turns)


def _end(composer: Composer, prompt: Prompt, finished: Finished) -> list[Event]:
    usage = finished.usage
    if finished.reason == "cancelled":
        return composer.cancelled(usage)
    if finished.reason == "stop":
        return composer.completed(usage)
    return composer.incomplete(_limit(prompt, usage), usage)


def _limit(prompt: Prompt, usage: Usage | None) -> IncompleteReason:
    limit = prompt.max_output_tokens
    return "max_output_tokens" if limit and usage and usage.output_tokens >= limit else "context_length"
