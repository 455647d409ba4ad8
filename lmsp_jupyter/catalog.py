"""The models on this machine: found where they are, with their ids and what their files tell (B1.2, B1.4).

The folder of the project's own is `NAME/TAG.gguf` for the model `NAME:TAG`. Nothing is loaded here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jupyter_core.paths import jupyter_data_dir

from .engines import EngineModule, Facts, Settings
from .errors import Document, ModelNotFound, ModelUnavailable
from .protocol import MAX_NAME, Model, closest

SOURCE = "lmsp"


def models_folder() -> Path:
    """Where the project keeps its models: `LMSP_MODELS`, else `lmsp/models` in Jupyter's data folder."""
    folder = Path(os.environ.get("LMSP_MODELS") or Path(jupyter_data_dir(), "lmsp", "models"))
    return folder.expanduser().absolute()


@dataclass(frozen=True)
class Entry:
    """A model and where it is; `engine` is the name of the engine that runs it."""

    model: Model
    path: Path
    engine: str


# What one version of a file is known by: its path, size in bytes, and time of change in nanoseconds.
_Key = tuple[Path, int, int]


class Catalog:
    """The models in a folder, looked for anew each time; a file is read again when it has changed.

    `engines` by name. May be asked from several threads.
    """

    def __init__(self, engines: Mapping[str, EngineModule], folder: Path, settings: Settings) -> None:
        self._engines = engines
        self._folder = folder
        self._settings = settings
        self._known: dict[_Key, Facts | str] = {}

    def models(self) -> list[Model]:
        """All models, by id; one that cannot be read is `failed` and tells why in `error`."""
        return [entry.model for entry in self._entries()]

    def find(self, model_id: str) -> Entry:
        """The model of that id. Raises `ModelNotFound`, which names the closest ids."""
        entries = {entry.model.id: entry for entry in self._entries()}
        if model_id in entries:
            return entries[model_id]
        if not entries:
            raise ModelNotFound("There are no models yet. Get one with: jupyter lmsp pull smollm2:135m")
        matches = closest(model_id, entries)
        shown = model_id if len(model_id) <= MAX_NAME else f"{model_id[:MAX_NAME]}…"
        if matches:
            raise ModelNotFound(f"There is no model {shown!r}; did you mean {' or '.join(map(repr, matches))}?")
        raise ModelNotFound(f"There is no model {shown!r}; there is {', '.join(map(repr, entries))}.")

    def _entries(self) -> list[Entry]:
        known: dict[_Key, Facts | str] = {}
        entries: dict[str, Entry] = {}
        for path in _files(self._folder):
            engine = self._engine_of(path)
            model_id = _id(path.relative_to(self._folder))
            if engine is not None and model_id not in entries:
                entries[model_id] = self._entry(model_id, path, engine, known)
        self._known = known
        return [entries[model_id] for model_id in sorted(entries)]

    def _engine_of(self, path: Path) -> str | None:
        suffix = path.suffix.lower()
        return next((name for name, engine in self._engines.items() if suffix == engine.SUFFIX), None)

    def _entry(self, model_id: str, path: Path, engine: str, known: dict[_Key, Facts | str]) -> Entry:
        size, created = None, 0
        try:
            status = path.stat()
            size, created = status.st_size, int(status.st_mtime)
            # Opening a pipe would wait for its other end.
            found = self._inspect(path, engine, status, known) if stat.S_ISREG(status.st_mode) else "It is not a file."
        except OSError as error:
            found = f"{error.strerror}."
        facts = Facts(None, None) if isinstance(found, str) else found
        model = Model(
            id=model_id,
            engine=engine,
            capabilities=[] if isinstance(found, str) else [*facts.capabilities, "conversations"],
            context_length=facts.context_length and min(facts.context_length, self._settings.context_length),
            size_bytes=size,
            quantization=facts.quantization,
            source=SOURCE,
            created=created,
            state="failed" if isinstance(found, str) else "available",
            error=_unreadable(model_id, found) if isinstance(found, str) else None,
        )
        return Entry(model, path, engine)

    def _inspect(self, path: Path, engine: str, status: os.stat_result, known: dict[_Key, Facts | str]) -> Facts | str:
        """The facts of a file, or what is wrong with it. Raises `OSError`, which is not kept: it may pass."""
        key = (path, status.st_size, status.st_mtime_ns)
        found = self._known.get(key)
        if found is None:
            try:
                found = self._engines[engine].inspect(path)
            except ValueError as error:
                found = str(error).replace(str(path), "the file")
        known[key] = found
        return found


def _files(folder: Path) -> Iterator[Path]:
    """Everything in the folder that is no folder, hidden ones left out, in order; links to folders not followed."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))


def _id(path: Path) -> str:
    """`NAME:TAG` of `NAME/TAG.gguf`; the stem of a file at the top. Always valid Unicode, which a name need not be."""
    parents = path.parent.parts
    model_id = f"{'/'.join(parents)}:{path.stem}" if parents else path.stem
    return os.fsencode(model_id).decode("utf-8", errors="replace")


def _unreadable(model_id: str, reason: str) -> Document:
    return ModelUnavailable(f"The file of the model {model_id!r} cannot be read: {reason}").document()
