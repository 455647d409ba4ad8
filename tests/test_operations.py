"""The table of operations (B1 to B9): routes, scopes and problems."""

import re

import pytest

from lmsp_jupyter import errors
from lmsp_jupyter.openapi import document
from lmsp_jupyter.operations import EVERYWHERE, OPERATIONS, PATHS, methods_of, pattern, scope_of

pytestmark = pytest.mark.ours


def label(operation):
    return f"{operation.method} {operation.path}"


every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=label)


def route(path):
    """The template that a path is matched with, and the ids in it."""
    for template in PATHS:
        if match := re.fullmatch(pattern(template), path):
            return template, match.groups()
    return None


@pytest.mark.parametrize(
    ("path", "template", "ids"),
    [
        ("", "", ()),
        ("/health", "/health", ()),
        ("/openapi.json", "/openapi.json", ()),
        ("/models", "/models", ()),
        ("/models/qwen3:14b-q4_k_m", "/models/{model_id}", ("qwen3:14b-q4_k_m",)),
        ("/models/hf.co/a/b:q4", "/models/{model_id}", ("hf.co/a/b:q4",)),
        ("/models/hf.co%2Fa%2Fb:q4", "/models/{model_id}", ("hf.co%2Fa%2Fb:q4",)),
        ("/models/hf.co/a/b/load", "/models/{model_id}/load", ("hf.co/a/b",)),
        ("/models/m/unload", "/models/{model_id}/unload", ("m",)),
        ("/models/load", "/models/{model_id}", ("load",)),
        ("/responses", "/responses", ()),
        ("/responses/input_tokens", "/responses/input_tokens", ()),
        ("/responses/resp_1", "/responses/{response_id}", ("resp_1",)),
        ("/responses/resp_1/input_items", "/responses/{response_id}/input_items", ("resp_1",)),
        ("/responses/resp_1/cancel", "/responses/{response_id}/cancel", ("resp_1",)),
        ("/tasks", "/tasks", ()),
        ("/tasks/task_1", "/tasks/{task_id}", ("task_1",)),
        ("/tasks/task_1/events", "/tasks/{task_id}/events", ("task_1",)),
        ("/tasks/task_1/cancel", "/tasks/{task_id}/cancel", ("task_1",)),
        ("/tokens", "/tokens", ()),
        ("/tokens/tok_1", "/tokens/{token_id}", ("tok_1",)),
        ("/approvals", "/approvals", ()),
        ("/approvals/appr_1", "/approvals/{approval_id}", ("appr_1",)),
        ("/chat/completions", "/chat/completions", ()),
        ("/events", "/events", ()),
    ],
)
def test_each_path_is_matched_with_its_template(path, template, ids):
    assert route(path) == (template, ids)


@pytest.mark.parametrize("path", ["/openapi_json", "/model", "/models/", "/tasks/a/b", "/tasks//events", "/chat"])
def test_other_paths_are_matched_with_none(path):
    assert route(path) is None


SCOPES = {
    "models:read": {
        "GET ",
        "GET /health",
        "GET /openapi.json",
        "GET /models",
        "GET /models/{model_id}",
    },
    "models:manage": {"POST /models/{model_id}/load", "POST /models/{model_id}/unload"},
    "responses:create": {
        "POST /responses",
        "POST /responses/input_tokens",
        "POST /responses/{response_id}/cancel",
        "DELETE /responses/{response_id}",
        "POST /chat/completions",
        "POST /approvals",
        "GET /approvals/{approval_id}",
        "POST /approvals/{approval_id}",
    },
    "responses:read": {"GET /responses/{response_id}", "GET /responses/{response_id}/input_items"},
    "tasks:create": {"POST /tasks", "DELETE /tasks/{task_id}"},
    "tasks:read": {"GET /tasks", "GET /tasks/{task_id}", "GET /tasks/{task_id}/events"},
    "tasks:cancel": {"POST /tasks/{task_id}/cancel"},
    "tokens:manage": {"POST /tokens", "GET /tokens", "DELETE /tokens/{token_id}"},
    None: {"GET /events"},
}


def test_b5_3_each_operation_needs_one_scope():
    found = {}
    for operation in OPERATIONS:
        found.setdefault(operation.scope, set()).add(label(operation))

    assert found == SCOPES


@every_operation
def test_b5_3_a_request_needs_the_scope_of_its_operation(operation):
    assert scope_of(operation.path, operation.method) == operation.scope


def test_b5_3_what_is_no_operation_has_no_scope():
    assert scope_of("/tasks", "PUT") is None
    assert scope_of("/tasks", "OPTIONS") is None
    assert scope_of("/nothing", "GET") is None


def test_b4_2_head_needs_the_scope_of_get():
    assert scope_of("/tasks", "HEAD") == "tasks:read"
    assert scope_of("/responses", "HEAD") is None


def test_b4_2_every_get_answers_head_and_every_path_options():
    assert set(methods_of("/tasks")) == {"GET", "HEAD", "POST", "OPTIONS"}
    assert set(methods_of("/responses")) == {"POST", "OPTIONS"}
    assert set(methods_of("/responses/{response_id}")) == {"GET", "HEAD", "DELETE", "OPTIONS"}


@every_operation
def test_b2_2_every_problem_is_documented_with_its_status(operation):
    answers = document("/lmsp/v1")["paths"][operation.path or "/"][operation.method.lower()]["responses"]

    for problem in (*EVERYWHERE, *operation.problems):
        (_, codes) = answers[str(problem.status)]["content"]["application/problem+json"]["schema"]["allOf"]
        assert problem.code in codes["properties"]["code"]["enum"]


@every_operation
def test_no_problem_is_named_twice(operation):
    problems = (*EVERYWHERE, *operation.problems)

    assert len(problems) == len(set(problems))


NOT_OF_OPERATIONS = {
    "method_not_allowed",  # there is no such operation
    "service_restarted",  # in a task's error only
    "service_unreachable",  # never sent by a service
}


def test_b2_3_every_code_is_of_some_operation():
    problems = {problem.code for operation in OPERATIONS for problem in (*EVERYWHERE, *operation.problems)}

    assert problems == set(errors.PROBLEMS) - NOT_OF_OPERATIONS
