"""The tree of problems: problem documents (B2.2, RFC 9457) and their codes (B2.3)."""

import json
import re

import pytest

from lmsp_jupyter import errors
from lmsp_jupyter.errors import (
    PROBLEMS,
    BadRequest,
    ModelNotFound,
    NotFound,
    Problem,
    from_document,
)

pytestmark = pytest.mark.ours

STATUS_OF_CODE = {
    "invalid_request": 400,
    "unknown_parameter": 400,
    "unsupported_content": 400,
    "unsupported_capability": 400,
    "unsupported_version": 400,
    "invalid_schema": 400,
    "context_length_exceeded": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "insufficient_scope": 403,
    "model_not_found": 404,
    "response_not_found": 404,
    "task_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_in_progress": 409,
    "response_in_progress": 409,
    "task_not_finished": 409,
    "model_busy": 409,
    "event_history_expired": 410,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "idempotency_key_reused": 422,
    "queue_full": 429,
    "engine_failed": 500,
    "output_invalid": 500,
    "internal_error": 500,
    "engine_crashed": 502,
    "model_unavailable": 503,
    "service_restarted": 503,
    "storage_unavailable": 507,
}
NEVER_SENT = {"service_unreachable"}

MEMBERS = {"type", "title", "status", "detail", "instance", "code", "message", "param"}

every_problem = pytest.mark.parametrize("kind", PROBLEMS.values(), ids=PROBLEMS)


@every_problem
def test_b2_3_a_code_has_the_status_that_the_specification_gives_it(kind):
    if kind.code not in NEVER_SENT:
        assert kind.status == STATUS_OF_CODE[kind.code]


@every_problem
def test_b2_3_codes_are_snake_case(kind):
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.code)


def test_b2_3_every_class_has_a_code_of_its_own():
    declared = {kind for kind in vars(errors).values() if isinstance(kind, type)}

    assert set(PROBLEMS.values()) == {kind for kind in declared if issubclass(kind, Problem)}
    assert all(kind.code == code for code, kind in PROBLEMS.items())


@every_problem
def test_b2_2_a_document_has_these_members_and_no_others(kind):
    document = kind("It is broken; mend it.").document()

    assert document == {
        "type": f"urn:lmsp:problem:{kind.code}",
        "title": kind.title,
        "status": kind.status,
        "detail": "It is broken; mend it.",
        "instance": None,
        "code": kind.code,
        "message": "It is broken; mend it.",
        "param": None,
    }


def test_b2_2_errors_are_pointers_and_param_is_the_first_of_them():
    problem = BadRequest("Two faults.", errors=[("/input/0/content", "One."), ("/model", "Two.")])

    document = problem.document()

    assert document.keys() == MEMBERS | {"errors"}
    assert document["param"] == problem.param == "/input/0/content"
    assert document["errors"] == [
        {"pointer": "/input/0/content", "detail": "One."},
        {"pointer": "/model", "detail": "Two."},
    ]


def test_b2_2_instance_is_the_path_of_the_request():
    assert NotFound().document("/lmsp/v1/models/x")["instance"] == "/lmsp/v1/models/x"


def test_b2_2_further_members_stand_beside_the_others():
    document = BadRequest("No.", extra={"supported_versions": ["1.0"]}).document()

    assert document.keys() == MEMBERS | {"supported_versions"}
    assert document["supported_versions"] == ["1.0"]


@every_problem
def test_b2_2_a_problem_without_a_detail_still_says_something(kind):
    assert kind().document()["detail"] == f"{kind.title}."


def test_headers_go_with_the_answer_and_not_into_the_document():
    problem = Problem("Later.", headers={"Retry-After": "1"})

    assert problem.headers == {"Retry-After": "1"}
    assert "Retry-After" not in json.dumps(problem.document())


def test_a_problem_reads_as_its_detail():
    assert str(ModelNotFound("No model 'x'.")) == "No model 'x'."


@every_problem
def test_a_document_comes_back_as_the_problem_that_it_was(kind):
    sent = kind("So.", errors=[("/a~1b", "Why.")], extra={"position": 3}).document()

    problem = from_document(json.loads(json.dumps(sent)))

    assert type(problem) is kind
    assert problem.document() == sent
    assert problem.errors == [("/a~1b", "Why.")]


def test_an_unknown_code_is_kept_with_its_status_and_title():
    sent = NotFound("Gone for lunch.").document() | {
        "type": "urn:lmsp:problem:out_to_lunch",
        "code": "out_to_lunch",
        "status": 418,
        "title": "Out to lunch",
    }

    problem = from_document(sent)

    assert isinstance(problem, Problem)
    assert not isinstance(problem, NotFound)
    assert problem.document() == sent
    assert "out_to_lunch" not in PROBLEMS


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({}, "internal_error"),
        ({"title": "Bad Gateway", "status": 502}, "internal_error"),
        ({"code": None, "title": None, "status": None, "detail": None}, "internal_error"),
        ({"code": 5, "title": 5, "status": "x", "detail": 5, "errors": 5}, "internal_error"),
        ({"code": [], "status": True, "detail": {}, "errors": {"a": 1}}, "internal_error"),
        ({"code": "lunch", "title": [], "detail": None, "errors": None}, "lunch"),
        ({"code": "not_found", "detail": None, "errors": [None, "x", 5]}, "not_found"),
        ({"code": "not_found", "errors": [{"pointer": None, "detail": None}, {}]}, "not_found"),
    ],
    ids=str,
)
def test_rfc_9457_3_1_members_of_the_wrong_type_are_ignored(document, code):
    read = from_document(document).document()

    assert read["code"] == code
    assert type(read["status"]) is int
    assert isinstance(read["title"], str)
    assert read["detail"] == f"{read['title']}."
    assert "None" not in json.dumps(read)
