"""The event loop's thread, lent by a caller that only waits for the answers to its requests.

A commit in a thread of its own costs two changes of thread, which take longer than a sync of a fast disk. A task that appends
alone, or a session whose client sent one request and nothing more, lends its thread for the time that it sends. A bookie in this
thread that has nothing else to do borrows it instead of waking its own: the last borrower commits in it, and those before it
begin first, each beside it. So the copies of an entry are made durable at the same time, in one thread.

Nobody says so in a request: a bookie that gets the same request from a caller that does not wait wakes its own thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio


class Borrower(Protocol):
    """A bookie's queue, with work that it has not started."""

    def commit_here(self) -> None:
        """Makes its work durable, in this thread."""

    def commit_beside(self) -> None:
        """Begins to make its work durable, and does not wait for that."""

    def look(self) -> None:
        """Ends the syncs that were begun beside, if they have ended."""


class LentThread:
    """The thread of one trio run: only for calls in it. Made by `lent_thread`."""

    def __init__(self) -> None:
        self._borrowers: list[Borrower] | None = None  # while it is lent

    def lend(self, send: Callable[[], object]) -> None:
        """Calls `send`, and gives the thread to those who `borrow` it meanwhile. Returns when they have given it back."""
        if self._borrowers is not None:
            send()
            return
        borrowers: list[Borrower] = []
        self._borrowers = borrowers
        try:
            send()
        finally:
            self._borrowers = None
            if borrowers:
                *others, last = borrowers
                for each in others:
                    each.commit_beside()
                last.commit_here()
                for each in others:  # they began before, and most have ended by now
                    each.look()

    def borrow(self, borrower: Borrower) -> bool:
        """True if the thread is lent: then the borrower is called when the caller has sent all that it sends now."""
        borrowers = self._borrowers
        if borrowers is None:
            return False
        if borrower not in borrowers:
            borrowers.append(borrower)
        return True


_lent_thread: trio.lowlevel.RunVar[LentThread] = trio.lowlevel.RunVar("replog lent thread")


def lent_thread() -> LentThread:
    """That of this trio run."""
    try:
        return _lent_thread.get()
    except LookupError:
        lent = LentThread()
        _lent_thread.set(lent)
        return lent
