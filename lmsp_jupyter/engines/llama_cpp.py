"""llama.cpp as an engine, by way of xllamacpp: GGUF models on CPU, Metal, CUDA or Vulkan.

A prompt waits in a queue of ours, never inside llama.cpp, where nothing could cancel it: as many threads as
there are slots each carry one prompt through llama.cpp in process. Its Unix socket, in a folder that is ours
alone, serves what has no call in process: counting tokens, and what the template makes of a prompt. Of tools it
only hears through the template; what the model may write is the grammar's of `calls`.
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
from typing import Any, Literal, NoReturn

from ..errors import ContextLengthExceeded, EngineFailed, ModelUnavailable, Problem
from ..protocol import Capability, InputTokensDetails, OutputTokensDetails, Usage
from ..schemas import LAYOUT
from . import (
    Broken,
    Call,
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
    Turn,
    Unavailable,
    calls,
    gguf,
)
from .stops import Stops
from .thoughts import THINK, Thinking, Thoughts, thinking_after

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
# An option that the llguidance inside llama.cpp does not know yet, and would refuse the grammar for.
_LAYOUT = {name: value for name, value in LAYOUT.items() if name != "json_allowed_escapes"}
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
    endpoint = _Endpoint(address, key)
    try:
        server = _start(lambda: xllamacpp.Server(params), path, folder)
        template = _Template.ask(endpoint, header.chat_template or "")
    except BaseException:
        shutil.rmtree(folder)
        raise
    return LlamaCpp(
        server,
        endpoint,
        template,
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
        template: _Template,
        *,
        context_length: int,
        capabilities: list[Capability],
        parallel: int,
    ) -> None:
        self.context_length = context_length
        self.capabilities = capabilities
        self._server = server
        self._endpoint = endpoint
        self._template = template
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
        body = self._template.body(prompt)
        return int(self._endpoint.post("/v1/chat/completions/input_tokens", body)["input_tokens"])

    def submit(self, prompt: Prompt, emit: Emit) -> Cancel:
        """Queue the prompt; after `close` it is cancelled at once."""
        job = _Job(prompt, emit)
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
                self._generate(job.prompt, answer)
            except Problem as problem:
                answer.problem = problem
            except Exception as error:  # what llama.cpp refuses, it raises as one of many kinds
                answer.problem = EngineFailed(f"llama.cpp refused the prompt: {error}")
            self._prompt_done(job)
            with self._state:
                self._running.discard(job)
            answer.end()

    def _generate(self, prompt: Prompt, answer: _Answer) -> None:
        """Have llama.cpp answer. Under a grammar it sees the prompt as text, since its reader of chats would take the
        marks out of the answer, and does not let the special tokens among them through."""
        body = self._template.body(prompt)
        if not calls.is_constrained(prompt):
            self._server.handle_chat_completions(body, answer.take)
            return
        rendered = self._endpoint.post("/apply-template", body)["prompt"]
        thinking: Thinking = thinking_after(rendered) if self._template.thinks else "no"
        answer.constrain(thinking)
        body |= {
            "prompt": rendered,
            "grammar": calls.grammar(
                prompt,
                markers=self._template.markers,
                end_tokens=self._template.end_tokens,
                thinking=thinking,
                layout=_LAYOUT,
            ),
            "preserved_tokens": list(self._template.markers),
        }
        self._server.handle_completions(body, answer.take)

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

    prompt: Prompt
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
        self._stops = Stops(job.prompt.options.stop or [], until=calls.OPEN if calls.shown(job.prompt) else None)
        self._guard: calls.Guard | None = None
        self._thoughts = Thoughts("no")
        self._reason: str | None = None
        self._over = False
        self._usage: Usage | None = None
        self._reasoning_tokens = 0

    def constrain(self, thinking: Thinking) -> None:
        """See to it that the answer follows its grammar, after its reasoning. Raises `EngineFailed`."""
        self._guard = calls.Guard(self._job.prompt)
        self._thoughts = Thoughts(thinking)

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
            self._divide(*self._thoughts.rest())
            self._text(self._stops.rest())
        except Exception:
            log.exception("An answer could not be delivered.")
            self.problem = EngineFailed("The answer could not be delivered.")
        stopped = self._reason == "stop" and not self._stops.met
        if stopped and self._guard and not self._guard.may_end:
            self.problem = self.problem or _not_followed()
        if self.problem is not None:
            self._job.end(Broken(self.problem.document(), self._usage))
        elif self._reason is not None:
            reason: Literal["length", "stop"] = "length" if self._reason == "length" else "stop"
            self._job.end(Finished(reason, self._usage, by_string=self._stops.met))
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
            reasoning, text = self._thoughts.take(delta.get("content") or choice.get("text") or "")
            self._divide((delta.get("reasoning_content") or "") + reasoning, text)
            self._reason = choice.get("finish_reason") or self._reason
        if self._stops.met:
            self._reason, self._over = "stop", True
        elif self._reason is None and self._usage and self._is_full(self._usage):
            self._reason, self._over = "length", True

    def _divide(self, reasoning: str, text: str) -> None:
        if reasoning:
            self._reasoning_tokens = self._tokens
            self._job.emit(ReasoningText(reasoning, self._tokens))
        if text and self._guard and not self._guard.allows(text):
            self.problem = _not_followed()
        elif text:
            self._text(self._stops.take(text))

    def _text(self, text: str) -> None:
        if text:
            self._job.emit(Text(text, self._tokens))

    @property
    def _tokens(self) -> int:
        """Tokens that are generated so far."""
        return self._usage.output_tokens if self._usage else 0

    def _count(self, chunk: dict[str, Any]) -> None:
        progress, timings, usage = (chunk.get(name) for name in ("prompt_progress", "timings", "usage"))
        if progress:
            total = progress["total"]
            self._usage = self._usage_of(total, progress["cache"], 0)
            if total >= self._context_length:
                self.problem = _too_long(total, self._context_length)
                return
            self._job.emit(PromptProgress(progress["processed"], total, progress["cache"]))
            if progress["processed"] == total:
                self._prompt_done()
        elif usage:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            self._usage = self._usage_of(usage["prompt_tokens"], cached, usage["completion_tokens"])
        elif timings:
            cached = timings["cache_n"]
            self._usage = self._usage_of(cached + timings["prompt_n"], cached, timings["predicted_n"])

    def _usage_of(self, prompt: int, cached: int, output: int) -> Usage:
        return Usage(
            input_tokens=prompt,
            output_tokens=output,
            total_tokens=prompt + output,
            input_tokens_details=InputTokensDetails(cached_tokens=cached),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self._reasoning_tokens),
        )

    def _is_full(self, usage: Usage) -> bool:
        """llama.cpp rounds a context length up to a multiple of 256, so the exact limit is kept here."""
        return usage.total_tokens >= self._context_length


@dataclass(frozen=True)
class _Endpoint:
    """llama.cpp's HTTP on its Unix socket."""

    address: Path
    key: str

    def get(self, path: str) -> dict[str, Any]:
        """The answer. Raises `Problem`."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a body. Raises `Problem`."""
        return self._ask("POST", path, json.dumps(body))

    def _ask(self, method: str, path: str, body: str | None) -> dict[str, Any]:
        connection = _Connection(self.address)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, body, headers)
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


@dataclass(frozen=True)
class _Template:
    """What the model's chat template and vocabulary know.

    `markers` are the ids of the markers of `calls` that are tokens of their own; `end_tokens` those that end a turn.
    """

    knows_tools: bool
    thinks: bool
    markers: dict[str, int]
    end_tokens: list[int]

    @classmethod
    def ask(cls, endpoint: _Endpoint, source: str) -> _Template:
        """Find out from llama.cpp; `source` is the template's text."""
        properties = endpoint.get("/props")
        known = properties["chat_template_caps"]

        def token(text: str) -> int | None:
            """The id of what the text begins with, where that is a token of its own and not the letters of it."""
            first, letters = (
                endpoint.post("/tokenize", {"content": text, "add_special": False, "parse_special": special})["tokens"]
                for special in (True, False)
            )
            return first[0] if first[:1] != letters[:1] else None

        ids = {marker: token(marker) for marker in calls.MARKERS}
        ends = {token(text) for text in (_after_answer(endpoint), properties["eos_token"]) if text}
        return cls(
            knows_tools=known["supports_tools"] and known["supports_tool_calls"],
            thinks=THINK in source,
            markers={marker: id for marker, id in ids.items() if id is not None},
            end_tokens=sorted(id for id in ends if id is not None),
        )

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """The prompt as llama.cpp takes it. What is None is left out, so that the model's own default holds."""
        options = prompt.options
        template: dict[str, Any] = {}
        if self.knows_tools:
            messages = _messages(prompt.turns)
            if tools := calls.definitions(prompt):
                template["tools"] = tools
        else:
            messages = _messages(calls.hermes_turns(prompt))
        if options.reasoning is not None:
            template["enable_thinking"] = options.reasoning.enabled
        body: dict[str, Any] = {
            "messages": messages,
            "chat_template_kwargs": template,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_progress": True,
            "timings_per_token": True,
        }
        if prompt.continue_last:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        sampling = {name: getattr(options, name) for name in _SAMPLING} | {
            "max_tokens": prompt.max_output_tokens,
            "temperature": prompt.temperature,
            # The largest seed asks llama.cpp for a random one.
            "seed": None if options.seed is None else min(options.seed, _RANDOM_SEED - 1),
        }
        return body | {name: value for name, value in sampling.items() if value is not None}


def _messages(turns: list[Turn]) -> list[dict[str, Any]]:
    """Turns in the shape of chat completions. A result belongs to the first call of its tool that has none yet."""
    messages: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []
    for turn in turns:
        message: dict[str, Any] = {"role": turn.role, "content": turn.content}
        if turn.calls:
            ids = [(f"call_{len(messages)}_{index}", call.name) for index, call in enumerate(turn.calls)]
            open_calls += ids
            message["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
                for (id, _), call in zip(ids, turn.calls, strict=True)
            ]
        if turn.role == "tool":
            answered = next((each for each in open_calls if each[1] == turn.name), None)
            if answered:
                open_calls.remove(answered)
                message |= {"tool_call_id": answered[0], "name": turn.name}
        messages.append(message)
    return messages


def _arguments(call: Call) -> str:
    """JSON, which llama.cpp insists on: arguments that are no object become a text (B0.10)."""
    try:
        value = json.loads(call.arguments, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        value = None
    return call.arguments if isinstance(value, dict) else json.dumps(call.arguments)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _after_answer(endpoint: _Endpoint) -> str:
    """What the template writes after an assistant's words; "" where it does not take the example."""
    words = "Thirty-two swallows."
    turns = [Turn("user", "Which?"), Turn("assistant", words), Turn("user", "Why?")]
    try:
        rendered = endpoint.post("/apply-template", {"messages": _messages(turns)})["prompt"]
    except EngineFailed:
        return ""
    return str(rendered).partition(words)[2]


def _not_followed() -> Problem:
    return EngineFailed("The answer left the form that its schema or tools ask for, and was stopped.")


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
    capabilities: list[Capability] = ["tools", "structured_output"]
    if any(mark in template for mark in _REASONING_MARKS):
        capabilities.append("reasoning")
    return capabilities


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
