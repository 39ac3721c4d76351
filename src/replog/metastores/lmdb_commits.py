"""Write transactions of one LMDB environment: growth of the map, and what follows a commit that failed.

Rules:
- Only the writer thread is here. All jobs of a call are one transaction: one sync for many changes.
- After a commit that failed, LMDB does nothing more with an environment: it is closed and opened again, and that is tried
  before each later transaction until it works.
- The outcome of a commit that failed is unknown (M1), unless it failed before its meta page, or the disk only had no space and
  nothing of the commit is there afterwards. An error before the commit means that nothing was written.
"""

from __future__ import annotations

from collections.abc import Sequence

import lmdb

from replog.errors import MetastoreError, MetastoreFullError, MetastoreUnavailableError, MetastoreUncertainError
from replog.metastores.lmdb_errors import advice_for, is_full, not_written
from replog.metastores.lmdb_jobs import Job
from replog.metastores.lmdb_records import Writing
from replog.metastores.presence import Presence
from replog.runtime.disk_errors import described
from replog.runtime.lmdb_file import DataFileDamagedError
from replog.runtime.lmdb_map import LMDBMap
from replog.runtime.loggers import logger

_log = logger("replog.metastores")


class _TooSmallError(MetastoreError):
    """The map is too small for a write of this process, or was resized by another one: the cause says which."""


class Commits:
    """The write transactions of this map. `is_broken` from a failed commit on until the environment is open again."""

    def __init__(self, lmdb_map: LMDBMap, presence: Presence) -> None:
        self.map = lmdb_map
        self._presence = presence
        self._broken: str | None = None  # the first error since the environment was last sound
        self._unknown_change = 0  # the number of the transaction that broke it

    @property
    def is_broken(self) -> bool:
        """True while the environment is closed after a failure."""
        return self._broken is not None

    def commit(self, jobs: Sequence[Job]) -> None:
        """Commits these jobs in one transaction, growing the map until they fit, and answers them."""
        error = self._reopen() or self._try_to_commit(jobs)
        while isinstance(error, _TooSmallError):
            error = self._grow(error) or self._try_to_commit(jobs)
        # Only now: an answer before the commit could be undone by a power loss.
        for job in jobs:
            job.finish(error)
        # At once, and not with the next change: readers find the environment closed until then.
        self._reopen()

    def _try_to_commit(self, jobs: Sequence[Job]) -> MetastoreError | None:
        """Returns the error, or None. After `_TooSmallError`, the caller may try again."""
        with self.map.writing:
            try:
                transaction = self.map.environment.begin(write=True)  # waits for other processes
                try:
                    writing = Writing(transaction, self._presence)
                    for job in jobs:
                        # After `_TooSmallError` everything runs again in a new transaction:
                        # `start` is true again for the same jobs.
                        if job.start():
                            job.run(writing)
                    writing.finish()
                except BaseException:
                    # The exception may be one of replog's own: the transaction must not stay open, since it holds the
                    # writer lock of all processes.
                    self.map.abort(transaction)
                    raise
            except (lmdb.MapFullError, lmdb.MapResizedError) as error:
                return _caused(_TooSmallError(str(error)), error)
            except (lmdb.Error, OSError) as error:
                return _caused(not_written(self.map.path, error), error)
            # Asked before the commit: afterwards the transaction is invalid, even if the commit failed.
            number = transaction.id()
            try:
                transaction.commit()
            except lmdb.MapFullError as error:
                return _caused(_TooSmallError(str(error)), error)
            except (lmdb.Error, OSError) as error:
                self._broken = f"metastore {self.map.path}: a commit failed: {described(error)}"
                self._unknown_change = number
                failure = error
            else:
                return None
            may_be_written = self._may_be_written()
        return self._outcome(failure, may_be_written=may_be_written)

    def _may_be_written(self) -> bool:
        """Whether LMDB tried to write the meta page of a commit that failed: it comes last, and is what makes the commit."""
        try:
            return self.map.is_panicking() or int(self.map.environment.info()["last_txnid"]) >= self._unknown_change
        except (lmdb.Error, OSError):
            return True

    def _outcome(self, failure: Exception, *, may_be_written: bool) -> MetastoreError:
        """The error for a commit that failed. If the disk only took no more, opening it again shows whether anything is left."""
        path = self.map.path
        if not may_be_written or (is_full(failure, path) and self._reopen() is None and self._is_undone()):
            return _caused(not_written(path, failure, self._held_back()), failure)
        advice = f". {advice_for(failure, path)}".removesuffix(". ")
        problem = f"metastore {path}: a commit failed: {described(failure)}{advice}; read back before you go on"
        return _caused(MetastoreUncertainError(problem), failure)

    def _held_back(self) -> str:
        try:
            return self.map.held_back()
        except lmdb.Error:  # it is closed, as after a failure of the disk
            return ""

    def _is_undone(self) -> bool:
        """Whether the commit that failed has left nothing, durably: LMDB has put the meta page back as it was."""
        try:
            with self.map.writing:
                is_gone = int(self.map.environment.info()["last_txnid"]) < self._unknown_change
                self.map.environment.sync(True)
        except (lmdb.Error, OSError):
            return False
        return is_gone

    def _reopen(self) -> MetastoreError | None:
        """Opens the environment again if a commit broke it. Returns the error, with the first cause, or None."""
        if self._broken is None:
            return None
        try:
            with self.map.writing:
                self.map.reopen()
                # The failed commit may have reached the file all the same: then readers see its changes.
                if self.map.environment.info()["last_txnid"] >= self._unknown_change:
                    self._settle()
        except (lmdb.Error, OSError, DataFileDamagedError) as error:
            problem = f"{self._broken}; it can't be opened again yet: {error}; nothing was written. Try again"
            kind = MetastoreFullError if is_full(error, self.map.path) else MetastoreUnavailableError
            return _caused(kind(problem), error)
        self._broken = None
        return None

    def _settle(self) -> None:
        """Makes a change durable whose commit failed although readers can see it.

        Nobody knows whether the disk has it; a later durable commit includes it. Without that, a reader could see a change
        that a power loss then undoes."""
        with self.map.environment.begin(write=True) as transaction:
            Writing(transaction, self._presence).settle()

    def _grow(self, why: _TooSmallError) -> MetastoreError | None:
        """Enlarges the map, or adopts the size that another process gave it. Returns the error, or None."""
        if isinstance(why.__cause__, lmdb.MapResizedError):
            # 0 has LMDB read the size from the file.
            self.map.resize(0)
            return None
        before_bytes, is_worth_a_try = self.map.map_bytes, self.map.grow()
        # Asked afterwards: readers that died are gone from the table then.
        held_back = self.map.held_back()
        if is_worth_a_try:
            if held_back and self.map.map_bytes > before_bytes:
                _log.warning("metastore %s: grows to %d bytes%s", self.map.path, self.map.map_bytes, held_back)
            return None
        full = f"metastore {self.map.path}: full at map_bytes_max={self.map.map_bytes_max}; nothing was written"
        full += held_back or ". Raise it"
        return _caused(MetastoreFullError(full), why)


def _caused(error: MetastoreError, cause: Exception) -> MetastoreError:
    error.__cause__ = cause
    return error
