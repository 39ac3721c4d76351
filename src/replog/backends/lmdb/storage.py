"""The LMDB storage: one environment holds all ledgers of a bookie; one commit is one write transaction, synced (B1).

LMDB copies on write and keeps two roots: a commit is there wholly or not at all, and restarting replays nothing. Who
reads has a snapshot, and never waits for a commit. The map is read only, so that no stray pointer can damage it.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import attrs
import lmdb
import trio

from replog.abc import Damage, Doubt
from replog.backends.lmdb.damages import Damages
from replog.backends.lmdb.directory import DirectoryLock, Former, check_is_ours, is_full, named_errors
from replog.backends.lmdb.opening import RESERVE_BYTES, iterate_ids, open_directory
from replog.backends.lmdb.options import LMDBStorageOptions
from replog.backends.lmdb.reading import BatchDamagedError, Snapshot
from replog.backends.lmdb.recent import RecentBatches
from replog.backends.lmdb.records import FORMAT_KEY, LEDGER, format_text
from replog.backends.lmdb.upkeep import Scrub, Upkeep, remove_piece, touch_piece
from replog.backends.lmdb.writing import Changes, Known, read_marks
from replog.backends.locked import LockedStorage
from replog.errors import (
    ConfigError,
    LocalProtocolError,
    StorageError,
    StorageFailedError,
    StorageFullError,
    StorageUncertainError,
)
from replog.protocol.batch import Batch
from replog.protocol.mutations import DELETED_TERM, Marks, Mutation, PutBatch
from replog.runtime.lmdb_file import DATA_FILE
from replog.runtime.lmdb_map import has_addresses

Answer = TypeVar("Answer")

_CLOSE_TIMEOUT_S = 60.0
_META_PAGES = 2
_MAKE_ROOM = "Delete ledgers, or raise map_bytes_max, or make room on the disk"


@attrs.frozen
class _Space:
    """How the map is used: what it has, what the file had to grow to, and what of that holds something."""

    map_bytes: int
    used_bytes: int
    live_bytes: int


class LMDBStorage(LockedStorage):
    """Ledgers in an LMDB environment. Made by `open_storage`.

    After `close` every call raises `trio.ClosedResourceError`; in a forked child `LocalProtocolError`, since the
    environment belongs to the parent. Reads wait for the disk where the page cache hasn't got what they need, and for
    the map while it grows; never for a commit."""

    def __init__(self, path: str, options: LMDBStorageOptions) -> None:
        self._path = path
        self._pid = os.getpid()
        self._mutex = threading.Lock()  # for the garbage and the counters
        self._commit_lock = threading.Lock()
        self._failure: BaseException | None = None
        self._has_torn_page = False
        self._is_let_go = False
        self._is_closed = False
        self._is_usable = False
        self._commits = self._batches = self._bytes = self._growths = self._scrubbed_bytes = self._removed_pieces = 0
        self._damages = Damages()
        self._recent = RecentBatches()
        check_is_ours(path)
        with named_errors(f"lock {path}"):
            self._lock = DirectoryLock(path)
        started = time.monotonic()
        try:
            opened = open_directory(path, options, self._lock.former)
        except BaseException:
            self._lock.release()
            raise
        self._bookie_id = opened.bookie_id
        self._map = opened.lmdb_map
        self._mark = opened.mark
        self._page_bytes = int(self._map.environment.stat()["psize"])
        self._known = Known()
        self._deleted = opened.deleted  # never changed, but replaced by another: reads take no lock
        self._garbage = opened.garbage
        self._ledgers = opened.ledgers
        self._scrub: Scrub | None = None  # the one under way in the background
        self._scrub_bytes_per_s = options.scrub_bytes_per_s
        name, interval_s = f"replog upkeep {path}", options.scrub_interval_s
        self._upkeep = Upkeep(name, self._remove_in_background, self._scrub_in_background, interval_s)
        self._upkeep.start()
        self._open_s = time.monotonic() - started
        self._is_usable = True
        if self._garbage:
            self._upkeep.wake()

    # -- the seam: writing ----------------------------------------------------------------------------------------

    @property
    def bookie_id(self) -> str:
        """The random identity made at format (B4)."""
        return self._bookie_id

    @property
    def place(self) -> str:
        return self._path

    def commit(self, mutations: Sequence[Mutation]) -> None:
        """As `Storage.commit`: in one transaction, which is tried again as a whole when the map had to grow."""
        with self._commit_lock:
            self._check_usable()
            has_batches = any(isinstance(mutation, PutBatch) for mutation in mutations)
            changes = self._transact(
                lambda transaction: self._change(transaction, mutations), uses_reserve=not has_batches
            )
            self._known.learn(changes)
            if changes.dropped:
                deleted = self._deleted.copy()
                for ledger_id in changes.dropped:
                    deleted.add(ledger_id)
                self._deleted = deleted
            with self._mutex:
                self._commits += 1
                self._batches += len(changes.batches)
                self._bytes += changes.batch_bytes
                self._ledgers += changes.ledgers_added
                self._garbage += changes.garbage
            self._recent.add(changes.batches)
            self._damages.mended(changes.batches)
            if changes.dropped:
                self._recent.drop(changes.dropped)
                self._damages.dropped(changes.dropped)
                self._upkeep.wake()

    def _change(self, transaction: lmdb.Transaction, mutations: Sequence[Mutation]) -> Changes:
        changes = Changes(transaction, self._deleted, self._known)
        changes.apply(mutations)
        return changes

    def _transact(self, work: Callable[[lmdb.Transaction], Answer], *, uses_reserve: bool) -> Answer:
        """Does this in a write transaction, as often as the map must grow for it, and commits it.

        Raises `StorageFullError`: then nothing of it was kept; `StorageFailedError`: then the storage has stopped."""
        try:
            waited = False
            while True:
                try:
                    return self._try_to_transact(work)
                except lmdb.MapFullError as error:
                    if self._grow(uses_reserve=uses_reserve):
                        continue
                    if waited:
                        full = f"the map of {self._path} is full at {self._map.map_bytes} bytes, of map_bytes_max="
                        full += f"{self._map.map_bytes_max}"
                        raise StorageFullError(full, _MAKE_ROOM) from error
                    waited = True
                    self._age_free_pages()
        except StorageFullError:
            raise
        except (lmdb.Error, OSError, StorageUncertainError) as error:
            if self._is_lack_of_space(error):
                free = f"{self._disk_free_bytes()} bytes are free"
                raise StorageFullError(
                    f"disk full: no space left to write to {self._path} ({free}): {error}", _MAKE_ROOM
                ) from error
            if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError):
                self._say_torn(error)
            self._fail(error)
            raise StorageFailedError(
                f"could not write to {self._path}: {_described(error)}",
                "The storage has stopped: look at the disk, then restart the bookie",
            ) from error
        except BaseException as error:  # an interrupt: what is in the map may not be what is known here
            self._fail(error)
            raise

    def _try_to_transact(self, work: Callable[[lmdb.Transaction], Answer]) -> Answer:
        with self._map.writing:
            transaction = self._map.environment.begin(write=True, buffers=True)
            try:
                answer = work(transaction)
            except BaseException:
                self._map.abort(transaction)
                raise
            transaction.commit()  # where nothing was changed, this writes nothing
        number = int(self._map.environment.info()["last_txnid"])
        if number != self._mark.position:
            self._mark.advance(number)
        if self._map.map_bytes > self._map.map_bytes_max:  # it took from the reserve: batches must not
            self._map.resize(self._map.map_bytes_max)
        return answer

    def _grow(self, *, uses_reserve: bool) -> bool:
        """Makes the map larger, if it may be."""
        self._growths += 1
        if self._map.grow():
            return True
        with_reserve = self._map.map_bytes_max + RESERVE_BYTES
        if uses_reserve and self._map.map_bytes < with_reserve and has_addresses(with_reserve):
            self._map.resize(with_reserve)
            return True
        return False

    def _age_free_pages(self) -> None:
        """Commits next to nothing, twice: LMDB uses a page again only in the second transaction after it was freed."""
        with_reserve = self._map.map_bytes_max + RESERVE_BYTES
        for _ in range(2):
            if not has_addresses(with_reserve):
                return
            self._map.resize(with_reserve)
            self._try_to_transact(lambda transaction: transaction.put(FORMAT_KEY, format_text(self._bookie_id)))

    def _is_lack_of_space(self, error: Exception) -> bool:
        """Whether nothing is wrong but that there is no space. LMDB says EIO also of a write that the disk took half of."""
        if isinstance(error, lmdb.DiskError | lmdb.TxnFullError):
            return True
        code = getattr(error, "code", None) if isinstance(error, lmdb.Error) else getattr(error, "errno", None)
        return is_full(code) or (code == errno.EIO and self._disk_free_bytes() < self._page_bytes * 16)

    # -- the seam: reading ----------------------------------------------------------------------------------------

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """As `Storage.read`. A damaged batch after good ones ends the answer before it."""
        if not self._is_readable(ledger_id, entry_id):
            return []
        try:
            return self._ask(lambda transaction: Snapshot(transaction, ledger_id, stamp).read(entry_id, bytes_max))
        except BatchDamagedError as error:
            self._found_damage(error.damage)
            raise

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """As `Storage.read_nowait`: from what was committed last, which is kept in memory. There is no asking a map
        whether a page of it is in memory, so everything else raises `trio.WouldBlock`: the event loop never waits."""
        if not self._is_readable(ledger_id, entry_id):
            return []
        found = self._recent.read(ledger_id, entry_id, stamp, bytes_max)
        if not found:
            raise trio.WouldBlock
        return found

    def _is_readable(self, ledger_id: int, entry_id: int) -> bool:
        if not self._is_usable or os.getpid() != self._pid:
            self._check_usable()
        return entry_id >= 0 and ledger_id not in self._deleted

    def marks(self, ledger_id: int) -> Marks | None:
        """As `Storage.marks`. Raises `StorageUncertainError` if they are damaged."""
        self._check_usable()
        if ledger_id in self._deleted:
            return Marks(fence_term=DELETED_TERM)
        return self._ask(lambda transaction: read_marks(transaction, ledger_id))

    def ledger_ids(self) -> list[int]:
        """As `Storage.ledger_ids`."""
        self._check_usable()
        return sorted(self._ask(lambda transaction: list(iterate_ids(transaction, LEDGER))))

    def _ask(self, question: Callable[[lmdb.Transaction], Answer]) -> Answer:
        """Asks one snapshot."""
        try:
            with self._map.gate, self._map.environment.begin(buffers=True) as transaction:
                return question(transaction)
        except (lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
            self._found_torn_page(error)
            raise StorageUncertainError(
                f"{self._path}/{DATA_FILE} is damaged: {error}", "Read it from another bookie, and restart this one"
            ) from error
        except lmdb.ReadersFullError as error:
            self._map.clear_stale_readers()
            raise StorageUncertainError(f"too many readers of {self._path} at once", "Try again") from error
        except (lmdb.Error, OSError) as error:
            self._check_usable()
            raise StorageUncertainError(
                f"could not read {self._path}/{DATA_FILE}: {error}", "Read it from another bookie"
            ) from error

    # -- the seam: doubt ------------------------------------------------------------------------------------------

    def doubt(self) -> Doubt:
        """As `Storage.doubt`."""
        return self._mark.doubt

    def bound_doubt(self, below_ledger_id: int) -> None:
        """As `Storage.bound_doubt`."""
        with self._commit_lock:
            self._check_usable()
            self._mark.bound(below_ledger_id)

    def _found_torn_page(self, error: lmdb.Error) -> None:
        """LMDB's own pages are damaged, which nothing else shows: what else is, nobody knows. At the next opening they are
        all looked at, and a new file is made of what can be read."""
        with self._commit_lock:
            self._say_torn(error)

    def _say_torn(self, error: lmdb.Error) -> None:
        if not self._is_usable or self._has_torn_page:
            return
        self._has_torn_page = True
        why = f"{self._path}/{DATA_FILE}: a page of LMDB's is damaged: {error}"
        try:
            self._lock.say(Former.TORN)
            self._mark.raise_doubt([why], is_lost=True, position=self._mark.position)
        except (OSError, StorageError) as failure:  # what it can't say it must not hide
            self._fail(failure)

    # -- the seam: space and damage -------------------------------------------------------------------------------

    def free_bytes(self) -> int | None:
        """As `Storage.free_bytes`: what the map may still grow by or has free within, as far as the disk has it."""
        self._check_usable()
        space = self._space()
        reusable = space.used_bytes - space.live_bytes
        return max(0, min(self._map.map_bytes_max - space.live_bytes, reusable + self._disk_free_bytes()))

    def _space(self) -> _Space:
        with self._map.gate:
            information, tree = self._map.environment.info(), self._map.environment.stat()
        pages = tree["branch_pages"] + tree["leaf_pages"] + tree["overflow_pages"] + _META_PAGES
        used_bytes = (information["last_pgno"] + 1) * self._page_bytes
        return _Space(information["map_size"], used_bytes, min(used_bytes, pages * self._page_bytes))

    def _disk_free_bytes(self) -> int:
        found = os.statvfs(self._path)
        return found.f_bavail * found.f_frsize

    def compact(self, *, is_major: bool = False) -> None:
        """As `Storage.compact`: removes what deleted ledgers left, without rests between. LMDB never gives pages back to the
        file system: they are used again. So there is no more to gain by a major one."""
        del is_major
        self._check_usable()
        try:
            while self._remove_piece():
                pass
        except trio.ClosedResourceError:
            return

    def _remove_in_background(self) -> bool:
        """As `_remove_piece`, in the thread for that, where nobody hears of errors."""
        try:
            return self._remove_piece()
        except StorageFullError:
            return False  # after the next deletion it is tried again
        except (StorageFailedError, trio.ClosedResourceError):
            return False  # every other call says so too

    def _remove_piece(self) -> bool:
        """Removes a piece of what a deleted ledger left. Returns whether there is more."""
        with self._mutex:
            if not self._garbage:
                return False
            ledger_id = self._garbage[0]
        with suppress(StorageUncertainError):  # below it is found out what that means
            self._ask(lambda transaction: touch_piece(transaction, ledger_id))
        with self._commit_lock:
            self._check_usable()
            is_gone = self._transact(lambda transaction: remove_piece(transaction, ledger_id), uses_reserve=True)
        with self._mutex:
            self._removed_pieces += 1
            if is_gone and ledger_id in self._garbage:
                self._garbage.remove(ledger_id)
            return bool(self._garbage)

    def scrub(self) -> None:
        """As `Storage.scrub`: each batch is compared with its checksum, and what each ledger should have with what it has."""
        self._check_usable()
        scrub = Scrub(self._found_damage)
        try:
            while self._scrub_piece(scrub):
                pass
        except trio.ClosedResourceError:
            return

    def _scrub_in_background(self) -> float | None:
        """Goes on with the scrub of the storage's own schedule. Returns how long to rest, or None when it is done."""
        self._scrub = self._scrub or Scrub(self._found_damage)
        before = self._scrub.bytes
        try:
            if self._scrub_piece(self._scrub):
                return (self._scrub.bytes - before) / self._scrub_bytes_per_s if self._scrub_bytes_per_s else 0.0
        except (StorageFailedError, trio.ClosedResourceError):
            pass  # every other call says so too
        self._scrub = None
        return None

    def _scrub_piece(self, scrub: Scrub) -> bool:
        """Looks at the next few megabytes. Returns whether there is more."""
        self._check_usable()
        before = scrub.bytes
        try:
            return self._ask(scrub.go_on)
        except StorageUncertainError as error:
            scrub.give_up(str(error))
            return False
        finally:
            with self._mutex:
                self._scrubbed_bytes += scrub.bytes - before

    def _found_damage(self, damage: Damage) -> None:
        if damage.ledger_id not in self._deleted:  # of those, what is left is garbage
            self._damages.add(damage)

    def damage(self) -> Sequence[Damage]:
        """As `Storage.damage`: what reads and scrubs of this process found."""
        self._check_usable()
        return [damage for damage in self._damages.known() if damage.ledger_id not in self._deleted]

    def statistics(self) -> Mapping[str, float]:
        """As `Storage.statistics`: counters since the start, and gauges. `live_bytes` of `used_bytes` hold something."""
        self._check_usable()
        space = self._space()
        with self._mutex:
            return {
                "commits": self._commits,
                "batches": self._batches,
                "committed_bytes": self._bytes,
                "ledgers": self._ledgers,
                "deleted_ledgers_to_remove": len(self._garbage),
                "removed_pieces": self._removed_pieces,
                "map_bytes": space.map_bytes,
                "map_growths": self._growths,
                "used_bytes": space.used_bytes,
                "live_bytes": space.live_bytes,
                "damaged_batches_found": self._damages.found,
                "scrubbed_bytes": self._scrubbed_bytes,
                "open_s": self._open_s,
            }

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """As `Storage.close`: waits for a commit and for reads that are under way, and joins the thread."""
        if os.getpid() != self._pid:
            return  # the environment, and the lock, are the parent's
        self._is_closed = True
        self._is_usable = False
        self._upkeep.stop()
        with self._commit_lock:
            if self._is_let_go:
                return
            self._is_let_go = True
            is_closed = self._map.close(_CLOSE_TIMEOUT_S)  # a read that hangs keeps its map: closing it would crash
            if is_closed and self._failure is None:
                with suppress(OSError):  # then the next opening looks longer
                    self._mark.sync()
                    self._lock.say(Former.TORN if self._has_torn_page else Former.CLOSED)
            self._mark.close()
            self._lock.release()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._is_usable = False

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise LocalProtocolError(
                f"the storage in {self._path} belongs to process {self._pid}, this is {os.getpid()}: "
                "open what you need after the fork; nothing was written"
            )
        if self._is_closed:
            raise trio.ClosedResourceError(f"the storage in {self._path} was closed: open it anew")
        if self._failure is not None:
            raise StorageFailedError(f"the storage in {self._path} has stopped: {self._failure!r}") from self._failure


def _described(error: Exception) -> str:
    """As it prints itself, and the name of its errno, which people search for."""
    code = getattr(error, "code", None) if isinstance(error, lmdb.Error) else getattr(error, "errno", None)
    name = errno.errorcode.get(code or 0)
    return f"{error} ({name})" if name else str(error)


def open_storage(path: str, options: LMDBStorageOptions | None = None) -> LMDBStorage:
    """Opens the storage in a directory, and makes one if the directory is empty or missing.

    Raises `StorageInUseError`, `StorageIdentityError`, `StorageDamagedError`, `StorageFullError`, `StorageFailedError`;
    then nothing stays open."""
    if not path:
        raise ConfigError("lmdb: needs a directory, as in lmdb:/var/lib/wal")
    return LMDBStorage(os.path.abspath(path), options or LMDBStorageOptions())
