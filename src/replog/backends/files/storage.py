"""The files storage: a journal that makes commits durable, and log files with indexes that reads consult (B1-B6).

One commit is one write and one sync, of the journal. By default the journal's files *are* the log: a full one gets an
index beside it and stays as it is. With a journal elsewhere, batches are moved to entry logs. Either way the mark in
the catalog advances over durably indexed entries, so that a start replays only the groups behind it. Compaction
rewrites files of which little is needed, or in which ledgers alternate, in the order of their ledgers.

States, transitions and what a call raises in each state: `replog.backends.lifecycle`. OPENING is the constructor: it reads
the catalog, replays the journal, raises the doubt if anything was lost, and only then changes the directory. FAILED comes
from a commit, or from the thread of `Maintenance` or of `FilePool`; the next call finds their failure.

Assumed of the disk: writing a sector again with the same content does not endanger it ("powersafe overwrite"), and
what a sync reported stays.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import attrs

from replog.abc import Damage, Doubt, Sighting, StoredRange
from replog.backends.directory import DirectoryLock, LockedStorage, check_is_ours
from replog.backends.disk import Disk, errors_of_opening, named_error, named_errors
from replog.backends.files.checkpoint import Checkpointer
from replog.backends.files.committing import Committer
from replog.backends.files.directory import OWN_NAMES
from replog.backends.files.holdings import stored_ranges
from replog.backends.files.journal import Journal
from replog.backends.files.journal_files import FilePool
from replog.backends.files.lookup import SMALL_BYTES, Lookup
from replog.backends.files.maintenance import Maintenance
from replog.backends.files.making import NEW_BYTES
from replog.backends.files.open_parts import Contents
from replog.backends.files.opening import Opened, close_files, current_file, open_directory
from replog.backends.files.options import FilesOptions, FilesTuning, tuned
from replog.backends.files.spares import FIRST_FILL_BYTES
from replog.backends.lifecycle import Lifecycle, State
from replog.backends.sightings import read_sighting, write_sighting
from replog.errors import ConfigError, StorageFailedError, StorageFullError
from replog.protocol.batch import Batch
from replog.protocol.mutations import DELETED_TERM, Marks, Mutation
from replog.runtime.kernel_sync import KernelSync

_CLOSE_TIMEOUT_S = 60.0


class FilesStorage(LockedStorage):
    """Ledgers in log files. Made by `open_storage`.

    After `close` every call raises `trio.ClosedResourceError`; in a forked child `LocalProtocolError`, since the
    files belong to the parent. Reads take the GIL and a short lock, never the disk, while a commit is under way."""

    def __init__(self, path: str, options: FilesTuning, disk: Disk, *, background: bool) -> None:
        self._path = path
        self._disk = disk
        self._lifecycle = Lifecycle(path)
        self._commit_lock = threading.Lock()
        check_is_ours(disk, path, OWN_NAMES)
        self._locks: list[DirectoryLock] = []
        started = time.monotonic()
        try:
            self._lock(path)
            self._assemble(open_directory(disk, path, options, self._lock), options, background)
        except BaseException:
            for lock in self._locks:
                lock.release()
            self._lifecycle.refused()
            raise
        self._open_s = time.monotonic() - started
        self._lifecycle.opened()

    def _lock(self, directory: str) -> None:
        with named_errors(f"lock {directory}"):
            self._locks.append(DirectoryLock(self._disk, directory))

    def _assemble(self, opened: Opened, options: FilesTuning, background: bool) -> None:
        """Joins the parts of the storage to what stands in the directory. On an error nothing stays open."""
        disk, replay = self._disk, opened.replay
        self._bookie_id = opened.format.bookie_id
        self._mark = opened.mark
        self._contents = contents = Contents(
            disk, options, self._path, opened.identity, replay.index, opened.journals, opened.entry_logs
        )
        self._pool = pool = FilePool(disk, opened.journal_directory, opened.identity, options, contents.changed)
        try:
            pool.start(opened.spares, opened.ready, contents.page_cache, background=background)
            current = current_file(opened, pool)
            self._journal = journal = Journal(disk, options, pool, opened.mark, opened.journals, current)
            # Not the last group's sequence: after a loss, no new group may have the sequence of a lost one.
            journal.sequence = replay.reached
            journal.sealed += [file for file in opened.journals.values() if not file.is_indexed and file is not current]
            for file in contents.files():
                if file.fd >= 0 and file is not current:
                    contents.descriptors.add(file)
            checkpointer = Checkpointer(contents, journal, opened.catalog, opened.unread)
            self._maintenance = Maintenance(contents, journal, pool, checkpointer, opened.catalog.next_entry_log)
            self._committer = Committer(contents, journal, self._maintenance)
            self._lookup = Lookup(contents, self._lifecycle)
            if current is not replay.tail:
                # Replay met damage: a catalog that passes over it keeps the next start from reporting it again.
                self._maintenance.adopt()
            for dead in opened.dead:
                pool.retire(dead)
            with named_errors(f"keep space for the catalog in {self._path}"):
                checkpointer.keep_reserve()
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
        """Commits the mutations durably (`Storage.commit`). The batches' own bytes are written, without a copy.

        Mutations behind the deletion of their ledger, in any commit, change nothing: the ledger is gone permanently (L5)."""
        with self._commit_lock:
            if (
                not self._lifecycle.is_serving
                or self._pool.failure is not None
                or self._maintenance.failure is not None
            ):
                self._check_usable()  # which raises, and says why
            plan = self._committer.plan(mutations)
            try:
                if plan.records:
                    self._committer.write(plan)
            except StorageFullError:
                raise
            except BaseException as error:
                # An interrupt counts, too: the disk may hold what the index does not say.
                self._lifecycle.failed(error)
                raise
            self._committer.commits += 1

    def begin_commit(self, mutations: Sequence[Mutation], sync: KernelSync) -> Callable[[OSError | None], None] | None:
        """Begins a commit (`SyncedByKernel.begin_commit`), only if the current journal file has room."""
        # It is taken already only while the storage closes. It is kept until the end: nothing else is committed before that.
        if not self._commit_lock.acquire(blocking=False):
            return None
        end = None
        try:
            is_usable = self._lifecycle.is_serving and self._pool.failure is None and self._maintenance.failure is None
            # Who settles a doubt holds the mark while it syncs that.
            if is_usable and not self._mark.doubt.doubted_below:
                plan = self._committer.plan(mutations)
                end = self._committer.begin(plan, sync) if plan.records else None
        except StorageFullError:
            raise
        except BaseException as error:
            self._lifecycle.failed(error)
            raise
        finally:
            if end is None:
                self._commit_lock.release()
        return None if end is None else partial(self._end_commit, end)

    def _end_commit(self, end: Callable[[OSError | None], None], problem: OSError | None) -> None:
        try:
            end(problem)
            self._committer.commits += 1
        except BaseException as error:
            self._lifecycle.failed(error)
            raise
        finally:
            self._commit_lock.release()

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """The batches from the entry on (`Storage.read`). A damaged batch after good ones ends the answer before it."""
        if not self._lifecycle.is_serving:
            self._check_usable()
        return self._lookup.read(ledger_id, entry_id, stamp, bytes_max, wait=True)

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """The same as `read`, from the page cache alone (`Storage.read_nowait`)."""
        if not self._lifecycle.is_serving:
            self._check_usable()
        elif bytes_max <= SMALL_BYTES:
            batch = self._lookup.read_small(ledger_id, entry_id, stamp, bytes_max)
            if batch is not None:
                return [batch]
        return self._lookup.read(ledger_id, entry_id, stamp, bytes_max, wait=False)

    def marks(self, ledger_id: int) -> Marks | None:
        """The ledger's marks, or None (`Storage.marks`)."""
        self._check_usable()
        with self._contents.lock:
            ledger = self._contents.index.ledgers.get(ledger_id)
            if ledger is not None:
                return ledger.marks()
            return Marks(fence_term=DELETED_TERM) if ledger_id in self._contents.index.deleted else None

    def ledger_ids(self) -> list[int]:
        """The ids of all ledgers (`Storage.ledger_ids`)."""
        self._check_usable()
        with self._contents.lock:
            return sorted(self._contents.index.ledgers)

    def ranges(self, ledger_id: int) -> list[StoredRange]:
        """The stored ranges of a ledger, from the index alone (`Storage.ranges`)."""
        self._check_usable()
        return stored_ranges(self._contents, ledger_id)

    # -- care -----------------------------------------------------------------------------------------------------

    def free_bytes(self) -> int:
        """The free bytes on the disk of the journal or of the entry logs, whichever has less (`Storage.free_bytes`)."""
        self._check_usable()
        options = self._contents.options
        places = [self._path, options.journal_dir] if options.journal_dir else [self._path]
        try:
            free = min(self._disk.free_bytes(place) for place in places)
        except OSError as error:
            # The bookie decides by this figure whether it takes entries (B5); without it, it must not go on.
            self._lifecycle.failed(error)
            raise named_error(f"look at the disk of {self._path}", error) from error
        return free + self._pool.spare_files * options.capacity_bytes

    def compact(self, *, is_major: bool = False) -> None:
        """Rewrites sparse files (`Storage.compact`): copies at most `compaction_bytes_per_s`."""
        with self._stopping():
            self._maintenance.compact(is_major=is_major)

    def scrub(self) -> None:
        """Looks for damage (`Storage.scrub`): reads at most `scrub_bytes_per_s`."""
        with self._stopping():
            self._maintenance.scrub()

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """An error in this block stops the storage: from then on reads fail too (B1)."""
        self._check_usable()
        try:
            yield
        except StorageFailedError as error:
            self._lifecycle.failed(error)
            raise

    def damage(self) -> Sequence[Damage]:
        """The damage that reads, compaction and scrubbing have found since the start (`Storage.damage`)."""
        self._check_usable()
        with self._contents.lock:
            return tuple(self._contents.damages.known.values())

    def doubt(self) -> Doubt:
        """The ledgers that the storage cannot vouch for (`Storage.doubt`)."""
        self._check_usable()
        return self._mark.doubt

    def bound_doubt(self, below_ledger_id: int) -> None:
        """Limits the doubt to ledgers below this one (`Storage.bound_doubt`)."""
        with self._stopping():
            self._mark.bound(below_ledger_id)

    def settle_doubt(self, found: Doubt, left: Doubt) -> None:
        """Replaces the doubt `found` by `left` (`Storage.settle_doubt`)."""
        with self._stopping():
            self._mark.settle(found, left)

    def sighting(self) -> Sighting:
        """The last sighting of the metastore (`Storage.sighting`)."""
        self._check_usable()
        return read_sighting(self._disk, self._path, self._bookie_id)

    def keep_sighting(self, sighting: Sighting) -> None:
        """Keeps a sighting of the metastore (`Storage.keep_sighting`)."""
        with self._stopping():
            write_sighting(self._disk, self._path, self._bookie_id, sighting)

    def statistics(self) -> Mapping[str, float]:
        """Counters since the start, and gauges (`Storage.statistics`)."""
        self._check_usable()
        contents = self._contents
        with self._contents.lock:
            files = contents.files()
            journal_bytes = sum(file.allocated for file in contents.journals.values())
            entry_log_bytes = sum(file.position for file in contents.entry_logs.values())
            return {
                "commits": self._committer.commits,
                "batches": self._committer.batches,
                "committed_bytes": self._committer.bytes,
                "ledgers": len(self._contents.index.ledgers),
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
                "damaged_batches": len(contents.damages.known),
                "open_s": self._open_s,
                **self._maintenance.statistics(),
            }

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Waits for a commit and for reads that are under way, and joins the threads (`Storage.close`)."""
        if self._lifecycle.state is State.FORKED:
            # The files and the locks are the parent's. A thread of the parent may have held the commit lock at the fork.
            return
        with self._commit_lock:
            was_serving = self._lifecycle.is_serving
            with self._contents.lock:
                if self._lifecycle.state is not State.SERVING and self._lifecycle.state is not State.FAILED:
                    return
                self._lifecycle.close_began()
            self._maintenance.close()
            # A forced compaction or scrub in another thread ends first: the catalog below must be the last one.
            with self._contents.working:
                if was_serving and self._pool.failure is None and self._maintenance.failure is None:
                    self._maintenance.say_goodbye()
                    with suppress(OSError, StorageFailedError):  # an older mark vouches, too
                        self._mark.advance(self._mark.position)
                        self._mark.sync()
            self._pool.close()
            self._mark.close()
            with self._contents.lock:
                files = self._contents.files()
                self._contents.descriptors.is_closing = True
                self._contents.changed.wait_for(lambda: not any(file.pins for file in files), _CLOSE_TIMEOUT_S)
                close_files(self._disk, files)
            for lock in self._locks:
                lock.release()
            self._lifecycle.released()

    def _check_usable(self) -> None:
        """Raises why the storage does not serve, if it does not. Finds what failed in a thread."""
        lifecycle = self._lifecycle
        if lifecycle.is_serving:
            failure = self._pool.failure or self._maintenance.failure
            if failure is None:
                return
            lifecycle.failed(failure)
        raise lifecycle.refusal()


def open_storage(
    path: str, options: FilesOptions | None = None, *, disk: Disk | None = None, background: bool = True
) -> FilesStorage:
    """Opens the storage in a directory, and makes one if the directory is empty or missing.

    Raises `StorageInUseError`, `StorageIdentityError`, `StorageDamagedError`, `StorageFullError`, `StorageFailedError`;
    then nothing stays open. `disk` and `background` are for tests: another system below, and no threads."""
    if not path:
        raise ConfigError("files: needs a directory, as in files:/var/lib/wal")
    tuning = tuned(options or FilesOptions())
    if tuning.journal_dir:
        tuning = attrs.evolve(tuning, journal_dir=os.path.abspath(tuning.journal_dir))
    path = os.path.abspath(path)
    with errors_of_opening(path, NEW_BYTES + min(FIRST_FILL_BYTES, tuning.capacity_bytes)):
        return FilesStorage(path, tuning, disk or Disk(), background=background)
