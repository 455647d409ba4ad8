"""Tables, and Markdown that stays within its bounds: text of others, and answers that were cut off."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; cells are shown as they are."""
    lines = [[escape(cell) for cell in row] for row in (head, *rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same where Markdown is not shown: columns, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in (head, *rows))
    return "\n".join(line.rstrip() for line in lines)


def escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join(f"\\{character}" if character in "\\`*_[]<>|~" else character for character in text)


def close_blocks(markdown: str) -> str:
    """Markdown that ends outside of code fences and raw HTML: what follows is its own paragraph.

    Fences are followed through lists and quotes, since a fence there ends with its container, and
    another fence would then open a block rather than close one.
    """
    blocks = _Blocks()
    for line in markdown.split("\n"):
        blocks.take(line)
    return markdown + (f"\n{blocks.closing}" if blocks.closing else "")


_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?: {1,4}(?! )|$)")
_QUOTE = re.compile(r"(?: {0,3}> ?)+")
_FENCE = re.compile(r"(?P<indent> {0,3})(?P<fence>`{3,}(?=[^`]*$)|~{3,})")
_HTML = re.compile(r" {0,3}<(?:(!--)|(\?)|(!\[CDATA\[)|(script|pre|style|textarea)(?=[\s>]|$))", re.IGNORECASE)


@dataclass
class _Blocks:
    """The open block at a line of CommonMark: `closing` closes it, and is "" outside of one."""

    closing: str = ""
    _end: re.Pattern[str] = field(default_factory=lambda: re.compile(""))
    _lists: list[int] = field(default_factory=list)
    _quoted: bool = False

    def take(self, line: str) -> None:
        """Take the next line."""
        line = line.expandtabs(4)
        quote = _QUOTE.match(line)
        if bool(quote) != self._quoted and (self._quoted or not self.closing):
            self._quoted, self._lists, self.closing = bool(quote), [], ""
        prefix = quote[0] if quote and self._quoted else ""
        line = line[len(prefix) :]
        indent = len(line) - len(line.lstrip(" "))
        while line.strip() and self._lists and indent < self._lists[-1]:
            self._lists.pop()
            self.closing = ""
        if self.closing:
            self._take_inside(line)
        else:
            self._take_outside(line, prefix)

    def _take_inside(self, line: str) -> None:
        if self._end.search(line):
            self.closing = ""

    def _take_outside(self, line: str, prefix: str) -> None:
        start = self._lists[-1] if self._lists else 0
        while item := _ITEM.match(line, start):
            start = item.end()
            self._lists.append(start)
        lead = prefix + " " * start
        if fence := _FENCE.match(line[start:]):
            self.closing = lead + fence["indent"] + fence["fence"]
            mark = re.escape(fence["fence"][0])
            self._end = re.compile(rf"^ *{mark}{{{len(fence['fence'])},}} *$")
        elif html := _HTML.match(line[start:]):
            end = ("-->", "?>", "]]>", f"</{html[4]}>")[(html.lastindex or 0) - 1]
            self._end = re.compile(re.escape(end), re.IGNORECASE)
            self.closing = "" if self._end.search(line, start + html.end()) else lead + end
