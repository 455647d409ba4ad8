"""What several modules share: models, a Jupyter server in this process, and a service in its own."""

import json
import os
import signal
from pathlib import Path

import httpx
import psutil
import pytest

from lmsp_jupyter.pull import STARTER, pull

pytest_plugins = ["pytest_jupyter.jupyter_server"]

PLUGIN = str(Path(__file__).parent / "plugin")


@pytest.fixture(scope="session", autouse=True)
def environment():
    """Workers find the scripted engine by its entry point, as any engine; no service of the user's is found."""
    path = os.environ.get("PYTHONPATH")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([PLUGIN, path] if path else [PLUGIN]))
        for name in ("LMSP_BASE_URL", "LMSP_TOKEN", "JPY_PARENT_PID"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def starter(pytestconfig):
    """The file of the starter model, kept between runs in pytest's cache."""
    return pull(STARTER, pytestconfig.cache.mkdir("lmsp-models"))


@pytest.fixture
def models(tmp_path):
    """The folder of the models that the server in this process has."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def script(models):
    """Add a scripted model: `script(name, *steps, **more)`. There is one named hello."""

    def script(name, *steps, **more):
        (models / f"{name}.script").write_text(json.dumps({"steps": steps, **more}))

    script("hello", ["text", "Hello"], ["text", " 👩‍👧 wörld"])
    return script


@pytest.fixture
def jp_server_config(models):
    return {
        "ServerApp": {"jpserver_extensions": {"lmsp_jupyter": True}},
        "LMSPApp": {"models_folder": str(models), "parallel": 2, "queue_limit": 2},
    }


@pytest.fixture
def app(models, jp_serverapp, jp_fetch):
    """The extension in a Jupyter server in this process."""
    return next(iter(jp_serverapp.extension_manager.extension_apps["lmsp_jupyter"]))


@pytest.fixture
def client(app, jp_serverapp, jp_base_url, jp_auth_header, jp_asyncio_loop):
    """An HTTP client that is logged in by the server's token."""
    client = httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{jp_serverapp.port}{jp_base_url}lmsp/v1",
        headers=jp_auth_header,
        timeout=60,
    )
    yield client
    jp_asyncio_loop.run_until_complete(client.aclose())


@pytest.fixture(scope="session")
def machine(starter, tmp_path_factory):
    """The environment of a person with the starter model and no service yet; who needs one starts it."""
    runtime = tmp_path_factory.mktemp("runtime")
    yield os.environ | {
        "LMSP_MODELS": str(starter.parent.parent),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "IPYTHONDIR": str(tmp_path_factory.mktemp("ipython")),
    }
    for record in runtime.glob("jpserver-*.json"):
        service = psutil.Process(json.loads(record.read_text())["pid"])
        service.send_signal(signal.SIGTERM)
        service.wait(20)
