"""Group commit: one thread makes accepted works durable, in order, a group at a time (B1, B2).

While one group is on its way to the disk, arriving works gather into the next: there is no timer, and latency at low
load is one sync. The thread runs while `running` is open, and has ended when that is left. A storage that never waits
for a disk gets no thread. A lone commit goes past the thread where the caller has lent its own (`runtime.lent_thread`):
it is made there, or begun there and synced by the kernel (`kernel_commits`).

Theory: a sync takes about the same time for one add as for many, so the sync under way is the best moment to gather the
next group. A timer would delay a lone add and bring nothing under load. Beside its sync, a lone add pays for the
thread: two switches, 160 to 200 us on a virtual machine. So it goes past the thread where that may be done, and only
while commits take less than a millisecond, since a slow disk would stop the event loop. Measured for a lone append
under asyncio on a busy machine: 2.0 voluntary switches instead of 5.9. Lost: a mark in each add that said whether it
came alone; it went through the wire, the messages and the seams, and the bookie's own queue tells the same.

The contents of a group, and its fate where there is no space, are in `groups`; the choice of its works is in `queue`.
When everything that was accepted fails, an epoch ends: later works belong to the next one.

Invariants:

- Works of one ledger are committed, and answered, in the order in which they were put (B2).
- A work is answered once, and not before it is durable or has failed (B1).
- A group is of one epoch, and nothing is committed of one that has ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from replog.abc import Reply
from replog.bookie.calls import StorageCalls
from replog.bookie.groups import DURABLE, Committer, Group, Work
from replog.bookie.kernel_commits import KernelCommits
from replog.bookie.queue import CommitQueue
from replog.config.bookie import BookieTuning
from replog.errors import StorageError
from replog.protocol.batch import Batch
from replog.protocol.bookie import Accepted, LedgerOnBookie
from replog.protocol.messages import Response
from replog.runtime.event_loop import soon_from_any_thread
from replog.runtime.latencies import LatencyHistogram
from replog.runtime.lent_thread import LentThread, lent_thread
from replog.runtime.threads import Wakes

_FAST_COMMIT_S = 0.001  # a disk that takes longer is not worth stopping the event loop for


class GroupCommit:
    """The queue before one storage, and the thread behind it.

    `failed` is called in the trio thread when a commit failed: with the error, and whether works accepted before are
    void: then the machines that accepted them must be made again. `is_same` is as in `settle_add`."""

    def __init__(
        self,
        calls: StorageCalls,
        options: BookieTuning,
        failed: Callable[[StorageError, bool], None],
        is_same: Callable[[Batch, Batch], bool],
    ) -> None:
        self._clock_s = calls.threads.clock_s
        self.committer = Committer(calls.storage, self._clock_s, is_same)
        self.queued_bytes = 0
        self.answer_latencies = LatencyHistogram()  # of each group: from accepting its first work to answering
        self._calls = calls
        self._options = options
        self._failed = failed
        self.gathered: list[Work] = []  # put, and not started
        self.queue = CommitQueue(options.commit_bytes_max, self._clock_s)
        self._works = 0  # accepted and not answered
        self._epoch = 0  # of what is accepted now. Written in the trio thread
        self._is_drain_scheduled = False
        # True for work; False ends the thread. None for an instant storage, which needs no thread.
        self._wake = None if calls.storage.is_instant else calls.threads.wakes()
        self._soon: Callable[..., object] | None = None  # calls a function in the trio thread
        self._kernel: KernelCommits | None = None  # while there is a thread
        self._lent: LentThread | None = None  # that of this trio run, while `running` is open

    @property
    def is_idle(self) -> bool:
        """True if everything accepted was answered. Asked in the trio thread."""
        return self._works == 0

    @property
    def queued_requests(self) -> int:
        """How many were accepted and not answered."""
        return self._works

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the commit thread. On leaving, queued works are still committed, then the thread ends; one that the disk
        keeps for longer than the timeout is left behind, still counted among the calls to the storage."""
        self._soon, self._lent = soon_from_any_thread(), lent_thread()
        wake = self._wake
        if wake is None:
            try:
                yield
            finally:
                # The caller waits for an answer, and the tick that should commit it never comes.
                while works := self.queue.take():
                    self._answer(self.committer.process(works))
            return
        self._kernel = kernel = KernelCommits(self.committer, self._kernel_ended)
        thread = self._calls.threads.start("replog commit", lambda: self._run(wake))
        try:
            async with kernel.running():
                yield
        finally:
            kernel.pass_on()
            self.start()
            wake.put(False)

            def end() -> None:
                # Bounded by the timeout. A thread that the disk keeps for longer is left behind.
                thread.join(self._options.close_timeout_s)
                if not thread.is_alive():
                    kernel.close()

            with trio.CancelScope(shield=True):
                await self._calls.threads.run(end)

    def put(self, ledger: LedgerOnBookie, accepted: Accepted, reply: Reply, size_bytes: int) -> None:
        """Takes work, which `start` gets going. Called in the trio thread."""
        self.queued_bytes += size_bytes
        self._works += 1
        # In the trio thread, so that everything that a machine accepted after a failure has the later epoch.
        self.gathered.append(Work(ledger, accepted, reply, size_bytes, self._epoch, self._clock_s()))

    def start(self, *, may_borrow: bool = False) -> None:
        """Commits the queued works: if it `may_borrow` a thread, in one that is lent, while nothing else waits and the
        disk is fast; otherwise in the bookie's own."""
        kernel = self._kernel
        if kernel is not None and kernel.group is not None and not self._answers_first(kernel):
            return
        committer = self.committer
        # A slow disk would stop the event loop; a fast one costs less than two changes of thread.
        is_fast = committer.commits > 0 and committer.commit_s < _FAST_COMMIT_S
        if may_borrow and is_fast and self._works == len(self.gathered):
            assert self._lent is not None, "work is started while `running` is open"
            if self._lent.borrow(self):
                return
        self._pass_on()

    def commit_here(self) -> None:
        """Commits the lone work in this thread, or begins it beside where the thread must not wait."""
        assert self._works >= len(self.gathered), "what gathered is not answered"
        if self._options.commit_inline_when_idle and self.gathered:  # else an answer had it started
            works, self.gathered = self.gathered, []
            self._answer(self.committer.process(works))
        else:
            self.commit_beside()

    def commit_beside(self) -> None:
        """Begins the lone work: the kernel syncs, or else the bookie's thread commits."""
        kernel = self._kernel
        if kernel is not None and self.gathered and kernel.begin(self.gathered):
            self.gathered = []
        else:
            self._pass_on()

    def look(self) -> None:
        """Looks whether the sync that was begun has ended."""
        if self._kernel is not None:
            self._kernel.look()

    def _pass_on(self) -> None:
        """Wakes the bookie's thread to commit queued works; or the next turn of the event loop, for a storage that
        needs no thread."""
        works, self.gathered = self.gathered, []
        assert self._works >= len(works), "what gathered is not answered"
        if self.queue.is_parted:
            self.queue.put(works)
        else:
            self.queue.waiting.extend(works)
        if self._wake is not None:
            self._wake.put(True)
        elif not self._is_drain_scheduled:
            self._schedule_drain()

    def _answers_first(self, kernel: KernelCommits) -> bool:
        """Answers what the kernel has made durable, if that has ended and the event loop has not looked yet. False if something
        is under way still, which what has gathered must wait for; or if an answer led to committing that."""
        if kernel.is_passed_on:
            return True  # the thread waits for it
        # What copies part goes into the queue before the answers, as the event loop does it.
        group = None if self.queue.is_parted else kernel.take_ended()
        if group is not None:
            self._answer(group)
        return bool(self.gathered) and not kernel.is_busy

    def _schedule_drain(self) -> None:
        assert self._soon is not None, "work is started while `running` is open"
        assert not self._is_drain_scheduled, "one drain at a time"
        self._is_drain_scheduled = True
        self._soon(self._drain)

    def _drain(self) -> None:
        """Commits a group in the trio thread: what arrived since the last tick. One at a time, to be fair to others."""
        self._is_drain_scheduled = False
        if works := self.queue.take():
            self._answer(self.committer.process(works))
        if (self.queue.waiting or self.queue.copies) and not self._is_drain_scheduled:
            self._schedule_drain()

    def _kernel_ended(self, group: Group) -> None:
        is_lone = len(self.gathered) == 1 and not self.queue.is_parted
        if self.gathered and not is_lone:
            # Before the answers: what was put behind this group is in the queue then, which is parted by what is in it.
            self.start()
        self._answer(group)
        if is_lone and self.gathered:  # else an answer led to committing it
            self.commit_beside()

    # -- in the commit thread ---------------------------------------------------------------------------------------

    def _run(self, wake: Wakes) -> None:
        assert self._soon is not None, "the thread runs while `running` is open"
        with self._calls.counting():
            while wake.get():
                while (group := self._next_group()) is not None:
                    try:
                        self._soon(self._answer, group)
                    except trio.RunFinishedError:
                        # The event loop has ended: committed works stay, and no caller waits for an answer.
                        return

    def _next_group(self) -> Group | None:
        """Commits the next group; None if nothing waits."""
        kernel = self._kernel
        if kernel is not None and kernel.is_passed_on:
            return kernel.wait()
        return self.committer.process(self.queue.take()) if self.queue.waiting or self.queue.copies else None

    # -- in the trio thread -----------------------------------------------------------------------------------------

    def _answer(self, group: Group) -> None:
        works = group.works
        self._works -= len(works)
        assert self._works >= 0, "a work is answered once"
        if self.queue.is_parted:
            self.queue.answered(works)
        self.answer_latencies.observe(self._clock_s() - works[0].accepted_at_s)
        if group.error is not None:
            self._tell(group.error, works[0].epoch, ends_epoch=group.ends_epoch)
        answers: list[Response] = []
        answered_bytes = 0
        for work, outcome in zip(works, group.outcomes, strict=True):
            answered_bytes += work.size_bytes
            if outcome is DURABLE:  # nearly always
                answers.append(work.ledger.answer(work.accepted))
            elif outcome.failure is None:
                answers.append(work.ledger.answer(work.accepted, outcome.found, outcome.denial))
            else:
                answers.append(Response(work.accepted.request.request_id, outcome.failure, detail=outcome.problem))
        self.queued_bytes -= answered_bytes
        assert self.queued_bytes >= 0, "what is answered was queued"
        # A lone add is judged by its latency.
        if len(works) == 1:
            works[0].reply(answers)
        else:
            self._reply(works, answers)

    def _reply(self, works: Sequence[Work], answers: list[Response]) -> None:
        """Sends the answers; those for one connection go together."""
        start = 0
        for place in range(1, len(works) + 1):
            if place == len(works) or works[place].reply is not works[start].reply:
                works[start].reply(answers[start:place])
                start = place
        assert start == len(answers), "everybody is answered"

    def _tell(self, error: StorageError, epoch: int, *, ends_epoch: bool) -> None:
        assert epoch <= self._epoch, "what was committed was accepted before"
        if not ends_epoch:
            self._failed(error, False)
        # Reported once, not for each group of the epoch.
        elif epoch == self._epoch:
            self._epoch += 1
            self._failed(error, True)
