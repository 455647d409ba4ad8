"""Tokens (B5.2) and approvals (B9)."""

from __future__ import annotations

from ..protocol import ApprovalAnswer, ApprovalRequest, TokenList, TokenRequest
from .base import LMSPHandler


class TokensHandler(LMSPHandler):
    """`/lmsp/v1/tokens`."""

    async def post(self) -> None:
        request = await self.read_as(TokenRequest)
        self.send(await self.house.journal.call(self.house.tokens.mint, self.known, request), 201)

    async def get(self) -> None:
        self.send(TokenList(data=await self.house.journal.call(self.house.tokens.list, self.known)))


class TokenHandler(LMSPHandler):
    """`/lmsp/v1/tokens/{id}`."""

    async def delete(self, token_id: str) -> None:
        await self.house.journal.call(self.house.tokens.revoke, self.known, token_id)
        self.send_nothing()


class ApprovalsHandler(LMSPHandler):
    """`POST /lmsp/v1/approvals`."""

    async def post(self) -> None:
        request = await self.read_as(ApprovalRequest)
        self.send(self.house.approvals.ask(self.known.owner, request), 201)


class ApprovalHandler(LMSPHandler):
    """`/lmsp/v1/approvals/{id}`: wait for the answer, or give it."""

    async def get(self, approval_id: str) -> None:
        wait = self.integer("wait", 0, 0, 30)
        await self.work(self._wait(approval_id, wait))

    async def _wait(self, approval_id: str, seconds: int) -> None:
        self.send(await self.house.approvals.wait(self.known.owners, approval_id, seconds))

    async def post(self, approval_id: str) -> None:
        answer = await self.read_as(ApprovalAnswer)
        self.send(self.house.approvals.answer(self.known.owners, approval_id, answer.decision))
