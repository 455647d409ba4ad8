"""The conformance suite: any LMSP service, tested over HTTP alone. Nothing of `lmsp_jupyter` is imported here.

    pytest tests/conformance                          starts `jupyter lmsp serve` with the starter model, and tests it
    pytest tests/conformance --lmsp-url URL --lmsp-token TOKEN --lmsp-model ID      tests what is served at URL
    … -m chapter6                                     the normative chapter (part A), which every LMSP service keeps
    … -m ours                                         this project's completion (part B)

URL ends in `/lmsp/v1`; without ID, it is the service's default model. The folder can be copied and run anywhere: it
needs pytest, httpx, jsonschema and websocket-client. What chapter 6 leaves to a service is skipped where the service
does not say that it has it. The suite makes and deletes tasks, responses and tokens, and loads and unloads the model.
"""

from __future__ import annotations

import pytest

from .api import Service
from .own import serve

LONG = "Tell me a long story."


def pytest_addoption(parser):
    group = parser.getgroup("lmsp", "conformance of an LMSP service")
    group.addoption("--lmsp-url", help="where the service is; ends in /lmsp/v1; default: one of its own")
    group.addoption("--lmsp-token", help="a token that may do everything")
    group.addoption("--lmsp-model", help="the model to ask; default: the service's default model")


def pytest_configure(config):
    config.addinivalue_line("markers", "chapter6: the normative chapter requires it")
    config.addinivalue_line("markers", "ours: this project's completion")
    config.addinivalue_line("markers", "needs(capability): skipped where the service does not say that it has it")


@pytest.fixture(scope="session")
def lmsp(request, tmp_path_factory):
    """The service under test."""
    # The options are not registered when this folder is not among pytest's arguments.
    url, token, model = (request.config.getoption(f"--lmsp-{name}", None) for name in ("url", "token", "model"))
    if url:
        with Service(url, token or "", model) as service:
            yield service
        return
    models = request.getfixturevalue("starter").parent.parent
    with serve(models, tmp_path_factory.mktemp("lmsp")) as (url, token), Service(url, token, model) as service:
        yield service


def _skip_what_is_lacking(request, lmsp):
    for mark in request.node.iter_markers("needs"):
        for capability in mark.args:
            if capability not in lmsp.capabilities:
                pytest.skip(f"neither the service nor the model says that it has {capability}")


# The second comes before a module's own fixtures, which ask for what is needed.
_needed_by_a_test = pytest.fixture(autouse=True)(_skip_what_is_lacking)
_needed_by_a_module = pytest.fixture(autouse=True, scope="module")(_skip_what_is_lacking)


@pytest.fixture
def long_task(lmsp):
    """A task that goes on for long, and has said something."""
    task = lmsp.make_task(lmsp.ask(LONG, max_output_tokens=None))
    with lmsp.open("GET", f"/tasks/{task['id']}/events") as events:
        next(event for event in events if event.name == "response.output_text.delta")
    yield task
    lmsp.remove_task(task)


@pytest.fixture
def queued_task(lmsp):
    """A task that waits in line, behind as many long ones as the model answers at a time, `blockers`."""
    tasks = []
    try:
        while len(tasks) < 40:
            task = lmsp.make_task(lmsp.ask(LONG, max_output_tokens=None))
            tasks.append(task)
            with lmsp.open("GET", f"/tasks/{task['id']}/events") as events:
                first = next(e for e in events if e.name in ("response.queued", "response.in_progress"))
            if first.name == "response.queued":
                yield task | {"blockers": tasks[:-1]}
                return
        pytest.skip("the model answers very many requests at a time")
    finally:
        for task in reversed(tasks):
            lmsp.remove_task(task)
