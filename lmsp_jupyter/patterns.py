"""Regular expressions as JSON Schema has them (ECMA-262, Unicode), told to the grammar's engine without ambiguity.

Engines disagree on what `\\s`, `.`, `$` or `[a&&b]` mean. Here a pattern is read by the rules of ECMA-262 and written
again with nothing but sets of characters, groups and quantifiers, for the whole of a text instead of a search in it.
What cannot be said so is refused. Matching takes time in proportion to the text, whatever the pattern.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NoReturn

MAX_SIZE = 4_096
"""Characters that a pattern stands for at most, once its repetitions are written out."""

_Ranges = list[tuple[int, int]]
"""Characters, as ranges of code points with both ends included."""

_LAST = 0x10FFFF
_ANYTHING = "(?s:.*)"
_CLASSES: dict[str, _Ranges] = {
    "d": [(0x30, 0x39)],
    "w": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
    "s": [
        *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
        *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
    ],
}
_LINE_ENDS: _Ranges = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_QUANTIFIER = re.compile(r"(?:([*+?])|\{([0-9]{1,9})(?:(,)([0-9]{1,9})?)?\})\??")
_PUNCTUATION = frozenset("^$\\.*+?()[]{}|/-")

# Control characters that JSON can write as \u00… only, which the grammar never does, and halves of pairs.
_UNSAYABLE: _Ranges = [(0, 0x07), (0x0B, 0x0B), (0x0E, 0x1F), (0x7F, 0x7F), (0xD800, 0xDFFF)]


def is_sayable(text: str) -> bool:
    """Whether the grammar can write the text in a JSON string."""
    return not any(low <= ord(char) <= high for char in text for low, high in _UNSAYABLE)


@lru_cache(256)
def whole(pattern: str) -> str:
    """The pattern of whole texts that takes those in which `pattern` is found. Raises `ValueError` with what is not
    supported."""
    reader = _Reader(pattern)
    try:
        text, size = reader.alternatives(outermost=True)
    except RecursionError:
        reader.refuse("its groups are nested too deeply")
    if not reader.at_end:
        reader.refuse("there is a ) without its (")
    if size > MAX_SIZE:
        reader.refuse(f"its repetitions written out make {size} characters; at most {MAX_SIZE} are supported")
    return text


def matches(pattern: str, text: str) -> bool:
    """Whether `pattern`, one that `whole` can read, is found in the text. A text that is not sayable never matches."""
    if not is_sayable(text):
        return False
    data = list(text.encode())
    matcher = _matcher(pattern).deep_copy()
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


@lru_cache(64)
def _matcher(pattern: str) -> Any:
    from llguidance import LLMatcher

    return LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_regex(whole(pattern)), log_level=0)


@lru_cache(1)
def byte_tokenizer() -> Any:
    """A tokenizer of llguidance's in which each byte is a token, and 256 the end."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257)


class _Bytes:
    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


class _Reader:
    """Reads a pattern forward. Each part comes with its size: the characters that it stands for at most."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._pattern)

    def refuse(self, reason: str) -> NoReturn:
        raise ValueError(f"The pattern is not supported: {reason}.")

    def alternatives(self, *, outermost: bool = False) -> tuple[str, int]:
        texts, size = [], 0
        while True:
            text, part = self._whole_sequence() if outermost else self._sequence()
            texts.append(text)
            size += part
            if not self._take("|"):
                return f"(?:{'|'.join(texts)})", size

    def _whole_sequence(self) -> tuple[str, int]:
        """An alternative of the whole pattern, the only place of anchors."""
        start = "" if self._take("^") else _ANYTHING
        text, size = self._sequence()
        end = "" if self._take("$") else _ANYTHING
        return start + text + end, size

    def _sequence(self) -> tuple[str, int]:
        texts, size = [], 0
        while not self.at_end and self._next not in "|)$":
            text, part = self._repeated(*self._atom())
            texts.append(text)
            size += part
        if not self.at_end and self._next == "$" and self._pattern[self._at + 1 : self._at + 2] not in ("", "|"):
            self.refuse("$ stands inside it")
        return "".join(texts), size

    def _atom(self) -> tuple[str, int]:
        char = self._pop()
        if char == "(":
            return self._group()
        if char == "[":
            return self._set(self._class()), 1
        if char == ".":
            return self._set(_except(_LINE_ENDS)), 1
        if char == "\\":
            return self._set(self._escape()), 1
        if char in "^*+?{}]":
            self.refuse("^ stands inside it" if char == "^" else f"a {char} stands for itself; write \\{char}")
        return self._set([(ord(char), ord(char))]), 1

    def _group(self) -> tuple[str, int]:
        if self._take("?") and not self._take(":"):
            name = re.compile(r"<[A-Za-z_$][\w$]*>").match(self._pattern, self._at)
            if name is None:
                self.refuse("lookaround and flags are not supported")
            self._at = name.end()
        text, size = self.alternatives()
        if not self._take(")"):
            self.refuse("there is a ( without its )" if self.at_end else "$ stands inside it")
        return text, size

    def _repeated(self, text: str, size: int) -> tuple[str, int]:
        quantifier = _QUANTIFIER.match(self._pattern, self._at)
        if quantifier is None:
            return text, size
        self._at = quantifier.end()
        sign, low, comma, high = quantifier.groups()
        if sign:
            return f"{text}{sign}", size
        most = int(high or low)
        if most < int(low):
            self.refuse(f"{{{low},{high}}} is no range")
        return f"{text}{{{low}{comma or ''}{high or ''}}}", size * max(most, 1)

    def _class(self) -> _Ranges:
        negated = self._take("^")
        ranges: _Ranges = []
        while not self._take("]"):
            part = self._class_atom()
            if self._take("-"):
                if self._take("]"):
                    ranges += [*part, (ord("-"), ord("-"))]
                    break
                end = self._class_atom()
                if not (_is_one(part) and _is_one(end) and part[0][0] <= end[0][0]):
                    self.refuse("a range in [] has no start or end, or ends before it starts")
                part = [(part[0][0], end[0][0])]
            ranges += part
        return _except(ranges) if negated else ranges

    def _class_atom(self) -> _Ranges:
        char = self._pop()
        return self._escape() if char == "\\" else [(ord(char), ord(char))]

    def _escape(self) -> _Ranges:
        if code := _HEX.match(self._pattern, self._at):
            self._at = code.end()
            point = int(code[code.lastindex or 0], 16)
            return [(point, point)]
        char = self._pop()
        if char.lower() in _CLASSES:
            named = _CLASSES[char.lower()]
            return named if char.islower() else _except(named)
        if char in _CONTROLS:
            return [(_CONTROLS[char], _CONTROLS[char])]
        if char not in _PUNCTUATION:
            self.refuse(f"\\{char} is not supported")
        return [(ord(char), ord(char))]

    def _set(self, ranges: _Ranges) -> str:
        sayable = _except([*_except(ranges), *_UNSAYABLE])
        if not sayable:
            self.refuse("a part of it matches no character, or control characters only")
        if len(sayable) == 1 and _is_one(sayable):
            return _written(sayable[0][0])
        return "[" + "".join(f"{_written(low)}-{_written(high)}" for low, high in sayable) + "]"

    @property
    def _next(self) -> str:
        return self._pattern[self._at]

    def _pop(self) -> str:
        if self.at_end:
            self.refuse("it ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _take(self, char: str) -> bool:
        """Go on behind `char` if it is next."""
        found = self._pattern.startswith(char, self._at)
        self._at += found
        return found


def _except(ranges: _Ranges) -> _Ranges:
    """All characters but these."""
    rest, start = [], 0
    for low, high in sorted(ranges):
        if start < low:
            rest.append((start, low - 1))
        start = max(start, high + 1)
    return [*rest, (start, _LAST)] if start <= _LAST else rest


def _is_one(ranges: _Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _written(point: int) -> str:
    return chr(point) if chr(point).isascii() and chr(point).isalnum() else f"\\x{{{point:X}}}"
