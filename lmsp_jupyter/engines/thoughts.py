"""The reasoning with which a model begins its answer: `<think>` … `</think>`, told from the answer itself."""

from __future__ import annotations

from typing import Literal

from .stops import overlap

THINK, THINK_END = "<think>", "</think>"

Thinking = Literal["no", "may", "open"]
"""Whether an answer begins with reasoning: it may, or the prompt has opened it already."""


def thinking_after(prompt: str) -> Thinking:
    """How the answer to a rendered prompt begins, where the template knows `<think>`."""
    prompt = prompt.rstrip()
    if prompt.endswith(THINK_END):
        return "no"
    return "open" if prompt.endswith(THINK) else "may"


class Thoughts:
    """Divides the text of an answer as it comes into reasoning and the rest, without the marks between them."""

    def __init__(self, thinking: Thinking) -> None:
        self._state = thinking
        self._held = ""
        self._starts = thinking == "open"

    def take(self, text: str) -> tuple[str, str]:
        """The reasoning and the text of the answer that can be told now."""
        self._held += text
        reasoning = ""
        if self._state == "may":
            start = self._held.lstrip()
            if start.startswith(THINK):
                self._held = start.removeprefix(THINK)
                self._state, self._starts = "open", True
            elif not THINK.startswith(start):
                self._state = "no"
            else:
                return "", ""
        if self._state == "open":
            thought, end, answer = self._held.partition(THINK_END)
            keep = 0 if end else overlap(thought, THINK_END)
            self._held = answer if end else thought[len(thought) - keep :]
            reasoning = self._without_start(thought[: len(thought) - keep])
            if not end:
                return reasoning, ""
            self._state, self._starts = "no", True
        answer, self._held = self._held, ""
        return reasoning, self._without_start(answer)

    def rest(self) -> tuple[str, str]:
        """What is held back when the answer has ended."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "open" else ("", held)

    def _without_start(self, text: str) -> str:
        """The text without the newlines that follow a mark."""
        if self._starts:
            text = text.lstrip("\n")
            self._starts = not text
        return text
