"""Admission and prompts; running is tested over HTTP in test_handlers.py."""

import asyncio
import json

import pytest

from lmsp_jupyter.engines import Prompt, Turn
from lmsp_jupyter.protocol import Options, parse_request
from lmsp_jupyter.runner import Slots, prompt_of


def request(*items, **more):
    return parse_request(json.dumps({"model": "m", "input": list(items), **more}).encode())


def message(role, text):
    return {"role": role, "content": text}


class Visitor:
    """Somebody who takes a slot and leaves when told."""

    def __init__(self, slots):
        self.places = []
        self.inside = False
        self._slots = slots
        self._leave = asyncio.Event()
        self.visit = asyncio.ensure_future(self._visit())

    async def _visit(self):
        await self._slots.take(self.places.append)
        self.inside = True
        await self._leave.wait()
        self._slots.give()

    async def leave(self):
        self._leave.set()
        await self.visit


def visitors(count, act, free=1):
    async def main():
        slots = Slots(free)
        crowd = [Visitor(slots) for _ in range(count)]
        await settle()
        await act(slots, crowd)

    asyncio.run(main())


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.ours
def test_b3_8_first_come_first_served_and_each_is_told_its_place():
    async def act(slots, crowd):
        assert [visitor.inside for visitor in crowd] == [True, True, False, False, False]
        assert [visitor.places for visitor in crowd] == [[], [], [1], [2], [3]]
        await crowd[1].leave()
        await settle()
        assert [visitor.inside for visitor in crowd[2:]] == [True, False, False]
        assert [visitor.places for visitor in crowd[2:]] == [[1], [2, 1], [3, 2]]
        for visitor in [crowd[0], *crowd[2:]]:
            await visitor.leave()

    visitors(5, act, free=2)


@pytest.mark.ours
def test_b0_8_who_leaves_the_line_leaves_no_gap():
    async def act(slots, crowd):
        crowd[1].visit.cancel()
        await settle()
        assert crowd[2].places == [2, 1]
        await crowd[0].leave()
        await settle()
        assert crowd[2].inside
        await crowd[2].leave()

    visitors(3, act)


@pytest.mark.ours
def test_b0_8_a_slot_given_to_one_who_leaves_at_that_moment_goes_on():
    async def act(slots, crowd):
        slots.give()
        crowd[1].visit.cancel()
        await settle()
        assert not crowd[1].inside
        assert crowd[2].inside

    visitors(3, act)


@pytest.mark.chapter6
def test_a1_3_messages_become_turns():
    prompt = prompt_of(request(message("user", "hi"), message("assistant", "yes?"), message("user", "bye")))

    assert prompt == Prompt(turns=[Turn("user", "hi"), Turn("assistant", "yes?"), Turn("user", "bye")])


@pytest.mark.ours
def test_b6_2_system_messages_are_joined_in_front():
    prompt = prompt_of(request(message("user", "hi"), message("system", "a"), message("developer", "b")))

    assert prompt.turns == [Turn("system", "a\n\nb"), Turn("user", "hi")]


@pytest.mark.ours
def test_b0_2_earlier_reasoning_is_accepted_and_not_shown_again():
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}

    assert prompt_of(request(reasoning, message("user", "hi"))).turns == [Turn("user", "hi")]


@pytest.mark.ours
def test_b2_4_sampling_goes_to_the_engine():
    sampling = {"top_p": 0.5, "seed": 7, "stop": ["\n"]}
    prompt = prompt_of(
        request(
            message("user", "hi"),
            temperature=0,
            max_output_tokens=10**20,
            extensions={"lmsp_jupyter": sampling},
        )
    )

    assert prompt.temperature == 0
    assert prompt.max_output_tokens == 2**31 - 1
    assert prompt.options == Options(**sampling)
