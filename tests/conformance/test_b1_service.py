"""B1: the service and its models."""

import pytest

from .api import refused

pytestmark = pytest.mark.ours


def test_b1_1_the_service_describes_itself(lmsp):
    service = lmsp.get().json()

    assert service["object"] == "service"
    assert isinstance(service["name"], str)
    assert isinstance(service["version"], str)
    assert service["lmsp_versions"] == ["1.0"]
    assert set(service["capabilities"]) == {"conversations", "tasks"}  # part B has both (B3, B6)
    assert service["default_model"] in {model["id"] for model in lmsp.get("/models").json()["data"]}
    assert all(isinstance(service["limits"][name], int) for name in ("queue", "body", "event_retention"))
    assert isinstance(service["limits"]["task_retention"], int)


def test_b1_1_engines_tell_whether_they_are_available_or_how_to_mend_it(lmsp):
    engines = lmsp.get().json()["engines"]

    assert any(engine["available"] for engine in engines)
    for engine in engines:
        assert isinstance(engine["name"], str)
        if not engine["available"]:
            assert engine["reason"]
            assert engine["fix"]


def test_b1_2_models_are_listed(lmsp):
    listed = lmsp.get("/models").json()

    assert listed["object"] == "list"
    assert lmsp.model in {model["id"] for model in listed["data"]}
    for model in listed["data"]:
        assert model["object"] == "model"
        assert set(model["capabilities"]) <= {"tools", "structured_output", "reasoning", "conversations"}
        assert model["state"] in ("available", "loading", "loaded", "failed")
        assert "/" not in model["source"]
        assert {"engine", "context_length", "size_bytes", "quantization", "error"} <= model.keys()


def test_b1_2_a_model_by_its_id(lmsp):
    model = lmsp.get(f"/models/{lmsp.model}").json()

    assert model["id"] == lmsp.model
    assert model["context_length"] > 0
    assert model["error"] is None
    assert model.keys() == lmsp.get("/models").json()["data"][0].keys()


def test_b1_2_ids_are_found_escaped(lmsp):
    for model in lmsp.get("/models").json()["data"]:
        escaped = model["id"].replace("/", "%2F").replace(":", "%3A")
        assert lmsp.get(f"/models/{escaped}").json()["id"] == model["id"]


@pytest.mark.parametrize("path", ["org/none:7b", "org%2Fnone:7b"])
def test_b1_2_an_unknown_id_with_a_slash(lmsp, path):
    refused(lmsp.get(f"/models/{path}"), 404, "model_not_found")


def test_b1_2_an_unknown_model_names_the_closest(lmsp):
    near = lmsp.model[:-1]

    for answer in (lmsp.get(f"/models/{near}"), lmsp.post("/responses", lmsp.ask(model=near))):
        assert lmsp.model in refused(answer, 404, "model_not_found")["detail"]


def test_b1_3_a_model_is_loaded_and_unloaded(lmsp):
    def state():
        return lmsp.get(f"/models/{lmsp.model}").json()["state"]

    assert lmsp.post(f"/models/{lmsp.model}/load").status_code == 200
    assert state() == "loaded"

    assert lmsp.post(f"/models/{lmsp.model}/unload").is_success
    assert state() == "available"

    lmsp.respond(lmsp.ask(max_output_tokens=1))  # loads it again
    assert state() == "loaded"


def test_b1_3_a_model_in_use_is_not_unloaded(lmsp, long_task):
    refused(lmsp.post(f"/models/{lmsp.model}/unload"), 409, "model_busy")

    assert lmsp.task(long_task)["status"] == "in_progress"


@pytest.mark.parametrize("verb", ["load", "unload"])
def test_b1_3_an_unknown_model_is_not_loaded(lmsp, verb):
    refused(lmsp.post(f"/models/none-such/{verb}"), 404, "model_not_found")


def test_b1_5_openapi(lmsp):
    described = lmsp.get("/openapi.json").json()

    assert described["openapi"].startswith("3.1")
    for path in ("/responses", "/models", "/tasks", "/tokens", "/approvals", "/chat/completions"):
        assert any(key.endswith(path) for key in described["paths"]), path


def test_b1_5_health(lmsp):
    assert lmsp.get("/health").status_code == 200
