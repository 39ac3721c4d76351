"""The life of a storage that has a directory open: its states, its transitions, and the errors of calls.

    state     meaning                                                      what a call raises
    OPENING   the directory is read, and what a crash left is repaired     nothing: nobody has the storage yet
    SERVING   commits and reads work                                       nothing
    FAILED    a write or sync failed, or memory may differ from the disk   `StorageFailedError`, permanently (B1)
    CLOSING   `close` waits for the calls that are under way               `trio.ClosedResourceError`
    CLOSED    files are closed, and the directory's lock is released       `trio.ClosedResourceError`
    FORKED    this process is a fork of the one that opened the storage    `LocalProtocolError`: nothing was written

Being in doubt (B8) is not a state here: a storage in doubt serves. `durable_mark` keeps the doubt.

Invariants:

- `is_serving` is True in SERVING only, so that a hot path asks one attribute.
- A storage that FAILED never serves again: no later success makes up for a failed sync (B1).
- `failure` is the first failure. It is set in FAILED, and may be set while the storage closes.
- Nothing leads out of FORKED: the files and the lock belong to the parent.
"""

from __future__ import annotations

import enum
import os
import threading
from weakref import WeakSet

import trio

from replog.errors import LocalProtocolError, ReplogError, StorageFailedError
from replog.protocol.stages import Transitions, after, from_each


class State(enum.Enum):
    """Where an open storage is in its life."""

    OPENING = "opening"
    SERVING = "serving"
    FAILED = "failed"
    CLOSING = "closing"
    CLOSED = "closed"
    FORKED = "forked"


_OPEN = (State.OPENING, State.SERVING, State.FAILED, State.CLOSING)

TRANSITIONS: Transitions[State] = {
    (State.OPENING, "opened"): State.SERVING,
    (State.OPENING, "refused"): State.CLOSED,
    (State.SERVING, "failed"): State.FAILED,
    **from_each((State.SERVING, State.FAILED), "close", State.CLOSING),
    (State.CLOSING, "released"): State.CLOSED,
    **from_each(_OPEN, "forked", State.FORKED),
}


class Lifecycle:
    """The state of one storage. Its methods are the events of the table; any thread may call them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.state = State.OPENING
        self.is_serving = False
        self.failure: BaseException | None = None
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        _open.add(self)

    def opened(self) -> None:
        """The storage is ready for calls."""
        self._happened("opened")

    def refused(self) -> None:
        """The directory could not be opened; nothing of it stays open."""
        self._happened("refused")

    def failed(self, error: BaseException) -> None:
        """The storage must not write again, and its reads must not answer (B1)."""
        self.failure = self.failure or error
        # Several calls may fail at once, and one that was under way may fail while the storage closes.
        self._happened("failed", only_in=(State.SERVING,))

    def close_began(self) -> None:
        """`close` was called, in the process that opened the storage, perhaps by several threads."""
        self._happened("close", only_in=(State.SERVING, State.FAILED))

    def released(self) -> None:
        """The directory may be opened again."""
        self._happened("released")

    def forked(self) -> None:
        """This is a new process, with a copy of the parent's memory.

        Takes no lock: a thread of the parent may have held it at the fork, and that thread does not exist here."""
        if self.state in _OPEN:
            self.state = after(TRANSITIONS, self.state, "forked")
            self.is_serving = False

    def _happened(self, event: str, only_in: tuple[State, ...] = ()) -> None:
        with self._lock:
            if not only_in or self.state in only_in:
                self.state = after(TRANSITIONS, self.state, event)
                self.is_serving = self.state is State.SERVING

    def refusal(self) -> ReplogError | trio.ClosedResourceError:
        """The error for a call that comes while the storage does not serve."""
        assert not self.is_serving, "a storage that serves refuses nothing"
        if self.state is State.FORKED:
            return LocalProtocolError(
                f"the storage in {self.path} belongs to process {self._process_id}, this is {os.getpid()}: "
                "open what you need after the fork; nothing was written"
            )
        if self.state is not State.FAILED:
            return trio.ClosedResourceError(f"the storage in {self.path} was closed: open it again")
        assert self.failure is not None, "a storage fails with an error"
        error = StorageFailedError(f"the storage in {self.path} has stopped: {str(self.failure) or repr(self.failure)}")
        error.__cause__ = self.failure
        return error


_open: WeakSet[Lifecycle] = WeakSet()


def _note_fork() -> None:
    for lifecycle in list(_open):
        lifecycle.forked()


# Asking for the process id at each read would cost more than the read's own checks.
os.register_at_fork(after_in_child=_note_fork)
