"""Idempotency keys (B2.5): the same key and body run once, and are answered the same again."""

import asyncio
import json

import pytest

from lmsp_jupyter.errors import BadRequest, IdempotencyKeyReused, RequestInProgress, StorageUnavailable
from lmsp_jupyter.events import Composer
from lmsp_jupyter.journal import Journal
from lmsp_jupyter.keys import Keys, Replay, Reservation, digest, key_of
from lmsp_jupyter.parsing import parse_request
from lmsp_jupyter.protocol import Response, new_id
from lmsp_jupyter.store import Key, Store

pytestmark = pytest.mark.ours

KEY = Key(owner="ann", method="POST", path="/lmsp/v1/responses", key="k1")


# The header.


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (None, None),
        ("k1", "k1"),
        ('"k1"', "k1"),
        ('  "k1" ', "k1"),
        ("9f2c1e8a-5d3b", "9f2c1e8a-5d3b"),
        ("a" * 255, "a" * 255),
        ('"two words"', "two words"),
        (r'"say \"hi\""', 'say "hi"'),
        (r'"back\\slash"', r"back\slash"),
        ('"', '"'),
    ],
    ids=repr,
)
def test_a_key_is_bare_or_quoted(header, key):
    assert key_of(header) == key


@pytest.mark.parametrize(
    "header", ["", "  ", '""', "a" * 256, '"' + "a" * 256 + '"', "é", "a\tb", "a\nb", "\x00", "\x7f"], ids=repr
)
def test_what_is_not_1_to_255_printable_characters_is_refused(header):
    with pytest.raises(BadRequest) as caught:
        key_of(header)

    assert caught.value.code == "invalid_request"


# The body.


def same(one, other):
    return digest(one.encode()) == digest(other.encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":2}', '{"b":2,"a":1}'),
        ('{"a":{"b":1,"c":2}}', '{"a":{"c":2,"b":1}}'),
        ('{"a":[1,2]}', ' { "a" :\n[ 1,\t2 ] } '),
        ('{"a":1}', '{"a":1.0}'),
        ('{"a":100}', '{"a":1e2}'),
        ('{"a":0}', '{"a":-0.0}'),
        ('{"a":0.1}', '{"a":1e-1}'),
        ('{"a":"é"}', r'{"a":"\u00e9"}'),
        ('{"a":"/"}', r'{"a":"\/"}'),
        ('{"a":"😀"}', r'{"a":"\ud83d\ude00"}'),
        ('{"a":9007199254740992}', '{"a":9007199254740993}'),
        (f'{{"a":{10**300}}}', '{"a":1e300}'),
        (f'{{"a":{-(10**20)}}}', '{"a":-1e20}'),
    ],
    ids=repr,
)
def test_bodies_that_are_the_same_in_their_canonical_form(one, other):
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1}', '{"a":2}'),
        ('{"a":1}', '{"a":"1"}'),
        ('{"a":1}', '{"a":true}'),
        ('{"a":null}', "{}"),
        ('{"a":[1,2]}', '{"a":[2,1]}'),
        ('{"a":"x"}', '{"a":"x "}'),
        ('{"a":"é"}', r'{"a":"e\u0301"}'),
        ('{"a":9007199254740991}', '{"a":9007199254740990}'),
        ('{"a":0.1}', '{"a":0.10000000000000002}'),
    ],
    ids=repr,
)
def test_bodies_that_are_not(one, other):
    assert not same(one, other)


# Keys.


class Service:
    """Keys as a server has them, with its journal and store."""

    def __init__(self, folder):
        self.store = Store(folder)
        self.journal = Journal(self.store, event_retention=3600, task_retention=86400)
        self.keys = Keys(self.journal, self.store)

    async def run_under(self, reservation, *, fails=False):
        """The id of a run under a reserved key, which has ended."""
        request = parse_request(json.dumps({"model": "m", "input": "Hi."}).encode())
        response = Response(id=new_id("resp"), model="m")
        log = await self.journal.open(response, request, "ann", key=reservation.key)
        composer = Composer(response.id)
        await log.append(*(composer.failed(StorageUnavailable()) if fails else composer.completed(None)))
        return response.id


@pytest.fixture
def perform(tmp_path):
    """Run `act(service, …)` with as many services on one folder as it takes; they are closed afterwards."""

    def perform(act, count=1):
        async def scenario():
            services = [Service(tmp_path / "data") for _ in range(count)]
            try:
                return await act(*services)
            finally:
                for service in services:
                    await service.journal.close()

        return asyncio.run(asyncio.wait_for(scenario(), timeout=30))

    return perform


async def refused(kind, reserving):
    with pytest.raises(kind) as caught:
        await reserving
    return caught.value


def test_a_new_key_is_reserved(perform):
    async def act(service):
        reservation = await service.keys.reserve(KEY, b"digest")
        assert isinstance(reservation, Reservation)
        assert reservation.key == KEY

    perform(act)


def test_of_several_at_once_one_runs(perform):
    async def act(service):
        return await asyncio.gather(*(service.keys.reserve(KEY, b"digest") for _ in range(5)), return_exceptions=True)

    first, *others = perform(act)

    assert isinstance(first, Reservation)
    assert [type(other) for other in others] == [RequestInProgress] * 4


def test_of_two_servers_at_once_one_runs(perform):
    async def act(one, other):
        return await asyncio.gather(
            *(service.keys.reserve(KEY, b"digest") for service in (one, other)), return_exceptions=True
        )

    assert {type(each) for each in perform(act, count=2)} == {Reservation, RequestInProgress}


def test_while_the_first_runs_the_same_request_waits(perform):
    async def act(one, other):
        await one.keys.reserve(KEY, b"digest")
        for service in (one, other):
            problem = await refused(RequestInProgress, service.keys.reserve(KEY, b"digest"))
            assert (problem.status, problem.code) == (409, "request_in_progress")
            assert int(problem.headers["Retry-After"]) > 0

    perform(act, count=2)


def test_another_body_under_the_same_key_is_refused(perform):
    async def act(one, other):
        reservation = await one.keys.reserve(KEY, b"digest")
        for service in (one, other):
            problem = await refused(IdempotencyKeyReused, service.keys.reserve(KEY, b"another"))
            assert (problem.status, problem.code) == (422, "idempotency_key_reused")
        await reservation.keep(200, b"{}")
        for service in (one, other):
            await refused(IdempotencyKeyReused, service.keys.reserve(KEY, b"another"))

    perform(act, count=2)


@pytest.mark.parametrize(
    "other",
    [
        Key(owner="bob", method="POST", path="/lmsp/v1/responses", key="k1"),
        Key(owner="ann", method="POST", path="/lmsp/v1/tasks", key="k1"),
        Key(owner="ann", method="PUT", path="/lmsp/v1/responses", key="k1"),
        Key(owner="ann", method="POST", path="/lmsp/v1/responses", key="k2"),
    ],
    ids=["identity", "path", "method", "key"],
)
def test_a_key_counts_within_its_scope(perform, other):
    async def act(service):
        await service.keys.reserve(KEY, b"digest")
        assert isinstance(await service.keys.reserve(other, b"another"), Reservation)

    perform(act)


def test_a_kept_answer_is_told_again(perform):
    async def act(one, other):
        reservation = await one.keys.reserve(KEY, b"digest")
        run_id = await one.run_under(reservation)
        await reservation.keep(200, b'{"id":"resp_1"}')
        replay = Replay(run_id, 200, b'{"id":"resp_1"}')
        for service in (one, other, one):
            assert await service.keys.reserve(KEY, b"digest") == replay

    perform(act, count=2)


def test_a_stream_is_kept_as_the_events_of_its_run(perform):
    async def act(service):
        reservation = await service.keys.reserve(KEY, b"digest")
        run_id = await service.run_under(reservation)
        await reservation.keep(200, b"")
        assert await service.keys.reserve(KEY, b"digest") == Replay(run_id, 200, b"")

    perform(act)


def test_a_kept_answer_outlives_its_server(perform):
    async def act(dead, heir):
        reservation = await dead.keys.reserve(KEY, b"digest")
        await reservation.keep(202, b"{}")
        dead.store.close()
        assert await heir.keys.reserve(KEY, b"digest") == Replay(None, 202, b"{}")

    perform(act, count=2)


def test_a_key_that_is_released_is_new(perform):
    async def act(service):
        reservation = await service.keys.reserve(KEY, b"digest")
        await reservation.release()
        assert isinstance(await service.keys.reserve(KEY, b"another"), Reservation)

    perform(act)


def test_a_run_that_failed_gives_its_key_back(perform):
    async def act(one, other):
        reservation = await one.keys.reserve(KEY, b"digest")
        await one.run_under(reservation, fails=True)
        assert isinstance(await other.keys.reserve(KEY, b"another"), Reservation)
        reservation.forget()
        await refused(IdempotencyKeyReused, one.keys.reserve(KEY, b"digest"))

    perform(act, count=2)


def test_a_dead_server_gives_its_keys_back(perform):
    async def act(dead, heir):
        await dead.keys.reserve(KEY, b"digest")
        dead.store.close()
        assert isinstance(await heir.keys.reserve(KEY, b"digest"), Reservation)

    perform(act, count=2)


def test_a_key_that_cannot_be_reserved_is_nobodys(perform, monkeypatch):
    def fail(*_):
        raise StorageUnavailable("The disk is full.")

    async def act(service):
        with monkeypatch.context() as patch:
            patch.setattr(service.store, "reserve", fail)
            await refused(StorageUnavailable, service.keys.reserve(KEY, b"digest"))
        assert isinstance(await service.keys.reserve(KEY, b"digest"), Reservation)

    perform(act)


def test_an_answer_that_cannot_be_kept_gives_the_key_back(perform, monkeypatch):
    def fail(*_):
        raise StorageUnavailable("The disk is full.")

    async def act(service):
        reservation = await service.keys.reserve(KEY, b"digest")
        with monkeypatch.context() as patch:
            patch.setattr(service.store, "keep", fail)
            await refused(StorageUnavailable, reservation.keep(200, b"{}"))
        assert isinstance(await service.keys.reserve(KEY, b"digest"), Reservation)

    perform(act)


def test_a_key_that_cannot_be_given_back_at_once_is_so_later(perform, monkeypatch):
    def fail(*_):
        raise StorageUnavailable("The disk is full.")

    async def act(service):
        reservation = await service.keys.reserve(KEY, b"digest")
        with monkeypatch.context() as patch:
            patch.setattr(service.store, "release", fail)
            await refused(StorageUnavailable, reservation.release())
            await refused(StorageUnavailable, service.keys.reserve(KEY, b"digest"))
        assert isinstance(await service.keys.reserve(KEY, b"digest"), Reservation)

    perform(act)
