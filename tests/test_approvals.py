"""Consent to tool calls (B9): asked by kernels, given by pages."""

import asyncio

import pytest

from lmsp_jupyter import approvals as module
from lmsp_jupyter.approvals import MAX_DECIDED, MAX_PENDING, RETENTION, Approvals
from lmsp_jupyter.errors import NotFound, QueueFull
from lmsp_jupyter.protocol import ApprovalRequest

pytestmark = pytest.mark.ours


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def approvals(clock):
    return Approvals(clock)


def request(**more):
    return ApprovalRequest(tool="delete", arguments='{"path": "x"}', **more)


def run(scenario):
    """Run a coroutine that a lost wake-up would leave waiting for ever."""
    return asyncio.run(asyncio.wait_for(scenario, timeout=20))


def test_b9_2_an_approval_says_what_is_asked_and_until_when(approvals):
    asked = approvals.ask("ann", request(task_id="task_1", response_id="resp_1", expires_in=60))

    assert asked.id.startswith("appr_")
    assert (asked.tool, asked.arguments) == ("delete", '{"path": "x"}')
    assert (asked.task_id, asked.response_id) == ("task_1", "resp_1")
    assert (asked.created_at, asked.expires_at) == (1000, 1060)
    assert asked.decision is None
    assert approvals.get({"ann"}, asked.id) == asked


@pytest.mark.parametrize("decision", ["allow", "always", "deny"])
def test_b9_1_whoever_waits_hears_the_answer(approvals, decision):
    async def scenario():
        asked = approvals.ask("ann", request())
        waiting = [asyncio.create_task(approvals.wait({"ann"}, asked.id, 30)) for _ in range(2)]
        await asyncio.sleep(0)
        approvals.answer({"ann"}, asked.id, decision)
        return await asyncio.gather(*waiting)

    assert [approval.decision for approval in run(scenario())] == [decision] * 2


def test_b9_1_whoever_comes_after_the_answer_hears_it_at_once(approvals):
    asked = approvals.ask("ann", request())
    approvals.answer({"ann"}, asked.id, "allow")

    assert run(approvals.wait({"ann"}, asked.id, 30)).decision == "allow"


def test_b9_1_a_wait_ends_without_an_answer(approvals):
    asked = approvals.ask("ann", request())

    assert run(approvals.wait({"ann"}, asked.id, 0)) == asked
    assert run(approvals.wait({"ann"}, asked.id, 0.01)) == asked


def test_b9_2_a_wait_is_bounded(approvals, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAIT", 0.01)
    asked = approvals.ask("ann", request())

    assert run(approvals.wait({"ann"}, asked.id, 10**6)).decision is None


def test_b9_1_who_waits_hears_that_it_expired():
    approvals = Approvals()

    async def scenario():
        asked = approvals.ask("ann", request(expires_in=1))
        while (approval := await approvals.wait({"ann"}, asked.id, 30)).decision is None:
            pass
        return approval

    assert run(scenario()).decision == "deny"


def test_b9_1_the_first_answer_wins(approvals):
    asked = approvals.ask("ann", request())

    first = approvals.answer({"ann"}, asked.id, "deny")
    second = approvals.answer({"ann"}, asked.id, "allow")

    assert first.decision == second.decision == approvals.get({"ann"}, asked.id).decision == "deny"


def test_b9_1_an_expired_one_is_a_denial_whatever_is_answered(approvals, clock):
    asked = approvals.ask("ann", request(expires_in=60))
    clock.now += 60

    assert approvals.answer({"ann"}, asked.id, "allow").decision == "deny"
    assert approvals.get({"ann"}, asked.id).decision == "deny"
    assert approvals.pending({"ann"}) == {}


def test_b9_1_pending_are_those_without_an_answer(approvals):
    first, second, third = (approvals.ask("ann", request()) for _ in range(3))
    approvals.answer({"ann"}, second.id, "allow")

    assert approvals.pending({"ann"}) == {first.id: first, third.id: third}
    assert list(approvals.pending({"ann"})) == [first.id, third.id]


def test_an_approval_that_was_given_out_does_not_change(approvals):
    asked = approvals.ask("ann", request())
    approvals.answer({"ann"}, asked.id, "allow")

    assert asked.decision is None


def test_b5_5_the_approvals_of_another_identity_do_not_exist(approvals):
    asked = approvals.ask("ann", request())
    others = {"bob", ""}

    for refused in (
        lambda: approvals.get(others, asked.id),
        lambda: approvals.answer(others, asked.id, "allow"),
        lambda: run(approvals.wait(others, asked.id, 30)),
        lambda: approvals.get({"ann"}, "appr_unknown"),
    ):
        with pytest.raises(NotFound):
            refused()
    assert approvals.pending(others) == {}
    assert approvals.get({"ann"}, asked.id).decision is None


def test_b5_5_whoever_sees_several_identities_answers_for_them(approvals):
    asked = approvals.ask("", request())

    assert approvals.pending({"ann", ""}) == {asked.id: asked}
    assert approvals.answer({"ann", ""}, asked.id, "always").decision == "always"


def test_b9_2_so_many_of_one_identity_may_be_pending(approvals, clock):
    asked = [approvals.ask("ann", request(expires_in=60)) for _ in range(MAX_PENDING)]

    with pytest.raises(QueueFull) as caught:
        approvals.ask("ann", request())
    assert caught.value.headers["Retry-After"]

    approvals.ask("bob", request())
    approvals.answer({"ann"}, asked[0].id, "deny")
    approvals.ask("ann", request())
    clock.now += 60
    approvals.ask("ann", request())


def test_b9_2_a_decided_one_is_kept_for_a_while(approvals, clock):
    clock.now = 0.0
    asked = approvals.ask("ann", request())
    approvals.answer({"ann"}, asked.id, "allow")

    clock.now = RETENTION - 1.0
    assert approvals.get({"ann"}, asked.id).decision == "allow"
    clock.now += 1
    with pytest.raises(NotFound):
        approvals.get({"ann"}, asked.id)


def test_of_the_decided_ones_the_newest_are_kept(approvals, clock):
    asked = []
    for _ in range(MAX_DECIDED + 1):
        clock.now += 1
        asked.append(approvals.ask("ann", request()))
        approvals.answer({"ann"}, asked[-1].id, "allow")

    assert approvals.get({"ann"}, asked[1].id).decision == "allow"
    with pytest.raises(NotFound):
        approvals.get({"ann"}, asked[0].id)
