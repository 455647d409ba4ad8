"""Waiting for an event for so long."""

import asyncio

import pytest

from lmsp_jupyter.waiting import heard


def test_an_event_is_heard_and_silence_ends():
    async def main():
        event = asyncio.Event()
        silence = await heard(event, 0.01)
        event.set()
        return silence, await heard(event, None)

    assert asyncio.run(main()) == (False, True)


@pytest.mark.parametrize("turns", range(5))
def test_a_cancel_that_comes_together_with_the_event_is_not_lost(turns):
    async def main():
        event = asyncio.Event()

        async def listen():
            while True:
                await heard(event, None)
                event.clear()

        listening = asyncio.ensure_future(listen())
        await asyncio.sleep(0)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        listening.cancel()
        await asyncio.wait([listening], timeout=5)
        return listening.cancelled()

    assert asyncio.run(main())
