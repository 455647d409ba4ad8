"""Running requests: admission, the queue, generation, cancel. One path for every shape of answer.

`Runner.start` refuses what must be refused before anything is sent and returns a `Run`; its log is followed by
whoever wants to read it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import msgspec

from .catalog import Catalog, Entry
from .engines import Prompt, Settings
from .errors import (
    BadRequest,
    ContextLengthExceeded,
    Problem,
    QueueFull,
    ResponseInProgress,
    ResponseNotFound,
    ServiceRestarted,
    StorageUnavailable,
    UnsupportedCapability,
    from_document,
)
from .events import Created, Event, InProgress, Progress
from .hosts import Host, Hosts
from .journal import ENDED, Journal
from .log import Log
from .prompts import Link, prompt_of, size
from .protocol import (
    FlatJSONSchemaFormat,
    FunctionCall,
    FunctionCallOutput,
    Item,
    JSONSchemaFormat,
    Message,
    Model,
    Reasoning,
    ReasoningEffort,
    Request,
    Response,
    TextFormat,
    TextOptions,
    new_id,
)
from .run import Run
from .store import Key, Record
from .worker import Worker

TEMPLATE_TOKENS = 1024
"""More tokens than any chat template adds to a short prompt (B0.4)."""

CANCELS = 0.5
"""Seconds between two looks for runs that another server wants cancelled (B3.7)."""

TENDING = 5.0
"""Seconds between two rounds of what has to be done now and then."""

_PREFIXES: dict[type[Item], str] = {Message: "msg", Reasoning: "rs", FunctionCall: "fc", FunctionCallOutput: "fc"}

log = logging.getLogger(__name__)


class Runner:
    """`queue_limit`: requests that may wait for one model beyond those that run."""

    def __init__(
        self, catalog: Catalog, hosts: Hosts, journal: Journal, settings: Settings, queue_limit: int = 64
    ) -> None:
        self.catalog = catalog
        self.journal = journal
        self.queue_limit = queue_limit
        self.hosts = hosts
        self._settings = settings
        self._runs: dict[str, Run] = {}
        self._left: list[tuple[Record, Log]] = []
        self._tending: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Take up what an earlier server left, and tend to what has to be done now and then."""
        self._tending = asyncio.create_task(self._tend())

    async def start(
        self,
        request: Request,
        owner: str,
        owners: Collection[str],
        *,
        metadata: dict[str, str] | None = None,
        key: Key | None = None,
    ) -> Run:
        """Begin to answer; with `metadata` as a task. `owners` are the identities whose responses may be continued.

        Raises `Problem` where the request is refused before a stream opens (A1.10, A1.11, B0.4).
        """
        entry, prompt = await self._understand(request, owners)
        host = self.hosts.of(entry)
        if host.users >= self._settings.parallel + self.queue_limit:
            raise QueueFull(
                f"{entry.model.id!r} has {host.users} requests to answer already; try again in a moment.",
                headers={"Retry-After": "5"},
            )
        with ExitStack() as stack:
            stack.enter_context(host.use())
            limit, bytes = entry.model.context_length, size(prompt)
            fits_surely = limit is not None and bytes is not None and bytes + TEMPLATE_TOKENS <= limit
            tokens = None
            if host.worker or not fits_surely:
                tokens = await self._check_length(await self.hosts.worker(host), prompt)
            response = _response(request, entry.model.id)
            _name(request.input)
            if request.store or metadata is not None or key is not None:
                run_log = await self.journal.open(response, request, owner, metadata=metadata, key=key)
            else:
                run_log = Log()
                await run_log.append(Created(response_id=response.id, response=response))
            run = Run(response.id, response.model, owner, prompt, run_log)
            run.count_input(tokens)
            return self._begin(run, host, stack)

    async def count(self, request: Request, owners: Collection[str]) -> int:
        """The tokens that the request's input takes, template included, whether they fit or not. Loads the model."""
        entry, prompt = await self._understand(request, owners)
        host = self.hosts.of(entry)
        with host.use():
            worker = await self.hosts.worker(host)
            return await worker.count(prompt)

    async def cancel(self, run_id: str, owners: Collection[str]) -> Response:
        """Cancel any running response of the caller; one that has ended stays as it is (B3.3, B6.1). Raises
        `ResponseNotFound`."""
        run = self._runs.get(run_id)
        if run is not None and run.owner in owners:
            run.cancelled_by_route = True
            await run.cancel()
            return run.log.response
        record = await self.journal.running(owners, run_id)
        if record.status not in ENDED:
            await self.journal.ask_to_cancel(record)
            record = await self.journal.running(owners, run_id)
        response = await self.journal.response_of(record)
        if response is None:
            raise ResponseNotFound(f"The response {run_id!r} was deleted.")
        return response

    @property
    def active(self) -> int:
        """Requests that use, or wait for, a model."""
        return self.hosts.users

    def runs(self, model_id: str) -> list[Run]:
        """The responses in the making by one model."""
        return [run for run in self._runs.values() if run.model == model_id]

    async def models(self) -> list[Model]:
        """The models of the catalog, with the states that they are in."""
        return [self.hosts.with_state(model) for model in await asyncio.to_thread(self.catalog.models)]

    async def first_model(self) -> str | None:
        """The first model whose file can be read; one that failed to load is tried again when it is asked."""
        models = await asyncio.to_thread(self.catalog.models)
        return next((model.id for model in models if model.state != "failed"), None)

    async def model(self, model_id: str) -> Model:
        """One model. Raises `ModelNotFound`."""
        return self.hosts.with_state((await asyncio.to_thread(self.catalog.find, model_id)).model)

    async def load(self, model_id: str) -> Model:
        """Load a model and wait until it is (B1.3). Raises `ModelNotFound`, `ModelUnavailable`."""
        host = self.hosts.of(await self._entry(model_id))
        with host.use():
            await self.hosts.worker(host)
        return await self.model(model_id)

    async def unload(self, model_id: str) -> Model:
        """Unload a model (B1.3). Raises `ModelNotFound`, `ModelBusy`."""
        await self.model(model_id)
        await self.hosts.unload(model_id)
        return await self.model(model_id)

    async def close(self) -> None:
        """End all work and all workers. What is on disk and unfinished is for the next server to take up."""
        tasks: list[asyncio.Task[Any]] = [run.task for run in self._runs.values() if run.task]
        tasks += [self._tending] if self._tending else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what the runs held is let go
        await self.hosts.close()
        await self.journal.close()

    async def _understand(self, request: Request, owners: Collection[str]) -> tuple[Entry, Prompt]:
        """The model that is meant and what it is asked."""
        entry = await self._entry(request.model)
        prompt = await asyncio.to_thread(prompt_of, request, await self._chain(request, owners))
        for needed, capability, pointer in (
            (prompt.tools, "tools", "/tools"),
            (prompt.schema is not None, "structured_output", "/text/format" if request.text else "/response_format"),
        ):
            if needed and capability not in entry.model.capabilities:
                detail = f"{entry.model.id!r} lacks the capability {capability}, which {pointer[1:]} needs."
                raise UnsupportedCapability(detail, errors=[(pointer, detail)])
        return entry, prompt

    async def _entry(self, model_id: str) -> Entry:
        entry = await asyncio.to_thread(self.catalog.find, model_id)
        if entry.model.error is not None:
            raise from_document(entry.model.error)
        return entry

    async def _chain(self, request: Request, owners: Collection[str]) -> list[Link]:
        """The responses that the request continues, oldest first (B6.2)."""
        chain: list[Link] = []
        link = request.previous_response_id
        while link is not None:
            record = await self.journal.response(owners, link)
            response = await self.journal.response_of(record)
            if response is None:
                raise ResponseNotFound(f"The response {link!r} was deleted.")
            if response.status == "in_progress":
                raise ResponseInProgress(f"The response {link!r} has not ended; wait for it or cancel it.")
            if response.status == "failed":
                detail = f"The response {link!r} failed and cannot be continued."
                raise BadRequest(detail, errors=[("/previous_response_id", detail)])
            earlier = msgspec.json.decode(record.request, type=Request)
            chain.insert(0, (earlier.input, response))
            link = earlier.previous_response_id
        return chain

    async def _check_length(self, worker: Worker, prompt: Prompt) -> int:
        """The tokens of the prompt. Raises `ContextLengthExceeded`."""
        tokens = await worker.count(prompt)
        if tokens >= worker.context_length:
            detail = (
                f"The input takes {tokens} tokens; the context of {worker.context_length} tokens must also hold one "
                "of output. Shorten the input, or choose a model with a longer context."
            )
            raise ContextLengthExceeded(detail, errors=[("/input", detail)])
        return tokens

    def _begin(self, run: Run, host: Host, stack: ExitStack) -> Run:
        self._runs[run.id] = run
        stack.callback(self._leave, run)
        held = stack.pop_all()
        run.task = asyncio.create_task(self._drive(run, host))
        # One that is cancelled before its first step never runs, so what it holds is let go from outside.
        run.task.add_done_callback(lambda _: held.close())
        return run

    def _leave(self, run: Run) -> None:
        # Only a run that the closing server cut off has no end yet; on disk it is for the next one.
        run.log.break_off(ServiceRestarted("The server is stopping."))
        del self._runs[run.id]
        self.journal.release(run.id)

    async def _drive(self, run: Run, host: Host) -> None:
        try:
            with host.slots.place() as place:
                async for position in place.positions():
                    await run.say(partial(run.queued, position))
                await run.say(lambda _: [InProgress(response_id=run.id)])
                worker = host.worker or await self._load_with_progress(run, host)
                await run.generate(worker)
        except StorageUnavailable:
            run.stop()
        except Problem as problem:
            await self._fail(run, problem)
        except Exception:
            log.exception("A response could not be made.")
            await self._fail(run, Problem("The service met an unexpected error; its log has it."))

    async def _fail(self, run: Run, problem: Problem) -> None:
        with suppress(StorageUnavailable):  # its log is broken off then, and ended later
            await run.fail(problem)

    async def _load_with_progress(self, run: Run, host: Host) -> Worker:
        total = host.entry.model.size_bytes or 0

        def progress(done: int) -> list[Event]:
            return [Progress(response_id=run.id, phase="loading", done=done, total=total)]

        await run.say(lambda _: progress(0))
        worker = await self.hosts.worker(host)
        await run.say(lambda _: progress(total))
        run.count_input(await self._check_length(worker, run.prompt))
        return worker

    # What an earlier or another server left

    async def _tend(self) -> None:
        rounds = int(TENDING / CANCELS)
        count = 0
        while True:
            try:
                if count % rounds == 0:
                    self._left += await self.journal.recover()
                    while self._left:
                        await self._take_up(*self._left[0])
                        self._left.pop(0)
                    await self.journal.tend()
                    await self.hosts.unload_idle()
                for run_id in await self.journal.cancels():
                    if run := self._runs.get(run_id):
                        run.cancelled_by_route = True
                        await run.cancel()
            except StorageUnavailable as problem:
                log.warning("%s", problem.detail)
            except Exception:
                log.exception("What has to be done now and then broke off; it is tried again.")
            count += 1
            await asyncio.sleep(CANCELS)

    async def _take_up(self, record: Record, run_log: Log) -> None:
        """Make a task that waited when its server ended."""
        run = Run(record.id, record.model, record.owner, Prompt(turns=[]), run_log)
        try:
            request = msgspec.json.decode(record.request, type=Request)
            entry, run.prompt = await self._understand(request, [record.owner])
            host = self.hosts.of(entry)
            with ExitStack() as stack:
                stack.enter_context(host.use())
                self._begin(run, host, stack)
        except StorageUnavailable:
            raise
        except Problem as problem:
            await self._give_up(run, problem)
        except Exception:
            log.exception("A task that was left waiting could not be taken up.")
            await self._give_up(run, Problem("The service could not take the task up again; its log has the error."))

    async def _give_up(self, run: Run, problem: Problem) -> None:
        await self._fail(run, problem)
        self.journal.release(run.id)


def _name(items: Sequence[Item]) -> None:
    """Give an id to the items that have none, since a stored one can be asked for (B6.1)."""
    for item in items:
        item.id = item.id or new_id(_PREFIXES[type(item)])


def _response(request: Request, model: str) -> Response:
    """The response as it is created: what B7.3 gives back of the request."""
    options = request.options
    return Response(
        id=new_id("resp"),
        created_at=int(time.time()),
        model=model,
        previous_response_id=request.previous_response_id,
        instructions=request.instructions,
        tools=request.tools,
        tool_choice=request.tool_choice,
        parallel_tool_calls=options.parallel_tool_calls is not False,
        text_options=_text_options(request),
        reasoning=request.reasoning or ReasoningEffort(),
        temperature=request.temperature,
        top_p=options.top_p,
        presence_penalty=options.presence_penalty or 0,
        frequency_penalty=options.frequency_penalty or 0,
        max_output_tokens=request.max_output_tokens,
        store=request.store,
        background=request.background,
        metadata=request.metadata,
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
    )


def _text_options(request: Request) -> TextOptions:
    chosen = request.response_format
    if not isinstance(chosen, JSONSchemaFormat):
        return TextOptions(format=TextFormat())
    shape = chosen.json_schema
    return TextOptions(
        format=FlatJSONSchemaFormat(
            name=shape.name, schema=shape.schema, description=shape.description, strict=shape.strict
        )
    )
