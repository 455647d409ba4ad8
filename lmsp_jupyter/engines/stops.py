"""Stop strings, matched on text."""

from __future__ import annotations


class Stops:
    """Text up to the first stop string, holding back what may turn out to be the start of one.

    Engines' own matching may drop what it holds back when a limit ends the answer, as llama.cpp's does.
    """

    def __init__(self, stops: list[str]) -> None:
        self.met = False
        self._stops = stops
        self._held = ""

    def take(self, text: str) -> str:
        """The part of the text so far that can be shown now."""
        held = self._held + text
        found = [at for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self.met, self._held = True, ""
            return held[: min(found)]
        keep = max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def rest(self) -> str:
        """What is held back when the text has ended."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest start of `stop`, short of all of it, that `text` ends with."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
