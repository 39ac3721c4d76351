"""Group commit: one thread makes durable what was accepted, in order, a group at a time (B1, B2).

While one group is on its way to the disk, what arrives gathers into the next: no timer, and latency at low load is
that of one sync. The thread belongs to whoever entered `running`, and has ended when that is left. A storage that never
waits for a disk gets no thread.

What is accepted builds on what was accepted before it, durable or not. So when a commit fails, everything accepted up to
then fails with it: works carry an epoch, a failure ends one, and nothing of an ended epoch is committed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from replog.abc import Mutation, PutBatch, Reply, Storage
from replog.errors import StorageError, StorageFailedError, StorageFullError, StorageUncertainError
from replog.protocol.batch import Batch
from replog.protocol.bookie import Accepted, LedgerOnBookie, settle_add
from replog.protocol.messages import AddRequest, RecoveryReadRequest, Response, Status

_FAST_COMMIT_S = 0.001  # a disk that takes longer is not worth stopping the event loop for


class Work:
    """Something accepted, waiting to be durable, and then to be answered."""

    __slots__ = ("accepted", "epoch", "ledger", "reply", "size_bytes")

    def __init__(self, ledger: LedgerOnBookie, accepted: Accepted, reply: Reply, size_bytes: int) -> None:
        self.ledger = ledger
        self.accepted = accepted
        self.epoch = 0
        self.reply = reply
        self.size_bytes = size_bytes


@attrs.frozen
class _Outcome:
    """How committing some work went: a failure, or what a recovery read found (None: it could not tell)."""

    failure: Status | None = None
    problem: str = ""
    found: list[Batch] | None = attrs.field(factory=list)


_DURABLE = _Outcome()


class GroupCommit:
    """The queue before one storage, and the thread behind it."""

    def __init__(self, storage: Storage, commit_bytes_max: int, failed: Callable[[StorageError], None]) -> None:
        self.storage = storage
        self.queued_bytes = 0
        self.commits = 0
        self.commit_s = 0.0  # of the last one
        self.last_failure: StorageError | None = None  # None again after a commit that succeeded
        self._commit_bytes_max = commit_bytes_max
        self._failed = failed  # called in the trio thread
        self._waiting: deque[Work] = deque()
        self._works = 0  # accepted and not answered
        self._epoch = 0  # of what is accepted now. Written in the trio thread
        # Nothing of this epoch, or of one before it, is committed any more. Written where commits are made.
        self._ended_epoch = -1
        self._ended_by: StorageError | None = None
        self._is_drain_scheduled = False
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True for work; False ends the thread
        self._token: trio.lowlevel.TrioToken | None = None

    @property
    def is_idle(self) -> bool:
        """Whether everything accepted was answered. Asked in the trio thread."""
        return self._works == 0

    @property
    def is_fast(self) -> bool:
        """Whether the last commit took so little that a thread would cost more."""
        return self.commits > 0 and self.commit_s < _FAST_COMMIT_S

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the commit thread. On leaving, what is queued is still committed, then the thread ends."""
        self._token = trio.lowlevel.current_trio_token()
        if self.storage.is_instant:
            try:
                yield
            finally:
                while group := self._take_group():
                    self._answer(*self._process(group))
            return
        thread = threading.Thread(target=self._run, name="replog commit", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._wake.put(False)
            with trio.CancelScope(shield=True):  # bounded by the disk: the storage may be closed only after it
                await trio.to_thread.run_sync(thread.join)

    def put(self, work: Work) -> None:
        """Queues work for the thread. Called in the trio thread."""
        self._count(work)
        self._waiting.append(work)
        if not self.storage.is_instant:
            self._wake.put(True)
        elif not self._is_drain_scheduled:
            self._schedule_drain()

    def _count(self, work: Work) -> None:
        work.epoch = self._epoch
        self.queued_bytes += work.size_bytes
        self._works += 1

    def _schedule_drain(self) -> None:
        assert self._token is not None
        self._is_drain_scheduled = True
        self._token.run_sync_soon(self._drain)

    def _drain(self) -> None:
        """Commits a group in the trio thread: what arrived since the last tick. One at a time, to be fair to others."""
        self._is_drain_scheduled = False
        if group := self._take_group():
            self._answer(*self._process(group))
        if self._waiting and not self._is_drain_scheduled:
            self._schedule_drain()

    def commit_now(self, work: Work) -> None:
        """Does lone work in the caller's thread: it saves two changes of thread. Only while idle."""
        assert self.is_idle, "the commit thread may be writing"
        self._count(work)
        self._answer(*self._process([work]))

    # -- in the commit thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._token is not None
        while self._wake.get():
            while group := self._take_group():
                done = self._process(group)
                try:
                    self._token.run_sync_soon(self._answer, *done)
                except trio.RunFinishedError:
                    return  # nobody is left to be told; what was committed stays

    def _take_group(self) -> list[Work]:
        group: list[Work] = []
        size_bytes = 0
        while self._waiting:
            work = self._waiting[0]
            size_bytes += work.size_bytes
            if group and (size_bytes > self._commit_bytes_max or work.epoch != group[0].epoch):
                break
            group.append(self._waiting.popleft())
        return group

    def _process(self, group: list[Work]) -> tuple[list[Work], list[_Outcome], StorageError | None]:
        """Makes a group durable, unless it builds on one that failed."""
        error = self._ended_by
        if error is None or group[0].epoch > self._ended_epoch:
            try:
                return group, self._commit_or_fail(group), None
            except StorageError as failure:
                error = failure
                self._ended_epoch, self._ended_by = group[0].epoch, failure
        status = Status.READ_ONLY if isinstance(error, StorageFullError) else Status.UNKNOWN
        return group, [_Outcome(status, str(error))] * len(group), error

    def _commit_or_fail(self, group: list[Work]) -> list[_Outcome]:
        try:
            return self._commit(group)
        except StorageError:
            raise
        except Exception as error:
            problem = f"bookie {self.storage.bookie_id}: its storage broke its contract: {error!r}"
            raise StorageFailedError(problem, "Restart the bookie, and report this") from error

    def _commit(self, group: list[Work]) -> list[_Outcome]:
        outcomes: list[_Outcome] = []
        mutations: list[Mutation] = []
        for work in group:
            accepted = work.accepted
            if not accepted.may_be_stored:
                mutations += accepted.mutations
                outcomes.append(_DURABLE)
                continue
            self._commit_mutations(mutations)  # so that what is stored shows everything accepted before
            mutations = []
            outcomes.append(self._settle(accepted, mutations))
        self._commit_mutations(mutations)
        for place, work in enumerate(group):
            if isinstance(work.accepted.request, RecoveryReadRequest) and work.accepted.refusal is None:
                outcomes[place] = self._look_up(work.accepted.request)
        return outcomes

    def _commit_mutations(self, mutations: Sequence[Mutation]) -> None:
        if mutations:
            started = time.perf_counter()
            self.storage.commit(mutations)
            self.commit_s = time.perf_counter() - started
            self.commits += 1

    def _settle(self, accepted: Accepted, mutations: list[Mutation]) -> _Outcome:
        """Stores the batch unless it is stored already (T3); its marks are raised in any case."""
        assert isinstance(accepted.request, AddRequest)
        batch = accepted.request.batch
        try:
            status = settle_add(batch, self._stored(batch))
            problem = f"other bytes than those of {batch!r} are stored for one of its entries"
        except StorageUncertainError as error:
            status, problem = Status.UNKNOWN, str(error)
        mutations += [each for each in accepted.mutations if status is None or not isinstance(each, PutBatch)]
        return _DURABLE if status in (None, Status.OK) else _Outcome(status, problem)

    def _stored(self, batch: Batch) -> list[Batch]:
        """What is stored of a batch's identities. Looks at its ends first: what differs there differs anyway."""
        found: list[Batch] = []
        ids = batch.entry_ids
        for entry_id in (ids[0], ids[-1], *ids[1:-1]):
            found += self.storage.read(batch.ledger_id, entry_id, batch.stamp, 1)[:1]
            if found:
                break
        return found

    def _look_up(self, request: RecoveryReadRequest) -> _Outcome:
        try:
            return _Outcome(found=self.storage.read(request.ledger_id, request.entry_id, request.stamp, 1)[:1])
        except StorageUncertainError:
            return _Outcome(found=None)

    # -- in the trio thread -----------------------------------------------------------------------------------------

    def _answer(self, group: list[Work], outcomes: list[_Outcome], error: StorageError | None) -> None:
        self._works -= len(group)
        for work in group:
            self.queued_bytes -= work.size_bytes
        if error is None:
            self.last_failure = None
        elif group[0].epoch == self._epoch:
            self._epoch += 1
            self.last_failure = error
            self._failed(error)
        for work, outcome in zip(group, outcomes, strict=True):
            if outcome.failure is None:
                answer = work.ledger.answer(work.accepted, outcome.found)
            else:
                answer = Response(work.accepted.request.request_id, outcome.failure, detail=outcome.problem)
            work.reply([answer])
