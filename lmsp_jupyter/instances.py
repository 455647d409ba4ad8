"""The servers that share a data folder: each holds a locked file, which the system unlocks when it dies (B3.7).

A file is made, probed and forgotten only under the write lock of the database, which is the store's to take:
so no one sees a file that is not locked yet, nor takes another's probe for a living server.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout


class Instances:
    """The lock files in `folder`; `own` is the instance of this store."""

    def __init__(self, folder: Path, own: str) -> None:
        self.own = own
        self._folder = folder
        self._lock = self._lock_of(own)

    def hold(self) -> None:
        """Lock the file of this instance, if it is not yet. Raises `OSError`."""
        if not self._lock.is_locked:
            self._lock.acquire()

    def release(self) -> None:
        """Unlock the file of this instance and remove it."""
        self._lock.release()
        self.forget(self.own)

    def alive(self, instance: str) -> bool:
        """Whether a server holds the file of `instance`. Raises `OSError`."""
        if instance == self.own:
            return True
        if not self._path(instance).exists():
            return False
        try:
            with self._lock_of(instance):
                return False
        except Timeout:
            return True

    def known(self) -> set[str]:
        """Those that have a file, dead or alive."""
        return {path.stem for path in self._folder.glob("*.lock")}

    def forget(self, instance: str) -> None:
        """Remove the file of a dead instance."""
        with suppress(OSError):  # it may be gone, or open elsewhere on Windows: whoever finds it next removes it
            self._path(instance).unlink()

    def _path(self, instance: str) -> Path:
        return self._folder / f"{instance}.lock"

    def _lock_of(self, instance: str) -> FileLock:
        return FileLock(self._path(instance), timeout=0, mode=0o600, thread_local=False)
