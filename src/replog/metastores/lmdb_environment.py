"""One LMDB environment of this process: its readers, its writer thread, its seat among the processes of the directory.

Rules:
- LMDB must not be opened twice in a process: environments are shared by their real path, and counted.
- Writes wait for the writer lock of other processes and for the disk, so one thread does them, all that have gathered
  in one transaction: one sync for many changes (`lmdb_jobs`, `lmdb_commits`). They are answered after the commit, with
  any answer.
- Reads are done where they are asked: the map is in memory. They see every committed change of every process.
- The map grows between transactions only, and forks happen between write transactions: `replog.runtime.lmdb_map`.
- While a failed environment is opened again, seats are kept: announcements stay.
- Versions come from one counter in the environment, so that they never repeat, not even over a deletion.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

import attrs
import lmdb

from replog.errors import MetastoreError, MetastoreKeyError, MetastoreUnavailableError, MetastoreUncertainError
from replog.metastores.lmdb_commits import Commits
from replog.metastores.lmdb_jobs import Job, JobQueue
from replog.metastores.lmdb_records import Reading, Writing
from replog.metastores.presence import Presence
from replog.runtime.lmdb_file import READERS_MAX
from replog.runtime.lmdb_map import LMDBMap
from replog.runtime.lmdb_pages import PAGES_CHECKED
from replog.runtime.loggers import logger
from replog.runtime.own_threads import in_own_thread

Answer = TypeVar("Answer")

_STOP_TIMEOUT_S = 10.0

_log = logger("replog.metastores")


class NeedsWriterError(Exception):
    """Another process made the map larger, or the environment was closed after a failure: the writer thread then gets
    an empty job, which repairs that or reports why not; then read again. Never leaves this package."""


@attrs.frozen
class Limits:
    """How large the map is at first and at most, and how long a process may be silent before it is thought dead."""

    map_bytes: int
    map_bytes_max: int
    lease_s: float


class Environment:
    """See the rules of this module. Made by `borrow`, never directly. Methods raise only errors of replog."""

    def __init__(self, path: str, limits: Limits) -> None:
        self.path = path
        self.users = 0
        self._queue = JobQueue(path)
        self._in_commit: list[Job] = []
        self._is_silenced = False
        self._lock = threading.Lock()  # of the next two, which other threads change, too
        self._later: list[Callable[[Writing], int]] = []
        self._watchers: set[Callable[[], None]] = set()
        self.map = LMDBMap(path, limits.map_bytes, limits.map_bytes_max, pages_checked=PAGES_CHECKED)
        try:
            self.presence = Presence(os.path.join(path, "presence"), limits.lease_s)
        except OSError:
            self.map.close()
            raise
        self._commits = Commits(self.map, self.presence)
        # A daemon: a disk that hangs must not keep the process from ending. Its callers have `timeout_s`.
        self._thread = threading.Thread(
            target=in_own_thread, args=(self._serve,), name=f"replog metastore {path}", daemon=True
        )

    def start(self) -> None:
        """Starts the writer thread."""
        self._thread.start()

    def stop(self) -> bool:
        """Ends the writer thread after the queued jobs, and closes. False if it hangs: then it closes later by itself."""
        self._queue.stop()
        self._thread.join(_STOP_TIMEOUT_S)
        return not self._thread.is_alive()

    def has_ended(self) -> bool:
        """True if it failed, and must be opened again."""
        return self._queue.has_failed and not self._thread.is_alive()

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, question: Callable[[Reading], Answer]) -> Answer:
        """Runs `question` on one snapshot. Raises `NeedsWriterError`, `MetastoreError`, and its errors."""
        if self._commits.is_broken:
            raise NeedsWriterError
        try:
            with self.map.gate, self.map.environment.begin(buffers=True) as transaction:
                return question(Reading(transaction, self.presence))
        except lmdb.MapResizedError as error:
            raise NeedsWriterError from error
        except lmdb.ReadersFullError as error:
            self.map.clear_stale_readers()
            raise MetastoreUnavailableError(
                f"metastore {self.path}: more than {READERS_MAX} readers at once; those of dead processes were "
                "cleared now: try again"
            ) from error
        except (lmdb.Error, OSError) as error:
            if self._commits.is_broken:  # it was closed just now
                raise NeedsWriterError from error
            raise MetastoreUnavailableError(f"metastore {self.path}: cannot be read: {error}") from error

    def is_unchanged(self, last_change: int) -> bool:
        """True if nothing was committed since the change with this number; False if that is unknown, too."""
        try:
            return not self._commits.is_broken and self.last_change() == last_change
        except MetastoreError:
            return False

    def last_change(self) -> int:
        """A number that grows with every committed change of every process."""
        try:
            with self.map.gate:
                return int(self.map.environment.info()["last_txnid"])
        except lmdb.Error as error:
            raise MetastoreUnavailableError(f"metastore {self.path}: cannot be read: {error}") from error

    # -- writing --------------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Queues a change. Raises `MetastoreError` if it will not happen."""
        self._queue.put(job)

    def try_later(self, change: Callable[[Writing], int]) -> None:
        """Makes this change at one of the next heartbeats, as soon as the disk allows. For processes with a seat."""
        with self._lock:
            self._later.append(change)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls `changed` from the writer thread after each commit of this process; returns how to end that."""
        with self._lock:
            self._watchers.add(changed)
        return lambda: self._unwatch(changed)

    def _unwatch(self, changed: Callable[[], None]) -> None:
        with self._lock:
            self._watchers.discard(changed)

    def _serve(self) -> None:
        try:
            while (jobs := self._queue.take(self.presence.beat_interval_s)) is not None:
                # Also before a commit: without pause between jobs, `take` would never time
                # out, and this process would seem silent.
                self._beat()
                self._in_commit = jobs
                if jobs:
                    self._commit(jobs)
                # Only without waiting jobs: these change nothing that a caller has asked for just now.
                elif self._later:
                    self._commit_later()
                self._in_commit = []
        finally:  # after any error, every waiting job gets an answer
            failure = f"metastore {self.path}: its writer thread ended"
            # First, so that no job can be queued behind those that are answered here.
            left = self._queue.fail(failure)
            for job in self._in_commit:
                job.finish(MetastoreUncertainError(f"{failure}; read back before you go on"))
            for job in left:
                job.finish(MetastoreUnavailableError(f"{failure}; nothing was written"))
            self._notify_watchers()
            self.presence.close()
            self.map.close()

    def _beat(self) -> None:
        """Presence is only advice: if it cannot be written, others see this process as gone, and everything else works."""
        try:
            self.presence.beat()
            self._is_silenced = False
        except OSError as error:
            if not self._is_silenced:
                _log.warning("metastore %s: cannot write its presence: %s; trying on", self.path, error)
            self._is_silenced = True

    def _commit(self, jobs: list[Job]) -> None:
        self._commits.commit(jobs)
        self._notify_watchers()

    def _notify_watchers(self) -> None:
        with self._lock:
            # A copy, called without the lock: a watcher may end its watch.
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher()

    def _commit_later(self) -> None:
        with self._lock:
            changes, self._later = self._later, []
        jobs = [(change, Job(change, 0, _tell_nobody)) for change in changes]
        self._commit([job for _, job in jobs])
        for change, job in jobs:
            try:
                job.answer()
            except MetastoreKeyError:
                pass  # another process made the change
            except MetastoreError:
                self.try_later(change)


def _tell_nobody() -> None:
    pass
