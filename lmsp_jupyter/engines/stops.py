"""Stop strings, matched on text."""

from __future__ import annotations


class Stops:
    """Text up to the first stop string, holding back what may turn out to be the start of one.

    From `until` on, the marker of a call, nothing is matched. Engines' own matching may drop what it holds back when a
    limit ends the answer, as llama.cpp's does.
    """

    def __init__(self, stops: list[str], until: str | None = None) -> None:
        self.met = False
        self._stops = stops
        self._until = until if stops else None
        self._held = ""

    def take(self, text: str) -> str:
        """The part of the text so far that can be shown now."""
        held, self._held = self._held + text, ""
        stop = min((at for each in self._stops if (at := held.find(each)) >= 0), default=len(held))
        if self._until is not None and 0 <= held.find(self._until) <= stop:
            self._stops, self._until = [], None
            return held
        if stop < len(held):
            self.met = True
            return held[:stop]
        marks = [*self._stops, self._until] if self._until else self._stops
        keep = max((overlap(held, mark) for mark in marks), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def rest(self) -> str:
        """What is held back when the text has ended."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, mark: str) -> int:
    """The length of the longest start of `mark`, short of all of it, that `text` ends with."""
    lengths = range(min(len(text), len(mark) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)
