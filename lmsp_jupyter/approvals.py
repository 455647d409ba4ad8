"""Whether a tool may be called: kernels ask, pages answer, the waiting kernel hears of it (B9).

Approvals are in memory only: a kernel that asks waits, and asks again after a restart. Who may ask and answer is left
to the handlers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec

from .errors import NotFound, QueueFull
from .protocol import Approval, ApprovalRequest, Decision, new_id
from .waiting import heard

MAX_PENDING = 256
"""Approvals of one identity that may wait for an answer."""

MAX_WAIT = 30
"""Seconds for which one request waits for an answer."""

RETENTION = 3600
"""Seconds for which an approval is kept once it is decided."""

MAX_DECIDED = 1000
"""Decided approvals that are kept; beyond it the oldest go before their time."""


@dataclass
class _Question:
    owner: str
    approval: Approval
    decided_at: float | None = None
    decided: asyncio.Event = field(default_factory=asyncio.Event)

    def decide(self, decision: Decision, now: float) -> None:
        self.approval = msgspec.structs.replace(self.approval, decision=decision)
        self.decided_at = now
        self.decided.set()


class Approvals:
    """All approvals of this server. `clock` tells Unix seconds.

    An approval whose id is unknown, or whose owner is not among those given, does not exist: `NotFound`.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._questions: dict[str, _Question] = {}

    def ask(self, owner: str, request: ApprovalRequest) -> Approval:
        """Ask for consent; the answer is pending. Raises `QueueFull` where too much is unanswered already."""
        if len(self.pending({owner})) >= MAX_PENDING:
            raise QueueFull(f"{MAX_PENDING} approvals wait for an answer already.", headers={"Retry-After": "5"})
        now = int(self._clock())
        approval = Approval(
            id=new_id("appr"),
            tool=request.tool,
            arguments=request.arguments,
            task_id=request.task_id,
            response_id=request.response_id,
            created_at=now,
            expires_at=now + request.expires_in,
        )
        self._questions[approval.id] = _Question(owner, approval)
        return approval

    def get(self, owners: Collection[str], id: str) -> Approval:
        """The approval as it stands."""
        return self._find(owners, id).approval

    async def wait(self, owners: Collection[str], id: str, seconds: float) -> Approval:
        """The approval once it is decided or has expired, or as it stands after `seconds`, at most 30."""
        question = self._find(owners, id)
        left = question.approval.expires_at - self._clock()
        await heard(question.decided, max(0, min(seconds, MAX_WAIT, left)))
        self._settle()
        return question.approval

    def answer(self, owners: Collection[str], id: str, decision: Decision) -> Approval:
        """Decide, unless it is decided: the first answer wins, and what has expired is denied."""
        question = self._find(owners, id)
        if question.approval.decision is None:
            question.decide(decision, self._clock())
        return question.approval

    def pending(self, owners: Collection[str]) -> dict[str, Approval]:
        """Those that wait for an answer, by id, oldest first."""
        self._settle()
        return {
            id: question.approval
            for id, question in self._questions.items()
            if question.owner in owners and question.approval.decision is None
        }

    def _find(self, owners: Collection[str], id: str) -> _Question:
        self._settle()
        question = self._questions.get(id)
        if question is None or question.owner not in owners:
            raise NotFound(f"There is no approval {id!r}.")
        return question

    def _settle(self) -> None:
        """Deny what has expired and forget what was decided long ago."""
        now = self._clock()
        for question in self._questions.values():
            if question.approval.decision is None and question.approval.expires_at <= now:
                question.decide("deny", now)
        decided = [(each.decided_at, id) for id, each in self._questions.items() if each.decided_at is not None]
        for place, (decided_at, id) in enumerate(sorted(decided, reverse=True)):
            if place >= MAX_DECIDED or decided_at <= now - RETENTION:
                del self._questions[id]
