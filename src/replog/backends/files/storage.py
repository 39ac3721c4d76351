"""The files storage: a journal that makes commits durable, and log files with indexes that reads consult (B1-B6).

One commit is one write and one sync, of the journal. By default the journal's files *are* the log: a full one gets an index
beside it and stays as it is. With a journal elsewhere, batches are moved to entry logs. Either way the mark in the catalog
advances over what is indexed durably, so that a start replays only what is behind it. Compaction rewrites files of which
little is needed, or in which ledgers alternate, in the order of their ledgers.
Assumed of the disk: writing a sector again with the same content does not endanger it ("powersafe overwrite"), and
what a sync reported stays.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from weakref import WeakSet

import attrs
import trio
from crc32c import crc32c

from replog.abc import Damage, Doubt
from replog.backends.disk import Disk, named_error, named_errors
from replog.backends.files.checkpoint import Checkpointer
from replog.backends.files.contents import Contents, SectionGone
from replog.backends.files.directory import DirectoryLock, check_is_ours
from replog.backends.files.index import PageMissing
from replog.backends.files.index_page import IndexPage
from replog.backends.files.journal import Journal
from replog.backends.files.log_file import Location, LogFile, Place, Section
from replog.backends.files.maintenance import Maintenance
from replog.backends.files.opening import Opened, close_files, current_file, open_directory
from replog.backends.files.options import FilesOptions
from replog.backends.files.planning import Change, Plan
from replog.backends.files.pool import FilePool
from replog.backends.files.reading import DamagedBatch, fetch, fetch_one
from replog.backends.files.record import MarksOfLedger, RecordType, pack_drop, pack_marks
from replog.backends.locked import LockedStorage
from replog.errors import (
    ConfigError,
    LocalProtocolError,
    StorageFailedError,
    StorageFullError,
    StorageUncertainError,
)
from replog.protocol.batch import Batch, decode_stored
from replog.protocol.digest import CRC32C_RESIDUE
from replog.protocol.mutations import DELETED_TERM, Marks, Mutation, PutBatch, SetMarks
from replog.protocol.proofs import better_proof

_CLOSE_TIMEOUT_S = 60.0
_SMALL_BYTES = 128 << 10


class FilesStorage(LockedStorage):
    """Ledgers in log files. Made by `open_storage`.

    After `close` every call raises `trio.ClosedResourceError`; in a forked child `LocalProtocolError`, since the
    files belong to the parent. Reads take the GIL and a short lock, never the disk, while a commit is under way."""

    def __init__(self, path: str, options: FilesOptions, disk: Disk, *, background: bool) -> None:
        self._path = path
        self._options = options
        self._disk = disk
        self._pid = os.getpid()
        self._commit_lock = threading.Lock()
        self._failure: BaseException | None = None
        self._is_closed = False
        self._is_usable = False
        self._has_dropped = False
        self._batches = self._bytes = 0
        check_is_ours(disk, path)
        self._locks: list[DirectoryLock] = []
        started = time.monotonic()
        try:
            self._lock(path)
            self._assemble(open_directory(disk, path, options, self._lock), background)
        except BaseException:
            for lock in self._locks:
                lock.release()
            raise
        self._open_s = time.monotonic() - started
        self._is_usable = True
        _opened.add(self)

    def _lock(self, directory: str) -> None:
        with named_errors(f"lock {directory}"):
            self._locks.append(DirectoryLock(self._disk, directory))

    def _assemble(self, opened: Opened, background: bool) -> None:
        disk, options, replay = self._disk, self._options, opened.replay
        self._bookie_id = opened.format.bookie_id
        self._mark = opened.mark
        self._contents = contents = Contents(
            disk, options, self._path, opened.identity, replay.index, opened.journals, opened.entry_logs, opened.unread
        )
        self._mutex = contents.lock
        self._index = contents.index
        self._pool = pool = FilePool(disk, opened.journal_directory, opened.identity, options, contents.changed)
        try:
            pool.start(opened.spares, opened.ready, contents.page_cache, background=background)
            current = current_file(opened, pool)
            self._journal = journal = Journal(disk, options, pool, opened.mark, opened.journals, current)
            journal.sequence = replay.reached
            journal.sealed += [file for file in opened.journals.values() if not file.is_indexed and file is not current]
            for file in contents.files():
                if file.fd >= 0 and file is not current:
                    contents.descriptors.add(file)
            self._checkpointer = Checkpointer(contents, journal, opened.catalog)
            self._maintenance = Maintenance(contents, journal, pool, self._checkpointer, opened.catalog.next_entry_log)
            if current is not replay.tail:
                self._maintenance.adopt()
            for dead in opened.dead:
                pool.retire(dead)
            with named_errors(f"keep space for the catalog in {self._path}"):
                self._checkpointer.keep_reserve()
            if background:
                self._maintenance.start()
            self._maintenance.commit_done()
        except BaseException:
            pool.close()
            opened.mark.close()
            close_files(disk, [*contents.files(), *opened.dead])
            raise

    # -- the seam -------------------------------------------------------------------------------------------------

    @property
    def bookie_id(self) -> str:
        """The random identity made at format (B4)."""
        return self._bookie_id

    @property
    def place(self) -> str:
        return self._path

    def commit(self, mutations: Sequence[Mutation]) -> None:
        """As `Storage.commit`. The batches' own bytes are written, without a copy.

        What follows the deletion of a ledger in any commit changes nothing: it is gone for good (L5)."""
        with self._commit_lock:
            if not self._is_usable or self._pool.failure is not None or self._maintenance.failure is not None:
                self._check_usable()  # which raises, and says why
            plan = self._plan(mutations)
            try:
                if plan.records:
                    self._write(plan)
            except StorageFullError:
                raise
            except BaseException as error:  # also an interrupt: what is on the disk is not what the index says
                self._fail(error)
                raise
            self._contents.commits += 1

    def _plan(self, mutations: Sequence[Mutation]) -> Plan:
        plan = Plan()
        ledgers, deleted = self._index.ledgers, self._index.deleted
        dropped: set[int] = set()
        marks: dict[int, MarksOfLedger] = {}
        for mutation in mutations:
            if isinstance(mutation, PutBatch):
                batch = mutation.batch
                ledger_id = batch.ledger_id
                if (ledger_id in ledgers or ledger_id not in deleted) and ledger_id not in dropped:
                    plan.add_batch(batch)
            elif mutation.ledger_id in deleted or mutation.ledger_id in dropped:
                continue
            elif isinstance(mutation, SetMarks):
                raised = self._raise_marks(mutation, marks.get(mutation.ledger_id))
                if raised is not None:
                    marks[mutation.ledger_id] = raised
                    plan.add(RecordType.MARKS, pack_marks(*raised), raised)
            else:
                dropped.add(mutation.ledger_id)
                plan.add(RecordType.DROP, pack_drop(mutation.ledger_id), mutation.ledger_id)
        return plan

    def _raise_marks(self, wanted: SetMarks, before: MarksOfLedger | None) -> MarksOfLedger | None:
        """All marks of the ledger after the change, or None if nothing changes."""
        ledger = self._index.ledgers.get(wanted.ledger_id)
        if before is None and ledger is not None:
            before = (wanted.ledger_id, ledger.key, ledger.fence_term, ledger.last_add_confirmed, ledger.proof)
        _, key, fence_term, confirmed, proof = before or (wanted.ledger_id, None, 0, -1, b"")
        raised = (
            wanted.ledger_id,
            wanted.key if key is None else key,
            max(fence_term, wanted.fence_term or 0),
            confirmed if wanted.last_add_confirmed is None else max(confirmed, wanted.last_add_confirmed),
            better_proof(proof, wanted.proof),
        )
        return None if raised == before else raised

    def _write(self, plan: Plan) -> None:
        journal = self._journal
        if self._options.journal_dir and plan.has_batches:
            # Fences and deletions needn't wait: they are what frees space.
            self._maintenance.wait_for_flush()
        journal.make_room(plan.size, keep_reserve=plan.has_batches)
        places = journal.write(plan.records)
        with self._mutex:
            for place, change in zip(places, plan.changes, strict=True):
                self._apply(change, place)
            for file in journal.rolled:
                if not file.is_retired:  # a commit that found no space may have rolled it long ago
                    self._contents.journal_file_is_full(file)
        self._bytes += plan.size
        if self._has_dropped or journal.rolled:
            self._has_dropped = False
            journal.rolled.clear()
            self._maintenance.commit_done()

    def _apply(self, change: Change, place: Place) -> None:
        if isinstance(change, Batch):
            self._index.put_batch(
                change.ledger_id,
                change.stamp,
                change.first_entry_id,
                change.last_entry_id,
                change.stride,
                change.last_add_confirmed,
                place,
            )
            self._batches += 1
            if self._contents.damage:  # stored again by a repair: reads find this copy
                identity = change.ledger_id, change.stamp, change.first_entry_id, change.last_entry_id
                self._contents.damage.pop(identity, None)
        elif isinstance(change, tuple):
            self._index.put_marks(*change)
        else:
            self._contents.cache.forget(self._index.drop(change))
            self._has_dropped = True
            for identity in [each for each in self._contents.damage if each[0] == change]:
                del self._contents.damage[identity]

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """As `Storage.read`. A damaged batch after good ones ends the answer before it."""
        return self._read(ledger_id, entry_id, stamp, bytes_max, wait=True)

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """As `Storage.read_nowait`: from the page cache alone."""
        if self._is_usable and bytes_max <= _SMALL_BYTES:
            batch = self._read_small(ledger_id, entry_id, stamp, bytes_max)
            if batch is not None:
                return [batch]
        return self._read(ledger_id, entry_id, stamp, bytes_max, wait=False)

    def _read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int, *, wait: bool) -> list[Batch]:
        if not self._is_usable:
            self._check_usable()
        locations, files = self._locate(ledger_id, entry_id, stamp, bytes_max, wait)
        if not locations:
            return []
        try:
            if len(locations) == 1:
                return [fetch_one(self._disk, locations[0], wait=wait)]
            return fetch(self._disk, locations, wait=wait)
        except DamagedBatch as error:
            self._contents.find_damaged(error, ledger_id, stamp)
            raise
        finally:
            with self._mutex:
                self._contents.descriptors.unpin(files)

    def _read_small(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> Batch | None:
        """A lone small batch, if it is in the page cache and intact: then copying it under the lock is the shortest way."""
        try:
            with self._mutex:
                place = self._index.locate_lone(ledger_id, entry_id, stamp)
                if place is None:
                    return None
                file, offset, size, checksum = place
                if not bytes_max <= size <= _SMALL_BYTES or file.fd < 0:
                    return None
                data = self._disk.pread_cached(file.fd, size, offset)
        except OSError:  # it is done again, with care
            return None
        code = data[-4:]
        # Of a batch that ends with its own CRC32C this proves all of it, in one pass; others take the longer way.
        if crc32c(data) == CRC32C_RESIDUE and crc32c(code, crc32c(code)) == checksum and len(data) == size:
            return decode_stored(data)
        return None

    def _locate(
        self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int, wait: bool
    ) -> tuple[list[Location], Sequence[LogFile]]:
        """Where the batches stand, and their files, pinned. What can't be told for good ends the answer before it."""
        loaded: dict[Section, IndexPage] = {}
        while True:
            try:
                with self._mutex:
                    locations = self._index.locate(ledger_id, entry_id, stamp, bytes_max, loaded)
                    return locations, self._pin(locations, wait) if locations else ()
            except PageMissing as missing:
                if not wait:
                    raise trio.WouldBlock from None
                section = missing.section
            except StorageUncertainError:  # a file can't be opened
                if bytes_max <= 0:
                    raise
                bytes_max = 0
                continue
            try:
                with suppress(SectionGone):  # rewritten or deleted meanwhile: look again
                    loaded[section] = self._contents.load_page(section)
            except StorageUncertainError:
                if bytes_max <= 0 or not section.file.is_damaged:  # a whole file gets its index anew: then all is told
                    raise
                bytes_max = 0

    def _pin(self, locations: list[Location], wait: bool) -> Sequence[LogFile]:
        """The files of these places, open, and kept so until they are unpinned."""
        if self._is_closed:
            raise _closed(self._path)
        files = (locations[0].file,) if len(locations) == 1 else tuple({location.file for location in locations})
        self._contents.descriptors.pin(files, wait=wait)
        return files

    def marks(self, ledger_id: int) -> Marks | None:
        """As `Storage.marks`."""
        self._check_usable()
        with self._mutex:
            ledger = self._index.ledgers.get(ledger_id)
            if ledger is not None:
                return ledger.marks()
            return Marks(fence_term=DELETED_TERM) if ledger_id in self._index.deleted else None

    def ledger_ids(self) -> list[int]:
        """As `Storage.ledger_ids`."""
        self._check_usable()
        with self._mutex:
            return sorted(self._index.ledgers)

    # -- care -----------------------------------------------------------------------------------------------------

    def free_bytes(self) -> int:
        """As `Storage.free_bytes`: of the disk of the journal or of the entry logs, whichever has less."""
        self._check_usable()
        places = [self._path, self._options.journal_dir] if self._options.journal_dir else [self._path]
        try:
            free = min(self._disk.free_bytes(place) for place in places)
        except OSError as error:  # a disk that can't say this much is not to be trusted with more
            self._fail(error)
            raise named_error(f"look at the disk of {self._path}", error) from error
        return free + self._pool.spare_files * self._options.capacity_bytes

    def compact(self, *, is_major: bool = False) -> None:
        """As `Storage.compact`: copies at most `compaction_bytes_per_s`."""
        with self._stopping():
            self._maintenance.compact(is_major=is_major)

    def scrub(self) -> None:
        """As `Storage.scrub`: reads at most `scrub_bytes_per_s`."""
        with self._stopping():
            self._maintenance.scrub()

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """What fails in here stops the storage: from then on reads fail too (B1)."""
        self._check_usable()
        try:
            yield
        except StorageFailedError as error:
            self._fail(error)
            raise

    def damage(self) -> Sequence[Damage]:
        """As `Storage.damage`: what reads, compaction and scrubbing came upon since the start."""
        self._check_usable()
        with self._mutex:
            return tuple(self._contents.damage.values())

    def doubt(self) -> Doubt:
        """As `Storage.doubt`."""
        self._check_usable()
        return self._mark.doubt

    def bound_doubt(self, below_ledger_id: int) -> None:
        """As `Storage.bound_doubt`."""
        with self._stopping():
            self._mark.bound(below_ledger_id)

    def statistics(self) -> Mapping[str, float]:
        """As `Storage.statistics`: counters since the start, and gauges."""
        self._check_usable()
        contents = self._contents
        with self._mutex:
            files = contents.files()
            journal_bytes = sum(file.allocated for file in contents.journals.values())
            entry_log_bytes = sum(file.position for file in contents.entry_logs.values())
            return {
                "commits": contents.commits,
                "batches": self._batches,
                "committed_bytes": self._bytes,
                "ledgers": len(self._index.ledgers),
                "journal_files": len(contents.journals),
                "journal_spare_files": self._pool.spare_files,
                "journal_recycled_files": self._pool.recycled_files,
                "used_bytes": journal_bytes + entry_log_bytes,
                "journal_bytes": journal_bytes,
                "journal_replay_bytes": sum(file.position for file in (*self._journal.sealed, self._journal.current)),
                "entry_logs": len(contents.entry_logs),
                "entry_log_bytes": entry_log_bytes,
                "batch_bytes": sum(file.batch_bytes for file in files),
                "live_batch_bytes": sum(file.live_bytes for file in files),
                "ledger_cache_bytes": contents.cache.bytes,
                "ledger_cache_loaded_pages": contents.cache.loaded_pages,
                "damaged_batches": len(contents.damage),
                "open_s": self._open_s,
                **self._maintenance.statistics(),
            }

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """As `Storage.close`: waits for a commit and for reads that are under way, and joins the threads."""
        if os.getpid() != self._pid:
            return  # the files, and the locks, are the parent's
        with self._commit_lock:
            with self._mutex:
                if self._is_closed:
                    return
                self._is_closed = True
                was_usable, self._is_usable = self._is_usable, False
            self._maintenance.close()
            with self._contents.working:
                if was_usable and self._pool.failure is None and self._maintenance.failure is None:
                    self._maintenance.say_goodbye()
                    with suppress(OSError, StorageFailedError):  # an older mark vouches too
                        self._mark.advance(self._mark.position)
                        self._mark.sync()
            self._pool.close()
            self._mark.close()
            with self._mutex:
                files = self._contents.files()
                self._contents.descriptors.is_closing = True
                self._contents.changed.wait_for(lambda: not any(file.pins for file in files), _CLOSE_TIMEOUT_S)
                close_files(self._disk, files)
            for lock in self._locks:
                lock.release()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._is_usable = False

    def _check_usable(self) -> None:
        if (
            self._is_usable
            and os.getpid() == self._pid
            and self._pool.failure is None
            and self._maintenance.failure is None
        ):
            return
        if os.getpid() != self._pid:
            raise LocalProtocolError(
                f"the storage in {self._path} belongs to process {self._pid}, this is {os.getpid()}: "
                "open what you need after the fork; nothing was written"
            )
        if self._is_closed:
            raise _closed(self._path)
        failure = self._failure or self._pool.failure or self._maintenance.failure
        self._is_usable = False
        raise StorageFailedError(f"the storage in {self._path} has stopped: {failure or repr(failure)}") from failure


_opened: WeakSet[FilesStorage] = WeakSet()


def _forget_in_child() -> None:
    for storage in list(_opened):
        storage._is_usable = False  # `_check_usable` says why; asking for the process at each read costs too much


os.register_at_fork(after_in_child=_forget_in_child)


def _closed(path: str) -> trio.ClosedResourceError:
    return trio.ClosedResourceError(f"the storage in {path} was closed: open it anew")


def open_storage(
    path: str, options: FilesOptions | None = None, *, disk: Disk | None = None, background: bool = True
) -> FilesStorage:
    """Opens the storage in a directory, and makes one if the directory is empty or missing.

    Raises `StorageInUseError`, `StorageIdentityError`, `StorageDamagedError`, `StorageFullError`, `StorageFailedError`;
    then nothing stays open. `disk` and `background` are for tests: another system below, and no threads."""
    if not path:
        raise ConfigError("files: needs a directory, as in files:/var/lib/wal")
    options = options or FilesOptions()
    if options.journal_dir:
        options = attrs.evolve(options, journal_dir=os.path.abspath(options.journal_dir))
    return FilesStorage(os.path.abspath(path), options, disk or Disk(), background=background)
