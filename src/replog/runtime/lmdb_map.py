"""One LMDB environment of this process, as metastores and storages need it: its map, its growth, forks.

Rules:
- LMDB must not be opened twice in a process; users of this module must prevent that.
- Reads are done where they are asked, inside the gate: `with lmdb_map.gate, lmdb_map.environment.begin(buffers=True)`.
- The map grows between transactions only; the gate keeps the readers out meanwhile. Write transactions are begun and
  ended under `writing`, by one thread at a time.
- After a fork the child may use nothing of its parent's; opening the path again closes what it inherited. LMDB's table
  of readers is shared with the parent, and closing would free the parent's places in it: so there are no reads during a
  fork, and no transaction is kept for reuse.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable

import lmdb

from replog.runtime.disk_errors import exists
from replog.runtime.lmdb_file import DATA_FILE, READERS_MAX, alone_in_directory, check_data_file, make_readers_file
from replog.runtime.lmdb_pages import check_pages

_FORK_TIMEOUT_S = 1.0
_OLD_TRANSACTIONS = 16  # a reader that is so far behind hardly reads any more


class ForkedInUseError(Exception):
    """This process was forked while its parent was in a transaction: it can't open what its parent had open.

    For the modules that use this one: they turn it into an error of replog."""


class Gate:
    """Any number of readers (with this object as their context), or one action that is `alone`.

    A waiting action keeps new readers out, so that a crowd of readers can't keep it waiting without end. A reader must
    not enter twice. Readers take no lock as long as no writer waits: a thread that is preempted with one would stop all
    others. A reader enters first and looks for a claim then, a claim is made first and looks for readers then: so one
    of the two sees the other."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside: deque[None] = deque()  # one for each reader: appending and popping are atomic, counting is not
        self._is_claimed = False

    def __enter__(self) -> None:
        self._inside.append(None)
        while self._is_claimed:
            with self._changed:
                self._inside.pop()
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._is_claimed)
                self._inside.append(None)

    def __exit__(self, *exc: object) -> None:
        self._inside.pop()
        if self._is_claimed:
            with self._changed:
                self._changed.notify_all()

    def claim(self, timeout_s: float | None = None) -> bool:
        """Waits until no reader is inside, and keeps them out until `release`. False, and they go on, if that takes longer."""
        with self._changed:
            while self._is_claimed:
                self._changed.wait()
            self._is_claimed = True
            if self._changed.wait_for(lambda: not self._inside, timeout_s):
                return True
            self._let_in()
            return False

    def release(self) -> None:
        """Lets readers in again."""
        with self._changed:
            self._let_in()

    def _let_in(self) -> None:
        self._is_claimed = False
        self._changed.notify_all()

    def alone(self, action: Callable[[], None], timeout_s: float | None = None) -> bool:
        """Does this when no reader is inside. False, and nothing was done, if they don't leave in time."""
        if not self.claim(timeout_s):
            return False
        try:
            action()
        finally:
            self.release()
        return True


def has_addresses(size_bytes: int) -> bool:
    """Whether this process can map so much more. LMDB gives its old map up before it asks for the new one: if it then
    gets none, the next read crashes the process."""
    try:
        mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ).close()
    except (OSError, OverflowError):
        return False
    return True


class LMDBMap:
    """An open environment, `environment`, and the size of its map, `map_bytes`. Every method may raise `lmdb.Error`."""

    def __init__(
        self, path: str, map_bytes: int, map_bytes_max: int, *, read_ahead: bool = True, pages_checked: int = 0
    ) -> None:
        """Opens the directory, or makes its files, after it has checked so many pages next to the root. Raises
        `DataFileDamagedError`, `ForkedInUseError`, `lmdb.Error`, OSError."""
        self.path = os.path.realpath(path)
        self.map_bytes_max = max(map_bytes, map_bytes_max)
        self._read_ahead = read_ahead
        self._pages_checked = pages_checked
        self.gate = Gate()
        self.writing = threading.Lock()  # held during a write transaction, so that no fork happens within one
        self._is_still = True
        inherited = _inherited.get(self.path)
        if inherited is not None:
            inherited._close_inherited()
            del _inherited[self.path]
        self.environment = self._open(map_bytes)
        self.map_bytes = int(self.environment.info()["map_size"])
        self.clear_stale_readers()
        _open.append(self)

    def _open(self, map_bytes: int) -> lmdb.Environment:
        # LMDB maps the file as long as its meta page says: a page beyond the end of the file would kill the process.
        data = os.path.join(self.path, DATA_FILE)
        used_bytes = 0
        if exists(data):
            used_bytes = check_data_file(data).used_bytes
            if self._pages_checked:
                check_pages(data, self._pages_checked)
        with alone_in_directory(self.path):
            make_readers_file(self.path)
            environment = lmdb.open(
                self.path,
                map_size=map_bytes,
                max_readers=READERS_MAX,
                max_spare_txns=0,
                readahead=self._read_ahead,
            )
        try:
            if os.path.getsize(data) < used_bytes:
                _extend(environment, data, used_bytes)
        except BaseException:
            environment.close()
            raise
        return environment

    def reopen(self) -> None:
        """Closes the environment and opens it again: after a failed commit LMDB does nothing more with it. Under `writing`, not
        within a transaction. Raises as opening does: then it stays closed, and can be tried again."""
        self.gate.alone(self._reopen)

    def _reopen(self) -> None:
        self.environment.close()
        self.environment = self._open(self.map_bytes)
        self.map_bytes = int(self.environment.info()["map_size"])

    def mend(self) -> None:
        """Opens the environment again if `is_panicking`. As `reopen`."""
        if self.is_panicking():
            self.reopen()

    def is_panicking(self) -> bool:
        """Whether LMDB does nothing more with the environment, not even reads, since a write of a meta page failed."""
        try:
            with self.gate, self.environment.begin():
                return False
        except lmdb.PanicError:
            return True

    def clear_stale_readers(self) -> bool:
        """Frees the places of readers that died: they keep old pages from being used again. True if there were any."""
        return bool(self.environment.reader_check())

    def held_back(self) -> str:
        """Which processes keep old pages from being used again, and what to do, as a clause behind "; "; empty if none does."""
        newest = int(self.environment.info()["last_txnid"])
        oldest: dict[str, int] = {}
        for line in self.environment.readers().splitlines()[1:]:  # the first has titles
            pid, _, number = line.split()
            if number.isdecimal() and newest - int(number) >= _OLD_TRANSACTIONS:
                oldest[pid] = min(int(number), oldest.get(pid, newest))
        return "".join(
            f"; process {pid} has been reading for {newest - number} transactions, and the pages that these freed can't be used "
            f"again until it ends: is it stopped? Let it go on (kill -CONT {pid}), or end it"
            for pid, number in sorted(oldest.items(), key=lambda each: each[1])
        )

    def grow(self) -> bool:
        """Doubles the map, up to its maximum, unless dead readers kept pages that are all that is missing. False if it has its
        maximum already, or if this process has not got so many addresses. Not within a transaction."""
        if self.clear_stale_readers():
            return True
        map_bytes = min(self.map_bytes * 2, self.map_bytes_max)
        if map_bytes <= self.map_bytes or not has_addresses(map_bytes):
            return False
        self.resize(map_bytes)
        return True

    def abort(self, transaction: lmdb.Transaction) -> None:
        """Aborts a write transaction, with the readers kept out: else this waits for a moment in which none of them is
        within a call of LMDB, and a few busy ones don't leave any for minutes."""
        self.gate.alone(transaction.abort)

    def resize(self, map_bytes: int) -> None:
        """Sets the map's size, or the used size if that is more; with 0 takes over the size that another process has set."""
        self.gate.alone(lambda: self.environment.set_mapsize(map_bytes))
        self.map_bytes = int(self.environment.info()["map_size"])

    def close(self, timeout_s: float | None = None) -> bool:
        """Closes it when the readers are out. False if they don't leave in time: then it stays open permanently."""
        if self in _open:
            _open.remove(self)
        return self.gate.alone(self.environment.close, timeout_s)

    # -- forking --------------------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        """Waits until there are no reads and writes, but only for a second: a writer may wait for another process."""
        # The child inherits LMDB's locks as they are: held by a thread that it does not have, they would never be released.
        self._is_still = self.writing.acquire(timeout=_FORK_TIMEOUT_S)
        if self._is_still and not self.gate.claim(_FORK_TIMEOUT_S):
            self.writing.release()
            self._is_still = False

    def _after_fork(self) -> None:
        if self._is_still:
            self.gate.release()
            self.writing.release()

    def _close_inherited(self) -> None:
        if not self._is_still:
            raise ForkedInUseError(
                f"{self.path}: this process was forked while its parent wrote or read, or waited to, and cannot open it. "
                "Fork earlier, or start processes by spawning"
            )
        self.environment.close()


def _extend(environment: lmdb.Environment, data: str, used_bytes: int) -> None:
    """Makes the file as long as the part that may be read. The missing pages are those that LMDB freed before it wrote
    them, or the file was cut: then LMDB reports the page when it meets it, since it is zeros now."""
    with environment.begin(write=True):  # no other process makes it longer meanwhile
        if os.path.getsize(data) < used_bytes:
            os.truncate(data, used_bytes)
    with environment.begin(buffers=True) as transaction:
        deque(transaction.cursor().iternext(values=False), maxlen=0)


# -- the maps of this process -------------------------------------------------------------------------------------

_open: list[LMDBMap] = []
_inherited: dict[str, LMDBMap] = {}
_forking: list[LMDBMap] = []
# Threads that fork at once would find each other's locks taken, and leave them so.
_fork_lock = threading.Lock()


def _before_fork() -> None:
    _fork_lock.acquire()
    _forking[:] = _open
    for each in _forking:
        each._before_fork()


def _after_fork_in_parent() -> None:
    for each in _forking:
        each._after_fork()
    _forking.clear()
    _fork_lock.release()


def _after_fork_in_child() -> None:
    for each in _forking:
        each._after_fork()
        _inherited[each.path] = each
    _forking.clear()
    _open.clear()
    _fork_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
