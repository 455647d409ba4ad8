"""Models that are loaded: the line before each, who keeps it, and which has to go (B0.8, B1.3, B3.8)."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from lmsp_jupyter import hosts
from lmsp_jupyter.catalog import Entry
from lmsp_jupyter.engines import Settings
from lmsp_jupyter.errors import EngineCrashed, ModelBusy, ModelUnavailable
from lmsp_jupyter.hosts import Hosts, Slots
from lmsp_jupyter.protocol import Model

pytestmark = pytest.mark.ours


def used(host, seconds_ago):
    """Say that a model was used last so long ago."""
    host.used -= seconds_ago


async def settle():
    """Let every other coroutine run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


def run(scenario):
    """Run a coroutine that a lost wake-up would leave waiting for ever."""
    return asyncio.run(asyncio.wait_for(scenario, timeout=20))


# The line before a model.


class Visitor:
    """Somebody who takes a place and leaves when told."""

    def __init__(self, slots):
        self.positions = []
        self.inside = False
        self._slots = slots
        self._leave = asyncio.Event()
        self.visit = asyncio.ensure_future(self._visit())

    async def _visit(self):
        with self._slots.place() as place:
            async for position in place.positions():
                self.positions.append(position)
            self.inside = True
            await self._leave.wait()
        self.inside = False

    async def leave(self):
        self._leave.set()
        await self.visit
        await settle()


def visitors(count, act, free=1):
    async def scenario():
        slots = Slots(free)
        crowd = [Visitor(slots) for _ in range(count)]
        await settle()
        await act(slots, crowd)

    run(scenario())


def test_b3_8_first_come_first_served_and_each_is_told_its_position():
    async def act(slots, crowd):
        assert [visitor.inside for visitor in crowd] == [True, True, False, False, False]
        assert [visitor.positions for visitor in crowd] == [[], [], [1], [2], [3]]
        await crowd[1].leave()
        assert [visitor.inside for visitor in crowd[2:]] == [True, False, False]
        assert [visitor.positions for visitor in crowd[2:]] == [[1], [2, 1], [3, 2]]
        for visitor in [crowd[0], *crowd[2:]]:
            await visitor.leave()

    visitors(5, act, free=2)


def test_b3_8_positions_that_have_passed_are_not_told():
    async def scenario():
        slots = Slots(1)
        with ExitStack() as first, ExitStack() as second:
            first.enter_context(slots.place())
            second.enter_context(slots.place())
            with slots.place() as last:
                positions = last.positions()
                assert await anext(positions) == 2
                first.close()
                second.close()
                assert [position async for position in positions] == []

    run(scenario())


def test_b0_8_who_leaves_the_line_leaves_no_gap():
    async def act(slots, crowd):
        crowd[1].visit.cancel()
        await settle()
        assert crowd[2].positions == [2, 1]
        await crowd[0].leave()
        assert crowd[2].inside
        await crowd[2].leave()

    visitors(3, act)


def test_b0_8_a_slot_given_to_one_who_leaves_at_that_moment_goes_on():
    async def scenario():
        slots = Slots(1)
        with slots.place():
            leaver, stayer = Visitor(slots), Visitor(slots)
            await settle()
        leaver.visit.cancel()  # it is served by now, and has not run yet
        await settle()
        assert not leaver.inside
        assert stayer.inside
        await stayer.leave()

    run(scenario())


def test_b0_8_who_fails_inside_gives_the_slot_back():
    async def scenario():
        slots = Slots(1)
        with pytest.raises(ZeroDivisionError), slots.place():
            _ = 1 / 0
        with slots.place() as place:
            assert place.served

    run(scenario())


def test_slots_are_free_again_when_all_have_left():
    async def act(slots, crowd):
        for visitor in crowd:
            await visitor.leave()
        with slots.place() as first, slots.place() as second, slots.place() as third:
            assert (first.served, second.served, third.served) == (True, True, False)
            assert third.position == 1

    visitors(5, act, free=2)


# Loading and unloading.


class FakeWorker:
    """A process that is only counted."""

    def __init__(self, path):
        self.path = path
        self.alive = True

    async def close(self):
        self.alive = False


class House:
    """Hosts whose workers are fakes: which were started, a gate that loading waits at, and why it fails."""

    def __init__(self, monkeypatch):
        self.started = []
        self.failure = None
        self.gate = None
        monkeypatch.setattr(hosts.Worker, "start", self._start)

    def open(self, memory=100, idle=0):
        self.hosts = Hosts(Settings(), memory=memory, idle=idle)
        return self.hosts

    def host(self, name, size=10):
        return self.hosts.of(entry(name, size))

    async def load(self, name, size=10):
        host = self.host(name, size)
        with host.use():
            await self.hosts.worker(host)
        return host

    @property
    def loaded(self):
        """The names of the models that are loaded."""
        return [worker.path.name for worker in self.started if worker.alive]

    async def _start(self, engine, path, settings):
        if self.gate:
            await self.gate.wait()
        if self.failure:
            raise self.failure
        self.started.append(FakeWorker(path))
        return self.started[-1]


@pytest.fixture
def house(monkeypatch):
    return House(monkeypatch)


def entry(name, size):
    return Entry(model_of(name, size), Path(name), "scripted")


def model_of(name, size=10, state="available"):
    return Model(
        id=name,
        engine="scripted",
        capabilities=[],
        context_length=None,
        size_bytes=size,
        quantization=None,
        source="lmsp",
        state=state,
    )


def test_a_model_has_one_host(house):
    async def scenario():
        house.open()
        assert house.hosts.get("a") is None
        assert house.host("a") is house.host("a") is house.hosts.get("a")
        assert house.host("b") is not house.host("a")

    run(scenario())


def test_b1_3_a_model_is_loaded_at_its_first_use_and_stays(house):
    async def scenario():
        house.open()
        host = house.host("a")
        assert host.worker is None
        first = await house.hosts.worker(host)
        assert host.worker is first
        assert await house.hosts.worker(host) is first

    run(scenario())

    assert len(house.started) == 1


def test_who_asks_while_a_model_loads_waits_for_the_same_one(house):
    async def scenario():
        house.open()
        house.gate = asyncio.Event()
        host = house.host("a")
        waiting = [asyncio.create_task(house.hosts.worker(host)) for _ in range(3)]
        await settle()
        assert host.busy
        house.gate.set()
        assert len(set(await asyncio.gather(*waiting))) == 1

    run(scenario())

    assert len(house.started) == 1


def test_b0_8_who_leaves_while_a_model_loads_does_not_stop_it_for_the_others(house):
    async def scenario():
        house.open()
        house.gate = asyncio.Event()
        host = house.host("a")
        leaver, stayer = (asyncio.create_task(house.hosts.worker(host)) for _ in range(2))
        await settle()
        leaver.cancel()
        await settle()
        house.gate.set()
        return await stayer

    assert run(scenario()).alive


def test_a_model_that_could_not_be_loaded_says_why_and_is_tried_again(house):
    async def scenario():
        house.open()
        host = house.host("a")
        house.failure = ModelUnavailable("It is no model.")
        for _ in range(2):
            with pytest.raises(ModelUnavailable):
                await house.hosts.worker(host)
        assert host.problem is house.failure
        house.failure = None
        await house.hosts.worker(host)
        assert host.problem is None

    run(scenario())


def test_a_process_that_dies_while_it_loads_is_a_model_that_is_not_available(house):
    async def scenario():
        house.open()
        house.failure = EngineCrashed("The process of the model ended by SIGSEGV.")
        with pytest.raises(ModelUnavailable, match="SIGSEGV"):
            await house.hosts.worker(house.host("a"))

    run(scenario())


def test_a_process_that_died_is_started_again_at_the_next_use(house):
    async def scenario():
        house.open()
        host = await house.load("a")
        house.started[0].alive = False
        assert host.worker is None
        await house.hosts.worker(host)

    run(scenario())

    assert len(house.started) == 2


def test_b1_3_a_model_is_unloaded_when_it_is_told(house):
    async def scenario():
        house.open()
        host = await house.load("a")
        await house.hosts.unload("a")
        assert host.worker is None
        await house.hosts.unload("a")
        await house.hosts.unload("unknown")

    run(scenario())

    assert house.loaded == []


def test_b1_3_a_model_in_use_is_not_unloaded(house):
    async def scenario():
        house.open()
        host = await house.load("a")
        with host.use():
            with pytest.raises(ModelBusy):
                await house.hosts.unload("a")
            with host.use():
                pass
            with pytest.raises(ModelBusy):
                await house.hosts.unload("a")
        assert house.loaded == ["a"]
        await house.hosts.unload("a")

    run(scenario())

    assert house.loaded == []


def test_b1_3_a_model_that_loads_is_not_unloaded(house):
    async def scenario():
        house.open()
        house.gate = asyncio.Event()
        loading = asyncio.create_task(house.hosts.worker(house.host("a")))
        await settle()
        with pytest.raises(ModelBusy):
            await house.hosts.unload("a")
        house.gate.set()
        return await loading

    assert run(scenario()).alive


def test_users_are_counted_over_all_models(house):
    async def scenario():
        house.open()
        with house.host("a").use(), house.host("a").use(), house.host("b").use():
            assert house.hosts.users == 3
        assert house.hosts.users == 0

    run(scenario())


@pytest.mark.parametrize(("idle", "unloaded"), [(600, True), (601, False), (0, False)])
def test_b1_3_a_model_that_was_idle_for_so_long_is_unloaded(house, idle, unloaded):
    async def scenario():
        house.open(idle=idle)
        host = await house.load("a")
        used(host, 600)
        await house.hosts.unload_idle()

    run(scenario())

    assert house.loaded == ([] if unloaded else ["a"])


def test_b1_3_a_model_in_use_is_never_idle(house):
    async def scenario():
        house.open(idle=1)
        host = await house.load("a")
        with host.use():
            used(host, 600)
            await house.hosts.unload_idle()
        await house.hosts.unload_idle()

    run(scenario())

    assert house.loaded == ["a"]


def test_b1_3_the_least_recently_used_has_to_go(house):
    async def scenario():
        house.open(memory=100)
        for name, seconds_ago in (("a", 10), ("b", 30), ("c", 20)):
            used(await house.load(name, size=30), seconds_ago)
        await house.load("d", size=30)

    run(scenario())

    assert house.loaded == ["a", "c", "d"]


def test_b1_3_as_many_have_to_go_as_are_in_the_way(house):
    async def scenario():
        house.open(memory=100)
        for name, seconds_ago in (("a", 10), ("b", 30), ("c", 20)):
            used(await house.load(name, size=30), seconds_ago)
        await house.load("d", size=60)

    run(scenario())

    assert house.loaded == ["a", "d"]


def test_b1_3_nothing_has_to_go_while_there_is_room(house):
    async def scenario():
        house.open(memory=100)
        await house.load("a", size=50)
        await house.load("b", size=50)

    run(scenario())

    assert house.loaded == ["a", "b"]


def test_b1_3_never_one_in_use(house):
    async def scenario():
        house.open(memory=100)
        busy = await house.load("busy", size=60)
        used(busy, 30)
        await house.load("idle", size=30)
        with busy.use():
            await house.load("new", size=40)
            assert house.loaded == ["busy", "new"]
            await house.load("large", size=1000)

    run(scenario())

    assert house.loaded == ["busy", "large"]


def test_b1_3_a_model_that_is_loaded_again_is_not_in_its_own_way(house):
    async def scenario():
        house.open(memory=100)
        await house.load("a", size=40)
        host = await house.load("b", size=60)
        host.worker.alive = False
        await house.load("b", size=60)

    run(scenario())

    assert house.loaded == ["a", "b"]


def test_b1_3_models_that_load_at_the_same_time_make_room_for_both(house):
    async def scenario():
        house.open(memory=100)
        await house.load("idle", size=30)
        house.gate = asyncio.Event()
        loading = [asyncio.create_task(house.load(name, size=40)) for name in ("a", "b")]
        await settle()
        house.gate.set()
        await asyncio.gather(*loading)

    run(scenario())

    assert house.loaded == ["a", "b"]


def test_b1_2_a_model_has_the_state_that_it_is_in(house):
    async def scenario():
        house.open()
        states = [house.hosts.with_state(model_of("a")).state]
        house.gate = asyncio.Event()
        loading = asyncio.create_task(house.load("a"))
        await settle()
        states.append(house.hosts.with_state(model_of("a")).state)
        house.gate.set()
        await loading
        states.append(house.hosts.with_state(model_of("a")).state)
        await house.hosts.unload("a")
        return [*states, house.hosts.with_state(model_of("a")).state]

    assert run(scenario()) == ["available", "loading", "loaded", "available"]


def test_b1_2_a_model_that_could_not_be_loaded_is_failed_and_says_why(house):
    async def scenario():
        house.open()
        house.failure = ModelUnavailable("It is no model.")
        with pytest.raises(ModelUnavailable):
            await house.load("a")
        return house.hosts.with_state(model_of("a"))

    model = run(scenario())

    assert (model.state, model.error) == ("failed", house.failure.document())


def test_b1_4_a_model_that_cannot_be_read_stays_failed(house):
    async def scenario():
        house.open()
        await house.load("a")
        return house.hosts.with_state(model_of("a", state="failed"))

    assert run(scenario()).state == "failed"


def test_closing_ends_what_is_loaded_and_what_loads(house):
    async def scenario():
        house.open()
        await house.load("a")
        house.gate = asyncio.Event()
        loading = asyncio.create_task(house.hosts.worker(house.host("b")))
        await settle()
        await house.hosts.close()
        await asyncio.wait([loading])
        return loading.cancelled()

    assert run(scenario())
    assert house.loaded == []
