"""JSON read strictly, and refused with a pointer to what is wrong. What the members mean is left to `protocol`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NoReturn

from .errors import BadRequest, PayloadTooLarge

MAX_BODY_BYTES = 8 * 2**20
MAX_DEPTH = 128


def read_json(body: bytes, max_bytes: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """The JSON object in `body`, read as strictly as B2.6 asks. Raises `BadRequest`, `PayloadTooLarge`."""
    if len(body) > max_bytes:
        raise PayloadTooLarge(f"The body has {len(body)} bytes; at most {max_bytes} are read.")
    try:
        data = json.loads(body.decode("utf-8"), object_pairs_hook=_unique_object, parse_int=_integer)
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8: byte {error.start} is invalid.") from None
    except json.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.") from None
    except RecursionError:
        raise BadRequest(f"The body is nested deeper than {MAX_DEPTH} levels.") from None
    if not isinstance(data, dict):
        raise BadRequest("The body must be a JSON object.")
    _check_values(data)
    return data


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise BadRequest(f"The body repeats the member {name!r}; say it once.")
            seen.add(name)
    return result


def _integer(literal: str) -> int | float:
    """Python refuses to read integers of thousands of digits; they are no doubles in any case."""
    return int(literal) if len(literal) <= 400 else math.inf


_Place = tuple[Any, ...]
"""Where a value stands: its parent's place and its name or index; () is the document. It becomes a pointer only when
it is asked for, since a pointer for each value would take memory as the square of the body."""


def _check_values(data: dict[str, Any]) -> None:
    """Walk the document without recursion: depth is bounded, strings encode, numbers are doubles (B0.3, B2.6)."""
    pending: list[tuple[_Place, int, dict[str, Any] | list[Any]]] = [((), 1, data)]
    while pending:
        place, depth, container = pending.pop()
        if depth > MAX_DEPTH:
            raise BadRequest(f"The body is nested deeper than {MAX_DEPTH} levels.")
        if isinstance(container, dict):
            for name in container:
                _check_surrogates(place, name)
        for key, value in container.items() if isinstance(container, dict) else enumerate(container):
            if isinstance(value, str):
                _check_surrogates((place, key), value)
            elif isinstance(value, int | float):
                _check_finite((place, key), value)
            elif value is not None:
                pending.append(((place, key), depth + 1, value))


def _pointer(place: _Place) -> str:
    names: list[str] = []
    while place:
        place, name = place
        names.append(escape(str(name)))
    return "".join(f"/{name}" for name in reversed(names))


def _check_finite(place: _Place, value: float) -> None:
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        refuse(_pointer(place), "This is not a finite number that fits a double.")


def _check_surrogates(place: _Place, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        refuse(_pointer(place), f"Character {error.start} is half of a surrogate pair; send whole characters.")


def escape(name: str) -> str:
    """A member's name as a part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def point(problem: BadRequest, move: Callable[[str], str]) -> None:
    """Let a refusal point into a larger body, or one of another shape: `move` tells where each pointer is there."""
    for pointer, _ in problem.errors[:1]:
        if pointer and problem.detail.startswith(f"{pointer}: "):
            problem.detail = move(pointer) + problem.detail[len(pointer) :]
    problem.errors = [(move(pointer), detail) for pointer, detail in problem.errors]


def refuse(pointer: str, detail: str, kind: type[BadRequest] = BadRequest) -> NoReturn:
    """Raise `kind` with what is wrong at `pointer`."""
    raise kind(f"{pointer}: {detail}" if pointer else detail, errors=[(pointer, detail)])
