"""An engine for tests, registered through the real plug-in route: its models are JSON files that say what happens.

    {"context_length": 64, "steps": [["text", "Hello"], ["sleep", 0.1], ["text", " world"], ["crash"]]}

Steps: `text`, `reasoning` (a delta each, one token), `progress` done total, `sleep` seconds, `repeat` n delta,
`echo` (the last turn, word by word), `prompt` (what is asked, as JSON), `finish` reason, `early` (an end before the
end), `broken` detail, `print` text, `crash`.
A token of a prompt is a word. `capabilities` may be fewer than those of `CAPABILITIES`. `load` may be `{"error": …}`,
`{"sleep": …}` or `{"crash": true}`.
"""

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path

import msgspec

from lmsp_jupyter.engines import (
    Broken,
    Cancel,
    Emit,
    Facts,
    Finished,
    Prompt,
    PromptProgress,
    ReasoningText,
    Settings,
    Text,
)
from lmsp_jupyter.engines.stops import Stops
from lmsp_jupyter.errors import EngineFailed, ModelUnavailable
from lmsp_jupyter.protocol import Usage

SUFFIX = ".script"
CAPABILITIES = ["tools", "structured_output", "reasoning"]


def unavailable() -> None:
    return None


def inspect(path: Path) -> Facts:
    script = json.loads(path.read_text())
    return Facts(
        context_length=script.get("context_length", 4096),
        quantization=None,
        capabilities=tuple(script.get("capabilities", CAPABILITIES)),
    )


def load(path: Path, settings: Settings) -> "ScriptedEngine":
    script = json.loads(path.read_text())
    how = script.get("load", {})
    time.sleep(how.get("sleep", 0))
    if "error" in how:
        raise ModelUnavailable(how["error"])
    if "crash" in how:
        os.abort()
    return ScriptedEngine(script, settings)


class ScriptedEngine:
    def __init__(self, script: dict, settings: Settings) -> None:
        self.context_length = script.get("context_length", 4096)
        self.capabilities = script.get("capabilities", CAPABILITIES)
        self._steps = script["steps"]
        self._queue: queue.Queue = queue.Queue()
        for _ in range(settings.parallel):
            threading.Thread(target=self._work, daemon=True).start()

    def count(self, prompt: Prompt) -> int:
        return sum(len(turn.content.split()) for turn in prompt.turns)

    def submit(self, prompt: Prompt, emit: Emit) -> Cancel:
        cancelled = threading.Event()
        self._queue.put((prompt, emit, cancelled))
        return cancelled.set

    def close(self) -> None:
        """The threads are daemons."""

    def _work(self) -> None:
        while True:
            prompt, emit, cancelled = self._queue.get()
            Performance(self.count(prompt), prompt, emit, cancelled).play(self._steps)


class Performance:
    def __init__(self, input_tokens: int, prompt: Prompt, emit: Emit, cancelled: threading.Event) -> None:
        self.prompt, self.emit, self.cancelled = prompt, emit, cancelled
        self.input_tokens, self.tokens = input_tokens, 0
        self.stops = Stops(prompt.options.stop or [])

    @property
    def usage(self) -> Usage:
        total = self.input_tokens + self.tokens
        return Usage(input_tokens=self.input_tokens, output_tokens=self.tokens, total_tokens=total)

    def play(self, steps: list) -> None:
        try:
            reason = self.perform(steps) or "stop"
            if rest := self.stops.rest():
                self.emit(Text(rest, self.tokens))
            reason = "cancelled" if self.cancelled.is_set() else reason
            self.emit(Finished(reason, self.usage, by_string=self.stops.met))
        except RuntimeError as error:
            self.emit(Broken(EngineFailed(str(error)).document(), self.usage))

    def perform(self, steps: list) -> str | None:
        for name, *values in steps:
            if self.cancelled.is_set():
                return "cancelled"
            if reason := getattr(self, "do_" + name)(*values):
                return reason
        return None

    def do_text(self, delta: str) -> str | None:
        self.tokens += 1
        if text := self.stops.take(delta):
            self.emit(Text(text, self.tokens))
        if self.stops.met:
            return "stop"
        return "length" if self.tokens == self.prompt.max_output_tokens else None

    def do_reasoning(self, delta: str) -> None:
        self.tokens += 1
        self.emit(ReasoningText(delta, self.tokens))

    def do_progress(self, done: int, total: int) -> None:
        self.emit(PromptProgress(done, total))

    def do_sleep(self, seconds: float) -> None:
        self.cancelled.wait(seconds)

    def do_repeat(self, times: int, delta: str, pause: float = 0) -> str | None:
        return self.perform([["text", delta], ["sleep", pause]] * times)

    def do_echo(self) -> str | None:
        return self.perform([["text", word + " "] for word in self.prompt.turns[-1].content.split()])

    def do_prompt(self) -> None:
        self.tokens += 1
        self.emit(Text(msgspec.json.encode(self.prompt).decode(), self.tokens))

    def do_finish(self, reason: str) -> str:
        return reason

    def do_early(self) -> None:
        self.emit(Finished("stop"))

    def do_broken(self, detail: str) -> None:
        raise RuntimeError(detail)

    def do_print(self, text: str) -> None:
        os.write(1, text.encode())
        sys.stdout.write(text)
        sys.stdout.flush()

    def do_crash(self) -> None:
        os.abort()
