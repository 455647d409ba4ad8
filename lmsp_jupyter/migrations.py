"""The tables of the store, as numbered migrations: each runs once, in order, and is never changed after a release.

The number of those that a database has seen is its `user_version`. What the rows mean is the store's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from .errors import StorageUnavailable


def _first(db: sqlite3.Connection) -> None:
    # A run's row is small, since every append changes it; what is large stands beside it, in `bodies`.
    db.execute(
        """
        CREATE TABLE runs (
            id TEXT NOT NULL PRIMARY KEY,
            owner TEXT NOT NULL,
            model TEXT NOT NULL,
            status TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            started_at INTEGER,
            completed_at INTEGER,
            stored INTEGER NOT NULL,
            task_id TEXT UNIQUE,
            metadata TEXT NOT NULL,
            previous TEXT,
            last_event_id INTEGER NOT NULL,
            events_dropped INTEGER NOT NULL DEFAULT 0,
            instance TEXT NOT NULL,
            cancel_requested INTEGER NOT NULL DEFAULT 0
        )
        """
    )
    db.execute("CREATE INDEX unfinished_runs ON runs (instance) WHERE status IN ('queued', 'in_progress')")
    db.execute(
        """
        CREATE TABLE bodies (
            run_id TEXT NOT NULL PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
            request BLOB NOT NULL,
            response BLOB NOT NULL
        )
        """
    )
    db.execute(
        """
        CREATE TABLE events (
            run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            id INTEGER NOT NULL,
            event TEXT NOT NULL,
            data TEXT NOT NULL,
            PRIMARY KEY (run_id, id)
        ) WITHOUT ROWID
        """
    )
    # A key without `kept_at` is reserved: its request is being worked on by `instance`.
    db.execute(
        """
        CREATE TABLE keys (
            owner TEXT NOT NULL,
            method TEXT NOT NULL,
            path TEXT NOT NULL,
            key TEXT NOT NULL,
            digest BLOB NOT NULL,
            instance TEXT NOT NULL,
            run_id TEXT REFERENCES runs (id) ON DELETE CASCADE,
            kept_at INTEGER,
            status INTEGER NOT NULL DEFAULT 0,
            body BLOB NOT NULL DEFAULT x'',
            PRIMARY KEY (owner, method, path, key)
        )
        """
    )
    db.execute("CREATE INDEX keys_of_runs ON keys (run_id)")
    db.execute(
        """
        CREATE TABLE tokens (
            id TEXT NOT NULL PRIMARY KEY,
            owner TEXT NOT NULL,
            name TEXT NOT NULL,
            hash BLOB NOT NULL UNIQUE,
            scopes TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            expires_at INTEGER
        )
        """
    )


MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [_first]


def migrate(db: sqlite3.Connection) -> None:
    """Bring the database up to date; each migration and its number are one transaction. For one caller at a time.

    Raises `StorageUnavailable` for a database that a newer version of this package has migrated further.
    """
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise StorageUnavailable(
            f"The service's database is of format {version}, and this version of lmsp_jupyter knows formats up to "
            f"{len(MIGRATIONS)}. Update lmsp_jupyter, or give it another data folder."
        )
    for number, migration in enumerate(MIGRATIONS[version:], version + 1):
        with db:
            db.execute("BEGIN IMMEDIATE")
            migration(db)
            db.execute(f"PRAGMA user_version = {number}")
