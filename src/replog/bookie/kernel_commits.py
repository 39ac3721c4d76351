"""Lone commits for an event loop that must not wait for a disk: it writes, and the kernel syncs, without a thread.

Of the commits' thread an event loop hears two changes of thread later, which a lone append waits for. So where trio is a guest of
another event loop, a small lone commit is written in the loop's thread, which is a copy into the page cache. Its sync is left to
the kernel (`replog.runtime.kernel_sync`), and the loop watches the descriptor that tells its end. Whatever might wait for the
disk - large commits, the next journal file, a storage or a system without such syncs - goes to the thread, as before.

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

from collections.abc import Callable

from replog.bookie.groups import BegunGroup, Committer, Group, Work
from replog.runtime.event_loop import HostLoop, current_host_loop
from replog.runtime.kernel_sync import KernelSync, open_kernel_sync

_BYTES_MAX = 64 << 10  # more may wait until other pages are written, and takes its time


class KernelCommits:
    """At most one commit whose sync is under way in the kernel. `ended` gets its group, in the event loop's thread."""

    def __init__(self, committer: Committer, host: HostLoop, sync: KernelSync, ended: Callable[[Group], None]) -> None:
        self.begun = 0  # commits that were left to the kernel
        self._committer = committer
        self._sync = sync
        self._ended = ended
        self._group: BegunGroup | None = None
        self._is_left = False
        self._unwatch = host.watch(sync.descriptor, self._look)

    @property
    def is_busy(self) -> bool:
        """True while a sync is under way that the event loop watches."""
        return self._group is not None and not self._is_left

    @property
    def is_passed_on(self) -> bool:
        """True while a sync is under way that the commits' thread must `wait` for."""
        return self._group is not None and self._is_left

    def begin(self, works: list[Work]) -> bool:
        """Begins to commit these works. False, and nothing has happened, if the commits' thread must do it."""
        if self._is_left or self._sync.is_refused or sum(work.size_bytes for work in works) > _BYTES_MAX:
            return False
        assert self._group is None, "one sync at a time"
        self._group = self._committer.begin(works, self._sync)
        self.begun += self._group is not None
        return self._group is not None

    def _look(self) -> None:
        # Nothing is under way if an interrupt struck between the two halves of a beginning: the storage has stopped then.
        if not self._is_left and self._sync.has_ended() and self.is_busy:
            self._ended(self._end())

    def _end(self) -> Group:
        assert self._group is not None, "what ends has begun"
        begun, self._group = self._group, None
        return self._committer.end(begun, self._sync.outcome())

    def pass_on(self) -> None:
        """The bookie is left: nothing is begun any more, and the commits' thread waits for what is under way."""
        self._is_left = True
        self._unwatch()

    def wait(self) -> Group:
        """The group that was passed on, when it has ended. In the commits' thread."""
        self._sync.wait()
        return self._end()

    def close(self) -> None:
        """Gives back what the kernel gave, in a thread: that takes it some milliseconds. Only when nothing is under way."""
        assert self._group is None, "what is under way still needs it"
        self._sync.close()


def open_kernel_commits(committer: Committer, ended: Callable[[Group], None]) -> KernelCommits | None:
    """`KernelCommits`; None where trio has its thread for itself, or where the system doesn't sync without a thread."""
    host = current_host_loop()
    sync = None if host is None else open_kernel_sync()
    return None if host is None or sync is None else KernelCommits(committer, host, sync, ended)
