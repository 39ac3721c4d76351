"""Write transactions of one LMDB environment: growth of the map, and what follows a commit that failed.

Rules:
- Only the writer thread is here. All jobs of a call are one transaction: one sync for many changes.
- After a commit that failed, LMDB does nothing more with an environment: it is closed and opened again, and that is tried
  before each later transaction until it works.
- The outcome of a commit that failed is unknown (M1); an error before the commit means that nothing was written.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

import lmdb

from replog.errors import MetastoreError, MetastoreUnavailableError, MetastoreUncertainError
from replog.metastores.lmdb_jobs import Job
from replog.metastores.lmdb_records import Writing
from replog.metastores.presence import Presence
from replog.runtime.lmdb_file import DataFileDamagedError
from replog.runtime.lmdb_map import LMDBMap

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


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
                return _caused(
                    MetastoreUnavailableError(f"metastore {self.map.path}: {error}; nothing was written"), error
                )
            # Asked before the commit: afterwards the transaction is invalid, even if the commit failed.
            number = transaction.id()
            try:
                transaction.commit()
            except lmdb.MapFullError as error:
                return _caused(_TooSmallError(str(error)), error)
            except (lmdb.Error, OSError) as error:
                self._broken = f"metastore {self.map.path}: a commit failed: {error}{_advice(error)}"
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
                # The failed commit may have reached the file all the same: then readers see its changes.
                if self.map.environment.info()["last_txnid"] >= self._unknown_change:
                    self._settle()
        except (lmdb.Error, OSError, DataFileDamagedError) as error:
            problem = f"{self._broken}; it can't be opened again yet: {error}; nothing was written. Try again"
            return _caused(MetastoreUnavailableError(problem), error)
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
        if self.map.grow():
            return None
        full = (
            f"metastore {self.map.path}: full at map_bytes_max={self.map.map_bytes_max}; nothing was written. Raise it"
        )
        return _caused(MetastoreError(full), why)


def _advice(error: Exception) -> str:
    code = getattr(error, "code", None) if isinstance(error, lmdb.Error) else getattr(error, "errno", None)
    if isinstance(error, lmdb.DiskError) or code in _NO_SPACE:
        return ". The disk is full: make room on it"
    return ". Look at the disk" if code == errno.EIO else ""


def _caused(error: MetastoreError, cause: Exception) -> MetastoreError:
    error.__cause__ = cause
    return error
