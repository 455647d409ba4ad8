"""What outlives a process, in SQLite: runs with their tasks and event logs, idempotency keys, tokens (B2.5, B3, B5.2).

A run is the making of one response that is logged on disk, since it is a task, stored or under an idempotency key.
The tables are in `migrations`, the connection in `database`, the lock files by which servers know each other in
`instances`. What an event says, who may see what and when to stop an engine is left to others.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .database import Database
from .errors import StorageUnavailable
from .events import Entry
from .protocol import TaskStatus, new_id

KEY_RETENTION = 86400
"""Seconds for which an idempotency key keeps its answer (B2.5)."""

_UNFINISHED = "status IN ('queued', 'in_progress')"

# A key that is kept without a body is answered from the log of its run.
_KEY_NEEDS_LOG = "EXISTS (SELECT 1 FROM keys WHERE run_id = runs.id AND body = x'')"
_HAS_KEY = "EXISTS (SELECT 1 FROM keys WHERE run_id = runs.id)"

_THIS_KEY = "owner = ? AND method = ? AND path = ? AND key = ?"


@dataclass(frozen=True, kw_only=True)
class Record:
    """A run: a response on disk, with its task if it is one. Times in Unix seconds.

    `status` is the task's, so `queued` until the work starts (B3.2). `request` is the JSON of the parsed request,
    `response` that of the response object, as created and then as ended; both are empty once they are deleted.
    `instance` is the server that runs it.
    """

    id: str
    owner: str
    model: str
    status: TaskStatus
    created_at: int
    started_at: int | None = None
    completed_at: int | None = None
    stored: bool
    task_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    previous: str | None = None
    request: bytes
    response: bytes
    last_event_id: int = 0
    events_dropped: bool = False
    instance: str = ""


@dataclass(frozen=True, kw_only=True)
class Key:
    """The scope of an idempotency key and the key itself (B2.5)."""

    owner: str
    method: str
    path: str
    key: str


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """What stands under an idempotency key: the digest of the first request's body and, once `kept`, its answer."""

    digest: bytes
    kept: bool
    run_id: str | None
    status: int
    body: bytes


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    """An LMSP token without its secret. Times in Unix seconds; `expires_at` None is never."""

    id: str
    owner: str
    name: str
    scopes: list[str]
    created_at: int
    expires_at: int | None


class Store:
    """What is kept in `folder`. Making one does no I/O; the database is made and opened at the first use.

    Any thread may call any method; each call is one transaction, but for `sweep`. Several stores, in one process or
    more, may share a folder (B3.7). Every method raises `StorageUnavailable` where the database cannot be used; a
    later call tries it again.
    """

    def __init__(self, folder: Path) -> None:
        self.instance = new_id("inst")
        self._database = Database(folder, self.instance)

    def close(self) -> None:
        """Let go of the database and of this instance, whose unfinished runs others may adopt. Final."""
        self._database.close()

    # Runs and their logs

    def create(self, record: Record, entries: Sequence[Entry], key: Key | None = None) -> None:
        """Keep a new run, of this instance, with its first events, and note it under the reserved `key` (B3.8)."""
        with self._database.writing() as db:
            db.execute(
                "INSERT INTO runs (id, owner, model, status, created_at, started_at, completed_at, stored, task_id,"
                " metadata, previous, last_event_id, instance) VALUES (:id, :owner, :model, :status, :created_at,"
                " :started_at, :completed_at, :stored, :task_id, :metadata, :previous, :last_event_id, :instance)",
                {
                    **vars(record),
                    "metadata": json.dumps(record.metadata),
                    "last_event_id": len(entries),
                    "instance": self.instance,
                },
            )
            db.execute("INSERT INTO bodies VALUES (?, ?, ?)", (record.id, record.request, record.response))
            _insert(db, record.id, 0, entries)
            if key:
                db.execute(f"UPDATE keys SET run_id = ? WHERE {_THIS_KEY}", (record.id, *_values(key)))

    def append(
        self,
        run_id: str,
        entries: Sequence[Entry],
        *,
        status: TaskStatus | None = None,
        started_at: int | None = None,
        completed_at: int | None = None,
        response: bytes | None = None,
    ) -> bool:
        """Log events, with what they change of the run, in one transaction (B3.2, B3.6); None changes nothing.

        False, and nothing is done, if the run has ended or is gone: the first final event wins (B3.3). A run that
        fails releases its idempotency key (B2.5). Raises `StorageUnavailable` if the numbers of the entries do not
        follow those of the log (A4.1).
        """
        with self._database.writing() as db:
            row = db.execute(f"SELECT last_event_id FROM runs WHERE id = ? AND {_UNFINISHED}", (run_id,)).fetchone()
            if row is None:
                return False
            _insert(db, run_id, row["last_event_id"], entries)
            db.execute(
                "UPDATE runs SET last_event_id = last_event_id + ?, status = coalesce(?, status),"
                " started_at = coalesce(?, started_at), completed_at = coalesce(?, completed_at) WHERE id = ?",
                (len(entries), status, started_at, completed_at, run_id),
            )
            if response is not None:
                db.execute("UPDATE bodies SET response = ? WHERE run_id = ?", (response, run_id))
            if status == "failed":
                db.execute("DELETE FROM keys WHERE run_id = ?", (run_id,))
        return True

    def run(self, run_id: str) -> Record | None:
        """The run of the response `run_id`, stored or not."""
        return self._find("id", run_id)

    def task(self, task_id: str) -> Record | None:
        """The run of the task `task_id`."""
        return self._find("task_id", task_id)

    def tasks(
        self,
        owners: Collection[str],
        *,
        status: TaskStatus | None = None,
        model: str | None = None,
        limit: int,
        after: str | None = None,
    ) -> list[Record]:
        """Up to `limit` tasks of these owners, newest first, those older than `after` (B3.3).

        The records come without `request`, and with `response` only where it holds the error of a failed task: a
        page of them is small.
        """
        conditions, values = [f"owner IN ({_marks(owners)})"], [*owners]
        for condition, value in (("status = ?", status), ("model = ?", model), ("task_id < ?", after)):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        with self._database.reading() as db:
            rows = db.execute(
                "SELECT runs.*, x'' AS request, CASE status WHEN 'failed' THEN response ELSE x'' END AS response"
                " FROM runs JOIN bodies ON run_id = runs.id"
                f" WHERE task_id IS NOT NULL AND {' AND '.join(conditions)} ORDER BY task_id DESC LIMIT ?",
                (*values, limit),
            ).fetchall()
        return [_record(row) for row in rows]

    def entries(self, run_id: str, after: int, limit: int = 1000) -> list[Entry]:
        """The next events of a run numbered above `after`, at most `limit`, whoever committed them (B3.5, B3.7)."""
        with self._database.reading() as db:
            rows = db.execute(
                "SELECT id, event, data FROM events WHERE run_id = ? AND id > ? ORDER BY id LIMIT ?",
                (run_id, after, limit),
            ).fetchall()
        return [Entry(*row) for row in rows]

    def is_over(self, run_id: str, after: int) -> bool:
        """Whether nothing above `after` is there or will come: the run has ended, or its log is gone."""
        with self._database.reading() as db:
            row = db.execute(
                "SELECT 1 FROM runs WHERE id = ? AND NOT events_dropped"
                " AND (status IN ('queued', 'in_progress') OR last_event_id > ?)",
                (run_id, after),
            ).fetchone()
        return row is None

    def delete_task(self, task_id: str) -> None:
        """Delete a finished task with its log and idempotency key; its response stays if it is stored (B3.3)."""
        with self._database.writing() as db:
            row = db.execute("SELECT id, stored FROM runs WHERE task_id = ?", (task_id,)).fetchone()
            if row is None:
                return
            if row["stored"]:
                _drop_events(db, row["id"])
                db.execute("DELETE FROM keys WHERE run_id = ?", (row["id"],))
                db.execute("UPDATE runs SET task_id = NULL, metadata = '{}' WHERE id = ?", (row["id"],))
            else:
                db.execute("DELETE FROM runs WHERE id = ?", (row["id"],))

    def delete_response(self, run_id: str) -> None:
        """Delete a finished response with its input, log and idempotency key; its task stays, emptied (B6.1)."""
        with self._database.writing() as db:
            if db.execute("DELETE FROM runs WHERE id = ? AND task_id IS NULL", (run_id,)).rowcount:
                return
            _drop_events(db, run_id)
            db.execute("DELETE FROM keys WHERE run_id = ?", (run_id,))
            db.execute("UPDATE bodies SET request = x'', response = x'' WHERE run_id = ?", (run_id,))
            db.execute("UPDATE runs SET stored = 0, previous = NULL WHERE id = ?", (run_id,))

    # Several servers

    def request_cancel(self, run_id: str) -> None:
        """Ask the server that works on a run to cancel it (B3.7); nothing if it has ended."""
        with self._database.writing() as db:
            db.execute(f"UPDATE runs SET cancel_requested = 1 WHERE id = ? AND {_UNFINISHED}", (run_id,))

    def cancels(self) -> list[str]:
        """The unfinished runs of this instance that are to be cancelled."""
        with self._database.reading() as db:
            rows = db.execute(
                f"SELECT id FROM runs WHERE instance = ? AND {_UNFINISHED} AND cancel_requested", (self.instance,)
            ).fetchall()
        return [row["id"] for row in rows]

    def alive(self, instance: str) -> bool:
        """Whether the server `instance` runs."""
        with self._database.writing():
            return self._database.instances.alive(instance)

    def adopt(self) -> list[Record]:
        """Take over the unfinished runs of dead instances, oldest first, and release the keys they reserved (B3.6).

        If several servers do this at once, each run goes to one of them.
        """
        with self._database.writing() as db:
            rows = db.execute(
                f"SELECT instance FROM runs WHERE {_UNFINISHED} UNION SELECT instance FROM keys WHERE kept_at IS NULL"
            ).fetchall()
            known = self._database.instances.known() | {row["instance"] for row in rows}
            orphans = []
            for instance in known:
                if self._database.instances.alive(instance):
                    continue
                orphans += db.execute(
                    f"SELECT * FROM runs JOIN bodies ON run_id = id WHERE instance = ? AND {_UNFINISHED}", (instance,)
                ).fetchall()
                db.execute(
                    f"UPDATE runs SET instance = ? WHERE instance = ? AND {_UNFINISHED}", (self.instance, instance)
                )
                db.execute("DELETE FROM keys WHERE instance = ? AND kept_at IS NULL", (instance,))
                self._database.instances.forget(instance)
        adopted = [replace(_record(row), instance=self.instance) for row in orphans]
        return sorted(adopted, key=lambda record: record.id)

    def sweep(self, now: int, *, event_retention: int, task_retention: int, key_retention: int = KEY_RETENTION) -> None:
        """Drop what is past its time: `now` in Unix seconds, retentions in seconds (B2.5, B3.10).

        The log of a run goes whole, `event_retention` after its end, unless a key is still answered from it. A task
        goes with its response `task_retention` after its end; a stored response that is no task stays until it is
        deleted. Answers of keys go after `key_retention`, and tokens when they expire.
        """
        ends = {"events": now - event_retention, "tasks": now - task_retention}
        with self._database.writing() as db:
            db.execute("DELETE FROM keys WHERE kept_at <= ?", (now - key_retention,))
            db.execute("DELETE FROM tokens WHERE expires_at <= ?", (now,))
            logs = db.execute(
                f"SELECT id FROM runs WHERE completed_at <= :events AND NOT events_dropped AND NOT {_KEY_NEEDS_LOG}",
                ends,
            ).fetchall()
            runs = db.execute(
                f"SELECT id FROM runs WHERE NOT {_HAS_KEY} AND (task_id IS NOT NULL AND completed_at <= :tasks"
                " OR task_id IS NULL AND NOT stored AND completed_at <= :events)",
                ends,
            ).fetchall()
        # A log may be long: a transaction for each lets others write in between.
        for row in logs:
            with self._database.writing() as db:
                _drop_events(db, row["id"])
        for row in runs:
            with self._database.writing() as db:
                db.execute("DELETE FROM runs WHERE id = ?", (row["id"],))

    # Idempotency keys

    def reserve(self, key: Key, digest: bytes) -> Reserved | None:
        """Reserve a key for a request with this digest; None if it is the caller's now, else what stands there (B2.5).

        A reservation of a dead server is taken over.
        """
        with self._database.writing() as db:
            row = db.execute(f"SELECT * FROM keys WHERE {_THIS_KEY}", _values(key)).fetchone()
            if row and (row["kept_at"] is not None or self._database.instances.alive(row["instance"])):
                return Reserved(
                    digest=row["digest"],
                    kept=row["kept_at"] is not None,
                    run_id=row["run_id"],
                    status=row["status"],
                    body=row["body"],
                )
            db.execute(
                "REPLACE INTO keys (owner, method, path, key, digest, instance) VALUES (?, ?, ?, ?, ?, ?)",
                (*_values(key), digest, self.instance),
            )
        return None

    def keep(self, key: Key, status: int, body: bytes) -> None:
        """Keep the first answer under a reserved key; an empty body says that the run's log is the answer (B2.5)."""
        with self._database.writing() as db:
            db.execute(
                f"UPDATE keys SET kept_at = ?, status = ?, body = ? WHERE {_THIS_KEY}",
                (int(time.time()), status, body, *_values(key)),
            )

    def release(self, key: Key) -> None:
        """Forget a key and its answer: the next request under it is a first one."""
        with self._database.writing() as db:
            db.execute(f"DELETE FROM keys WHERE {_THIS_KEY}", _values(key))

    # Tokens

    def add_token(
        self,
        id: str,
        owner: str,
        name: str,
        hash: bytes,
        scopes: Sequence[str],
        created_at: int,
        expires_at: int | None = None,
    ) -> None:
        """Keep a token, by the hash of its secret alone (B5.2)."""
        with self._database.writing() as db:
            db.execute(
                "INSERT INTO tokens (id, owner, name, hash, scopes, created_at, expires_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (id, owner, name, hash, json.dumps(list(scopes)), created_at, expires_at),
            )

    def tokens(self, owners: Collection[str]) -> list[TokenRow]:
        """The tokens of these owners, oldest first, expired ones until they are swept."""
        with self._database.reading() as db:
            rows = db.execute(
                f"SELECT * FROM tokens WHERE owner IN ({_marks(owners)}) ORDER BY created_at, id", [*owners]
            ).fetchall()
        return [_token(row) for row in rows]

    def token(self, hash: bytes) -> TokenRow | None:
        """The token whose secret has this hash; whether it has expired is for the caller to see."""
        with self._database.reading() as db:
            row = db.execute("SELECT * FROM tokens WHERE hash = ?", (hash,)).fetchone()
        return row and _token(row)

    def delete_token(self, id: str, owners: Collection[str]) -> bool:
        """Delete a token of these owners; False if there is none."""
        with self._database.writing() as db:
            cursor = db.execute(f"DELETE FROM tokens WHERE id = ? AND owner IN ({_marks(owners)})", (id, *owners))
        return cursor.rowcount > 0

    def _find(self, column: str, id: str) -> Record | None:
        with self._database.reading() as db:
            row = db.execute(f"SELECT * FROM runs JOIN bodies ON run_id = id WHERE {column} = ?", (id,)).fetchone()
        return row and _record(row)


def _insert(db: sqlite3.Connection, run_id: str, last: int, entries: Sequence[Entry]) -> None:
    if any(entry.id != number for number, entry in enumerate(entries, last + 1)):
        raise StorageUnavailable("The log of the response was continued elsewhere: the next event's number is taken.")
    db.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", [(run_id, *entry) for entry in entries])


def _drop_events(db: sqlite3.Connection, run_id: str) -> None:
    db.execute("DELETE FROM events WHERE run_id = ?", (run_id,))
    db.execute("UPDATE runs SET events_dropped = 1 WHERE id = ?", (run_id,))


def _marks(values: Collection[str]) -> str:
    return ", ".join("?" * len(values))


def _values(key: Key) -> tuple[str, str, str, str]:
    return key.owner, key.method, key.path, key.key


def _record(row: sqlite3.Row) -> Record:
    return Record(
        id=row["id"],
        owner=row["owner"],
        model=row["model"],
        status=row["status"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        completed_at=row["completed_at"],
        stored=bool(row["stored"]),
        task_id=row["task_id"],
        metadata=json.loads(row["metadata"]),
        previous=row["previous"],
        request=row["request"],
        response=row["response"],
        last_event_id=row["last_event_id"],
        events_dropped=bool(row["events_dropped"]),
        instance=row["instance"],
    )


def _token(row: sqlite3.Row) -> TokenRow:
    return TokenRow(
        id=row["id"],
        owner=row["owner"],
        name=row["name"],
        scopes=json.loads(row["scopes"]),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )
