"""Values of the notebook inside a prompt (N1.3): `{name}`, `{name.attr}`, `{name[0]}` and so on.

A reference is walked, never evaluated, and what it stands for is never scanned again. Whatever does
not resolve stays as it was typed. What the namespace holds (`In`, `Out`, `Err`) its maker knows.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_ROWS = 20
MAX_COLUMNS = 20
MAX_CELL = 60

_STEP = r"""\.[^\W\d]\w*|\[-?\d+\]|\['[^'\\\n]*'\]|\["[^"\\\n]*"\]"""
_REFERENCE = re.compile(rf"\{{(?P<name>[^\W\d]\w*)(?P<steps>(?:{_STEP})*)\}}")
_STEPS = re.compile(_STEP)


@dataclass(frozen=True)
class Interpolation:
    """A finished prompt, and its references as they were typed, without braces, each once."""

    text: str
    resolved: list[str]
    unresolved: list[str]


def interpolate(text: str, namespace: Mapping[str, Any]) -> Interpolation:
    """Replace in one pass the references in `text` that resolve in `namespace`."""
    resolved: dict[str, None] = {}
    unresolved: dict[str, None] = {}

    def replace(match: re.Match[str]) -> str:
        reference = match[0][1:-1]
        try:
            value = render(_walk(match["name"], match["steps"], namespace))
        except Exception:  # attribute access and str() run code of the user's objects: anything may come
            unresolved[reference] = None
            return match[0]
        resolved[reference] = None
        return value

    return Interpolation(_REFERENCE.sub(replace, text), list(resolved), list(unresolved))


def _walk(name: str, steps: str, namespace: Mapping[str, Any]) -> Any:
    value = namespace[_identifier(name)]
    for step in _STEPS.findall(steps):
        inside = step[1:-1]
        if step.startswith("."):
            value = getattr(value, _identifier(step[1:]))
        elif inside[0] in "'\"":
            value = value[inside[1:-1]]
        else:
            value = value[int(inside)]
    return value


def _identifier(name: str) -> str:
    """Python compares identifiers in NFKC."""
    return unicodedata.normalize("NFKC", name)


def render(value: Any) -> str:
    """A value as a prompt shows it: text as it is, tables compactly, all else by `str`."""
    if isinstance(value, str):
        return str(value)
    for kind in type(value).__mro__:
        if kind.__module__.partition(".")[0] == "pandas":
            if kind.__name__ == "DataFrame":
                return _frame(value)
            if kind.__name__ == "Series":
                return _series(value)
    return str(value)


def _frame(frame: Any) -> str:
    rows, columns = frame.shape
    shown = frame.iloc[:MAX_ROWS, :MAX_COLUMNS]
    names = [_cell(name) for name in shown.columns]
    dtypes = ", ".join(f"{name}: {dtype}" for name, dtype in zip(names, shown.dtypes, strict=True))
    cut = [
        f"{number - limit} more {what}"
        for number, limit, what in ((rows, MAX_ROWS, "rows"), (columns, MAX_COLUMNS, "columns"))
        if number > limit
    ]
    head = f"DataFrame, {rows} rows, {columns} columns (dtypes: {dtypes})"
    return _table(head, ["", *names], shown.itertuples(index=True, name=None), cut)


def _series(series: Any) -> str:
    (rows,) = series.shape
    shown = series.iloc[:MAX_ROWS]
    name = "" if series.name is None else _cell(series.name)
    head = f"Series, {rows} values (dtype: {series.dtype})"
    cut = [f"{rows - MAX_ROWS} more values"] if rows > MAX_ROWS else []
    return _table(head, ["", name], shown.items(), cut)


def _table(head: str, names: list[str], rows: Any, cut: list[str]) -> str:
    """CSV: compact, and read without guessing. What was left out is said at its end."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(value) for value in row] for row in rows)
    tail = f"… {' and '.join(cut)} not shown" if cut else ""
    return f"{head}\n{out.getvalue()}{tail}".rstrip("\n")


def _cell(value: Any) -> str:
    text = format(value, ".6g") if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}… ({len(text)} characters)"
