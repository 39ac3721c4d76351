"""Work beside commits and reads: removing the batches of deleted ledgers, and looking for damage.

Removing goes in pieces, each a transaction of its own, so that the end of a large ledger does not stall commits: they
wait for one piece at most. The ledger itself was deleted durably before, and a crash between two pieces costs nothing:
the rest is removed after the next opening.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from replog.backends.lmdb.holdings import Contents
from replog.backends.lmdb.records import BATCH, GARBAGE, LEDGER, id_key
from replog.backends.lmdb.scrubbing import Scrub
from replog.backends.lmdb.transactions import Transactions
from replog.errors import StorageFailedError, StorageFullError, StorageUncertainError
from replog.runtime.own_threads import in_own_thread

if TYPE_CHECKING:
    import lmdb

_PIECE_RECORDS_MAX = 256
_PIECE_S = 0.002
# The thread rests this many times as long as a piece took: commits get at least four fifths of the disk.
_REST_FACTOR = 4


def touch_piece(transaction: lmdb.Transaction, ledger_id: int) -> None:
    """Brings what the next piece needs into memory, so that no commit has to wait for a disk's reads meanwhile."""
    deadline = time.monotonic() + 10 * _PIECE_S
    with transaction.cursor() as cursor:
        more = cursor.set_range(id_key(BATCH, ledger_id))
        for _ in range(_PIECE_RECORDS_MAX):
            if not more or bytes(cursor.key()[:9]) != id_key(BATCH, ledger_id) or time.monotonic() > deadline:
                return
            more = cursor.next()


def remove_piece(transaction: lmdb.Transaction, ledger_id: int) -> bool:
    """Removes some remains of a deleted ledger. True if that was all: then its garbage mark is removed too."""
    deadline = time.monotonic() + _PIECE_S
    left = _PIECE_RECORDS_MAX
    with transaction.cursor() as cursor:
        for prefix in (id_key(BATCH, ledger_id), id_key(LEDGER, ledger_id)):
            more = cursor.set_range(prefix)
            while more and bytes(cursor.key()[: len(prefix)]) == prefix:
                if not left or time.monotonic() > deadline:
                    return False
                more = cursor.delete() and bool(cursor.key())
                left -= 1
    transaction.delete(id_key(GARBAGE, ledger_id))
    return True


class Maintenance:
    """Removes garbage and scrubs: in pieces, in its own thread or in the caller's. After `stop` the thread has ended."""

    def __init__(
        self,
        name: str,
        contents: Contents,
        transactions: Transactions,
        commit_lock: threading.Lock,
        *,
        scrub_interval_s: float,
        scrub_bytes_per_s: int,
    ) -> None:
        self._contents = contents
        self._transactions = transactions
        self._commit_lock = commit_lock
        self._scrub_interval_s = scrub_interval_s
        self._scrub_bytes_per_s = scrub_bytes_per_s
        self._scrub: Scrub | None = None  # the one under way in the background
        self._wake = threading.Event()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=in_own_thread, args=(self._run,), name=name, daemon=True)
        self.removed_pieces = 0
        self.scrubbed_bytes = 0

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Wakes the thread: there is garbage to remove."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread after its current piece, and joins it."""
        self._is_stopping.set()
        self._wake.set()
        # A storage that could not be opened never started it.
        if self._thread.ident is not None:
            self._thread.join()

    def compact(self) -> None:
        """Removes all garbage, without rests between. Returns early if the storage is closed meanwhile."""
        with suppress(trio.ClosedResourceError):
            while self._remove_piece():
                pass

    def scrub(self) -> None:
        """Looks at all that is stored. Returns early if the storage is closed meanwhile."""
        scrub = Scrub(self._contents.found_damage)
        with suppress(trio.ClosedResourceError):
            while self._scrub_piece(scrub):
                pass

    def _run(self) -> None:
        scrub_at = time.monotonic() + self._scrub_interval_s if self._scrub_interval_s else math.inf
        while not self._is_stopping.is_set():
            self._wake.wait(min(threading.TIMEOUT_MAX, max(0.0, scrub_at - time.monotonic())))
            self._wake.clear()
            more = True
            while more and not self._is_stopping.is_set():
                started = time.monotonic()
                more = self._remove_in_background()
                # A share of the disk, and not a fixed pause: a slow disk gets longer rests.
                self._is_stopping.wait(_REST_FACTOR * (time.monotonic() - started))
            if time.monotonic() >= scrub_at and not self._is_stopping.is_set():
                rest_s = self._scrub_in_background()
                scrub_at = time.monotonic() + (self._scrub_interval_s if rest_s is None else rest_s)

    def _remove_in_background(self) -> bool:
        """Runs `_remove_piece` in the thread, where no caller gets an error."""
        try:
            return self._remove_piece()
        except StorageFullError:
            return False  # it is tried again after the next deletion
        except (StorageFailedError, trio.ClosedResourceError):
            return False  # every other call raises the same

    def _remove_piece(self) -> bool:
        """Removes one piece of a deleted ledger's remains. Returns True if there is more."""
        with self._contents.lock:
            if not self._contents.garbage:
                return False
            ledger_id = self._contents.garbage[0]
        # The disk's reads happen here, in a snapshot; the transaction below holds the commit lock and should not wait.
        with suppress(StorageUncertainError):  # the transaction below meets the same damage
            self._transactions.ask(lambda transaction: touch_piece(transaction, ledger_id))
        with self._commit_lock:
            self._transactions.check_usable()
            is_gone = self._transactions.transact(
                lambda transaction: remove_piece(transaction, ledger_id), uses_reserve=True
            )
        with self._contents.lock:
            self.removed_pieces += 1
            # Another caller, `compact`, may have removed the rest of it meanwhile.
            if is_gone and ledger_id in self._contents.garbage:
                self._contents.garbage.remove(ledger_id)
            return bool(self._contents.garbage)

    def _scrub_in_background(self) -> float | None:
        """Goes on with the scheduled scrub. Returns how long to rest, in seconds, or None when the scrub is done."""
        self._scrub = self._scrub or Scrub(self._contents.found_damage)
        before = self._scrub.bytes
        try:
            if self._scrub_piece(self._scrub):
                return (self._scrub.bytes - before) / self._scrub_bytes_per_s if self._scrub_bytes_per_s else 0.0
        except (StorageFailedError, trio.ClosedResourceError):
            pass  # every other call raises the same
        self._scrub = None
        return None

    def _scrub_piece(self, scrub: Scrub) -> bool:
        """Checks the next few megabytes. Returns True if there is more."""
        self._transactions.check_usable()
        before = scrub.bytes
        try:
            return self._transactions.ask(scrub.go_on)
        except StorageUncertainError as error:
            scrub.give_up(str(error))
            return False
        finally:
            with self._contents.lock:
                self.scrubbed_bytes += scrub.bytes - before
