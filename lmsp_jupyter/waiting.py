"""Waiting for an event of asyncio for so long."""

from __future__ import annotations

import asyncio


async def heard(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether the event comes within `seconds`; None waits for ever.

    `asyncio.wait_for` would lose a cancel that comes together with the event, before Python 3.12.
    """
    waiter = asyncio.ensure_future(event.wait())
    try:
        done, _ = await asyncio.wait([waiter], timeout=seconds)
    finally:
        waiter.cancel()
    return bool(done)
