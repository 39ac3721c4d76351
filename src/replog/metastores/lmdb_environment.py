"""One LMDB environment of this process: its records, its writer thread, its readers.

Rules:
- LMDB must not be opened twice in a process: environments are shared by their real path, and counted.
- Writes wait for the writer lock of other processes and for the disk, so one thread does them, all that have gathered
  in one transaction: one sync for many changes. They are answered after the commit, whatever the answer is.
- Reads are done where they are asked: the map is in memory. They see every committed change of every process.
- The map grows between transactions only, and forks happen between write transactions: `replog.runtime.lmdb_map`.
- After a commit that failed LMDB does nothing more with an environment: the writer thread closes it and opens it again, and
  tries that before each later transaction until it works. Seats are kept meanwhile: what was announced stays announced.
- Versions come from one counter in the environment, so that they never repeat, not even over a deletion.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import attrs
import lmdb

from replog.errors import MetastoreError, MetastoreKeyError, MetastoreUncertainError
from replog.metastores.lmdb_records import Reading, Writing
from replog.metastores.presence import Presence
from replog.runtime.lmdb_file import DataFileDamagedError
from replog.runtime.lmdb_map import READERS_MAX, LMDBMap

Answer = TypeVar("Answer")

_JOBS_MAX = 1024  # in one transaction
_JOB_BYTES_MAX = 8 << 20
_QUEUE_BYTES_MAX = 64 << 20
_STOP_TIMEOUT_S = 10.0
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_log = logging.getLogger("replog.metastores")


class NeedsWriterError(Exception):
    """Another process made the map larger, or the environment was closed after a failure: have the writer thread do anything,
    which mends that or says why not, then read again. Never leaves this package."""


@attrs.frozen
class Limits:
    """How large the map is at first and at most, and how long a process may be silent before it is thought dead."""

    map_bytes: int
    map_bytes_max: int
    lease_s: float


class Job:
    """A change on its way to the writer thread. `notify` is called from that thread, once, when `answer` will not wait."""

    def __init__(self, change: Callable[[Writing], int], size_bytes: int, notify: Callable[[], None]) -> None:
        self.size_bytes = size_bytes
        self._change = change
        self._notify = notify
        self._lock = threading.Lock()
        self._state = "waiting"  # -> "abandoned", or "started" -> "finished"
        self._answer: int | Exception = 0

    def start(self) -> bool:
        """Starts the job, unless it was abandoned: returns whether it runs. A started job cannot be abandoned."""
        with self._lock:
            if self._state == "waiting":
                self._state = "started"
            return self._state == "started"

    def run(self, writing: Writing) -> None:
        """Makes the change; keeps its result or error for `answer`."""
        try:
            self._answer = self._change(writing)
        except MetastoreError as error:
            self._answer = error

    def finish(self, error: MetastoreError | None = None) -> None:
        """The transaction has ended: the answer is final, unless an error replaces it. Abandoned jobs are ignored."""
        with self._lock:
            if self._state in ("abandoned", "finished"):
                return
            self._state = "finished"
            if error is not None:
                self._answer = error
        self._notify()

    def abandon(self) -> bool:
        """Abandons the job. True if it will never run; False if it has started: then its outcome is unknown."""
        with self._lock:
            if self._state == "waiting":
                self._state = "abandoned"
            return self._state == "abandoned"

    @property
    def is_finished(self) -> bool:
        """Whether `answer` may be called."""
        return self._state == "finished"

    def answer(self) -> int:
        """What the change returned, or raises what it raised."""
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class _TooSmallError(MetastoreError):
    """The map is too small for a write of this process, or was resized by another one: the cause says which."""


class Environment:
    """See the rules of this module. Made by `borrow`, never directly. Methods raise only errors of replog."""

    def __init__(self, path: str, limits: Limits) -> None:
        self.path = path
        self.users = 0
        self._limits = limits
        self._queue: deque[Job] = deque()
        self._queue_bytes = 0
        self._queue_changed = threading.Condition()
        self._in_commit: list[Job] = []
        self._stopping = False
        self._failure: str | None = None
        self._broken: str | None = None  # what first went wrong, until the environment is open again
        self._unknown_change = 0  # the number of the one that broke it
        self._is_silenced = False
        self._later: list[Callable[[Writing], int]] = []
        self._watchers: set[Callable[[], None]] = set()
        self.map = LMDBMap(path, limits.map_bytes, limits.map_bytes_max)
        try:
            self.presence = Presence(os.path.join(path, "presence"), limits.lease_s)
        except OSError:
            self.map.close()
            raise
        self._thread = threading.Thread(target=self._serve, name=f"replog metastore {path}", daemon=True)

    def start(self) -> None:
        """Starts the writer thread."""
        self._thread.start()

    def stop(self) -> bool:
        """Ends the writer thread after the queued jobs, and closes. False if it hangs: then it closes later by itself."""
        with self._queue_changed:
            self._stopping = True
            self._queue_changed.notify_all()
        self._thread.join(_STOP_TIMEOUT_S)
        return not self._thread.is_alive()

    def has_ended(self) -> bool:
        """True if it failed, and must be opened again."""
        return self._failure is not None and not self._thread.is_alive()

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, question: Callable[[Reading], Answer]) -> Answer:
        """Runs `question` on one snapshot. Raises `NeedsWriterError`, `MetastoreError`, and its errors."""
        if self._broken is not None:
            raise NeedsWriterError
        try:
            with self.map.gate, self.map.environment.begin(buffers=True) as transaction:
                return question(Reading(transaction, self.presence))
        except lmdb.MapResizedError as error:
            raise NeedsWriterError from error
        except lmdb.ReadersFullError as error:
            self.map.clear_stale_readers()
            raise MetastoreError(
                f"metastore {self.path}: more than {READERS_MAX} readers at once; those of dead processes were "
                "cleared now: try again"
            ) from error
        except (lmdb.Error, OSError) as error:
            if self._broken is not None:  # it was closed just now
                raise NeedsWriterError from error
            raise MetastoreError(f"metastore {self.path}: cannot be read: {error}") from error

    def is_unchanged(self, last_change: int) -> bool:
        """True if nothing was committed since the change with this number; False also if that is unknown."""
        try:
            return self._broken is None and self.last_change() == last_change
        except MetastoreError:
            return False

    def last_change(self) -> int:
        """A number that grows with every committed change of every process."""
        try:
            with self.map.gate:
                return int(self.map.environment.info()["last_txnid"])
        except lmdb.Error as error:
            raise MetastoreError(f"metastore {self.path}: cannot be read: {error}") from error

    # -- writing --------------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Queues a change. Raises `MetastoreError` if it will not happen."""
        with self._queue_changed:
            if self._failure is not None:
                raise MetastoreError(f"{self._failure}; nothing was written. Open it again")
            if self._stopping:
                raise MetastoreError(f"metastore {self.path} is being closed; nothing was written")
            if self._queue_bytes + job.size_bytes > _QUEUE_BYTES_MAX:
                raise MetastoreError(
                    f"metastore {self.path}: {self._queue_bytes} bytes wait for the disk; nothing was written, try later"
                )
            self._queue.append(job)
            self._queue_bytes += job.size_bytes
            self._queue_changed.notify_all()

    def try_later(self, change: Callable[[Writing], int]) -> None:
        """Makes this change at one of the next heartbeats, as soon as the disk allows. For processes with a seat."""
        with self._queue_changed:
            self._later.append(change)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls `changed` from the writer thread after each commit of this process; returns how to end that."""
        with self._queue_changed:
            self._watchers.add(changed)
        return lambda: self._unwatch(changed)

    def _unwatch(self, changed: Callable[[], None]) -> None:
        with self._queue_changed:
            self._watchers.discard(changed)

    def _serve(self) -> None:
        try:
            while (jobs := self._take()) is not None:
                self._beat()
                self._in_commit = jobs
                if jobs:
                    self._commit(jobs)
                elif self._later:
                    self._commit_later()
                self._in_commit = []
        finally:  # whatever happened, every waiting job gets an answer
            with self._queue_changed:
                self._failure = self._failure or f"metastore {self.path}: its writer thread ended"
                left, watchers = list(self._queue), list(self._watchers)
                self._queue.clear()
            for job in self._in_commit:
                job.finish(MetastoreUncertainError(f"{self._failure}; read back before you go on"))
            for job in left:
                job.finish(MetastoreError(f"{self._failure}; nothing was written"))
            for watcher in watchers:
                watcher()
            self.presence.close()
            self.map.close()

    def _take(self) -> list[Job] | None:
        """The jobs that have gathered; [] when a heartbeat is due; None when the thread must end."""
        with self._queue_changed:
            while self._failure is not None or not self._queue:
                if self._stopping or self._failure is not None:
                    return None
                if not self._queue_changed.wait(self.presence.beat_interval_s):
                    return []
            jobs = [self._queue.popleft()]
            size_bytes = jobs[0].size_bytes
            while self._queue and len(jobs) < _JOBS_MAX and size_bytes + self._queue[0].size_bytes <= _JOB_BYTES_MAX:
                size_bytes += self._queue[0].size_bytes
                jobs.append(self._queue.popleft())
            self._queue_bytes -= size_bytes
            return jobs

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
        """Commits these jobs in one transaction, growing the map until they fit, and answers them."""
        error = self._reopen() or self._try_to_commit(jobs)
        while isinstance(error, _TooSmallError):
            error = self._grow(error) or self._try_to_commit(jobs)
        for job in jobs:
            job.finish(error)
        self._reopen()
        with self._queue_changed:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher()

    def _commit_later(self) -> None:
        with self._queue_changed:
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

    def _try_to_commit(self, jobs: list[Job]) -> MetastoreError | None:
        """Returns the error, or None. After `_TooSmallError`, the caller may try again."""
        with self.map.writing:
            try:
                transaction = self.map.environment.begin(write=True)  # waits for other processes
                try:
                    writing = Writing(transaction, self.presence)
                    for job in jobs:
                        if job.start():
                            job.run(writing)
                    writing.finish()
                except BaseException:
                    self.map.abort(transaction)
                    raise
            except (lmdb.MapFullError, lmdb.MapResizedError) as error:
                return _caused(_TooSmallError(str(error)), error)
            except (lmdb.Error, OSError) as error:
                return _caused(MetastoreError(f"metastore {self.path}: {error}; nothing was written"), error)
            number = transaction.id()
            try:
                transaction.commit()
            except lmdb.MapFullError as error:
                return _caused(_TooSmallError(str(error)), error)
            except (lmdb.Error, OSError) as error:
                self._broken = f"metastore {self.path}: a commit failed: {error}{_advice(error)}"
                self._unknown_change = number
                return _caused(MetastoreUncertainError(f"{self._broken}; read back before you go on"), error)
        return None

    def _reopen(self) -> MetastoreError | None:
        """Opens the environment again if a commit broke it. Returns the error, with the first cause, or None."""
        if self._broken is None:
            return None
        try:
            with self.map.writing:
                self.map.reopen()
                if self.map.environment.info()["last_txnid"] >= self._unknown_change:
                    self._settle()
        except (lmdb.Error, OSError, DataFileDamagedError) as error:
            problem = f"{self._broken}; it can't be opened again yet: {error}; nothing was written. Try again"
            return _caused(MetastoreError(problem), error)
        self._broken = None
        return None

    def _settle(self) -> None:
        """Makes a change durable whose commit failed although readers can see it.

        Nobody knows whether the disk has it; a later durable commit includes it. Without that, a reader could see a change
        that a power loss then undoes."""
        with self.map.environment.begin(write=True) as transaction:
            Writing(transaction, self.presence).settle()

    def _grow(self, why: _TooSmallError) -> MetastoreError | None:
        """Enlarges the map, or adopts the size that another process gave it. Returns the error, or None."""
        if isinstance(why.__cause__, lmdb.MapResizedError):
            self.map.resize(0)
            return None
        if self.map.grow():
            return None
        full = (
            f"metastore {self.path}: full at map_bytes_max={self._limits.map_bytes_max}; nothing was written. Raise it"
        )
        return _caused(MetastoreError(full), why)


def _tell_nobody() -> None:
    pass


def _advice(error: Exception) -> str:
    code = getattr(error, "code", None) if isinstance(error, lmdb.Error) else getattr(error, "errno", None)
    if isinstance(error, lmdb.DiskError) or code in _NO_SPACE:
        return ". The disk is full: make room on it"
    return ". Look at the disk" if code == errno.EIO else ""


def _caused(error: MetastoreError, cause: Exception) -> MetastoreError:
    error.__cause__ = cause
    return error
