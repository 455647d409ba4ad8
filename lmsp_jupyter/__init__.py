"""Local language models as a part of Jupyter.

Importing this package is cheap: Jupyter's and IPython's hooks import what they need inside themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .client import Client
from .errors import Problem

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__version__ = "0.1.0"

__all__ = ["Client", "Problem", "__version__"]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    from .app import LMSPApp

    return [{"module": "lmsp_jupyter.app", "app": LMSPApp}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "lmsp-jupyter"}]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """`%load_ext lmsp_jupyter`: the magics `%lmsp` and `%%lmsp`."""
    from .magics import load_ipython_extension

    load_ipython_extension(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """`%unload_ext lmsp_jupyter`."""
    from .magics import unload_ipython_extension

    unload_ipython_extension(shell)
