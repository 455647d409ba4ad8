"""The arrows between modules, and what importing the package costs."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import lmsp_jupyter

PACKAGE = Path(lmsp_jupyter.__file__).parent

# Each module with those that it imports. "" is the package itself.
ARROWS = {
    "errors": set(),
    "strict_json": {"errors"},
    "addresses": set(),
    "protocol": {"errors"},
    "sse": set(),
    "events": {"errors", "protocol"},
    # reading requests
    "patterns": set(),
    "schemas": {"errors", "patterns", "strict_json"},
    "parsing": {"errors", "protocol", "schemas", "strict_json"},
    "chat": {"errors", "events", "parsing", "protocol", "strict_json"},
    # what is on disk
    "instances": set(),
    "migrations": {"errors"},
    "database": {"errors", "instances", "migrations"},
    "store": {"database", "errors", "events", "protocol"},
    "waiting": set(),
    "log": {"errors", "events", "protocol", "waiting"},
    "journal": {"errors", "events", "log", "protocol", "store"},
    "keys": {"errors", "journal", "store"},
    # engines
    "engines": {"errors", "protocol"},
    "engines.gguf": set(),
    "engines.stops": set(),
    "engines.thoughts": {"engines.stops"},
    "engines.calls": {
        *("engines", "engines.stops", "engines.thoughts", "errors", "patterns", "protocol", "schemas"),
    },
    "engines.llama_cpp": {
        *("engines", "engines.calls", "engines.gguf", "engines.stops", "engines.thoughts"),
        *("errors", "protocol", "schemas"),
    },
    # running requests
    "catalog": {"engines", "errors", "protocol"},
    "worker": {"engines", "engines.calls", "errors", "protocol"},
    "hosts": {"catalog", "engines", "errors", "protocol", "worker"},
    "prompts": {"engines", "protocol", "strict_json"},
    "run": {"engines", "errors", "events", "log", "protocol", "schemas", "worker"},
    "runner": {
        *("catalog", "engines", "errors", "events", "hosts", "journal", "log", "prompts", "protocol", "run", "store"),
        "worker",
    },
    # routes
    "auth": {"errors", "protocol", "store", "waiting"},
    "approvals": {"errors", "protocol", "waiting"},
    "following": {"errors", "events", "parsing", "protocol", "strict_json"},
    "operations": {"chat", "errors", "events", "protocol"},
    "openapi": {"errors", "events", "operations", "protocol"},
    "handlers.base": {
        *("approvals", "auth", "errors", "journal", "keys", "operations", "parsing", "protocol", "run"),
        *("runner", "store"),
    },
    "handlers.streams": {"errors", "events", "handlers.base", "sse", "store"},
    "handlers.access": {"handlers.base", "protocol"},
    "handlers.models": {"handlers.base", "openapi", "protocol"},
    "handlers.responses": {
        *("errors", "events", "handlers.base", "handlers.streams", "keys", "parsing", "protocol", "run"),
    },
    "handlers.tasks": {
        *("errors", "handlers.base", "handlers.streams", "journal", "keys", "parsing", "protocol", "run"),
    },
    "handlers.chat": {"chat", "errors", "events", "handlers.streams", "protocol", "run", "sse"},
    "handlers.socket": {"errors", "events", "following", "handlers.base", "protocol"},
    "handlers": {
        *("handlers.access", "handlers.base", "handlers.chat", "handlers.models", "handlers.responses"),
        *("handlers.socket", "handlers.tasks", "operations"),
    },
    "app": {
        *("", "addresses", "approvals", "auth", "catalog", "engines", "handlers", "hosts", "journal", "keys"),
        *("protocol", "runner", "store", "strict_json"),
    },
    # the client and the notebook
    "discovery": {"addresses", "errors", "protocol"},
    "client": {"discovery", "errors", "events", "protocol", "sse"},
    "interpolate": set(),
    "lines": {"errors", "protocol"},
    "markdown": set(),
    "display": {"errors", "events", "markdown", "protocol"},
    "magics": {"client", "display", "errors", "interpolate", "lines", "markdown", "protocol"},
    # the command line: it starts a server or is a client
    "pull": {"errors", "protocol"},
    "demo": {"catalog", "client", "engines", "errors", "pull"},
    "cli": {"", "app", "catalog", "client", "demo", "errors", "events", "markdown", "pull"},
    "": {"app", "client", "errors", "magics"},
}

SERVER = {
    *("patterns", "schemas", "parsing", "chat"),
    *("instances", "migrations", "database", "store", "log", "journal", "keys"),
    *("engines", "catalog", "worker", "hosts", "prompts", "run", "runner"),
    *("auth", "approvals", "following", "operations", "openapi", "handlers", "app"),
}
CLIENT = {"discovery", "client", "interpolate", "lines", "markdown", "display", "magics"}

ENGINE_LIBRARIES = {"xllamacpp", "llama_cpp", "mlx", "mlx_lm"}


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def is_module(name):
    return name in MODULES or name in ARROWS


def imports(name):
    """The modules of this package that a module imports, anywhere in it."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    package = [part for part in package if part]
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) + 1 - node.level]
            target = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                inner = f"{target}.{alias.name}".strip(".")
                found.add(inner if is_module(inner) else target)
    return found


def absolute_imports(name):
    """The top packages that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.split(".")[0])
    return found


def side(name):
    return name.split(".")[0]


every_module = pytest.mark.parametrize("name", MODULES, ids=lambda name: name or "lmsp_jupyter")


@every_module
def test_a_module_imports_along_the_arrows(name):
    assert name in ARROWS, "Give this module its place among the arrows."
    assert imports(name) == ARROWS[name]


@every_module
def test_a_module_names_its_neighbours_relatively(name):
    assert "lmsp_jupyter" not in absolute_imports(name)


@every_module
def test_server_and_client_never_import_each_other(name):
    neighbours = {side(each) for each in imports(name)}

    assert side(name) not in CLIENT or not neighbours & SERVER
    assert side(name) not in SERVER or not neighbours & CLIENT


@every_module
def test_an_engine_library_is_imported_by_its_engine_alone(name):
    assert name.startswith("engines.") or not absolute_imports(name) & ENGINE_LIBRARIES


def test_the_wire_is_above_both_sides():
    wire = {"errors", "strict_json", "protocol", "sse", "events"}

    assert {each for name in wire for each in ARROWS[name]} <= wire


def test_arrows_go_one_way():
    arrows = {name: allowed - {""} for name, allowed in ARROWS.items() if name}

    graphlib.TopologicalSorter(arrows).prepare()


def test_every_arrow_ends_at_a_module():
    assert {each for allowed in ARROWS.values() for each in allowed} <= ARROWS.keys()


def test_public_names():
    assert sorted(lmsp_jupyter.__all__) == ["Client", "Problem", "__version__"]
    assert all(hasattr(lmsp_jupyter, name) for name in lmsp_jupyter.__all__)


def loaded_by(module):
    """The top packages that are loaded once a fresh Python has imported `module`."""
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return set(process.stdout.split())


def test_importing_the_package_is_cheap():
    loaded = loaded_by("lmsp_jupyter")

    assert "lmsp_jupyter" in loaded
    assert not loaded & ({"jupyter_server", "IPython", "tornado"} | ENGINE_LIBRARIES)


def test_the_server_imports_no_engine_library():
    loaded = loaded_by("lmsp_jupyter.app")

    assert "jupyter_server" in loaded
    assert not loaded & ENGINE_LIBRARIES
