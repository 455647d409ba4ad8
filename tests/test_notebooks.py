"""The notebooks, and cells in a real kernel, answered by the real starter model."""

import queue
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbconvert import MarkdownExporter

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"

pytestmark = pytest.mark.ours


def run(machine, *command, **more):
    command = [sys.executable, "-m", *command]
    return subprocess.run(command, env=machine, capture_output=True, text=True, check=False, **more)


@pytest.mark.parametrize("name", [path.name for path in sorted(NOTEBOOKS.glob("*.ipynb"))])
def test_a_notebook_runs(machine, name):
    done = run(machine, "pytest", "--nbval-lax", "-q", "-W", "default", "-p", "no:cacheprovider", str(NOTEBOOKS / name))

    assert done.returncode == 0, done.stdout


def execute(machine, folder, *cells):
    """Run cells without a person; the process and the notebook that it kept."""
    path = folder / "cells.ipynb"
    cells = [nbformat.v4.new_code_cell(cell) for cell in ("%load_ext lmsp_jupyter", *cells)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    done = run(machine, "jupyter", "execute", "--inplace", str(path))
    return done, nbformat.read(path, as_version=4)


def test_n1_5_the_saved_notebook_shows_the_answer_in_a_plain_export(machine, tmp_path):
    done, notebook = execute(machine, tmp_path, "%%lmsp -t 0 -n 30 -o answer\nName three fruits.", "print(answer.text)")

    assert done.returncode == 0, done.stderr
    (output,) = notebook.cells[1].outputs
    text = notebook.cells[2].outputs[0].text.strip()
    markdown, _ = MarkdownExporter().from_notebook_node(notebook)
    assert output.data["text/markdown"].startswith(text)
    assert text in markdown
    assert "tokens in" in markdown


def test_n1_3_braces_survive(machine, tmp_path):
    _, notebook = execute(machine, tmp_path, "x = 7", "%%lmsp --dry-run\nThe dict {'a': 1} and {x}.")

    (output,) = notebook.cells[2].outputs
    assert "The dict {'a': 1} and 7." in output.text
    assert "tokens" in output.text


def test_n1_13_a_failure_ends_a_headless_run(machine, tmp_path):
    done, _ = execute(machine, tmp_path, "%%lmsp -m nobody\nHello")

    assert done.returncode != 0
    assert "nobody" in done.stderr


@pytest.fixture(scope="module")
def kernel(machine):
    """A kernel with the magics, and a model that is loaded."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=machine, extra_arguments=["--Application.log_level=ERROR"])
    kernel = Kernel(manager)
    try:
        kernel.run("%load_ext lmsp_jupyter")
        kernel.run("%lmsp ask -n 5 Hello")
        yield kernel
    finally:
        kernel.client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.context.destroy()


class Kernel:
    def __init__(self, manager):
        self.manager = manager
        self.client = manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code, each=lambda kind, content: None):
        """Run a cell; `each` sees the outputs as they come. The outputs, and the reply."""
        outputs = []
        id = self.client.execute(code)
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return outputs, self._reply(id)
            outputs.append((kind, content))
            each(kind, content)

    def value(self, expression):
        outputs, _ = self.run(f"print({expression})")
        return "".join(content["text"] for kind, content in outputs if kind == "stream").strip()

    def _reply(self, id):
        while True:
            try:
                reply = self.client.get_shell_msg(timeout=60)
            except queue.Empty:
                raise AssertionError("The kernel did not reply.") from None
            if reply["parent_header"]["msg_id"] == id:
                return reply["content"]

    def interrupt_at(self, text):
        """A reader of outputs that presses ■ when it sees a text."""
        pressed = []

        def each(kind, content):
            if kind == "stream" and text in content["text"] and not pressed:
                pressed.append(True)
                self.manager.interrupt_kernel()

        return each


def test_n1_5_text_appears_while_it_is_generated(kernel):
    outputs, _ = kernel.run("%%lmsp -t 0 -n 60\nTell me a long story about the sea.")

    text = [content["text"] for kind, content in outputs if kind == "stream" and "Reading" not in content["text"]]
    assert len(text) >= 3
    assert outputs[-1][0] == "display_data"
    assert outputs[-1][1]["data"]["text/plain"].startswith("".join(text).strip())


def test_n1_7_an_interrupt_stops_the_answer_and_keeps_what_is_there(kernel):
    outputs, reply = kernel.run("%%lmsp -n 2000\nTell me a long story about the sea.", kernel.interrupt_at(" "))

    assert reply["ename"] == "KeyboardInterrupt"
    (shown,) = [content["data"]["text/plain"] for kind, content in outputs if kind == "display_data"]
    assert "cancelled" in shown
    assert kernel.value("_lmsp.status") == "cancelled"


def test_n1_7_an_interrupt_while_a_prompt_is_processed(kernel):
    kernel.run("long = 'word ' * 6000")
    _, reply = kernel.run("%%lmsp\n{long}", kernel.interrupt_at("of 6"))

    assert reply["ename"] == "KeyboardInterrupt"
    assert kernel.value("1 + 1") == "2"
    # The engine has one prompt in work at a time: this one is answered only when the other was given up.
    _, reply = kernel.run("%%lmsp -t 0 -n 20\nName three fruits.")
    assert reply["status"] == "ok"
