"""Lone commits for an event loop that must not wait for a disk: it writes, and the kernel syncs, without a thread.

An event loop hears of the commits' thread two thread switches later, and a lone append would wait for them. So a small
lone commit is written in the loop's thread, which is a copy into the page cache. Its sync is left to the kernel
(`replog.runtime.kernel_sync`), and the loop watches the descriptor that tells its end. Commits that may wait for the
disk go to the thread: large ones, the next journal file, and any where the storage or the system has no such syncs.

It is for a thread that is lent (`replog.runtime.lent_thread`) and must not wait: that of another event loop, which has trio for a
guest; or of one that commits another copy of the same entry. When that has ended, so have most others: they are looked at there,
and the event loop need not turn.

    state      meaning                                       next
    idle       nothing is under way here                     `begin` -> busy
    busy       the kernel syncs; the loop watches            the end -> idle; `pass_on` -> passed on
    passed on  the commits' thread waits for the sync        `wait` -> idle

Invariants:

- While it is busy, the thread commits nothing: so all commits are made one after the other, in the order of their works (B2).
- A group is ended once, by the loop or, when the bookie is left, by the thread. So a sync that a disk keeps is left behind as a
  commit of the thread's is, and the storage is not closed under it.
- A sync that fails is a failed commit: the storage stops (B1).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from replog.bookie.groups import BegunGroup, Committer, Group, Work
from replog.runtime.event_loop import current_host_loop
from replog.runtime.kernel_sync import KernelSync, open_kernel_sync
from replog.runtime.nursery import open_service_nursery

_BYTES_MAX = 64 << 10  # more may wait until other pages are written, and takes its time


class KernelCommits:
    """At most one commit whose sync is under way in the kernel. `ended` gets its group, in the event loop's thread."""

    def __init__(self, committer: Committer, ended: Callable[[Group], None]) -> None:
        self.group: BegunGroup | None = None  # whose sync is under way
        self._committer = committer
        self._ended = ended
        self._sync: KernelSync | None = None  # from its first use on
        self._nursery: trio.Nursery | None = None  # of `running`, until the sync was opened, or cannot be
        self._is_left = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Has the event loop `look` when a sync has ended. Call `pass_on` on leaving."""
        async with open_service_nursery() as self._nursery:
            yield

    @property
    def is_busy(self) -> bool:
        """True while a sync is under way that the event loop watches."""
        return self.group is not None and not self._is_left

    @property
    def is_passed_on(self) -> bool:
        """True while a sync is under way that the commits' thread must `wait` for."""
        return self.group is not None and self._is_left

    def begin(self, works: list[Work]) -> bool:
        """Begins to commit these works. False, and nothing has happened, if the commits' thread must do it."""
        if sum(work.size_bytes for work in works) > _BYTES_MAX:
            return False
        sync = self._sync or self._opened()
        if sync is None or sync.is_refused or self._is_left:
            return False
        assert self.group is None, "one sync at a time"
        self.group = self._committer.begin(works, sync)
        return self.group is not None

    def _opened(self) -> KernelSync | None:
        nursery, self._nursery = self._nursery, None  # it is tried once
        if nursery is not None and (sync := open_kernel_sync()) is not None:
            self._sync = sync
            nursery.start_soon(self._watch, sync.descriptor)
        return self._sync

    async def _watch(self, descriptor: int) -> None:
        host = current_host_loop()
        if host is None:
            while True:
                await trio.lowlevel.wait_readable(descriptor)
                self.look()
        unwatch = host.watch(descriptor, self.look)
        try:
            await trio.sleep_forever()
        finally:
            unwatch()

    def look(self) -> None:
        """Ends the commit if its sync has ended."""
        group = self.take_ended()
        if group is not None:
            self._ended(group)

    def take_ended(self) -> Group | None:
        """The group whose sync has ended, if there is one; it is the caller's then."""
        # Nothing is under way if an interrupt struck between the two halves of a beginning: the storage has stopped then.
        if self._is_left or self._sync is None or not self._sync.has_ended() or self.group is None:
            return None
        return self._end()

    def _end(self) -> Group:
        assert self.group is not None, "what ends has begun"
        assert self._sync is not None, "it was begun"
        begun, self.group = self.group, None
        return self._committer.end(begun, self._sync.outcome())

    def pass_on(self) -> None:
        """The bookie is left: nothing is begun any more, and the commits' thread waits for the sync under way."""
        self._nursery = None
        self._is_left = True

    def wait(self) -> Group:
        """The group that was passed on, when it has ended. In the commits' thread."""
        assert self._sync is not None, "something is under way"
        self._sync.wait()
        return self._end()

    def close(self) -> None:
        """Gives back what the kernel gave, in a thread: that takes it some milliseconds. Only when nothing is under way."""
        assert self.group is None, "what is under way still needs it"
        if self._sync is not None:
            self._sync.close()
