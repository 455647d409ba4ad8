"""llama.cpp as an engine, by way of xllamacpp: GGUF models on CPU, Metal, CUDA or Vulkan.

A prompt waits in a queue of ours, never inside llama.cpp, where nothing could cancel it: as many threads as
there are slots each carry one prompt through llama.cpp in process. Its Unix socket, in a folder that is ours
alone, serves what has no call in process: counting tokens.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Condition, Event, Thread
from typing import Any

from ..errors import ContextLengthExceeded, EngineFailed, ModelUnavailable, Problem
from ..protocol import Capability, InputTokensDetails, Usage
from . import (
    Broken,
    Cancel,
    Emit,
    Facts,
    Finished,
    Output,
    Prompt,
    PromptProgress,
    ReasoningText,
    Settings,
    Text,
    Unavailable,
    gguf,
)
from .stops import Stops

SUFFIX = ".gguf"

CACHE_MIB = 512
"""Memory for the caches of conversations that lost their slot, in MiB."""

COUNT_TIMEOUT = 60
"""Seconds to wait for a count of tokens; the largest body takes a few."""

# A prompt is processed in batches, and a cancel takes effect between two of them: a batch is to take about half
# a second (B0.8). On a CPU the time is proportional to the size of the model. One thread of a small cloud machine
# gets through 5 GB of weights in half a second (a model of 98 MB: 110 tokens on two); smaller batches measured no
# slower. Attention over a long prompt and other work on the machine slow it to a third, so half of that is taken.
_CPU_BATCH_BYTES_PER_THREAD = 2_500_000_000
_CPU_BATCH_RANGE = (16, 256)
_GPU_BATCH = 512

_RANDOM_SEED = 2**32 - 1
_REASONING_MARKS = ("enable_thinking", "<think>", "reasoning_effort")
_SAMPLING = ("top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty")

# Unix socket paths end at 104 bytes on macOS and 108 on Linux.
_MAX_SOCKET_PATH = 100

log = logging.getLogger(__name__)


def unavailable() -> Unavailable | None:
    """Why llama.cpp cannot run here, or None."""
    if not hasattr(socket, "AF_UNIX"):
        return Unavailable(
            reason="llama.cpp is reached through a Unix socket, which Python lacks on this platform.",
            fix="Run Jupyter on Linux, macOS or in WSL.",
        )
    if importlib.util.find_spec("xllamacpp") is None:
        return Unavailable(reason="xllamacpp is not installed.", fix="pip install xllamacpp")
    return None


def inspect(path: Path) -> Facts:
    """The facts of a GGUF file. Raises `OSError` or `ValueError` for what is no language model."""
    header = gguf.read(path)
    if header.architecture == "clip":
        raise ValueError("This is the vision part of a model, not a language model.")
    return Facts(
        context_length=header.context_length,
        quantization=header.quantization,
        capabilities=tuple(_capabilities(header)),
    )


def load(path: Path, settings: Settings) -> LlamaCpp:
    """Load a model. Raises `ModelUnavailable` with the reason that llama.cpp gives."""
    if missing := unavailable():
        raise ModelUnavailable(f"{missing.reason} {missing.fix}")
    import xllamacpp

    try:
        header = gguf.read(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelUnavailable(f"The model cannot be read: {reason}") from error
    context_length = min(header.context_length or settings.context_length, settings.context_length)
    on_gpu = any("GPU" in str(device["type"]) for device in xllamacpp.get_device_info())

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel = settings.parallel
    params.n_ctx = context_length * settings.parallel
    params.n_batch = _GPU_BATCH if on_gpu else _cpu_batch(path.stat().st_size, settings)
    params.n_ubatch = params.n_batch
    if settings.threads is not None:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
    params.cache_ram_mib = CACHE_MIB
    params.prefill_assistant = False
    params.warmup = False
    params.ui = params.endpoint_slots = False
    params.verbosity = 1

    folder = Path(tempfile.mkdtemp(prefix="lmsp-", dir=_socket_parent()))
    address = folder / "s.sock"
    key = secrets.token_hex(32)
    params.hostnames = [str(address)]
    params.api_keys = [key]
    try:
        server = _start(lambda: xllamacpp.Server(params), path, folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    return LlamaCpp(
        server,
        _Endpoint(address, key),
        context_length=context_length,
        capabilities=_capabilities(header),
        parallel=settings.parallel,
    )


class LlamaCpp:
    """A model in llama.cpp; see `Engine`. `close` is not for calling from `emit`."""

    def __init__(
        self,
        server: Any,
        endpoint: _Endpoint,
        *,
        context_length: int,
        capabilities: list[Capability],
        parallel: int,
    ) -> None:
        self.context_length = context_length
        self.capabilities = capabilities
        self._server = server
        self._endpoint = endpoint
        self._state = Condition()
        self._waiting: deque[_Job] = deque()
        self._running: set[_Job] = set()
        self._prompting: _Job | None = None
        self._closed = False
        self._threads = [
            Thread(target=self._work, name=f"llama.cpp-{number}", daemon=True) for number in range(parallel)
        ]
        for thread in self._threads:
            thread.start()

    def count(self, prompt: Prompt) -> int:
        """The tokens of the prompt, template included: what `usage` will call its input."""
        return int(self._endpoint.post("/v1/chat/completions/input_tokens", _body(prompt))["input_tokens"])

    def submit(self, prompt: Prompt, emit: Emit) -> Cancel:
        """Queue the prompt; after `close` it is cancelled at once."""
        job = _Job(_body(prompt), prompt.options.stop or [], emit)
        with self._state:
            closed = self._closed
            if not closed:
                self._waiting.append(job)
                self._state.notify_all()
        if closed:
            job.end(Finished("cancelled"))

        def cancel() -> None:
            job.cancelled.set()
            with self._state:
                waiting = job in self._waiting
                if waiting:
                    self._waiting.remove(job)
            if waiting:
                job.end(Finished("cancelled"))

        return cancel

    def close(self) -> None:
        """Cancel everything, wait for the threads (llama.cpp aborts the process otherwise), free the model."""
        with self._state:
            self._closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
            for job in self._running:
                job.cancelled.set()
            self._state.notify_all()
        for job in waiting:
            job.end(Finished("cancelled"))
        for thread in self._threads:
            thread.join()
        self._server = None
        self._endpoint.remove()

    def _work(self) -> None:
        while (job := self._take()) is not None:
            answer = _Answer(job, self.context_length, partial(self._prompt_done, job))
            try:
                self._server.handle_chat_completions(job.body, answer.take)
            except Exception as error:  # what llama.cpp refuses, it raises as one of many kinds
                answer.problem = EngineFailed(f"llama.cpp refused the prompt: {error}")
            self._prompt_done(job)
            with self._state:
                self._running.discard(job)
            answer.end()

    def _take(self) -> _Job | None:
        """The next job, or None when the engine closes.

        llama.cpp gives its whole batch to one prompt and calls back for no other, so that the others could not be
        cancelled: only one job at a time is let in to have its prompt processed, while others generate.
        """
        with self._state:
            self._state.wait_for(lambda: self._closed or (self._waiting and not self._prompting))
            if self._closed:
                return None
            self._prompting = job = self._waiting.popleft()
            self._running.add(job)
            return job

    def _prompt_done(self, job: _Job) -> None:
        with self._state:
            if self._prompting is job:
                self._prompting = None
                self._state.notify_all()


@dataclass(eq=False)
class _Job:
    """One prompt on its way."""

    body: dict[str, Any]
    stop: list[str]
    emit: Emit
    cancelled: Event = field(default_factory=Event)

    def end(self, output: Output) -> None:
        """Say the last word; the thread outlives an `emit` that raises."""
        try:
            self.emit(output)
        except Exception:
            log.exception("The end of an answer could not be delivered.")


class _Answer:
    """Turns what llama.cpp calls back with for one job into outputs, and keeps the count of its tokens."""

    def __init__(self, job: _Job, context_length: int, prompt_done: Callable[[], None]) -> None:
        self.problem: Problem | None = None
        self._job = job
        self._context_length = context_length
        self._prompt_done = prompt_done
        self._stops = Stops(job.stop)
        self._reason: str | None = None
        self._over = False
        self._usage: Usage | None = None

    def take(self, chunk: dict[str, Any]) -> bool:
        """The callback of llama.cpp: True ends the work. It swallows what is raised, so nothing may be."""
        if self._over:
            return True
        try:
            self._read(chunk)
        except Exception:
            log.exception("An answer could not be delivered.")
            self.problem = EngineFailed("The answer could not be delivered.")
        # Once llama.cpp has given the reason of the end, its count follows: that is waited for.
        cancelled = self._job.cancelled.is_set() and self._reason is None
        self._over |= cancelled or self.problem is not None
        return self._over

    def end(self) -> None:
        """Emit what is held back, and the end."""
        try:
            self._text(self._stops.rest())
        except Exception:
            log.exception("An answer could not be delivered.")
            self.problem = EngineFailed("The answer could not be delivered.")
        if self.problem is not None:
            self._job.end(Broken(self.problem.document(), self._usage))
        elif self._reason is not None:
            self._job.end(Finished("length" if self._reason == "length" else "stop", self._usage))
        elif self._job.cancelled.is_set():
            self._job.end(Finished("cancelled", self._usage))
        else:
            silent = EngineFailed("llama.cpp ended the answer without saying why.")
            self._job.end(Broken(silent.document(), self._usage))

    def _read(self, chunk: dict[str, Any]) -> None:
        if error := chunk.get("error"):
            self.problem = _problem(error)
            return
        self._count(chunk)
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta", {})
            if reasoning := delta.get("reasoning_content"):
                self._job.emit(ReasoningText(reasoning))
            if text := delta.get("content"):
                self._text(self._stops.take(text))
            self._reason = choice.get("finish_reason") or self._reason
        if self._stops.met:
            self._reason, self._over = "stop", True
        elif self._reason is None and self._usage and self._is_full(self._usage):
            self._reason, self._over = "length", True

    def _text(self, text: str) -> None:
        if text:
            self._job.emit(Text(text))

    def _count(self, chunk: dict[str, Any]) -> None:
        progress, timings, usage = (chunk.get(name) for name in ("prompt_progress", "timings", "usage"))
        if progress:
            total = progress["total"]
            self._usage = _usage(total, progress["cache"], 0)
            if total >= self._context_length:
                self.problem = _too_long(total, self._context_length)
                return
            self._job.emit(PromptProgress(progress["processed"], total))
            if progress["processed"] == total:
                self._prompt_done()
        elif usage:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            self._usage = _usage(usage["prompt_tokens"], cached, usage["completion_tokens"])
        elif timings:
            cached = timings["cache_n"]
            self._usage = _usage(cached + timings["prompt_n"], cached, timings["predicted_n"])

    def _is_full(self, usage: Usage) -> bool:
        """llama.cpp rounds a context length up to a multiple of 256, so the exact limit is kept here."""
        return usage.total_tokens >= self._context_length


@dataclass(frozen=True)
class _Endpoint:
    """llama.cpp's HTTP on its Unix socket."""

    address: Path
    key: str

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a body. Raises `Problem`."""
        connection = _Connection(self.address)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise EngineFailed("llama.cpp did not answer.") from error
        finally:
            connection.close()
        if response.status != 200:
            raise _problem(answer.get("error", {}))
        return answer

    def remove(self) -> None:
        """Remove the socket's folder, which llama.cpp leaves behind."""
        shutil.rmtree(self.address.parent, ignore_errors=True)


class _Connection(http.client.HTTPConnection):
    def __init__(self, address: Path) -> None:
        super().__init__("localhost", timeout=COUNT_TIMEOUT)
        self._address = str(address)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._address)


def _body(prompt: Prompt) -> dict[str, Any]:
    """The prompt as llama.cpp takes it. What is None is left out, so that the model's own default holds."""
    options = prompt.options
    body: dict[str, Any] = {
        "messages": [{"role": turn.role, "content": turn.content} for turn in prompt.turns],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "timings_per_token": True,
    }
    sampling = {name: getattr(options, name) for name in _SAMPLING} | {
        "max_tokens": prompt.max_output_tokens,
        "temperature": prompt.temperature,
        # The largest seed asks llama.cpp for a random one.
        "seed": None if options.seed is None else min(options.seed, _RANDOM_SEED - 1),
    }
    body |= {name: value for name, value in sampling.items() if value is not None}
    if options.reasoning is not None:
        body["chat_template_kwargs"] = {"enable_thinking": options.reasoning.enabled}
    return body


def _usage(prompt: int, cached: int, output: int) -> Usage:
    return Usage(
        input_tokens=prompt,
        output_tokens=output,
        total_tokens=prompt + output,
        input_tokens_details=InputTokensDetails(cached_tokens=cached),
    )


def _problem(error: dict[str, Any]) -> Problem:
    """The problem that an error of llama.cpp's stands for."""
    if error.get("type") == "exceed_context_size_error":
        return _too_long(error["n_prompt_tokens"], error["n_ctx"])
    return EngineFailed(f"llama.cpp reported: {error.get('message', 'an error without a message')}")


def _too_long(tokens: int, context_length: int) -> Problem:
    return ContextLengthExceeded(
        f"The input has {tokens} tokens; the context window has {context_length}, and one is for the answer. "
        "Shorten the input."
    )


def _capabilities(header: gguf.Header) -> list[Capability]:
    template = header.chat_template or ""
    return ["reasoning"] if any(mark in template for mark in _REASONING_MARKS) else []


def _cpu_batch(size: int, settings: Settings) -> int:
    """Tokens of a prompt that take about half a second, a power of two; `size` of the model in bytes."""
    threads = settings.threads or os.cpu_count() or 1
    tokens = _CPU_BATCH_BYTES_PER_THREAD * threads // max(size, 1)
    smallest, largest = _CPU_BATCH_RANGE
    return min(max(1 << tokens.bit_length() >> 1, smallest, settings.parallel), largest)


def _socket_parent() -> str | None:
    """A folder whose sockets have short enough paths; None for the usual one."""
    usual = Path(tempfile.gettempdir(), "lmsp-12345678", "s.sock")
    return None if len(os.fsencode(usual)) <= _MAX_SOCKET_PATH else "/tmp"


def _start(start: Callable[[], Any], path: Path, folder: Path) -> Any:
    """What `start` returns. llama.cpp says only on descriptor 2 why it fails, so that is read meanwhile."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            return start()
        except RuntimeError as error:
            file.seek(0)
            raise ModelUnavailable(
                "The model cannot be loaded. " + _reason(file.read().decode(errors="replace"), path, folder)
            ) from error
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            os.write(2, file.read())


def _reason(said: str, path: Path, folder: Path) -> str:
    """The first errors in llama.cpp's log, without paths. A line: time, level, function, message."""
    errors = [line.partition(" E ")[2] for line in said.splitlines() if " E " in line]
    reason = "; ".join(" ".join(error.split()) for error in errors[:2])
    reason = reason.replace(str(path), "the file").replace(str(folder), "the folder")
    return f"llama.cpp says: {reason}" if reason else "llama.cpp does not say why."
