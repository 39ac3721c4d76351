"""Group commit: one thread makes durable what was accepted, in order, a group at a time (B1, B2).

While one group is on its way to the disk, what arrives gathers into the next: no timer, and latency at low load is
that of one sync. The thread belongs to whoever entered `running`, and has ended when that is left. A storage that never
waits for a disk gets no thread.

What is accepted builds on what was accepted before it, durable or not: on marks that were raised, not on entries that
were stored. So when a commit finds no space, its new entries are refused, and everything else of it is tried again without
them, each for itself if need be: recovery adds, fences and dropped ledgers go on while space remains for them (B5).
Of what was refused the marks are kept all the same, so that what was accepted behind it still stands on the disk (R3).

When not even marks find space, or when the storage failed, everything accepted up to then fails: works carry an epoch,
such a failure ends one, and nothing of an ended epoch is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from replog.abc import Mutation, PutBatch, Reply, SetMarks
from replog.bookie.calls import StorageCalls, broken_contract
from replog.errors import StorageError, StorageFullError, StorageUncertainError
from replog.protocol.batch import Batch
from replog.protocol.bookie import Accepted, LedgerOnBookie, settle_add
from replog.protocol.messages import AddRequest, FenceRequest, RecoveryReadRequest, Response, Status
from replog.protocol.proofs import better_proof, head_of, proof_of_head
from replog.runtime.latencies import LatencyHistogram

_FAST_COMMIT_S = 0.001  # a disk that takes longer is not worth stopping the event loop for


class Work:
    """Something accepted, waiting to be durable, and then to be answered."""

    __slots__ = ("accepted", "accepted_at_s", "epoch", "ledger", "reply", "size_bytes")

    def __init__(self, ledger: LedgerOnBookie, accepted: Accepted, reply: Reply, size_bytes: int) -> None:
        self.ledger = ledger
        self.accepted = accepted
        self.accepted_at_s = 0.0  # by the clock of threads
        self.epoch = 0
        self.reply = reply
        self.size_bytes = size_bytes


@attrs.frozen
class _Outcome:
    """How committing some work went: a failure, or what a recovery read found (None: it could not tell), and what it is
    worth that it found nothing."""

    failure: Status | None = None
    problem: str = ""
    found: list[Batch] | None = attrs.field(factory=list)
    denial: Status = Status.NO_ENTRY


_DURABLE = _Outcome()


class _Group:
    """Works that are committed together, with an outcome for each. The first `decided` outcomes stand, those behind hold if
    the next commit succeeds. `error` is what the storage raised, if it did; with it the epoch may have ended."""

    __slots__ = ("decided", "ends_epoch", "error", "outcomes", "works")

    def __init__(self, works: list[Work]) -> None:
        self.works = works
        self.outcomes: list[_Outcome] = []
        self.decided = 0
        self.error: StorageError | None = None
        self.ends_epoch = False

    def refuse_entries(self, place: int, error: StorageFullError) -> bool:
        """Takes the entries out of a work, and keeps what it raises: also the last add confirmed that the batch would have
        carried. Returns whether there were any."""
        accepted = self.works[place].accepted
        batches = [each.batch for each in accepted.mutations if isinstance(each, PutBatch)]
        if not batches:
            return False
        self.outcomes[place] = _failure(error)
        accepted.mutations = [each for each in accepted.mutations if not isinstance(each, PutBatch)]
        accepted.mutations += [
            SetMarks(each.ledger_id, None, None, each.last_add_confirmed, proof_of_head(head_of(each)))
            for each in batches
        ]
        return True

    def fail(self, error: StorageError) -> None:
        """What is not decided fails; if the storage did, everything: nobody knows what is durable."""
        self.error, self.ends_epoch = error, True
        del self.outcomes[self.decided if isinstance(error, StorageFullError) else 0 :]
        self.outcomes += [_failure(error)] * (len(self.works) - len(self.outcomes))


def _is_new(accepted: Accepted) -> bool:
    return isinstance(accepted.request, AddRequest) and not accepted.request.recovery


def _gather_marks(refused: Sequence[Accepted]) -> None:
    """Says with the first works of each ledger what all of them raised: many refused ones shall not need much space."""
    by_ledger: dict[int, SetMarks] = {}
    for accepted in refused:
        found = [each for each in accepted.mutations if isinstance(each, SetMarks)]
        accepted.mutations = []
        for each in found:
            marks = by_ledger.get(each.ledger_id)
            if marks is None:
                marks = by_ledger[each.ledger_id] = SetMarks(each.ledger_id)
                accepted.mutations.append(marks)
            marks.key = each.key if marks.key is None else marks.key
            marks.fence_term = _higher(marks.fence_term, each.fence_term)
            marks.last_add_confirmed = _higher(marks.last_add_confirmed, each.last_add_confirmed)
            marks.proof = better_proof(marks.proof, each.proof)


def _higher(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _failure(error: StorageError) -> _Outcome:
    return _Outcome(Status.READ_ONLY if isinstance(error, StorageFullError) else Status.UNKNOWN, str(error))


class GroupCommit:
    """The queue before one storage, and the thread behind it.

    `failed` is called in the trio thread when a commit failed: with the error, and whether what was accepted before is
    void, so that the machines that accepted it must be made anew."""

    def __init__(
        self, calls: StorageCalls, commit_bytes_max: int, timeout_s: float, failed: Callable[[StorageError, bool], None]
    ) -> None:
        self.storage = calls.storage
        self.queued_bytes = 0
        self.commits = 0
        self.commit_s = 0.0  # of the last one
        self.commit_latencies = LatencyHistogram()  # of each call to the storage
        self.answer_latencies = LatencyHistogram()  # of each group: from accepting its first work to answering
        self._calls = calls
        self._commit_bytes_max = commit_bytes_max
        self._timeout_s = timeout_s
        self._failed = failed
        self.gathered: list[Work] = []  # put, and not started
        self._waiting: deque[Work] = deque()
        self._works = 0  # accepted and not answered
        self._epoch = 0  # of what is accepted now. Written in the trio thread
        # Nothing of this epoch, or of one before it, is committed any more. Written where commits are made.
        self._ended_epoch = -1
        self._ended_by: StorageError | None = None
        self._is_drain_scheduled = False
        self._threads = calls.threads
        self._wake = calls.threads.wakes()  # True for work; False ends the thread
        self._token: trio.lowlevel.TrioToken | None = None

    @property
    def is_idle(self) -> bool:
        """Whether everything accepted was answered. Asked in the trio thread."""
        return self._works == 0

    @property
    def queued_requests(self) -> int:
        """How many were accepted and not answered."""
        return self._works

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the commit thread. On leaving, what is queued is still committed, then the thread ends; one that the disk
        keeps for longer than the timeout is left behind, still counted among the calls to the storage."""
        self._token = trio.lowlevel.current_trio_token()
        if self.storage.is_instant:
            try:
                yield
            finally:
                while works := self._take_group():
                    self._answer(self._process(works))
            return
        thread = self._threads.start("replog commit", self._run)
        try:
            yield
        finally:
            self._wake.put(False)
            with trio.CancelScope(shield=True):  # bounded by the timeout
                await self._threads.run(thread.join, self._timeout_s)

    def put(self, work: Work) -> None:
        """Takes work, which `start` gets going. Called in the trio thread."""
        work.epoch = self._epoch
        work.accepted_at_s = self._threads.clock_s()
        self.queued_bytes += work.size_bytes
        self._works += 1
        self.gathered.append(work)

    def start(self, *, inline: bool = False) -> None:
        """Commits what was put: with `inline` in the caller's thread, which saves two changes of thread, if nothing else is
        under way and the last commit was fast; else in the thread."""
        works, self.gathered = self.gathered, []
        if inline and self._works == len(works) and self.commits and self.commit_s < _FAST_COMMIT_S:
            self._answer(self._process(works))
            return
        self._waiting += works
        if not self.storage.is_instant:
            self._wake.put(True)
        elif not self._is_drain_scheduled:
            self._schedule_drain()

    def _schedule_drain(self) -> None:
        assert self._token is not None
        self._is_drain_scheduled = True
        self._token.run_sync_soon(self._drain)

    def _drain(self) -> None:
        """Commits a group in the trio thread: what arrived since the last tick. One at a time, to be fair to others."""
        self._is_drain_scheduled = False
        if works := self._take_group():
            self._answer(self._process(works))
        if self._waiting and not self._is_drain_scheduled:
            self._schedule_drain()

    # -- in the commit thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._token is not None
        with self._calls.counting():
            while self._wake.get():
                while works := self._take_group():
                    group = self._process(works)
                    try:
                        self._token.run_sync_soon(self._answer, group)
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

    def _process(self, works: list[Work]) -> _Group:
        """Makes a group durable, unless it builds on one that failed."""
        group = _Group(works)
        if self._ended_by is not None and works[0].epoch <= self._ended_epoch:
            group.fail(self._ended_by)
            return group
        try:
            try:
                self._commit(group)
            except StorageError:
                raise
            except Exception as error:
                raise broken_contract(self.storage, error) from error
        except StorageError as error:
            self._ended_epoch, self._ended_by = works[0].epoch, error
            group.fail(error)
        return group

    def _commit(self, group: _Group) -> None:
        mutations: list[Mutation] = []
        for work in group.works:
            accepted = work.accepted
            if accepted.may_be_stored:
                self._decide(group, mutations)  # so that what is stored shows everything accepted before
                mutations = []
                group.outcomes.append(self._settle(accepted))
            else:
                group.outcomes.append(_DURABLE)
            mutations += accepted.mutations
        self._decide(group, mutations)
        for place, work in enumerate(group.works):
            request = work.accepted.request
            if isinstance(request, RecoveryReadRequest) and work.accepted.refusal is None:
                group.outcomes[place] = self._look_up(request.ledger_id, request.entry_id, request.stamp)
            elif work.ledger.lacks_proof and isinstance(request, FenceRequest) and work.accepted.refusal is None:
                group.outcomes[place] = self._look_up(request.ledger_id, *work.ledger.proof_place)

    def _decide(self, group: _Group, mutations: Sequence[Mutation]) -> None:
        """Commits these mutations of all works that are not decided; if there is no space, what there is space for."""
        try:
            self._commit_mutations(mutations)
        except StorageFullError as error:
            group.error = error
            self._commit_what_fits(group, error)
        group.decided = len(group.outcomes)

    def _commit_what_fits(self, group: _Group, error: StorageFullError) -> None:
        """Refuses new entries, and commits the rest: together, or one by one if that is too much. Raises
        `StorageFullError` at the first whose marks find no space: what was accepted behind it may build on them."""
        undecided = range(group.decided, len(group.outcomes))
        new = [place for place in undecided if _is_new(group.works[place].accepted)]
        _gather_marks([group.works[place].accepted for place in new if group.refuse_entries(place, error)])
        try:
            self._commit_mutations([each for place in undecided for each in group.works[place].accepted.mutations])
        except StorageFullError:
            for place in undecided:
                self._commit_alone(group, place)

    def _commit_alone(self, group: _Group, place: int) -> None:
        accepted = group.works[place].accepted
        try:
            self._commit_mutations(accepted.mutations)
        except StorageFullError as error:
            if not group.refuse_entries(place, error):
                raise
            self._commit_mutations(accepted.mutations)
        group.decided = place + 1

    def _commit_mutations(self, mutations: Sequence[Mutation]) -> None:
        if mutations:
            started = self._threads.clock_s()
            self.storage.commit(mutations)
            self.commit_s = self._threads.clock_s() - started
            self.commit_latencies.observe(self.commit_s)
            self.commits += 1

    def _settle(self, accepted: Accepted) -> _Outcome:
        """Stores the batch unless it is stored already (T3); its marks are raised in any case."""
        assert isinstance(accepted.request, AddRequest)
        batch = accepted.request.batch
        try:
            status = settle_add(batch, self._stored(batch))
            problem = f"other bytes than those of {batch!r} are stored for one of its entries"
        except StorageUncertainError as error:
            status, problem = Status.UNKNOWN, str(error)
        if status is not None:
            accepted.mutations = [each for each in accepted.mutations if not isinstance(each, PutBatch)]
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

    def _look_up(self, ledger_id: int, entry_id: int, stamp: int) -> _Outcome:
        try:
            found = self.storage.read(ledger_id, entry_id, stamp, 1)[:1]
        except StorageUncertainError:
            return _Outcome(found=None)
        return _Outcome(found=found, denial=self.storage.doubt().denial(ledger_id))

    # -- in the trio thread -----------------------------------------------------------------------------------------

    def _answer(self, group: _Group) -> None:
        works = group.works
        self._works -= len(works)
        self.answer_latencies.observe(self._threads.clock_s() - works[0].accepted_at_s)
        if group.error is not None:
            self._tell(group.error, works[0].epoch, ends_epoch=group.ends_epoch)
        answers: list[Response] = []
        for work, outcome in zip(works, group.outcomes, strict=True):
            self.queued_bytes -= work.size_bytes
            if outcome.failure is None:
                answers.append(work.ledger.answer(work.accepted, outcome.found, outcome.denial))
            else:
                answers.append(Response(work.accepted.request.request_id, outcome.failure, detail=outcome.problem))
        if len(works) == 1:
            works[0].reply(answers)
        else:
            self._reply(works, answers)

    def _reply(self, works: Sequence[Work], answers: list[Response]) -> None:
        """Those that go to one connection, one behind the other, go together."""
        start = 0
        for place in range(1, len(works) + 1):
            if place == len(works) or works[place].reply is not works[start].reply:
                works[start].reply(answers[start:place])
                start = place

    def _tell(self, error: StorageError, epoch: int, *, ends_epoch: bool) -> None:
        if not ends_epoch:
            self._failed(error, False)
        elif epoch == self._epoch:  # told once, not for each group of it
            self._epoch += 1
            self._failed(error, True)
