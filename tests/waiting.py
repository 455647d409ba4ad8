"""Waiting for what another process does, which tells nobody when it is done."""

import asyncio


async def until(condition):
    """Return when `condition()` holds; the test's own time limit is the only one."""
    while not condition():  # noqa: ASYNC110  # there is no event to wait for
        await asyncio.sleep(0.01)
