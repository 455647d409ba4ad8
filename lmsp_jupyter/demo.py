"""`jupyter lmsp demo`: the quick-start notebook, really executed, shown in the terminal as it happens (N6.1)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import nbformat
from jupyter_core.paths import jupyter_path
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from .catalog import Catalog, models_folder
from .client import Client
from .engines import Settings, installed
from .errors import Problem
from .pull import STARTER, pull


class DemoFailed(Problem):
    """The notebook did not run to its end."""

    code = "demo_failed"
    title = "The demo failed"


def run(output: Path | None = None) -> None:
    """Execute the notebook and keep it at `output`, by default `quickstart.ipynb` here or the next free name."""
    folder = models_folder()
    if not any(model.state != "failed" for model in Catalog(installed(), folder, Settings()).models()):
        print(f"No model yet: fetching the starter model {STARTER}.", flush=True)
        pull(STARTER, folder)
    notebook = nbformat.read(_source(), as_version=4)
    output = output or free_name(Path("quickstart.ipynb"))
    with Client() as client:
        print(f"Service: {client.base_url}, model: {client.service().default_model}", flush=True)
    try:
        # A kernel's warnings are about its transport, not about the demo.
        quiet = ["--Application.log_level=ERROR"]
        Demo(notebook, kernel_name="python3", timeout=None, extra_arguments=quiet).execute()
    except CellExecutionError as error:
        raise DemoFailed(f"{error.ename}: {error.evalue}") from None
    finally:
        nbformat.write(notebook, output)
    print(f"\nThe executed notebook is {output}. Open it with: {_how_to_open(output)}")


class Demo(NotebookClient):
    """A notebook client that shows cells and their outputs as they come."""

    def __init__(self, notebook: NotebookNode, **options: Any) -> None:
        super().__init__(notebook, on_cell_start=self._show_source, coalesce_streams=True, **options)
        self._number = 0
        self._at_line_start = True
        self._shown = ""
        self._cleared = False

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> NotebookNode | None:
        self._show_output(msg["msg_type"], msg["content"])
        return super().process_message(msg, cell, cell_index)

    def _show_source(self, cell: NotebookNode, cell_index: int) -> None:
        self._shown = ""
        self._cleared = False
        gap = "\n" if self._at_line_start else "\n\n"
        if cell.cell_type == "markdown":
            self._write(f"{gap}{cell.source}\n")
        else:
            self._number += 1
            source = "".join(f"    {line}\n" for line in cell.source.splitlines())
            self._write(f"{gap}In [{self._number}]:\n{source}")

    def _show_output(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "clear_output":
            self._cleared = True  # it waits for the output that takes the place of what is shown
        elif kind == "stream":
            if self._cleared:
                self._clear()
            self._shown += content["text"]
            self._write(content["text"])
        elif kind in ("display_data", "execute_result"):
            text = content["data"].get("text/plain", "")
            shown = self._shown if text.startswith(self._shown) else self._shown.rstrip()
            self._write((text[len(shown) :] if text.startswith(shown) else f"\n{text}") + "\n")
            self._shown = ""
            self._cleared = False

    def _clear(self) -> None:
        """Take back what is shown, where that can be done."""
        if sys.stdout.isatty():
            lines = self._shown.count("\n")
            self._write(f"\033[{lines}F\033[J" if lines else "\r\033[K")
        self._shown = ""
        self._cleared = False

    def _write(self, text: str) -> None:
        print(text, end="", flush=True)
        self._at_line_start = text.endswith("\n") if text else self._at_line_start


def _source() -> Path:
    for folder in jupyter_path("lmsp_jupyter", "notebooks"):
        path = Path(folder, "quickstart.ipynb")
        if path.exists():
            return path
    raise DemoFailed("The notebook is missing from this installation; install the package again.")


def free_name(path: Path) -> Path:
    """`path`, or the first of its kind with a number that does not exist."""
    candidates = (path.with_stem(f"{path.stem}-{number}") for number in range(2, sys.maxsize))
    return path if not path.exists() else next(each for each in candidates if not each.exists())


def _how_to_open(path: Path) -> str:
    return f"{'' if importlib.util.find_spec('jupyterlab') else 'pip install jupyterlab && '}jupyter lab {path}"
