"""One child process per loaded model, and both ends of the pipe to it.

The parent's end is `Worker`; the child's is `main`, run as `python -m lmsp_jupyter.worker`. Frames are a
four-byte length and MessagePack. The child owns an engine and nothing else; it ends when its pipe does, so a
dead server leaves no orphan, and whatever kills it kills no one else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import struct
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

import msgspec

from .engines import Broken, Cancel, Engine, Finished, Output, Prompt, Settings, load_module
from .engines.calls import Calls
from .errors import Document, EngineCrashed, EngineFailed, ModelUnavailable, Problem, from_document
from .protocol import Capability

# From the server to the child: the first frame is Load.


class Load(msgspec.Struct, tag="load"):
    """`folder` is a private place for the engine's sockets and files; the child removes it at its end."""

    engine: str
    path: str
    folder: str
    settings: Settings


class Count(msgspec.Struct, tag="count"):
    id: int
    prompt: Prompt


class Generate(msgspec.Struct, tag="generate"):
    id: int
    prompt: Prompt


class Stop(msgspec.Struct, tag="stop"):
    id: int


# From the child to the server: the first frame is Loaded or Refused with id 0.


class Loaded(msgspec.Struct, tag="loaded"):
    context_length: int
    capabilities: list[Capability]


class Counted(msgspec.Struct, tag="counted"):
    id: int
    tokens: int


class Said(msgspec.Struct, tag="said"):
    id: int
    output: Output


class Refused(msgspec.Struct, tag="refused"):
    id: int
    problem: Document


Ask = Load | Count | Generate | Stop
Reply = Loaded | Counted | Said | Refused

T = TypeVar("T")

log = logging.getLogger(__name__)

_LENGTH = struct.Struct(">I")
_asks = msgspec.msgpack.Decoder(Ask)
_replies = msgspec.msgpack.Decoder(Reply)


def _frame(message: Ask | Reply) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


# The parent's end.


class Generation:
    """One prompt at work: iterate over what the engine says; the last value is `Finished` or `Broken`."""

    def __init__(self, worker: Worker, id: int) -> None:
        self._worker = worker
        self._id = id
        self._outputs: asyncio.Queue[Output] = asyncio.Queue()

    def cancel(self) -> None:
        """Stop at the end of the engine's current batch (B0.8). The iteration still ends with `Finished`."""
        self._worker._send(Stop(self._id))

    async def __aiter__(self) -> AsyncIterator[Output]:
        async for batch in self.batches():
            for output in batch:
                yield output

    async def batches(self) -> AsyncIterator[list[Output]]:
        """The outputs in batches of what is there, so that a slow reader catches up."""
        last: Output | None = None
        while not isinstance(last, Finished | Broken):
            batch = [await self._outputs.get()]
            while not self._outputs.empty():
                batch.append(self._outputs.get_nowait())
            last = batch[-1]
            yield batch


class Worker:
    """A process with a loaded model. Made by `start`; not usable any more once `alive` is False."""

    def __init__(self, process: asyncio.subprocess.Process, folder: str) -> None:
        self._process = process
        self._folder = folder
        self._ids = iter(range(1, sys.maxsize))
        self._loaded: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        self._counts: dict[int, asyncio.Future[int]] = {}
        self._generations: dict[int, Generation] = {}
        self._reader = asyncio.create_task(self._read())
        self.alive = True
        self.context_length = 0
        self.capabilities: list[Capability] = []

    @classmethod
    async def start(cls, engine: str, path: Path, settings: Settings) -> Worker:
        """Load the model at `path` in a new process. Raises the problem that the engine met, or `EngineCrashed`."""
        try:
            folder = tempfile.mkdtemp(prefix="lmsp-")
        except OSError as error:
            raise ModelUnavailable(f"No folder for temporary files can be made: {error.strerror}.") from None
        secrets = {"LMSP_TOKEN", "JUPYTER_TOKEN", "JUPYTERHUB_API_TOKEN"}
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                __name__,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=folder,  # -m imports from here first, and a notebook's folder may hold a json.py
                env={name: value for name, value in os.environ.items() if name not in secrets},
            )
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise ModelUnavailable(f"No process can be started: {error.strerror}.") from None
            raise
        worker = cls(process, folder)
        worker._send(Load(engine, str(path), folder, settings))
        try:
            loaded = await worker._loaded
        except BaseException:
            await worker.close()
            raise
        worker.context_length = loaded.context_length
        worker.capabilities = loaded.capabilities
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    async def count(self, prompt: Prompt) -> int:
        """Tokens that the prompt takes, exactly. Raises `Problem`."""
        id = next(self._ids)
        counted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._counts[id] = counted
        self._send(Count(id, prompt))
        return await counted

    def generate(self, prompt: Prompt) -> Generation:
        """Begin to generate. The engine runs as many prompts at once as its settings say; more wait in it."""
        id = next(self._ids)
        generation = self._generations[id] = Generation(self, id)
        self._send(Generate(id, prompt))
        return generation

    async def close(self) -> None:
        """End the process; what runs in it fails. One that still loads does not read its pipe and is killed."""
        if not self._loaded.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), timeout=5)
        except asyncio.TimeoutError:
            self._process.kill()
        await self._reader

    def _send(self, message: Ask) -> None:
        """Write a frame. Who asks a process that has died is told so at once."""
        if not self.alive:
            self._fail(EngineCrashed(self._epitaph()))
        elif self._process.stdin:
            self._process.stdin.write(_frame(message))

    async def _read(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        try:
            while True:
                (length,) = _LENGTH.unpack(await pipe.readexactly(_LENGTH.size))
                self._take(_replies.decode(await pipe.readexactly(length)))
        except asyncio.IncompleteReadError:
            pass  # the end of the pipe is the end of the process, told below
        except Exception:
            log.exception("The process of a model sent what cannot be read.")
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()  # nobody hears it any more
        finally:
            await self._process.wait()
            self.alive = False
            self._fail(EngineCrashed(self._epitaph()))
            shutil.rmtree(self._folder, ignore_errors=True)

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, Said):
            generation = self._generations[reply.id]
            if isinstance(reply.output, Finished | Broken):
                del self._generations[reply.id]
            generation._outputs.put_nowait(reply.output)
        elif isinstance(reply, Counted):
            _resolve(self._counts.pop(reply.id), reply.tokens)
        elif isinstance(reply, Loaded):
            _resolve(self._loaded, reply)
        else:
            _reject(self._counts.pop(reply.id) if reply.id else self._loaded, from_document(reply.problem))

    def _fail(self, problem: Problem) -> None:
        for generation in self._generations.values():
            generation._outputs.put_nowait(Broken(problem.document()))
        _reject(self._loaded, problem)
        for counted in self._counts.values():
            _reject(counted, problem)
        self._generations.clear()
        self._counts.clear()

    def _epitaph(self) -> str:
        code = self._process.returncode
        how = f"by {signal.Signals(-code).name}" if code and -code in set(signal.Signals) else f"with status {code}"
        return f"The process of the model ended {how}. The next request starts it again."


def _resolve(waiting: asyncio.Future[T], value: T) -> None:
    if not waiting.done():
        waiting.set_result(value)


def _reject(waiting: asyncio.Future[Any], problem: Problem) -> None:
    if not waiting.done():
        waiting.set_exception(problem)
        waiting.exception()  # nobody may be waiting any more


# The child's end.


class _Child:
    def __init__(self, engine: Engine, output: _Pipe) -> None:
        self._engine = engine
        self._output = output
        self._cancels: dict[int, Cancel] = {}
        self._lock = threading.RLock()
        self._counter = ThreadPoolExecutor(max_workers=1)

    def take(self, ask: Ask) -> None:
        if isinstance(ask, Count):
            self._counter.submit(self._count, ask)
        elif isinstance(ask, Generate):
            self._generate(ask)
        elif isinstance(ask, Stop) and (cancel := self._cancels.pop(ask.id, None)):
            cancel()

    def _count(self, ask: Count) -> None:
        try:
            self._output.send(Counted(ask.id, self._engine.count(ask.prompt)))
        except Exception as error:
            self._output.send(Refused(ask.id, _problem(error).document()))

    def _generate(self, ask: Generate) -> None:
        try:
            with self._lock:  # the end may come before `submit` has returned
                emit = Calls(ask.prompt, partial(self._said, ask.id))
                self._cancels[ask.id] = self._engine.submit(ask.prompt, emit)
        except Exception as error:
            self._said(ask.id, Broken(_problem(error).document()))

    def _said(self, id: int, output: Output) -> None:
        if isinstance(output, Finished | Broken):
            with self._lock:
                self._cancels.pop(id, None)
        self._output.send(Said(id, output))

    def close(self) -> None:
        for cancel in list(self._cancels.values()):
            cancel()
        self._engine.close()


class _Pipe:
    """The way to the server, for any thread. Once the server has gone, nothing is sent: `main` ends this process."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def send(self, reply: Reply) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._file.write(_frame(reply))
            self._file.flush()


def _problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    sys.excepthook(type(error), error, error.__traceback__)
    return EngineFailed("The engine met an unexpected error; the server's log has it.")


def _receive(pipe: BinaryIO) -> Ask | None:
    """The next frame, or None at the end of the pipe."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = pipe.read(length)
    return _asks.decode(body) if len(body) == length else None


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Stdin and stdout for the frames alone: native libraries print, and what they print goes to stderr."""
    pipes = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return pipes


def main() -> None:
    """The child: load what the first frame says, then do what the others say until the pipe ends."""
    os.umask(0o077)  # files and sockets are their owner's only (B5.6)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the server's terminal is the server's to handle
    input, file = _take_pipes()
    output = _Pipe(file)
    load = _receive(input)
    if not isinstance(load, Load):
        return
    tempfile.tempdir = load.folder
    try:
        engine = load_module(load.engine).load(Path(load.path), load.settings)
    except Exception as error:
        output.send(Refused(0, _problem(error).document()))
        return
    child = _Child(engine, output)
    output.send(Loaded(engine.context_length, engine.capabilities))
    while (ask := _receive(input)) is not None:
        child.take(ask)
    watchdog = threading.Timer(4, _leave, [load.folder])
    watchdog.daemon = True
    watchdog.start()
    child.close()
    _leave(load.folder)


def _leave(folder: str) -> NoReturn:
    """End at once: native threads that are still at work would abort an orderly exit."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
