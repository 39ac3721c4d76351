"""The LMDB storage: one environment holds all ledgers of a bookie; one commit is one write transaction, synced (B1).

LMDB copies on write and keeps two roots: a commit is there wholly or not at all, and restarting replays nothing. A reader
has a snapshot, and never waits for a commit. The map is read only, so that no stray pointer can damage it.

States, transitions and what a call raises in each state: `replog.backends.lifecycle`. OPENING is the constructor: it checks
the data file, compares it with the durable mark, raises the doubt if anything was lost, and makes durable what it read.
FAILED comes from a transaction that failed for another reason than space.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import lmdb
import trio

from replog.abc import Damage, Doubt, Sighting, StoredRange
from replog.backends.directory import LockedStorage, check_is_ours
from replog.backends.disk import Disk, errors_of_opening, named_errors
from replog.backends.lifecycle import Lifecycle, State
from replog.backends.lmdb.directory import OWN_NAMES, BootLock, Former
from replog.backends.lmdb.holdings import Contents, stored_ranges
from replog.backends.lmdb.maintenance import Maintenance
from replog.backends.lmdb.opening import NEW_BYTES, iterate_ids, open_directory
from replog.backends.lmdb.options import LMDBStorageOptions, LMDBStorageTuning, tuned
from replog.backends.lmdb.records import LEDGER
from replog.backends.lmdb.snapshot import BatchDamagedError, Snapshot
from replog.backends.lmdb.transactions import Transactions
from replog.backends.lmdb.writing import Changes, check_not_dropped, read_marks
from replog.backends.sightings import read_sighting, write_sighting
from replog.errors import ConfigError
from replog.protocol.batch import Batch
from replog.protocol.mutations import DELETED_TERM, Marks, Mutation, PutBatch

_CLOSE_TIMEOUT_S = 60.0


class LMDBStorage(LockedStorage):
    """Ledgers in an LMDB environment. Made by `open_storage`.

    After `close` every call raises `trio.ClosedResourceError`; in a forked child `LocalProtocolError`, since the
    environment belongs to the parent. Reads wait for the disk where the page cache hasn't got what they need, and for
    the map while it grows; never for a commit."""

    def __init__(self, path: str, options: LMDBStorageTuning) -> None:
        self._path = path
        self._lifecycle = Lifecycle(path)
        self._commit_lock = threading.Lock()
        started = time.monotonic()
        disk = Disk()
        check_is_ours(disk, path, OWN_NAMES)
        with named_errors(f"lock {path}"):
            self._lock = BootLock(disk, path)
        try:
            opened = open_directory(disk, path, options, self._lock.former)
        except BaseException:
            self._lock.release()
            self._lifecycle.refused()
            raise
        self._bookie_id = opened.bookie_id
        self._map = opened.lmdb_map
        self._mark = opened.mark
        self._contents = Contents(opened.deleted, opened.garbage, opened.ledgers, opened.with_dropped)
        self._transactions = Transactions(
            self._lifecycle, self._commit_lock, opened.bookie_id, opened.lmdb_map, opened.mark, self._lock
        )
        self._maintenance = Maintenance(
            f"replog maintenance {path}",
            self._contents,
            self._transactions,
            self._commit_lock,
            scrub_interval_s=options.scrub_interval_s,
            scrub_bytes_per_s=options.scrub_bytes_per_s,
        )
        self._open_s = time.monotonic() - started
        self._lifecycle.opened()
        self._maintenance.start()
        if self._contents.garbage:
            self._maintenance.wake()

    # -- the seam: writing ----------------------------------------------------------------------------------------

    @property
    def bookie_id(self) -> str:
        """The random identity made at format (B4)."""
        return self._bookie_id

    @property
    def place(self) -> str:
        return self._path

    def commit(self, mutations: Sequence[Mutation]) -> None:
        """Commits in one transaction, which is tried again as a whole when the map had to grow (`Storage.commit`)."""
        with self._commit_lock:
            self._transactions.check_usable()
            has_batches = any(isinstance(mutation, PutBatch) for mutation in mutations)
            # Without batches it may use the reserve: fences and deletions are what makes room on a full disk.
            changes = self._transactions.transact(
                lambda transaction: self._change(transaction, mutations), uses_reserve=not has_batches
            )
            self._contents.learn(changes)
            if changes.dropped:
                self._maintenance.wake()

    def _change(self, transaction: lmdb.Transaction, mutations: Sequence[Mutation]) -> Changes:
        changes = Changes(transaction, self._contents.deleted, self._contents.known)
        changes.apply(mutations)
        return changes

    # -- the seam: reading ----------------------------------------------------------------------------------------

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """The batches from the entry on (`Storage.read`). A damaged batch after good ones ends the answer before it."""
        if not self._is_readable(ledger_id, entry_id):
            return []
        try:
            return self._transactions.ask(
                lambda transaction: self._read(transaction, (ledger_id, entry_id, stamp), bytes_max)
            )
        except BatchDamagedError as error:
            self._contents.found_damage(error.damage)
            raise

    def _read(self, transaction: lmdb.Transaction, wanted: tuple[int, int, int], bytes_max: int) -> list[Batch]:
        ledger_id, entry_id, stamp = wanted
        found = Snapshot(transaction, ledger_id, stamp).read(entry_id, bytes_max)
        if not found and ledger_id in self._contents.known.with_dropped:
            check_not_dropped(transaction, *wanted)
        return found

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """The batches from the entry on, from the last committed ones, which are kept in memory
        (`Storage.read_nowait`). A map cannot be asked whether a page of it is in memory, so everything else raises
        `trio.WouldBlock`: the event loop never waits."""
        if not self._is_readable(ledger_id, entry_id):
            return []
        found = self._contents.recent.read(ledger_id, entry_id, stamp, bytes_max)
        if not found:
            raise trio.WouldBlock
        return found

    def _is_readable(self, ledger_id: int, entry_id: int) -> bool:
        if not self._lifecycle.is_serving:
            raise self._lifecycle.refusal()
        return entry_id >= 0 and ledger_id not in self._contents.deleted

    def marks(self, ledger_id: int) -> Marks | None:
        """The ledger's marks, or None (`Storage.marks`). Raises `StorageUncertainError` if they are damaged."""
        self._transactions.check_usable()
        if ledger_id in self._contents.deleted:
            return Marks(fence_term=DELETED_TERM)
        return self._transactions.ask(lambda transaction: read_marks(transaction, ledger_id))

    def ledger_ids(self) -> list[int]:
        """The ids of all ledgers (`Storage.ledger_ids`)."""
        self._transactions.check_usable()
        return sorted(self._transactions.ask(lambda transaction: list(iterate_ids(transaction, LEDGER))))

    def ranges(self, ledger_id: int) -> list[StoredRange]:
        """The stored ranges of a ledger, from the keys alone (`Storage.ranges`)."""
        self._transactions.check_usable()
        if ledger_id in self._contents.deleted:
            return []
        return stored_ranges(self._transactions.ask, ledger_id, self._contents.damages.known())

    # -- the seam: doubt ------------------------------------------------------------------------------------------

    def doubt(self) -> Doubt:
        """The ledgers that the storage cannot vouch for (`Storage.doubt`)."""
        return self._mark.doubt

    def bound_doubt(self, below_ledger_id: int) -> None:
        """Limits the doubt to ledgers below this one (`Storage.bound_doubt`)."""
        with self._commit_lock:
            self._transactions.check_usable()
            self._mark.bound(below_ledger_id)

    def settle_doubt(self, found: Doubt, left: Doubt) -> None:
        """Replaces the doubt `found` by `left` (`Storage.settle_doubt`)."""
        with self._commit_lock:
            self._transactions.check_usable()
            # Only the next opening looks at all pages: until then more may be lost than is known.
            if not self._transactions.has_torn_page:
                self._mark.settle(found, left)

    def sighting(self) -> Sighting:
        """The last sighting of the metastore (`Storage.sighting`)."""
        self._transactions.check_usable()
        return read_sighting(Disk(), self._path, self.bookie_id)

    def keep_sighting(self, sighting: Sighting) -> None:
        """Keeps a sighting of the metastore (`Storage.keep_sighting`)."""
        with self._commit_lock:
            self._transactions.check_usable()
            write_sighting(Disk(), self._path, self.bookie_id, sighting)

    # -- the seam: space and damage -------------------------------------------------------------------------------

    def free_bytes(self) -> int | None:
        """The bytes that the map may still grow by or has free within, as far as the disk has them (`Storage.free_bytes`)."""
        self._transactions.check_usable()
        space = self._transactions.space()
        reusable = space.used_bytes - space.live_bytes
        growth = self._map.map_bytes_max - space.live_bytes
        return max(0, min(growth, reusable + self._transactions.disk_free_bytes()))

    def compact(self, *, is_major: bool = False) -> None:
        """Removes the remains of deleted ledgers, without rests between (`Storage.compact`). LMDB never gives pages
        back to the file system: they are used again. So there is no more to gain by a major one."""
        del is_major
        self._transactions.check_usable()
        self._maintenance.compact()

    def scrub(self) -> None:
        """Compares each batch with its checksum, and each ledger's contents with its series (`Storage.scrub`)."""
        self._transactions.check_usable()
        self._maintenance.scrub()

    def damage(self) -> Sequence[Damage]:
        """The damage that reads and scrubs of this process have found (`Storage.damage`)."""
        self._transactions.check_usable()
        return [damage for damage in self._contents.damages.known() if damage.ledger_id not in self._contents.deleted]

    def statistics(self) -> Mapping[str, float]:
        """Counters since the start, and gauges (`Storage.statistics`). `live_bytes` of `used_bytes` are in use."""
        self._transactions.check_usable()
        space, contents = self._transactions.space(), self._contents
        with contents.lock:
            return {
                "commits": contents.commits,
                "batches": contents.batches,
                "committed_bytes": contents.bytes,
                "ledgers": contents.ledgers,
                "deleted_ledgers_to_remove": len(contents.garbage),
                "removed_pieces": self._maintenance.removed_pieces,
                "map_bytes": space.map_bytes,
                "map_growths": self._transactions.growths,
                "used_bytes": space.used_bytes,
                "live_bytes": space.live_bytes,
                "damaged_batches_found": contents.damages.found,
                "scrubbed_bytes": self._maintenance.scrubbed_bytes,
                "open_s": self._open_s,
            }

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Waits for a commit and for reads that are under way, and joins the thread (`Storage.close`)."""
        if self._lifecycle.state is State.FORKED:
            # The environment and the lock are the parent's.
            return
        self._lifecycle.close_began()
        # Before the commit lock is taken: the thread takes it for each piece.
        self._maintenance.stop()
        with self._commit_lock:
            if self._lifecycle.state is State.CLOSED:
                return
            try:
                self._let_go()
            finally:
                self._lifecycle.released()

    def _let_go(self) -> None:
        # A read that hangs keeps its map: unmapping it would crash the process. Then the end is not vouched for either.
        is_closed = self._map.close(_CLOSE_TIMEOUT_S)
        if is_closed and self._lifecycle.failure is None:
            with suppress(OSError):  # then the next opening checks more pages
                self._mark.sync()
                self._lock.say(Former.TORN if self._transactions.has_torn_page else Former.CLOSED)
        self._mark.close()
        self._lock.release()


def open_storage(path: str, options: LMDBStorageOptions | None = None) -> LMDBStorage:
    """Opens the storage in a directory, and makes one if the directory is empty or missing.

    Raises `StorageInUseError`, `StorageIdentityError`, `StorageDamagedError`, `StorageFullError`, `StorageFailedError`;
    then nothing stays open."""
    if not path:
        raise ConfigError("lmdb: needs a directory, as in lmdb:/var/lib/wal")
    path = os.path.abspath(path)
    with errors_of_opening(path, NEW_BYTES):
        return LMDBStorage(path, tuned(options or LMDBStorageOptions()))
