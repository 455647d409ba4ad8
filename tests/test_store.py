"""What is on disk: runs, their logs and tasks, keys and tokens; and what of it survives (B2.5, B3, B5.2, B6.1)."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from lmsp_jupyter import database, migrations
from lmsp_jupyter.errors import StorageUnavailable
from lmsp_jupyter.events import Entry
from lmsp_jupyter.protocol import new_id
from lmsp_jupyter.store import Key, Record, Reserved, Store

chapter6 = pytest.mark.chapter6
ours = pytest.mark.ours

HOUR, DAY = 3600, 86400

KEY = Key(owner="ann", method="POST", path="/lmsp/v1/responses", key="k1")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def servers(folder):
    """Makes stores on one folder, each as if it were a server of its own."""
    stores = []

    def another():
        stores.append(Store(folder))
        return stores[-1]

    yield another
    for store in stores:
        store.close()


@pytest.fixture
def store(servers):
    return servers()


def record(**changes):
    fields = {
        "id": new_id("resp"),
        "owner": "ann",
        "model": "m",
        "status": "queued",
        "created_at": 1000,
        "stored": False,
        "request": b'{"input":[]}',
        "response": b'{"status":"in_progress"}',
    }
    return Record(**fields | changes)


def task(**changes):
    return record(task_id=new_id("task"), **changes)


def numbered(*ids, event="response.output_text.delta"):
    return [Entry(id, event, f'{{"n":{id}}}') for id in ids]


def created(store, a_record=None, key=None):
    a_record = a_record or task()
    store.create(a_record, numbered(1, event="response.created"), key)
    return a_record


def ended(store, a_record=None, at=2000, status="completed", key=None):
    a_record = created(store, a_record, key)
    assert store.append(a_record.id, numbered(2), status=status, completed_at=at, response=b'{"status":"ended"}')
    return a_record


def ids(records):
    return [each.id for each in records]


def log_of(store, run):
    return [entry.id for entry in store.entries(run.id, 0)]


# Runs and their logs


@ours
def test_b3_8_a_run_is_there_with_its_first_events(store):
    made = task(
        stored=True,
        status="in_progress",
        started_at=1001,
        metadata={"notebook": "a.ipynb", "é": "😀"},
        previous="resp_0",
    )
    store.create(made, numbered(1, 2))

    assert store.run(made.id) == replace(made, last_event_id=2, instance=store.instance)
    assert store.task(made.task_id) == store.run(made.id)
    assert store.entries(made.id, 0) == numbered(1, 2)


@ours
def test_a_run_that_is_not_there_is_none(store):
    assert store.run("resp_0") is None
    assert store.task("task_0") is None
    assert store.entries("resp_0", 0) == []


@ours
def test_a_run_need_not_be_a_task(store):
    made = created(store, record(stored=True))

    assert store.run(made.id).task_id is None
    assert store.tasks(["ann"], limit=10) == []


@ours
def test_a_run_that_cannot_be_made_leaves_nothing(store):
    made = created(store)

    with pytest.raises(StorageUnavailable):
        store.create(replace(task(), id=made.id), numbered(1))
    with pytest.raises(StorageUnavailable):
        store.create(another := task(), numbered(1, 3))

    assert store.run(another.id) is None
    assert ids(store.tasks(["ann"], limit=10)) == [made.id]


@ours
def test_b3_2_events_and_what_they_change_are_one_transaction(store):
    run = created(store)

    assert store.append(run.id, numbered(2), status="in_progress", started_at=1001)
    assert store.append(run.id, numbered(3, 4))
    started = store.run(run.id)
    assert (started.status, started.started_at, started.completed_at, started.last_event_id) == (
        "in_progress",
        1001,
        None,
        4,
    )
    assert started.response == run.response

    assert store.append(run.id, numbered(5), status="completed", completed_at=1009, response=b"{}")
    assert store.run(run.id) == replace(started, status="completed", completed_at=1009, last_event_id=5, response=b"{}")


@ours
@pytest.mark.parametrize("wrong", [(1,), (2, 2), (2, 4), (3,), (3, 2)], ids=repr)
def test_a4_1_numbers_that_do_not_follow_are_refused_whole(store, wrong):
    run = created(store)

    with pytest.raises(StorageUnavailable):
        store.append(run.id, numbered(*wrong), status="completed", completed_at=1)

    assert log_of(store, run) == [1]
    assert store.run(run.id).status == "queued"
    assert store.append(run.id, numbered(2))


@ours
@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
def test_b3_3_the_first_final_event_wins(store, status):
    run = ended(store, status=status)

    assert not store.append(run.id, numbered(3), status="cancelled", completed_at=3000, response=b"late")

    assert log_of(store, run) == [1, 2]
    assert (store.run(run.id).status, store.run(run.id).response) == (status, b'{"status":"ended"}')


@ours
def test_nothing_is_appended_to_a_run_that_is_gone(store):
    assert not store.append("resp_0", numbered(1))


@ours
def test_b3_5_a_log_is_read_from_anywhere_in_chunks(store):
    run = created(store)
    store.append(run.id, numbered(*range(2, 26)))
    created(store)

    assert [entry.id for entry in store.entries(run.id, 0, limit=10)] == [*range(1, 11)]
    assert [entry.id for entry in store.entries(run.id, 20, limit=10)] == [*range(21, 26)]
    assert store.entries(run.id, 25) == []


# Tasks


@ours
def test_b3_3_tasks_are_listed_newest_first_page_by_page(store):
    made = [created(store) for _ in range(5)]
    newest_first = sorted((each.task_id for each in made), reverse=True)

    listed, after = [], None
    while page := store.tasks(["ann"], limit=2, after=after):
        listed += [each.task_id for each in page]
        after = listed[-1]

    assert listed == newest_first


@ours
def test_b3_3_tasks_are_listed_by_status_and_model(store):
    queued, done, other = created(store), ended(store), created(store, task(model="n"))

    assert set(ids(store.tasks(["ann"], limit=10))) == {queued.id, done.id, other.id}
    assert ids(store.tasks(["ann"], status="completed", limit=10)) == [done.id]
    assert ids(store.tasks(["ann"], model="n", limit=10)) == [other.id]
    assert store.tasks(["ann"], status="completed", model="n", limit=10) == []


@ours
def test_b5_5_tasks_of_others_are_not_listed(store):
    mine, hers = created(store), created(store, task(owner="bea"))

    assert ids(store.tasks(["ann"], limit=10)) == [mine.id]
    assert set(ids(store.tasks({"ann", "bea"}, limit=10))) == {mine.id, hers.id}
    assert store.tasks([], limit=10) == []


@ours
def test_b3_3_a_listing_holds_of_the_contents_only_why_a_task_failed(store):
    completed, failed = ended(store), ended(store, status="failed")

    listed = {each.id: (each.request, each.response) for each in store.tasks(["ann"], limit=10)}

    assert listed == {completed.id: (b"", b""), failed.id: (b"", b'{"status":"ended"}')}


# Deleting


@ours
def test_b3_3_a_deleted_task_goes_with_its_response_log_and_key(store):
    store.reserve(KEY, b"d")
    run = ended(store, key=KEY)
    store.keep(KEY, 202, b"task")

    store.delete_task(run.task_id)

    assert store.task(run.task_id) is None
    assert store.run(run.id) is None
    assert log_of(store, run) == []
    assert store.reserve(KEY, b"d") is None


@ours
def test_b3_3_a_stored_response_of_a_deleted_task_stays_without_events(store):
    store.reserve(KEY, b"d")
    run = ended(store, task(stored=True, metadata={"a": "b"}), key=KEY)
    store.keep(KEY, 200, b"")
    before = store.run(run.id)

    store.delete_task(run.task_id)

    assert store.task(run.task_id) is None
    assert store.run(run.id) == replace(before, task_id=None, metadata={}, events_dropped=True)
    assert log_of(store, run) == []
    assert store.reserve(KEY, b"d") is None


@ours
def test_b6_1_a_deleted_response_goes_with_its_log_and_key(store):
    store.reserve(KEY, b"d")
    run = ended(store, record(stored=True), key=KEY)
    store.keep(KEY, 200, b"body")

    store.delete_response(run.id)

    assert store.run(run.id) is None
    assert log_of(store, run) == []
    assert store.reserve(KEY, b"d") is None


@ours
def test_b6_1_a_deleted_response_empties_its_task(store):
    store.reserve(KEY, b"d")
    run = ended(store, task(stored=True, metadata={"a": "b"}, previous="resp_0"), key=KEY)
    store.keep(KEY, 202, b"task")
    before = store.task(run.task_id)

    store.delete_response(run.id)

    assert store.task(run.task_id) == replace(
        before, stored=False, previous=None, request=b"", response=b"", events_dropped=True
    )
    assert log_of(store, run) == []
    assert store.reserve(KEY, b"d") is None


@ours
def test_deleting_what_is_not_there_does_nothing(store):
    kept = ended(store)

    store.delete_task("task_0")
    store.delete_response("resp_0")

    assert log_of(store, kept) == [1, 2]


# Several servers


@ours
def test_b3_7_a_server_sees_what_another_commits(servers):
    one, other = servers(), servers()
    run = created(one)
    assert log_of(other, run) == [1]

    one.append(run.id, numbered(2, 3), status="in_progress")

    assert [entry.id for entry in other.entries(run.id, 1)] == [2, 3]
    assert other.task(run.task_id) == one.task(run.task_id)
    assert other.task(run.task_id).instance == one.instance


@ours
def test_b3_7_a_run_is_cancelled_by_a_flag_that_its_server_reads(servers):
    one, other = servers(), servers()
    run, done = created(one), ended(one)

    other.request_cancel(run.id)
    other.request_cancel(done.id)

    assert other.cancels() == []
    assert one.cancels() == [run.id]
    one.append(run.id, numbered(2), status="cancelled", completed_at=1)
    assert one.cancels() == []


@ours
def test_b3_7_servers_know_who_is_alive(servers):
    one, other, unused = servers(), servers(), servers()
    one.cancels()

    assert one.alive(one.instance)
    assert other.alive(one.instance)
    assert one.alive(other.instance)
    assert not one.alive(unused.instance)

    one.close()
    assert not other.alive(one.instance)


@ours
def test_b3_7_runs_of_the_living_are_not_adopted(servers):
    one, other = servers(), servers()
    created(one)

    assert other.adopt() == []
    assert one.adopt() == []


@ours
def test_b3_6_unfinished_runs_of_the_dead_are_adopted(servers):
    one, other = servers(), servers()
    queued, running, done = created(one), created(one), ended(one)
    one.append(running.id, numbered(2), status="in_progress")
    one.request_cancel(running.id)
    one.close()

    adopted = other.adopt()

    assert sorted(ids(adopted)) == ids(adopted)
    assert set(ids(adopted)) == {queued.id, running.id}
    assert adopted == [other.run(each.id) for each in adopted]
    assert {each.instance for each in adopted} == {other.instance}
    assert other.run(done.id).instance == one.instance
    assert other.cancels() == [running.id]
    assert other.append(running.id, numbered(3), status="failed", completed_at=1)
    assert other.adopt() == []


@ours
def test_b3_7_each_orphan_is_adopted_once(servers):
    orphans = set()
    for _ in range(5):
        dead = servers()
        orphans |= {created(dead).id for _ in range(5)}
        dead.close()
    living = [servers() for _ in range(4)]
    together = threading.Barrier(len(living))

    def adopt(store):
        store.cancels()
        together.wait(timeout=20)
        return store.adopt()

    with ThreadPoolExecutor(len(living)) as threads:
        adopted = [each.id for records in threads.map(adopt, living) for each in records]

    assert len(adopted) == len(orphans)
    assert set(adopted) == orphans


@ours
def test_b3_7_lock_files_of_the_dead_are_removed(servers, folder):
    store, other = servers(), servers()
    other.cancels()
    store.cancels()
    (folder / "instances" / "inst_dead.lock").touch()

    store.adopt()

    assert {path.stem for path in (folder / "instances").iterdir()} == {store.instance, other.instance}
    other.close()
    assert {path.stem for path in (folder / "instances").iterdir()} == {store.instance}


OPEN_AT_ONCE = """
import sys, time
from pathlib import Path
from lmsp_jupyter.store import Store

store = Store(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
store.cancels()
store.close()
"""


def child(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@ours
def test_b3_7_servers_that_start_at_once_share_a_new_folder(folder):
    children = [child(OPEN_AT_ONCE, folder) for _ in range(3)]
    for each in children:
        assert each.stdout.readline() == "ready\n"
    for each in children:
        each.stdin.write("go\n")
        each.stdin.flush()
    for each in children:
        each.communicate(timeout=60)

    assert [each.returncode for each in children] == [0, 0, 0]


@ours
def test_any_thread_may_use_a_store(store):
    runs = [created(store) for _ in range(4)]

    def fill(run):
        return [store.append(run.id, numbered(number)) for number in range(2, 50)]

    with ThreadPoolExecutor(4) as threads:
        assert all(map(all, threads.map(fill, runs)))

    for run in runs:
        assert log_of(store, run) == [*range(1, 50)]


# Death


APPEND_FOR_EVER = """
import sys
from pathlib import Path
from lmsp_jupyter.events import Entry
from lmsp_jupyter.store import Key, Record, Store

store = Store(Path(sys.argv[1]))
store.reserve(Key(owner="ann", method="POST", path="/lmsp/v1/responses", key="k1"), b"d")
run = Record(id="resp_1", owner="ann", model="m", status="in_progress", created_at=1, stored=True, task_id="task_1",
             request=b"{}", response=b"{}")
store.create(run, [Entry(1, "response.created", "{}")])
number = 1
while True:
    store.append("resp_1", [Entry(number + i, "response.output_text.delta", "{}") for i in range(1, 8)])
    number += 7
    print(number, flush=True)
"""


@ours
@pytest.mark.parametrize("appends", [1, 20, 100])
def test_b3_6_a_server_that_is_killed_loses_no_event_that_was_committed(store, folder, appends):
    writer = child(APPEND_FOR_EVER, folder)
    for _ in range(appends):
        last = writer.stdout.readline()
    assert store.adopt() == [], "The writer lives."
    assert store.reserve(KEY, b"d") is not None
    writer.kill()
    rest, _ = writer.communicate(timeout=60)
    last = int((rest.splitlines() or [last])[-1])

    [adopted] = store.adopt()

    assert adopted.last_event_id >= last
    entries = store.entries("resp_1", 0, limit=10**6)
    assert [entry.id for entry in entries] == [*range(1, adopted.last_event_id + 1)]
    number = adopted.last_event_id + 1
    assert store.append("resp_1", numbered(number), status="failed", completed_at=2)
    assert [entry.id for entry in store.entries("resp_1", number - 1)] == [number]
    assert [path.stem for path in (folder / "instances").iterdir()] == [store.instance]
    assert store.reserve(KEY, b"d") is None


@ours
def test_what_is_kept_is_there_after_a_restart(servers):
    one = servers()
    run = ended(one)
    before = one.run(run.id)
    one.close()

    other = servers()
    assert other.run(run.id) == before
    assert log_of(other, run) == [1, 2]


@ours
def test_a_closed_store_is_not_used(store):
    store.cancels()
    store.close()
    store.close()

    with pytest.raises(StorageUnavailable):
        store.cancels()


# Retention


def swept(store, now, events=HOUR, tasks=30 * DAY):
    store.sweep(now, event_retention=events, task_retention=tasks)


@ours
def test_b3_10_events_are_dropped_whole_after_their_time(store):
    run, running = ended(store, at=2000), created(store)
    before = store.task(run.task_id)

    swept(store, 2000 + HOUR - 1)
    assert log_of(store, run) == [1, 2]
    assert store.task(run.task_id) == before

    swept(store, 2000 + HOUR)
    assert log_of(store, run) == []
    assert store.task(run.task_id) == replace(before, events_dropped=True)
    assert log_of(store, running) == [1]


@ours
def test_b3_10_a_task_goes_with_its_response_after_its_time(store):
    run, stored_too, running = ended(store, at=2000), ended(store, task(stored=True), at=2000), created(store)

    swept(store, 2000 + 30 * DAY - 1)
    assert store.task(run.task_id)

    swept(store, 2000 + 30 * DAY)
    assert store.run(run.id) is None
    assert store.run(stored_too.id) is None
    assert store.run(running.id)


@ours
def test_b6_1_a_stored_response_that_is_no_task_stays(store):
    run = ended(store, record(stored=True), at=2000)

    swept(store, 2000 + 1000 * DAY)

    assert store.run(run.id).response == b'{"status":"ended"}'


@ours
def test_a_run_that_nothing_keeps_goes_with_its_log(store):
    run, running = ended(store, record(), at=2000), created(store, record())

    swept(store, 2000 + HOUR - 1)
    assert log_of(store, run) == [1, 2]

    swept(store, 2000 + HOUR)
    assert store.run(run.id) is None
    assert store.run(running.id)


@ours
def test_b2_5_a_log_stays_for_the_key_that_is_answered_from_it(store, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 2000.5)
    store.reserve(KEY, b"d")
    run = ended(store, record(), at=2000, key=KEY)
    swept(store, 2000 + HOUR)
    assert log_of(store, run) == [1, 2], "Its answer may yet be kept."
    store.keep(KEY, 200, b"")

    swept(store, 2000 + DAY - 1)
    assert log_of(store, run) == [1, 2]

    swept(store, 2000 + DAY)
    assert store.run(run.id) is None
    assert store.reserve(KEY, b"d") is None


@ours
def test_b2_5_a_key_with_a_body_keeps_its_run_but_no_log(store, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 2000.5)
    store.reserve(KEY, b"d")
    run = ended(store, at=2000, key=KEY)
    store.keep(KEY, 202, b"task")

    swept(store, 2000 + HOUR, tasks=HOUR)

    assert log_of(store, run) == []
    assert store.task(run.task_id).events_dropped
    assert store.reserve(KEY, b"d").body == b"task"


# Idempotency keys


@ours
def test_b2_5_a_key_is_reserved_once(servers):
    one, other = servers(), servers()

    assert one.reserve(KEY, b"d") is None
    for store in (one, other):
        assert store.reserve(KEY, b"e") == Reserved(digest=b"d", kept=False, run_id=None, status=0, body=b"")


@ours
@pytest.mark.parametrize("member", ["owner", "method", "path", "key"])
def test_b2_5_a_key_is_scoped(store, member):
    store.reserve(KEY, b"d")

    assert store.reserve(replace(KEY, **{member: "other"}), b"d") is None


@ours
def test_b2_5_simultaneous_reservations_give_the_key_to_one(servers):
    stores = [servers() for _ in range(4)]
    together = threading.Barrier(len(stores))

    def reserve(store):
        store.cancels()
        together.wait(timeout=20)
        return store.reserve(KEY, b"d")

    with ThreadPoolExecutor(len(stores)) as threads:
        found = list(threads.map(reserve, stores))

    assert found.count(None) == 1


@ours
def test_b2_5_a_key_knows_its_run_and_keeps_its_answer(servers):
    one = servers()
    one.reserve(KEY, b"d")
    run = created(one, key=KEY)
    assert one.reserve(KEY, b"d") == Reserved(digest=b"d", kept=False, run_id=run.id, status=0, body=b"")

    one.keep(KEY, 202, b"task")
    one.close()

    other = servers()
    other.adopt()
    assert other.reserve(KEY, b"d") == Reserved(digest=b"d", kept=True, run_id=run.id, status=202, body=b"task")


@ours
def test_b2_5_a_released_key_is_free(store):
    store.reserve(KEY, b"d")
    store.release(KEY)

    assert store.reserve(KEY, b"e") is None


@ours
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("status", ["completed", "incomplete", "cancelled", "failed"])
def test_b2_5_a_run_that_fails_releases_its_key(store, status, kept):
    store.reserve(KEY, b"d")
    run = created(store, key=KEY)
    if kept:
        store.keep(KEY, 202, b"task")

    store.append(run.id, numbered(2), status=status, completed_at=1)

    assert (store.reserve(KEY, b"d") is None) == (status == "failed")


@ours
@pytest.mark.parametrize("adopted", [False, True])
def test_b2_5_a_dead_server_releases_its_key(servers, adopted):
    one, other = servers(), servers()
    one.reserve(KEY, b"d")
    created(one, key=KEY)
    one.close()
    if adopted:
        other.adopt()

    assert other.reserve(KEY, b"e") is None
    assert other.reserve(KEY, b"e").digest == b"e"


# Tokens


def a_token(store, id, owner="ann", expires_at=None, created_at=1):
    store.add_token(id, owner, "name", id.encode(), ["models:read", "tasks:read"], created_at, expires_at)


@ours
def test_b5_2_a_token_is_found_by_its_hash(store):
    a_token(store, "tok_1", expires_at=9, created_at=5)

    token = store.token(b"tok_1")

    assert (token.id, token.owner, token.name, token.created_at, token.expires_at) == ("tok_1", "ann", "name", 5, 9)
    assert token.scopes == ["models:read", "tasks:read"]
    assert store.token(b"tok_2") is None


@ours
def test_b5_2_tokens_are_listed_oldest_first_and_by_owner(store):
    a_token(store, "tok_1", created_at=3)
    a_token(store, "tok_2", created_at=2)
    a_token(store, "tok_3", owner="bea")

    assert ids(store.tokens(["ann"])) == ["tok_2", "tok_1"]
    assert ids(store.tokens(["ann", "bea"])) == ["tok_3", "tok_2", "tok_1"]


@ours
def test_b5_2_a_token_is_deleted_by_its_owner_at_once_for_all_servers(servers):
    one, other = servers(), servers()
    a_token(one, "tok_1")

    assert not other.delete_token("tok_1", ["bea"])
    assert one.token(b"tok_1")
    assert other.delete_token("tok_1", ["bea", "ann"])
    assert one.token(b"tok_1") is None
    assert not other.delete_token("tok_1", ["ann"])


@ours
def test_b5_2_expired_tokens_are_swept(store):
    a_token(store, "tok_1", expires_at=100)
    a_token(store, "tok_2")

    swept(store, 99)
    assert ids(store.tokens(["ann"])) == ["tok_1", "tok_2"]

    swept(store, 100)
    assert ids(store.tokens(["ann"])) == ["tok_2"]


# The database


@ours
@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_b5_6_files_are_their_owners_only(servers, folder, umask):
    folder.mkdir(mode=0o755)
    before = os.umask(umask)
    try:
        created(servers())
    finally:
        os.umask(before)

    modes = {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}
    assert {"data", "instances", "lmsp.sqlite", "lmsp.sqlite-wal", "lmsp.sqlite-shm"} <= modes.keys()
    for name, mode in modes.items():
        assert mode == (0o700 if name in ("data", "instances") else 0o600), name


@ours
def test_making_a_store_touches_no_file(store, folder):
    assert store.instance.startswith("inst_")
    assert not folder.exists()


def unavailable(store):
    """That the store says so, for reading and writing, without a path."""
    for use in (store.cancels, lambda: created(store)):
        with pytest.raises(StorageUnavailable) as caught:
            use()
        assert (caught.value.status, caught.value.code) == (507, "storage_unavailable")
        assert "/" not in caught.value.detail
        assert "\\" not in caught.value.detail
    return caught.value.detail


@ours
def test_b3_9_a_folder_that_cannot_be_made_is_tried_again(tmp_path):
    (tmp_path / "file").touch()
    with closing(Store(tmp_path / "file" / "data")) as store:
        unavailable(store)

        (tmp_path / "file").unlink()

        created(store)


@ours
@pytest.mark.parametrize(
    "content", [b"no database " * 1000, b"SQLite format 3\0" + b"\xff" * 8000], ids=["text", "cut"]
)
def test_b3_9_a_database_that_is_damaged_is_said_to_be(store, folder, content):
    folder.mkdir()
    (folder / "lmsp.sqlite").write_bytes(content)
    assert "lmsp.sqlite" in unavailable(store)

    (folder / "lmsp.sqlite").unlink()

    created(store)


@ours
def test_b3_9_a_database_that_another_program_holds_is_tried_again(store, folder, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    run = created(store)
    with closing(sqlite3.connect(folder / "lmsp.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageUnavailable, match="locked"):
            store.append(run.id, numbered(2))
        assert log_of(store, run) == [1], "It can still be read."

    assert store.append(run.id, numbered(2))


@ours
def test_b3_9_a_transaction_on_a_full_disk_leaves_nothing_and_reading_goes_on(store):
    run = created(store)
    with store._database.reading() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 4}")
    big = [Entry(2, "response.output_text.delta", "x" * 100_000)]

    with pytest.raises(StorageUnavailable, match="full"):
        store.append(run.id, big, status="in_progress")
    assert log_of(store, run) == [1]
    assert store.run(run.id).status == "queued"

    with store._database.reading() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    assert store.append(run.id, big, status="in_progress")
    assert log_of(store, run) == [1, 2]


FILES_MAY_NOT_GROW = """
import resource, signal, sys
from pathlib import Path
from lmsp_jupyter.errors import StorageUnavailable
from lmsp_jupyter.events import Entry
from lmsp_jupyter.store import Record, Store

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(Path(sys.argv[1]))
run = Record(id="resp_1", owner="ann", model="m", status="queued", created_at=1, stored=True, request=b"", response=b"")
store.create(run, [Entry(1, "response.created", "{}")])
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
number = 1
while True:
    try:
        store.append("resp_1", [Entry(number + 1, "response.output_text.delta", "x" * 5000)])
    except StorageUnavailable:
        break
    number += 1
assert 1 < number < 200
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert [entry.id for entry in store.entries("resp_1", 0)] == list(range(1, number + 1))
assert store.append("resp_1", [Entry(number + 1, "response.output_text.delta", "{}")])
store.close()
"""


@ours
@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="limits on files are POSIX")
def test_b3_9_a_disk_that_takes_no_more_is_written_again_when_it_does(folder):
    writer = child(FILES_MAY_NOT_GROW, folder)
    writer.communicate(timeout=60)

    assert writer.returncode == 0


# Migrations


@ours
def test_a_database_of_each_older_format_is_brought_up_to_date(servers, monkeypatch):
    """With one migration more than there are, the formats of today are the older ones."""
    one = servers()
    run = created(one)
    one.close()

    def add_a_column(db):
        db.execute("ALTER TABLE runs ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'")

    monkeypatch.setattr(migrations, "MIGRATIONS", [*migrations.MIGRATIONS, add_a_column])
    other = servers()

    assert other.run(run.id) == replace(run, last_event_id=1, instance=one.instance)
    with other._database.reading() as connection:
        assert [*connection.execute("SELECT colour FROM runs").fetchone()] == ["red"]
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(migrations.MIGRATIONS)


@ours
def test_a_migration_that_fails_changes_nothing_and_is_tried_again(servers, monkeypatch):
    one = servers()
    run = created(one)
    one.close()
    broken = True

    def fail_half_way(db):
        db.execute("ALTER TABLE runs ADD COLUMN colour TEXT")
        if broken:
            db.execute("no SQL")

    monkeypatch.setattr(migrations, "MIGRATIONS", [*migrations.MIGRATIONS, fail_half_way])
    other = servers()
    with pytest.raises(StorageUnavailable):
        other.run(run.id)

    broken = False
    assert other.run(run.id)


@ours
def test_a_newer_database_is_refused_and_left_alone(servers, monkeypatch):
    one = servers()
    run = created(one)
    with one._database.reading() as connection:
        connection.execute(f"PRAGMA user_version = {len(migrations.MIGRATIONS) + 1}")

    other = servers()
    with pytest.raises(StorageUnavailable, match="Update lmsp_jupyter"):
        other.run(run.id)

    assert log_of(one, run) == [1]


@ours
def test_b3_6_a_database_that_was_taken_away_is_made_anew(store, servers, folder):
    lost = created(store)
    for path in folder.glob("lmsp.sqlite*"):
        path.unlink()

    assert store.run(lost.id) is None
    kept = created(store)
    assert servers().run(kept.id) is not None


@ours
def test_b3_4_a_run_is_over_when_nothing_more_will_come(store):
    running, done = created(store), ended(store)
    dropped = ended(store, at=1)
    store.sweep(10, event_retention=5, task_retention=DAY)

    assert [store.is_over(running.id, after) for after in (0, 1)] == [False, False]
    assert [store.is_over(done.id, after) for after in (0, 1, 2)] == [False, False, True]
    assert store.is_over(dropped.id, 0)
    assert store.is_over("resp_none", 0)
