"""The service's database as a connection: opened when it is used, its owner's only, transactions, problems (B5.6).

Its tables are in `migrations`; what is read and written is the store's.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from .errors import StorageUnavailable
from .instances import Instances
from .migrations import migrate

BUSY_SECONDS = 5.0
"""For how long a transaction waits for that of another process."""

_PASSING = {"database or disk is full", "database is locked"}
"""SQLite's words for what passes by itself: the connection stays open, so that reading goes on. After another error
it is opened anew, since the file may have been replaced, or opened when it could not be written."""

_ADVICE = {
    "full": "Free some disk space.",
    "locked": "Another program works on it for long; try again.",
    "malformed": "Move the file lmsp.sqlite out of the service's data folder, and a new one is made.",
    "not a database": "Move the file lmsp.sqlite out of the service's data folder, and a new one is made.",
}


class Database:
    """The database in `folder`, which is made and opened at the first use, and anew after a failure.

    Any thread may use it, one at a time. Several of them, in one process or more, may share the folder; each is an
    instance (B3.7), alive from its first use to `close`.
    """

    def __init__(self, folder: Path, instance: str) -> None:
        self.instances = Instances(folder / "instances", instance)
        self._folder = folder
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._path = folder / "lmsp.sqlite"
        self._file: tuple[int, int] | None = None
        self._closed = False

    def close(self) -> None:
        """Close the connection for good and let go of the instance."""
        with self._lock:
            self._closed = True
            self._disconnect()
            self.instances.release()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one statement. Raises `StorageUnavailable`, as `writing` does."""
        with self._lock:
            if self._closed:
                raise StorageUnavailable("The service's database is closed, since the service ends.")
            try:
                if self._connection is not None and self._identity() != self._file:
                    self._disconnect()  # somebody took the file away: what is written to it would be lost
                if self._connection is None:
                    self._connection = self._connect()
                    self._file = self._identity()
                yield self._connection
            except (sqlite3.Error, OSError) as error:
                if str(error) not in _PASSING:
                    self._disconnect()
                raise StorageUnavailable(_explain(error)) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that no other writer can come between: committed at the end, undone by any exception."""
        with self.reading() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    def _connect(self) -> sqlite3.Connection:
        for folder in (self._folder, self._folder / "instances"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
        # One at a time: SQLite does not wait for another process that is about to turn WAL on, it fails.
        with FileLock(self._folder / "opening.lock", timeout=BUSY_SECONDS, mode=0o600):
            connection = sqlite3.connect(
                self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                # By path and never by a descriptor: closing one would drop the locks that SQLite holds on the file
                # for other stores of this process. The files beside it (-wal, -shm) get their mode from it.
                self._path.chmod(0o600)
                connection.row_factory = sqlite3.Row
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("PRAGMA foreign_keys = ON")
                migrate(connection)
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    self.instances.hold()
            except BaseException:
                connection.close()
                raise
        return connection

    def _identity(self) -> tuple[int, int] | None:
        """Which file the database's path is now; None where there is none."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            with suppress(sqlite3.Error):  # what is committed is on disk already
                connection.close()


def _explain(error: sqlite3.Error | OSError) -> str:
    """What went wrong and what to do about it, without a path."""
    if isinstance(error, TimeoutError):
        reason = "it is locked"
    elif isinstance(error, OSError):
        reason = error.strerror or "the system refused it"
    else:
        reason = str(error)
    advice = next(
        (advice for word, advice in _ADVICE.items() if word in reason),
        "Check that the service's data folder is on a disk that can be written, and is the service's own.",
    )
    return f"The service's database cannot be used: {reason}. {advice}"
