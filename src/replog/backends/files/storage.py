"""The files storage: journal files that are the log, and an index in memory that is rebuilt at the start (B1-B5).

One commit is one write and one sync. Beside its journal the storage needs no other file for what it holds.
Assumed of the disk: writing a sector again with the same content does not endanger it ("powersafe overwrite"), and
what a sync reported stays.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence

import trio

from replog.abc import Storage
from replog.backends.files.directory import DirectoryLock, check_is_ours
from replog.backends.files.disk import Disk, named_errors
from replog.backends.files.index import Location
from replog.backends.files.journal import Journal, Record
from replog.backends.files.opening import close_files, open_directory
from replog.backends.files.options import FilesOptions
from replog.backends.files.pool import FilePool, JournalFile
from replog.backends.files.reading import fetch, fetch_one
from replog.backends.files.record import RECORD_HEADER_BYTES, RecordType, pack_checkpoint, pack_drop, pack_marks
from replog.errors import (
    ConfigError,
    LocalProtocolError,
    StorageFailedError,
    StorageFullError,
    StorageUncertainError,
)
from replog.protocol.batch import Batch
from replog.protocol.mutations import DELETED_TERM, Marks, Mutation, PutBatch, SetMarks

_CLOSE_TIMEOUT_S = 60.0

Change = Batch | tuple[int, bytes | None, int, int] | int  # a batch, all marks of a ledger, a ledger to drop


class _Plan:
    """The records of one commit, and what they change."""

    __slots__ = ("changes", "has_batches", "records", "size")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.changes: list[Change] = []
        self.has_batches = False
        self.size = 0

    def add(self, record_type: RecordType, payload: bytes, change: Change) -> None:
        self.records.append((record_type, payload))
        self.changes.append(change)
        self.size += RECORD_HEADER_BYTES + len(payload)


class FilesStorage(Storage):
    """Ledgers in journal files. Made by `open_storage`.

    After `close` every call raises `trio.ClosedResourceError`; in a forked child `LocalProtocolError`, since the
    files belong to the parent. Reads take the GIL and a short lock, never the disk, while a commit is under way."""

    def __init__(self, path: str, options: FilesOptions, disk: Disk, *, background: bool) -> None:
        self._path = path
        self._options = options
        self._disk = disk
        self._pid = os.getpid()
        self._mutex = threading.Lock()  # for the index, and for files being opened, closed and read
        self._changed = threading.Condition(self._mutex)
        self._commit_lock = threading.Lock()
        self._failure: BaseException | None = None
        self._is_closed = False
        self._is_usable = False
        self._look_for_dead = True
        self._commits = self._batches = self._bytes = 0
        check_is_ours(disk, path)
        with named_errors(f"lock {path}"):
            self._lock = DirectoryLock(disk, path)
        started = time.monotonic()
        try:
            opened = open_directory(disk, path, options)
        except BaseException:
            self._lock.release()
            raise
        replay = opened.replay
        self._bookie_id = opened.bookie_id
        self._index = replay.index
        # full files that are open, oldest first
        self._opened = [file for file in opened.live.values() if file.fd >= 0 and file is not replay.tail]
        self._pool = FilePool(disk, opened.journal_directory, opened.identity, options, self._changed)
        self._journal = Journal(disk, options, self._pool, opened.live, replay.tail)
        self._journal.sequence = replay.sequence
        self._pool.start(opened.spares, replay.unused[0] if replay.unused else None, background=background)
        for file in (*replay.dead, *replay.unused[1:]):
            self._pool.retire(file)
        self._open_s = time.monotonic() - started
        self._is_usable = True

    # -- the seam -------------------------------------------------------------------------------------------------

    @property
    def bookie_id(self) -> str:
        """The random identity made at format (B4)."""
        return self._bookie_id

    def commit(self, mutations: Sequence[Mutation]) -> None:
        """As `Storage.commit`. The batches' own bytes are written, without a copy.

        What follows the deletion of a ledger in any commit changes nothing: it is gone for good (L5)."""
        with self._commit_lock:
            self._check_usable()
            plan = self._plan(mutations)
            try:
                if plan.records:
                    self._write(plan)
                    if self._look_for_dead or self._journal.sealed:
                        self._recycle()
            except StorageFullError:
                raise
            except BaseException as error:  # also an interrupt: what is on the disk is not what the index says
                self._fail(error)
                raise
            self._commits += 1

    def _plan(self, mutations: Sequence[Mutation]) -> _Plan:
        plan = _Plan()
        deleted = self._index.deleted
        dropped: set[int] = set()
        marks: dict[int, tuple[int, bytes | None, int, int]] = {}
        for mutation in mutations:
            if isinstance(mutation, PutBatch):
                batch = mutation.batch
                if batch.ledger_id not in deleted and batch.ledger_id not in dropped:
                    plan.add(RecordType.BATCH, batch.data, batch)
                    plan.has_batches = True
            elif mutation.ledger_id in deleted or mutation.ledger_id in dropped:
                continue
            elif isinstance(mutation, SetMarks):
                raised = self._raise_marks(mutation, marks.get(mutation.ledger_id))
                if raised is not None:
                    marks[mutation.ledger_id] = raised
                    ledger_id, key, fence_term, confirmed = raised
                    plan.add(RecordType.MARKS, pack_marks(ledger_id, key, fence_term, confirmed), raised)
            else:
                dropped.add(mutation.ledger_id)
                plan.add(RecordType.DROP, pack_drop(mutation.ledger_id), mutation.ledger_id)
        return plan

    def _raise_marks(
        self, wanted: SetMarks, before: tuple[int, bytes | None, int, int] | None
    ) -> tuple[int, bytes | None, int, int] | None:
        """All marks of the ledger after the change, or None if nothing changes."""
        ledger = self._index.ledgers.get(wanted.ledger_id)
        if before is None and ledger is not None:
            before = (wanted.ledger_id, ledger.key, ledger.fence_term, ledger.last_add_confirmed)
        _, key, fence_term, confirmed = before or (wanted.ledger_id, None, 0, -1)
        raised = (
            wanted.ledger_id,
            wanted.key if key is None else key,
            max(fence_term, wanted.fence_term or 0),
            confirmed if wanted.last_add_confirmed is None else max(confirmed, wanted.last_add_confirmed),
        )
        return None if raised == before else raised

    def _write(self, plan: _Plan) -> None:
        journal = self._journal
        journal.make_room(plan.size, keep_reserve=plan.has_batches)
        locations = journal.write(plan.records)
        index = self._index
        with self._mutex:
            for location, change in zip(locations, plan.changes, strict=True):
                if isinstance(change, Batch):
                    index.put_batch(
                        change.ledger_id,
                        change.stamp,
                        change.first_entry_id,
                        change.last_entry_id,
                        change.stride,
                        change.last_add_confirmed,
                        location,
                    )
                    self._batches += 1
                elif isinstance(change, tuple):
                    index.put_marks(*change, location.number)
                else:
                    index.drop(change)
                    self._look_for_dead = True
        self._bytes += plan.size

    # -- journal files that nobody needs --------------------------------------------------------------------------

    def _recycle(self) -> None:
        """Lets go of full files without a live batch, once what else they say stands in the current one, durably."""
        journal, index = self._journal, self._index
        self._look_for_dead = False
        with self._changed:
            self._opened += journal.sealed
            self._close_unread()
        journal.sealed.clear()
        dead = [
            file
            for number, file in journal.files.items()
            if number not in index.live_batches and file is not journal.current
        ]
        if not dead:
            return
        ledger_ids = [ledger_id for file in dead for ledger_id in index.marked.get(file.number, ())]
        marks = [
            (i, index.ledgers[i].key, index.ledgers[i].fence_term, index.ledgers[i].last_add_confirmed)
            for i in ledger_ids
        ]
        records: list[Record] = [(RecordType.MARKS, pack_marks(*each)) for each in marks]
        checkpoint = pack_checkpoint(journal.file_ranges(without=dead), index.deleted)
        size = sum(RECORD_HEADER_BYTES + len(payload) for _, payload in records) + RECORD_HEADER_BYTES + len(checkpoint)
        try:
            journal.make_room(size, keep_reserve=False)
            checkpoint = pack_checkpoint(journal.file_ranges(without=dead), index.deleted)
            journal.write([*records, (RecordType.CHECKPOINT, checkpoint)])
        except StorageFullError:
            self._look_for_dead = True  # the commit itself was done; the next one tries again
            return
        with self._changed:
            for each in marks:
                index.put_marks(*each, journal.current.number)
            for file in dead:
                del journal.files[file.number]
                if file in self._opened:
                    self._opened.remove(file)
        for file in dead:
            self._pool.retire(file)

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """As `Storage.read`. A damaged batch after good ones ends the answer before it."""
        return self._read(ledger_id, entry_id, stamp, bytes_max, wait=True)

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """As `Storage.read_nowait`: from the page cache alone."""
        return self._read(ledger_id, entry_id, stamp, bytes_max, wait=False)

    def _read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int, *, wait: bool) -> list[Batch]:
        if not self._is_usable or os.getpid() != self._pid:
            self._check_usable()
        with self._mutex:
            locations = self._index.locate(ledger_id, entry_id, stamp, bytes_max)
            if not locations:
                return []
            files = self._pin(locations, wait)
        try:
            if len(locations) == 1:
                return [fetch_one(self._disk, files[0], locations[0], wait=wait)]
            return fetch(self._disk, {file.number: file for file in files}, locations, wait=wait)
        finally:
            with self._mutex:
                for file in files:
                    file.pins -= 1
                    if not file.pins:
                        self._unpinned(file)

    def _pin(self, locations: list[Location], wait: bool) -> list[JournalFile]:
        """The files of these places, open, and kept so until they are unpinned."""
        if self._is_closed:
            raise _closed(self._path)
        known = self._journal.files
        numbers = [locations[0].number] if len(locations) == 1 else {location.number for location in locations}
        files = [known[number] for number in numbers]
        for file in files:
            if file.fd < 0:
                if not wait:
                    raise trio.WouldBlock
                try:
                    self._open_for_reading(file)
                except OSError as error:
                    raise StorageUncertainError(
                        f"could not open {file.path}: {error}", "Read it from another bookie"
                    ) from error
        for file in files:
            file.pins += 1
        return files

    def _unpinned(self, file: JournalFile) -> None:
        if self._is_closed or file.number not in self._journal.files:
            self._changed.notify_all()  # somebody may wait to close or to recycle it

    def _open_for_reading(self, file: JournalFile) -> None:
        file.fd = self._disk.open(file.path)
        self._opened.append(file)
        self._close_unread()

    def _close_unread(self) -> None:
        """Closes the files that were opened first, while too many are open and nobody reads or fills them."""
        for file in self._opened[: -self._options.open_files_max]:
            if not file.pins and file.filling.acquire(blocking=False):
                self._disk.close(file.fd)
                file.fd = -1
                file.filling.release()
                self._opened.remove(file)

    def marks(self, ledger_id: int) -> Marks | None:
        """As `Storage.marks`."""
        self._check_usable()
        with self._changed:
            ledger = self._index.ledgers.get(ledger_id)
            if ledger is not None:
                return Marks(ledger.key, ledger.fence_term, ledger.last_add_confirmed, ledger.last_entry_id)
            return Marks(fence_term=DELETED_TERM) if ledger_id in self._index.deleted else None

    def ledger_ids(self) -> list[int]:
        """As `Storage.ledger_ids`."""
        self._check_usable()
        with self._changed:
            return sorted(self._index.ledgers)

    def statistics(self) -> Mapping[str, float]:
        """As `Storage.statistics`: counters since the start, and gauges."""
        self._check_usable()
        with self._changed:
            return {
                "commits": self._commits,
                "batches": self._batches,
                "committed_bytes": self._bytes,
                "ledgers": len(self._index.ledgers),
                "journal_files": len(self._journal.files),
                "journal_spare_files": self._pool.spare_files,
                "journal_recycled_files": self._pool.recycled_files,
                "journal_bytes": sum(file.allocated for file in self._journal.files.values()),
                "open_s": self._open_s,
            }

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """As `Storage.close`: waits for a commit and for reads that are under way, and joins the thread."""
        if os.getpid() != self._pid:
            return  # the files, and the lock, are the parent's
        with self._commit_lock:
            with self._changed:
                if self._is_closed:
                    return
                self._is_closed = True
                self._is_usable = False
            self._pool.close()
            with self._changed:
                files = list(self._journal.files.values())
                self._changed.wait_for(lambda: not any(file.pins for file in files), _CLOSE_TIMEOUT_S)
                close_files(self._disk, files)
            self._lock.release()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._is_usable = False

    def _check_usable(self) -> None:
        if self._is_usable and os.getpid() == self._pid and self._pool.failure is None:
            return
        if os.getpid() != self._pid:
            raise LocalProtocolError(
                f"the storage in {self._path} belongs to process {self._pid}, this is {os.getpid()}: "
                "open what you need after the fork; nothing was written"
            )
        if self._is_closed:
            raise _closed(self._path)
        failure = self._failure or self._pool.failure
        self._is_usable = False
        raise StorageFailedError(f"the storage in {self._path} has stopped: {failure or repr(failure)}") from failure


def _closed(path: str) -> trio.ClosedResourceError:
    return trio.ClosedResourceError(f"the storage in {path} was closed: open it anew")


def open_storage(
    path: str, options: FilesOptions | None = None, *, disk: Disk | None = None, background: bool = True
) -> FilesStorage:
    """Opens the storage in a directory, and makes one if the directory is empty or missing.

    Raises `StorageInUseError`, `StorageIdentityError`, `StorageDamagedError`, `StorageFullError`, `StorageFailedError`;
    then nothing stays open. `disk` and `background` are for tests: another system below, and no thread."""
    if not path:
        raise ConfigError("files: needs a directory, as in files:/var/lib/wal")
    return FilesStorage(os.path.abspath(path), options or FilesOptions(), disk or Disk(), background=background)
