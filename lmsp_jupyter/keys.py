"""Idempotency keys (B2.5): the same key and body run once, and are answered the same again."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from dataclasses import dataclass

import rfc8785

from .errors import BadRequest, IdempotencyKeyReused, RequestInProgress, StorageUnavailable
from .journal import Journal
from .store import Key, Reserved, Store

_KEY = re.compile(r"[\x20-\x7e]{1,255}")


def key_of(header: str | None) -> str | None:
    """The key in an `Idempotency-Key` header, bare or quoted; None where there is none. Raises `BadRequest`."""
    if header is None:
        return None
    key = header.strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if not _KEY.fullmatch(key):
        raise BadRequest("Idempotency-Key: send 1 to 255 printable ASCII characters, such as a UUID.")
    return key


@dataclass(frozen=True)
class Replay:
    """The first answer: `body` with `status`, or the events of `run_id` where it was a stream."""

    run_id: str | None
    status: int
    body: bytes


class Reservation:
    """A key that is ours until the answer is kept or the key is given back."""

    def __init__(self, keys: Keys, key: Key) -> None:
        self.key = key
        self._keys = keys

    async def keep(self, status: int, body: bytes) -> None:
        """From now on the key is answered with this; an empty body stands for the run's events."""
        self._keys._mine.pop(self.key, None)
        try:
            await self._keys._journal.call(self._keys._store.keep, self.key, status, body)
        except StorageUnavailable:
            self._keys._void.add(self.key)
            raise

    def forget(self) -> None:
        """The run failed: with that the store gave the key back, and it may be another's by now."""
        self._keys._mine.pop(self.key, None)

    async def release(self) -> None:
        """The run came to nothing that may be told again."""
        try:
            await self._keys._journal.call(self._keys._store.release, self.key)
        except StorageUnavailable:
            self._keys._void.add(self.key)
            raise
        finally:
            self._keys._mine.pop(self.key, None)


class Keys:
    """The keys of all callers."""

    def __init__(self, journal: Journal, store: Store) -> None:
        self._journal = journal
        self._store = store
        self._mine: dict[Key, bytes] = {}
        self._void: set[Key] = set()  # what the store still has, since it could not be written at their end

    async def reserve(self, key: Key, digest: bytes) -> Reservation | Replay:
        """Take the key for a run with a body of this digest, or get the first answer.

        Raises `IdempotencyKeyReused`, `RequestInProgress`, `StorageUnavailable`. Taken before anything is awaited, so
        that of two at once one runs.
        """
        if key in self._mine:
            raise _taken(key, same=self._mine[key] == digest)
        self._mine[key] = digest
        reserving = asyncio.ensure_future(self._reserve(key, digest))
        try:
            return await asyncio.shield(reserving)
        except asyncio.CancelledError:
            # The store's thread goes on, so the key may be taken all the same, and nobody runs anything under it.
            if isinstance(reserved := await reserving, Reservation):
                await reserved.release()
            raise

    async def _reserve(self, key: Key, digest: bytes) -> Reservation | Replay:
        try:
            if key in self._void:
                await self._journal.call(self._store.release, key)
                self._void.discard(key)
            found: Reserved | None = await self._journal.call(self._store.reserve, key, digest)
        except BaseException:
            del self._mine[key]
            raise
        if found is None:
            return Reservation(self, key)
        del self._mine[key]
        if found.digest != digest or not found.kept:
            raise _taken(key, same=found.digest == digest)
        return Replay(found.run_id, found.status, found.body)


def _taken(key: Key, *, same: bool) -> IdempotencyKeyReused | RequestInProgress:
    if not same:
        return IdempotencyKeyReused(f"The key {key.key!r} came with another body before; use a new one.")
    return RequestInProgress(
        f"The first request with the key {key.key!r} still runs; ask again when it has ended.",
        headers={"Retry-After": "1"},
    )


def digest(body: bytes) -> bytes:
    """What is compared of a JSON body: the hash of its form by RFC 8785, so that spaces and order do not count."""
    return hashlib.sha256(rfc8785.dumps(json.loads(body, parse_int=_number))).digest()


def _number(literal: str) -> int | float:
    """RFC 8785 knows doubles only."""
    number = float(literal)
    return int(literal) if abs(number) <= 2**53 - 1 else number
