"""B9: approvals of tool calls, asked by kernels and answered by pages."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from .api import refused

pytestmark = pytest.mark.ours


@pytest.fixture(scope="module")
def task(lmsp):
    """The task whose call is to be approved."""
    return lmsp.finish(lmsp.ask(max_output_tokens=1))


@pytest.fixture
def approval(lmsp, task):
    """An approval that is asked for."""
    return ask(lmsp, task)


def ask(lmsp, task, **more):
    body = {"tool": "get_weather", "arguments": '{"city": "Oslo"}', "task_id": task["id"], "expires_in": 60}
    answer = lmsp.post("/approvals", body | more)
    assert answer.is_success, answer.text
    return answer.json()


def decide(lmsp, approval, decision):
    return lmsp.post(f"/approvals/{approval['id']}", {"decision": decision})


def decision(lmsp, approval, **params):
    answer = lmsp.get(f"/approvals/{approval['id']}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["decision"]


def test_b9_1_an_approval_is_pending_until_it_is_answered(lmsp, task, approval):
    assert (approval["tool"], approval["arguments"]) == ("get_weather", '{"city": "Oslo"}')
    assert approval["task_id"] == task["id"]
    assert decision(lmsp, approval) is None


@pytest.mark.parametrize("answer", ["allow", "always", "deny"])
def test_b9_1_who_waits_gets_the_decision(lmsp, approval, answer):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(decision, lmsp, approval, wait=30)
        assert decide(lmsp, approval, answer).is_success

        assert waiting.result() == answer


def test_b9_1_waiting_ends_without_an_answer_too(lmsp, approval):
    assert decision(lmsp, approval, wait=1) is None


def test_b9_1_the_first_answer_wins(lmsp, approval):
    decide(lmsp, approval, "deny")
    decide(lmsp, approval, "allow")

    assert decision(lmsp, approval) == "deny"


def test_b9_1_an_expired_one_is_a_denial(lmsp, task):
    approval = ask(lmsp, task, expires_in=1)

    assert decision(lmsp, approval, wait=30) == "deny"

    decide(lmsp, approval, "allow")
    assert decision(lmsp, approval) == "deny"


@pytest.mark.parametrize("body", [{}, {"decision": "maybe"}, {"decision": None}, {"decision": True}], ids=str)
def test_b9_1_what_is_no_decision(lmsp, approval, body):
    refused(lmsp.post(f"/approvals/{approval['id']}", body), 400, "invalid_request")

    assert decision(lmsp, approval) is None


def test_b9_1_an_unknown_approval(lmsp):
    assert lmsp.get("/approvals/none").status_code == 404
    assert lmsp.post("/approvals/none", {"decision": "allow"}).status_code == 404


def test_b9_1_pending_ones_are_pushed(lmsp, task, approval):
    with lmsp.connect() as socket:
        socket.send(follow="approvals")
        entries = (entry for entry in socket if entry.get("list") == "approvals")
        assert approval["id"] in {each["id"] for each in next(entries)["changed"]}

        another = ask(lmsp, task)
        pushed = next(each for entry in entries for each in entry["changed"] if each["id"] == another["id"])
        assert (pushed["tool"], pushed["decision"]) == ("get_weather", None)
