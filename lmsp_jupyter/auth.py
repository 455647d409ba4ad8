"""LMSP tokens beside Jupyter's own authentication (B5.1, B5.7). They open nothing of Jupyter outside `/lmsp/`."""

from __future__ import annotations

import hashlib
import hmac
import secrets


class Tokens:
    """The tokens that this server minted. Only their hashes are kept."""

    def __init__(self) -> None:
        self._hashes: list[bytes] = []

    def mint(self) -> str:
        """A new token; this is the only time that it is told."""
        token = f"lmsp_{secrets.token_urlsafe(32)}"
        self._hashes.append(_hash(token))
        return token

    def knows(self, token: str) -> bool:
        """Whether the token was minted here. Takes the same time for every wrong one."""
        digest = _hash(token)
        return sum(hmac.compare_digest(digest, known) for known in self._hashes) > 0


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
