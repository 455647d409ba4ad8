"""`jupyter lmsp` as a person runs it (N6.1), with the real starter model."""

import json
import subprocess
import sys

import nbformat
import pytest

from lmsp_jupyter import demo
from lmsp_jupyter.display import MIME

pytestmark = pytest.mark.ours


@pytest.fixture
def lmsp(machine, tmp_path):
    """Run a command in an empty folder: `lmsp("ask", "Hello")`."""

    def lmsp(*arguments, **more):
        command = [sys.executable, "-m", "lmsp_jupyter.cli", *arguments]
        options = {"env": machine, "cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
        return subprocess.run(command, check=False, **options | more)

    return lmsp


def test_models_are_listed(lmsp):
    done = lmsp("models")

    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split() == ["MODEL", "STATE", "SIZE", "CONTEXT", "ENGINE"]
    assert done.stdout.splitlines()[1].startswith("smollm2:135m")


def test_an_answer_goes_to_stdout(lmsp):
    done = lmsp("ask", "-t", "0", "-n", "30", "Name", "three", "fruits.")

    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) >= 3


def test_a_prompt_from_stdin_and_a_cut_answer(lmsp):
    done = lmsp("ask", "-n", "2", "-", input="Tell me a story.")

    assert done.returncode == 0
    assert "max_output_tokens" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ask", "-m", "smollm2:135", "Hello"), "smollm2:135m"),
        (("ask", "-t", "9", "Hello"), "/temperature"),
        (("ask", " "), "no prompt"),
        (("pull", "smollm2:136m"), "smollm2:135m"),
    ],
)
def test_a_failure_says_what_to_do_and_exits_1(lmsp, arguments, said):
    done = lmsp(*arguments)

    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [(), ("models", "--fast"), ("serve", "--idle-timeout", "soon")])
def test_a_wrong_command_line_exits_2(lmsp, arguments):
    assert lmsp(*arguments).returncode == 2


def test_what_is_pulled_already_is_left_alone(lmsp):
    done = lmsp("pull", "smollm2:135m")

    assert done.returncode == 0
    assert "here already" in done.stderr


def test_a_reader_that_has_seen_enough_ends_it_quietly(machine):
    command = f"{sys.executable} -m lmsp_jupyter.cli ask -n 400 Tell me a long story. | head -c 1"
    done = subprocess.run(command, shell=True, env=machine, capture_output=True, text=True, check=False)

    assert len(done.stdout) == 1
    assert done.stderr == ""


def test_a_folder_that_cannot_be_written_is_named(lmsp, machine, tmp_path):
    (tmp_path / "file").write_text("")
    done = lmsp("pull", "smollm2:135m", env=machine | {"LMSP_MODELS": str(tmp_path / "file" / "models")})

    assert done.returncode == 1
    assert str(tmp_path / "file") in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_keeps_the_executed_notebook(lmsp, tmp_path):
    done = lmsp("demo")

    assert done.returncode == 0, done.stderr
    assert "jupyter lab quickstart.ipynb" in done.stdout
    assert "Nothing leaves it." in done.stdout
    assert "In [1]:\n    %load_ext lmsp_jupyter" in done.stdout
    notebook = nbformat.read(tmp_path / "quickstart.ipynb", as_version=4)
    answers = [
        output.data[MIME]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if MIME in output.get("data", {})
    ]
    assert len(answers) >= 3
    assert all(len(cell.outputs) <= 1 for cell in notebook.cells if cell.cell_type == "code")
    for answer in answers:
        assert answer["output"][0]["content"][0]["text"] in done.stdout
    assert json.dumps(answers).count('"id"') == 0


def test_the_demo_overwrites_nothing(tmp_path):
    path = tmp_path / "quickstart.ipynb"
    assert demo.free_name(path) == path
    path.write_text("mine")
    (tmp_path / "quickstart-2.ipynb").write_text("mine too")

    assert demo.free_name(path) == tmp_path / "quickstart-3.ipynb"
