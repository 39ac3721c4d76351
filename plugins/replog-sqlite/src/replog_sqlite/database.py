"""One SQLite file, for tasks of a trio run: transactions in a worker thread, with a deadline, and errors that say what is known.

Rules: one connection, used by one thread at a time. Before COMMIT nothing was written; in it, nobody knows. A connection
that failed is closed, which takes back what was not committed, and the next call opens another one.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import trio

from replog.errors import MetastoreCorruptError, MetastoreError, MetastoreUnavailableError, MetastoreUncertainError

Answer = TypeVar("Answer")

# IMMEDIATE takes the writer's lock at once. A transaction that first reads and then writes would fail
# without waiting if somebody else wrote in between.
READ, CHANGE = "BEGIN", "BEGIN IMMEDIATE"

APPLICATION = 0x7265706C  # "repl", as PRAGMA application_id: whose file this is
FORMAT = 1  # as PRAGMA user_version
_MAKE = (
    "CREATE TABLE entries (version INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, value BLOB NOT NULL)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)
_IDENTITY = """SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version"""

_REMEDIES = {
    sqlite3.SQLITE_BUSY: "Another process is writing: try again, and see whether one is stopped",
    sqlite3.SQLITE_CANTOPEN: "Is its directory there, and may this process write to it?",
    sqlite3.SQLITE_READONLY: "May this process write to the file and its directory?",
    sqlite3.SQLITE_FULL: "Make space on its disk",
}

_open: dict[sqlite3.Connection, int] = {}  # and which process opened it: SQLite loses its locks in a fork


class Database:
    """A file that is opened at the first call."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._thread = trio.CapacityLimiter(1)  # a thread keeps it while it works, also if nobody waits for it any more
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False

    async def run(self, begin: str, work: Callable[..., Answer], key: str, *arguments: object) -> Answer:
        """Does `work(connection, key, *arguments)` in a transaction. Cancelled or out of time before it was begun, it never
        happens; later, its outcome is unknown. Raises `MetastoreError`, and what `work` raises."""
        if self._is_closed:
            raise trio.ClosedResourceError("this metastore was closed")
        begun = threading.Lock()  # taken by the thread, or by who no longer waits for it: whoever is first

        def work_if_awaited() -> list[Answer]:
            return [self._transact(begin, work, key, *arguments)] if begun.acquire(blocking=False) else []

        is_abandoned = False
        with trio.move_on_after(self._timeout_s):
            try:
                (answer,) = await trio.to_thread.run_sync(work_if_awaited, abandon_on_cancel=True, limiter=self._thread)
                return answer
            finally:
                # Also if this was cancelled: a thread that had not begun then finds the lock taken, and does nothing.
                is_abandoned = begun.acquire(blocking=False)
        problem = f"metastore {self._path}: key {key!r}: no answer within {self._timeout_s} s"
        if is_abandoned or begin == READ:
            raise MetastoreUnavailableError(
                f"{problem}; nothing was written. Too many calls, or the disk hangs: try again"
            )
        raise MetastoreUncertainError(f"{problem}: the disk hangs; read back before you go on")

    async def aclose(self) -> None:
        """Closes the file once no call is at it, or leaves that to the call, if it takes too long. Idempotent."""
        self._is_closed = True
        with trio.move_on_after(self._timeout_s, shield=True):
            await trio.to_thread.run_sync(self._disconnect, abandon_on_cancel=True, limiter=self._thread)

    # -- in the thread --------------------------------------------------------------------------------------------

    def _transact(self, begin: str, work: Callable[..., Answer], *arguments: object) -> Answer:
        if any(process != os.getpid() for process in list(_open.values())):
            raise MetastoreError(
                f"metastore {self._path}: this process is a fork of one that has an SQLite metastore open, and its locks do "
                "not hold here; nothing was done. Fork before that one is opened, or start a new process instead"
            )
        is_committing = False
        try:
            connection = self._connection or self._connect()
            with connection:  # rolls back on any error
                connection.execute(begin)
                answer = work(connection, *arguments)
                is_committing = begin == CHANGE
                connection.execute("COMMIT")
            return answer
        except sqlite3.Error as error:
            self._disconnect()
            raise self._told(error, is_committing) from error
        finally:
            if self._is_closed:
                self._disconnect()

    def _told(self, error: sqlite3.Error, is_committing: bool) -> MetastoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest tells details
        problem = f"metastore {self._path}: {error}"
        if is_committing:
            remedy = f". {_REMEDIES[code]}" if code in _REMEDIES else ""
            return MetastoreUncertainError(f"{problem}, in the commit: read back before you go on{remedy}")
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return MetastoreCorruptError(f"{problem}; nothing was changed. Name another file, or mend this one")
        kind = MetastoreError if code == sqlite3.SQLITE_READONLY else MetastoreUnavailableError
        return kind(f"{problem}; nothing was written. {_REMEDIES.get(code, 'Try again')}")

    def _connect(self) -> sqlite3.Connection:
        busy_s = self._timeout_s / 2  # so that a lock that somebody holds is told from a disk that hangs
        # Without an isolation level Python begins no transactions by itself. Threads differ from call
        # to call, and the limiter lets in one at a time.
        connection = sqlite3.connect(self._path, timeout=busy_s, isolation_level=None, check_same_thread=False)
        self._connection, _open[connection] = connection, os.getpid()
        try:
            if self._format(connection) != FORMAT:
                self._make(connection)
            # With a WAL, anything less does not sync each commit.
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            self._disconnect()
            raise
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        # In a fork it is only forgotten: SQLite allows a child not even to close what its parent opened.
        if connection is not None and _open[connection] == os.getpid():
            connection.close()
            del _open[connection]

    def _format(self, connection: sqlite3.Connection) -> int:
        """FORMAT, or 0 if there is nothing in the file. Raises `MetastoreCorruptError` if it is not ours."""
        application, found, tables = connection.execute(_IDENTITY).fetchone()
        if (application, found) == (APPLICATION, FORMAT) or (application, found, tables) == (0, 0, 0):
            return int(found)
        whose = "another program's: name another file"
        if application == APPLICATION:
            whose = f"of format {found}, and this replog-sqlite knows {FORMAT}: use the version that wrote it"
        raise MetastoreCorruptError(f"metastore {self._path}: this database is {whose}. Nothing was changed")

    def _make(self, connection: sqlite3.Connection) -> None:
        mode = self._switch_to_wal(connection)
        if mode != "wal":
            raise MetastoreError(
                f"metastore {self._path}: SQLite's journal is {mode!r} there and cannot be its WAL; nothing was written. "
                "Name a file on a local disk"
            )
        with connection:
            connection.execute(CHANGE)
            if self._format(connection) != FORMAT:  # nobody else was quicker
                for statement in _MAKE:
                    connection.execute(statement)
            connection.execute("COMMIT")

    def _switch_to_wal(self, connection: sqlite3.Connection) -> str:
        """Where two do this at once, SQLite waits for no lock by itself."""
        give_up_s = time.monotonic() + self._timeout_s / 2
        while True:
            try:
                return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_s:
                    raise
                time.sleep(0.01)
