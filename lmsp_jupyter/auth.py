"""Who calls and what they may: LMSP tokens beside Jupyter's own authentication (B5).

LMSP tokens open nothing of Jupyter outside `/lmsp/`. Letting a request in, and asking for the scope that a route
needs, is left to the handlers; keeping hashes of tokens to the store.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

from jupyter_server.auth.identity import IdentityProvider, LegacyIdentityProvider, PasswordIdentityProvider
from jupyter_server.auth.login import LegacyLoginHandler, LoginFormHandler
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import ensure_async

from .errors import InsufficientScope, NotFound, StorageUnavailable
from .protocol import Scope, Token, TokenRequest, new_id
from .store import Store, TokenRow
from .waiting import heard

SERVER = ""
"""The one identity of the server's token, the kernels' token and users without a name (B5.5)."""

ALL_SCOPES: frozenset[Scope] = frozenset(get_args(Scope))

PREFIX = "lmsp_"

_NAMELESS = {
    IdentityProvider: LoginFormHandler,
    PasswordIdentityProvider: LoginFormHandler,
    LegacyIdentityProvider: LegacyLoginHandler,
}
"""The providers that give each browser a user at random, with the login page by which they do. One that is derived
from them, or another login page, may give names."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who made a request: what it makes belongs to `owner`, and it sees what belongs to any of `owners` (B5.5).

    `token_id` is that of its LMSP token, if it came with one from the store. `expires_at` in Unix seconds; None is
    never.
    """

    owner: str
    owners: frozenset[str]
    scopes: frozenset[Scope]
    token_id: str | None = None
    expires_at: int | None = None

    def require(self, scope: Scope) -> None:
        """Raise `InsufficientScope` unless the caller has `scope` (B5.4)."""
        if scope not in self.scopes:
            raise InsufficientScope(
                f"This takes the scope {scope}, which the token does not have.",
                extra={"scope": scope},
                headers={"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'},
            )


_KERNEL = Caller(owner=SERVER, owners=frozenset({SERVER}), scopes=ALL_SCOPES - {"tokens:manage"})


class Tokens:
    """The LMSP tokens: those of the store, and the kernels', which are in memory only and live as long as the server.

    `clock` tells Unix seconds. Every `poll` seconds an open stream looks whether another server has revoked its token.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time, poll: float = 1.0) -> None:
        self._store = store
        self._clock = clock
        self._poll = poll
        self._kernel_hashes: list[bytes] = []
        self._revoked: set[str] = set()
        self._wakers: set[Callable[[], object]] = set()

    # These four read and write the store and so may wait for it; any thread may call them.

    def mint(self, caller: Caller, request: TokenRequest) -> Token:
        """Make a token that acts for the caller, with at most the caller's scopes and for no longer than the caller's
        own token (B5.2). The answer tells the secret; this is the only time.

        Raises `InsufficientScope`, `StorageUnavailable`.
        """
        scopes = list(dict.fromkeys(request.scopes))
        for scope in scopes:
            caller.require(scope)
        now = int(self._clock())
        ends = [] if caller.expires_at is None else [caller.expires_at]
        if request.expires_in is not None:
            ends.append(now + request.expires_in)
        secret = _secret()
        token = Token(
            id=new_id("tok"),
            name=request.name,
            scopes=scopes,
            created_at=now,
            expires_at=min(ends, default=None),
            token=secret,
        )
        self._store.add_token(token.id, caller.owner, token.name, _hash(secret), scopes, now, token.expires_at)
        return token

    def find(self, token: str) -> Caller | None:
        """Who sends this token; None for one that is unknown or has expired. The store is not asked about what cannot
        be a token of it. Raises `StorageUnavailable`."""
        digest = _hash(token)
        if sum(hmac.compare_digest(digest, known) for known in self._kernel_hashes):
            return _KERNEL
        row = self._store.token(digest) if token.startswith(PREFIX) else None
        if row is None or self._expired(row.expires_at):
            return None
        return Caller(
            owner=row.owner,
            owners=frozenset({row.owner}),
            scopes=frozenset(_scopes(row)),
            token_id=row.id,
            expires_at=row.expires_at,
        )

    def list(self, caller: Caller) -> builtins.list[Token]:
        """The tokens that the caller sees, without their secrets, oldest first. Raises `StorageUnavailable`."""
        return [
            Token(id=row.id, name=row.name, scopes=_scopes(row), created_at=row.created_at, expires_at=row.expires_at)
            for row in self._store.tokens(caller.owners)
            if not self._expired(row.expires_at)
        ]

    def revoke(self, caller: Caller, id: str) -> None:
        """Make a token void at once, for open streams too (B5.2). Raises `NotFound`, `StorageUnavailable`."""
        if not self._store.delete_token(id, caller.owners):
            raise NotFound(f"There is no token {id!r}.")
        self._revoked.add(id)
        for wake in tuple(self._wakers):
            wake()

    def mint_for_kernel(self) -> str:
        """A token for the kernels that this server starts: all scopes but `tokens:manage` (B5.7)."""
        secret = _secret()
        self._kernel_hashes.append(_hash(secret))
        return secret

    def still_valid(self, caller: Caller) -> bool:
        """Whether the caller's token has neither expired nor been revoked, as far as is known here: quick, without
        the store. What another server revokes is known once a `watch` over it has seen it."""
        return caller.token_id not in self._revoked and not self._expired(caller.expires_at)

    @contextlib.contextmanager
    def watch(self, caller: Caller, then: Callable[[], object]) -> Iterator[None]:
        """While it is open, call `then` in the event loop once the caller's token is no longer valid (B5.2): at once
        when it is revoked here, within about `poll` seconds when it expires or is revoked by another server."""
        if caller.token_id is None:
            yield
            return
        watching = asyncio.create_task(self._watch(caller, then))
        try:
            yield
        finally:
            watching.cancel()

    async def _watch(self, caller: Caller, then: Callable[[], object]) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        self._wakers.add(wake)
        try:
            while self.still_valid(caller):
                woken.clear()
                if not await heard(woken, self._poll):
                    await asyncio.to_thread(self._look, caller)
        finally:
            self._wakers.discard(wake)
        then()

    def _look(self, caller: Caller) -> None:
        """See whether another server has revoked the caller's token."""
        # Where the store cannot be read nobody can revoke anything; it is looked at again.
        with contextlib.suppress(StorageUnavailable):
            if caller.token_id and caller.token_id not in {row.id for row in self._store.tokens([caller.owner])}:
                self._revoked.add(caller.token_id)

    def _expired(self, expires_at: int | None) -> bool:
        return expires_at is not None and expires_at <= self._clock()


async def caller_of(handler: JupyterHandler) -> Caller:
    """Who made a request that Jupyter has authenticated (B5.5).

    It is the server's identity, unless the identity provider names its users. A named user is her own; if the
    authorizer lets her execute kernels, she also sees what is the server's. A request with the server's own token is
    the server's in any case, since its user may be a random one.
    """
    if not _names_users(handler.identity_provider) or _has_server_token(handler):
        return Caller(owner=SERVER, owners=frozenset({SERVER}), scopes=ALL_SCOPES)
    user = handler.current_user
    owners = {user.username}
    if await ensure_async(handler.authorizer.is_authorized(handler, user, "execute", "kernels")):
        owners.add(SERVER)
    return Caller(owner=user.username, owners=frozenset(owners), scopes=ALL_SCOPES)


def _names_users(provider: IdentityProvider) -> bool:
    return provider.login_handler_class is not _NAMELESS.get(type(provider))


def _has_server_token(handler: JupyterHandler) -> bool:
    if not handler.token or not handler.token_authenticated:
        return False
    sent = handler.identity_provider.get_token(handler) or ""
    return hmac.compare_digest(sent.encode(), handler.token.encode())


def _scopes(row: TokenRow) -> list[Scope]:
    """Those that this version knows."""
    return [scope for scope in get_args(Scope) if scope in row.scopes]


def _secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
