"""Transactions of an open environment: commits that grow the map, snapshots, and what an error of LMDB means (B1).

A commit that finds the map full is tried again as a whole in a larger map. After one that finds the disk full, the storage
goes on: it opens the environment again where LMDB would do nothing more with it. A commit that fails for any other reason than
space stops the storage. A damaged page of LMDB's own raises the doubt (B8) and leaves the storage serving: other bookies
have what is behind that page, and the next opening looks at every page.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

import attrs
import lmdb

from replog.backends.disk import failed_error
from replog.backends.durable_mark import DurableMark
from replog.backends.lifecycle import Lifecycle
from replog.backends.lmdb.directory import BootLock, Former
from replog.backends.lmdb.opening import RESERVE_BYTES
from replog.backends.lmdb.records import FORMAT_KEY, format_text
from replog.errors import StorageError, StorageFailedError, StorageFullError, StorageUncertainError
from replog.runtime.disk_errors import is_full
from replog.runtime.lmdb_file import DATA_FILE, DataFileDamagedError
from replog.runtime.lmdb_map import LMDBMap, has_addresses

Answer = TypeVar("Answer")

_META_PAGES = 2
_NO_COMMIT = 1 << 64
_MAKE_ROOM = "Delete ledgers, or raise map_bytes_max, or make room on the disk"


@attrs.frozen
class Space:
    """The use of the map: its size, the size that the file had to grow to, and the bytes in use."""

    map_bytes: int
    used_bytes: int
    live_bytes: int


class Transactions:
    """Writes are for the holder of `commit_lock`; any thread may ask a snapshot."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        commit_lock: threading.Lock,
        bookie_id: str,
        lmdb_map: LMDBMap,
        mark: DurableMark,
        lock: BootLock,
    ) -> None:
        self._path = lifecycle.path
        self._lifecycle = lifecycle
        self._commit_lock = commit_lock
        self._bookie_id = bookie_id
        self._map = lmdb_map
        self._mark = mark
        self._lock = lock
        self.page_bytes = int(lmdb_map.environment.stat()["psize"])
        self._commit_number = _NO_COMMIT  # of the transaction that began to commit, if one did
        self.has_torn_page = False
        self.growths = 0

    def check_usable(self) -> None:
        """Raises why the storage does not serve, if it does not."""
        if not self._lifecycle.is_serving:
            raise self._lifecycle.refusal()

    def transact(self, work: Callable[[lmdb.Transaction], Answer], *, uses_reserve: bool) -> Answer:
        """Does this in a write transaction, as often as the map must grow for it, and commits it.

        Raises `StorageFullError`: then nothing of it was kept; `StorageFailedError`: then the storage has stopped."""
        if self.has_torn_page:
            raise self._stop_writing()
        try:
            waited = False
            while True:
                try:
                    return self._try_to_transact(work)
                except lmdb.MapFullError as error:
                    # The transaction is gone as a whole: all of it is tried again in a larger map.
                    if self._grow(uses_reserve=uses_reserve):
                        continue
                    if waited:
                        full = f"the map of {self._path} is full at {self._map.map_bytes} bytes, of map_bytes_max="
                        full += f"{self._map.map_bytes_max}{self._map.held_back()}"
                        raise StorageFullError(full, _MAKE_ROOM) from error
                    waited = True
                    self._age_free_pages()
        except StorageFullError:
            raise
        except (lmdb.Error, OSError, StorageUncertainError) as error:
            if self._is_lack_of_space(error) and self._is_undone():
                free = f"{self.disk_free_bytes()} bytes are free"
                raise StorageFullError(
                    f"disk full: no space left to write to {self._path} ({free}): {error}", _MAKE_ROOM
                ) from error
            if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError):
                # Before the storage stops: the next opening must check all pages.
                self._say_torn(error)
            self._lifecycle.failed(error)
            raise failed_error(f"write to {self._path}", error) from error
        except BaseException as error:
            # An interrupt may come after the commit: then the map holds what `Contents` was never told.
            self._lifecycle.failed(error)
            raise

    def _is_undone(self) -> bool:
        """Whether nothing is left of the commit that found no space, and the environment can be used again."""
        try:
            with self._map.writing:
                self._map.mend()
                return int(self._map.environment.info()["last_txnid"]) < self._commit_number
        except (lmdb.Error, OSError, DataFileDamagedError):
            return False

    def _stop_writing(self) -> StorageFailedError:
        """Stops the storage. Records below a damaged page may be out of reach when the next opening copies the readable
        part: so nothing more is acknowledged. Plain reads of intact pages go on until a commit writes."""
        error = StorageFailedError(
            f"{self._path}/{DATA_FILE} has a damaged page: nothing was written",
            "The storage has stopped: restart the bookie, which makes a new file of what can be read",
        )
        self._lifecycle.failed(error)
        return error

    def _try_to_transact(self, work: Callable[[lmdb.Transaction], Answer]) -> Answer:
        with self._map.writing:
            self._commit_number = _NO_COMMIT
            transaction = self._map.environment.begin(write=True, buffers=True)
            try:
                answer = work(transaction)
            except BaseException:
                self._map.abort(transaction)
                raise
            self._commit_number = transaction.id()
            # LMDB writes nothing if nothing was changed.
            transaction.commit()
        # A transaction that changed nothing got no number. After the commit, because the mark must not be ahead (B8).
        number = int(self._map.environment.info()["last_txnid"])
        if number != self._mark.position:
            self._mark.advance(number)
        if self._map.map_bytes > self._map.map_bytes_max:
            # This transaction took from the reserve. Made small again, so that batches don't.
            self._map.resize(self._map.map_bytes_max)
        return answer

    def _grow(self, *, uses_reserve: bool) -> bool:
        """Makes the map larger, if it may be."""
        self.growths += 1
        if self._map.grow():
            return True
        # Batches must leave this space: on a full storage, fences and deletions still need some.
        with_reserve = self._map.map_bytes_max + RESERVE_BYTES
        if uses_reserve and self._map.map_bytes < with_reserve and has_addresses(with_reserve):
            self._map.resize(with_reserve)
            return True
        return False

    def _age_free_pages(self) -> None:
        """Commits almost nothing, twice: LMDB reuses a page only in the second transaction after it was freed."""
        with_reserve = self._map.map_bytes_max + RESERVE_BYTES
        for _ in range(2):
            if not has_addresses(with_reserve):
                return
            self._map.resize(with_reserve)
            self._try_to_transact(lambda transaction: transaction.put(FORMAT_KEY, format_text(self._bookie_id)))

    def _is_lack_of_space(self, error: Exception) -> bool:
        """True if the error is only a lack of space."""
        if isinstance(error, lmdb.DiskError | lmdb.TxnFullError):
            return True
        return is_full(error, self.disk_free_bytes())

    def ask(self, question: Callable[[lmdb.Transaction], Answer]) -> Answer:
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
            # Readers that were killed keep their places in the table until these are cleared.
            self._map.clear_stale_readers()
            raise StorageUncertainError(f"too many readers of {self._path} at once", "Try again") from error
        except (lmdb.Error, OSError) as error:
            self.check_usable()
            raise StorageUncertainError(
                f"could not read {self._path}/{DATA_FILE}: {error}", "Read it from another bookie"
            ) from error

    def _found_torn_page(self, error: lmdb.Error) -> None:
        """Notes that one of LMDB's own pages is damaged. The extent of other damage is unknown.

        The next opening checks all pages, and makes a new file of the readable part."""
        with self._commit_lock:
            self._say_torn(error)

    def _say_torn(self, error: lmdb.Error) -> None:
        if not self._lifecycle.is_serving or self.has_torn_page:
            return
        self.has_torn_page = True
        why = f"{self._path}/{DATA_FILE}: a page of LMDB's is damaged: {error}"
        try:
            self._lock.say(Former.TORN)
            self._mark.raise_doubt([why], is_lost=True, position=self._mark.position)
        except (OSError, StorageError) as failure:
            # A loss that can't be written down would be forgotten at the next start: the storage stops instead.
            self._lifecycle.failed(failure)

    def space(self) -> Space:
        """As the environment says now."""
        with self._map.gate:
            information, tree = self._map.environment.info(), self._map.environment.stat()
        pages = tree["branch_pages"] + tree["leaf_pages"] + tree["overflow_pages"] + _META_PAGES
        # LMDB never makes its file smaller: pages below this one that hold nothing are used again.
        used_bytes = (information["last_pgno"] + 1) * self.page_bytes
        return Space(information["map_size"], used_bytes, min(used_bytes, pages * self.page_bytes))

    def disk_free_bytes(self) -> int:
        """How many bytes a user who is not root can still write to the file system."""
        found = os.statvfs(self._path)
        return found.f_bavail * found.f_frsize
