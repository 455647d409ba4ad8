"""The running service keeps to its OpenAPI document (B1.5): schemathesis makes requests from it, right and wrong ones,
and checks the answers."""

import json
import os
import subprocess
import sys
import time
from uuid import uuid4

import httpx
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.generation.meta import TestPhase
from schemathesis.specs.openapi import checks

from lmsp_jupyter.openapi import document

pytestmark = pytest.mark.ours

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


class Service:
    """A service in a process of its own, with one scripted model, and things in it to ask for."""

    def __init__(self, url, token):
        self.url = f"{url}lmsp/v1"
        self.headers = {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=self.url, headers=self.headers, timeout=60)

    def make(self, id):
        """The value of a path's parameter: the model, or something that is made for the request."""
        response = {"model": "hello", "input": "Hello", "store": True}
        bodies = {
            "response_id": ("/responses", response),
            "task_id": ("/tasks", {"type": "response", "request": response}),
            "token_id": ("/tokens", {"name": "a token", "scopes": ["models:read"], "expires_in": 60}),
            "approval_id": ("/approvals", {"tool": "f", "arguments": "{}", "expires_in": 1}),
        }
        if id == "model_id":
            return "hello"
        path, body = bodies[id]
        return self._client.post(path, json=body).raise_for_status().json()["id"]

    def close(self):
        self._client.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    models, home = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("home")
    # Without tools and schemas, which it would not keep to: that is `output_invalid`, as it should be.
    hello = {"steps": [["reasoning", "Hm."], ["text", "Hello"]], "capabilities": ["reasoning"]}
    (models / "hello.script").write_text(json.dumps(hello))
    process = subprocess.Popen(
        [sys.executable, "-m", "lmsp_jupyter.cli", "serve", f"--LMSPApp.models_folder={models}"],
        env=os.environ | {"JUPYTER_RUNTIME_DIR": str(home), "JUPYTER_DATA_DIR": str(home)},
        stderr=subprocess.DEVNULL,
    )
    record = home / f"jpserver-{process.pid}.json"
    while not record.exists() or not record.read_text().endswith("}"):
        assert process.poll() is None
        time.sleep(0.05)
    server = json.loads(record.read_text())
    service = Service(server["url"], server["token"])
    yield service
    service.close()
    process.terminate()
    process.wait(20)


CONFIG = {
    "seed": 1,
    "generation": {"max-examples": 15, "deterministic": True, "no-shrink": True},
    "operations": [
        # A body of POST /responses, whose every member is covered there.
        {"include-name": ["POST /responses/input_tokens", "POST /tasks"], "phases": {"coverage": {"enabled": False}}},
    ],
}
schema = schemathesis.openapi.from_dict(
    document("http://localhost/lmsp/v1"), config=schemathesis.Config.from_dict(CONFIG)
)


def test_b1_5_the_service_answers_with_its_document(service):
    answer = httpx.get(f"{service.url}/openapi.json", headers=service.headers)

    assert answer.json() == document(service.url)


def aim(case, service):
    """Ask for what is there, which a right request seldom does by chance."""
    case.path_parameters = {name: service.make(name) for name in case.path_parameters}
    body = case.body if isinstance(case.body, dict) else {}
    for request in (body, body.get("request")):
        if isinstance(request, dict) and "model" in request:
            request["model"] = "hello"
    if "Idempotency-Key" in case.headers:
        case.headers["Idempotency-Key"] = uuid4().hex


@schema.parametrize()
def test_b1_5_answers_are_as_documented(case, service):
    if case.meta.generation.mode.is_positive:
        aim(case, service)
    # Asking twice more, without the token, for a few cases of each operation is enough.
    probed = case.meta.phase.name == TestPhase.FUZZING
    case.call_and_validate(
        base_url=service.url,
        headers=service.headers,
        checks=[*CHECKS, checks.ignored_auth] if probed else CHECKS,
    )
