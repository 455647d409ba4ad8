"""The catalog (B1.2, B1.4): what is in the folder, by id, and nothing that is in it stops the listing."""

import os
import shutil

import pytest

from lmsp_jupyter import catalog as module
from lmsp_jupyter.catalog import Catalog, models_folder
from lmsp_jupyter.engines import Facts, Settings, llama_cpp
from lmsp_jupyter.errors import ModelNotFound


class Fake:
    """An engine whose models are text files: what they hold is their context length."""

    SUFFIX = ".fake"

    def __init__(self):
        self.inspected = []

    def inspect(self, path):
        self.inspected.append(path.name)
        content = path.read_text()
        if not content.isdecimal():
            raise ValueError(f"{path} holds {content!r}.")
        return Facts(context_length=int(content) or None, quantization="q4_0", capabilities=("reasoning",))


@pytest.fixture
def engine():
    return Fake()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def catalog(engine, folder):
    return Catalog({"fake": engine}, folder, Settings(context_length=4096))


@pytest.fixture
def add(folder):
    def add(name, content="1000"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    return add


def ids(catalog):
    return [model.id for model in catalog.models()]


def test_the_starter_is_described(starter, tmp_path):
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "135m.gguf").symlink_to(starter)
    (model,) = Catalog({"llama_cpp": llama_cpp}, tmp_path, Settings()).models()
    assert (model.id, model.engine, model.source, model.state) == ("smollm2:135m", "llama_cpp", "lmsp", "available")
    assert (model.context_length, model.quantization, model.size_bytes) == (8192, "q4_1", 98_362_432)
    assert model.capabilities == ["tools", "structured_output", "conversations"]
    assert model.error is None


def test_ids_are_made_of_folders_and_names_and_sorted(catalog, add):
    for name in ("zeta.fake", "qwen3/8b-q4_k_m.fake", "alpha.FAKE", "org/name/7b.fake", "qwen2.5/1.5b.fake"):
        add(name)
    assert ids(catalog) == ["alpha", "org/name:7b", "qwen2.5:1.5b", "qwen3:8b-q4_k_m", "zeta"]


def test_what_is_no_model_is_not_listed(catalog, add, folder):
    for name in ("smollm2/135m.fake.part", "readme.md", ".hidden.fake", ".cache/x.fake", "smollm2/135m.abc.part"):
        add(name)
    (folder / "folder.fake").mkdir()
    assert ids(catalog) == []


def test_a_folder_that_is_not_there_holds_nothing(catalog):
    assert catalog.models() == []


def test_links_to_models_are_models_and_links_to_folders_end_nowhere(catalog, add, folder, tmp_path):
    (tmp_path / "elsewhere").write_text("1000")
    add("one.fake")
    (folder / "two.fake").symlink_to(tmp_path / "elsewhere")
    (folder / "loop").symlink_to(folder)
    assert ids(catalog) == ["one", "two"]


@pytest.mark.parametrize(("file", "shown"), [("1000", 1000), ("8192", 4096), ("0", None)])
def test_the_context_length_is_what_one_request_gets(catalog, add, file, shown):
    """B1.2"""
    add("a.fake", file)
    assert catalog.models()[0].context_length == shown


def break_content(path):
    path.write_text("garbage")


def break_link(path):
    path.unlink()
    path.symlink_to(path.parent / "gone")


def break_circle(path):
    path.unlink()
    path.symlink_to(path)


def break_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("break_it", [break_content, break_link, break_circle, break_pipe])
def test_what_cannot_be_read_is_failed_with_a_reason_and_stops_nothing(catalog, add, folder, break_it):
    """B1.4, B2.2: no local path."""
    break_it(add("a.fake"))
    add("b.fake")
    failed, good = catalog.models()
    assert (failed.id, failed.state, good.state) == ("a", "failed", "available")
    assert failed.error["code"] == "model_unavailable"
    assert failed.error["status"] == 503
    assert "'a'" in failed.error["detail"]
    assert str(folder) not in str(failed.error)


def test_a_file_that_may_not_be_read_is_failed_until_it_may(catalog, add, engine, monkeypatch):
    add("a.fake")
    read = engine.inspect

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(engine, "inspect", denied)
    (model,) = catalog.models()
    assert (model.state, model.size_bytes) == ("failed", 4)
    assert model.error["detail"].endswith("Permission denied.")
    monkeypatch.setattr(engine, "inspect", read)
    assert catalog.models()[0].state == "available"


def test_a_gguf_that_is_none_is_failed(tmp_path):
    (tmp_path / "text.gguf").write_text("hello")
    (model,) = Catalog({"llama_cpp": llama_cpp}, tmp_path, Settings()).models()
    assert model.error["detail"] == "The file of the model 'text' cannot be read: This is not a GGUF file."


@pytest.mark.skipif(os.name == "nt", reason="names are Unicode there")
def test_a_name_that_is_not_unicode_is_listed_as_one_that_is(catalog, add, folder):
    folder.mkdir()
    try:
        (folder / os.fsdecode(b"m\xff.fake")).write_text("1000")
    except OSError:
        pytest.skip("the file system has Unicode names only")
    assert ids(catalog) == ["m\ufffd"]


def test_files_are_read_again_only_when_they_change(catalog, add, engine):
    path = add("a.fake")
    add("bad.fake", "garbage")
    catalog.models()
    catalog.models()
    assert engine.inspected == ["a.fake", "bad.fake"]
    path.write_text("77")
    assert catalog.models()[0].context_length == 77
    assert engine.inspected == ["a.fake", "bad.fake", "a.fake"]


def test_models_come_and_go_without_a_restart(catalog, add):
    path = add("a.fake")
    assert ids(catalog) == ["a"]
    add("b.fake")
    path.unlink()
    assert ids(catalog) == ["b"]


def test_a_change_to_what_was_listed_changes_no_later_listing(catalog, add):
    add("a.fake")
    catalog.models()[0].state = "loaded"
    assert catalog.models()[0].state == "available"


def test_the_engine_is_chosen_by_suffix(engine, add, folder):
    other = Fake()
    other.SUFFIX = ".other"
    add("a.fake")
    add("b.other")
    catalog = Catalog({"fake": engine, "other": other}, folder, Settings())
    assert [model.engine for model in catalog.models()] == ["fake", "other"]


def test_find(catalog, add):
    path = add("qwen3/8b.fake")
    entry = catalog.find("qwen3:8b")
    assert (entry.model.id, entry.path, entry.engine) == ("qwen3:8b", path, "fake")


def test_an_unknown_id_names_the_closest(catalog, add):
    """B1.2"""
    add("qwen3/8b.fake")
    add("smollm2/135m.fake")
    with pytest.raises(ModelNotFound, match=r"'qwen3:7b'; did you mean 'qwen3:8b'\?"):
        catalog.find("qwen3:7b")
    with pytest.raises(ModelNotFound, match=r"'xyzzy'; there is 'qwen3:8b', 'smollm2:135m'"):
        catalog.find("xyzzy")


def test_with_no_models_the_command_that_gets_one_is_named(catalog):
    with pytest.raises(ModelNotFound, match=r"jupyter lmsp pull smollm2:135m"):
        catalog.find("smollm2:135m")


def test_the_folder_is_jupyters_unless_the_environment_says_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("LMSP_MODELS", raising=False)
    monkeypatch.setattr(module, "jupyter_data_dir", lambda: str(tmp_path))
    assert models_folder() == tmp_path / "lmsp" / "models"
    monkeypatch.setenv("LMSP_MODELS", str(tmp_path / "mine"))
    assert models_folder() == tmp_path / "mine"


def test_a_truncated_copy_of_the_starter_is_failed(starter, tmp_path):
    shutil.copyfile(starter, tmp_path / "whole.gguf")
    (tmp_path / "cut.gguf").write_bytes(starter.read_bytes()[:100_000])
    cut, whole = Catalog({"llama_cpp": llama_cpp}, tmp_path, Settings()).models()
    assert (cut.state, whole.state) == ("failed", "available")
    assert "cut short" in cut.error["detail"]
