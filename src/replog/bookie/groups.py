"""Making groups of work durable, each with one commit if there is space (B1, B2, B5, R3).

An accepted work builds on the works accepted before it, durable or not: on marks that were raised, not on entries that
were stored. So when a commit finds no space, its new entries are refused, and everything else of it is tried again
without them, each for itself if need be: recovery adds, fences and dropped ledgers go on while space remains for them
(B5). The marks of refused works are kept all the same, so that works accepted behind them still hold on the disk (R3).

When not even marks find space, or when the storage failed, everything accepted up to then fails: works carry an epoch,
such a failure ends one, and nothing of an ended epoch is committed.

Invariants:

- Each work gets one outcome, and `outcomes[:decided]` never change, except that a failed storage fails all of a group.
- A work is acknowledged only if its mutations were committed, or found to be stored already (B1, T3).
- Epochs end in their order, and nothing of an ended one is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, runtime_checkable

import attrs

from replog.abc import Mutation, PutBatch, Reply, SetMarks, Storage
from replog.bookie.calls import broken_contract
from replog.bookie.proving import read_proof
from replog.errors import StorageError, StorageFullError, StorageUncertainError
from replog.protocol.batch import Batch
from replog.protocol.bookie import Accepted, LedgerOnBookie, settle_add
from replog.protocol.messages import AddRequest, CopyRequest, FenceRequest, RecoveryReadRequest, Status
from replog.protocol.proofs import better_proof, head_of, proof_of_head
from replog.runtime.kernel_sync import KernelSync
from replog.runtime.latencies import LatencyHistogram


@attrs.define(eq=False)
class Work:
    """Something accepted, waiting to be durable, and then to be answered."""

    ledger: LedgerOnBookie
    accepted: Accepted
    reply: Reply
    size_bytes: int
    epoch: int
    accepted_at_s: float  # by the clock of threads


@attrs.frozen
class Outcome:
    """How committing some work went: a failure, or what a recovery read found (None: damage or an I/O error).

    `denial` is the status of an answer that found nothing: it says how far the storage vouches for that (B8)."""

    failure: Status | None = None
    problem: str = ""
    found: list[Batch] | None = attrs.field(factory=list)
    denial: Status = Status.NO_ENTRY


DURABLE = Outcome()


class Group:
    """Works that are committed together, with an outcome for each.

    `outcomes[:decided]` are final; the rest depend on the next commit. `error` is what the storage raised, if it did; with
    `ends_epoch`, nothing else of this epoch is committed."""

    __slots__ = ("decided", "ends_epoch", "error", "outcomes", "works")

    def __init__(self, works: list[Work]) -> None:
        self.works = works
        self.outcomes: list[Outcome] = []
        self.decided = 0
        self.error: StorageError | None = None
        self.ends_epoch = False

    def refuse_entries(self, place: int, error: StorageFullError) -> bool:
        """Takes the entries out of a work, and keeps the marks that it raises. Returns whether there were any entries."""
        assert place >= self.decided, "a final outcome does not change"
        accepted = self.works[place].accepted
        batches = [each.batch for each in accepted.mutations if isinstance(each, PutBatch)]
        if not batches:
            return False
        self.outcomes[place] = _failure(error)
        accepted.mutations = [each for each in accepted.mutations if not isinstance(each, PutBatch)]
        # The batch would have raised the last add confirmed by its header: that must be on the disk all the same.
        accepted.mutations += [
            SetMarks(each.ledger_id, None, None, each.last_add_confirmed, proof_of_head(head_of(each)))
            for each in batches
        ]
        return True

    def fail(self, error: StorageError) -> None:
        """Fails undecided works; if the storage failed, all works, because it is unknown which are durable."""
        assert self.decided <= len(self.outcomes) <= len(self.works), "a work has one outcome"
        self.error, self.ends_epoch = error, True
        del self.outcomes[self.decided if isinstance(error, StorageFullError) else 0 :]
        self.outcomes += [_failure(error)] * (len(self.works) - len(self.outcomes))
        assert len(self.outcomes) == len(self.works), "each work has an outcome"


@runtime_checkable
class SyncedByKernel(Protocol):
    """Optional methods of a storage beside its seam: commits whose sync the kernel makes, for an event loop's thread."""

    def begin_commit(self, mutations: Sequence[Mutation], sync: KernelSync) -> Callable[[OSError | None], None] | None:
        """Writes the mutations, begins one sync with `sync.begin`, and does not wait for it.

        Returns a function that ends the commit. The caller calls it once, in any thread, with the outcome of the sync, and
        commits nothing else before that; it returns and raises what `Storage.commit` does. Returns None, and nothing has
        happened, if this commit would have to wait for a disk: then `commit` does it. Raises as `commit`, if the sync did not
        begin."""


@attrs.frozen
class BegunGroup:
    """A group that is written, and whose sync is under way; `end` ends its commit (`SyncedByKernel.begin_commit`)."""

    group: Group
    end: Callable[[OSError | None], None]
    started_s: float


def _is_new(accepted: Accepted) -> bool:
    return isinstance(accepted.request, AddRequest) and not accepted.request.recovery


def _gather_marks(refused: Sequence[Accepted]) -> None:
    """Moves what many works of a ledger raised to the first of them: many refused works must not need much space."""
    by_ledger: dict[int, SetMarks] = {}
    for accepted in refused:
        found = [each for each in accepted.mutations if isinstance(each, SetMarks)]
        assert len(found) == len(accepted.mutations), "the entries of a refused work were taken out"
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
            marks.revision = _higher(marks.revision, each.revision)


def _higher(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _failure(error: StorageError) -> Outcome:
    return Outcome(Status.READ_ONLY if isinstance(error, StorageFullError) else Status.UNKNOWN, str(error))


class Committer:
    """Commits groups to one storage, wherever commits are made. `clock_s` is the clock of threads; `is_same` is as in
    `settle_add`."""

    def __init__(self, storage: Storage, clock_s: Callable[[], float], is_same: Callable[[Batch, Batch], bool]) -> None:
        self.storage = storage
        self.commits = 0
        self.commit_s = 0.0  # of the last one
        self.commit_latencies = LatencyHistogram()  # of each call to the storage
        self._clock_s = clock_s
        self._is_same = is_same
        self._ended_epoch = -1  # nothing of this epoch, or of one before it, is committed any more
        self._ended_by: StorageError | None = None

    def process(self, works: list[Work]) -> Group:
        """Makes a group durable, unless it builds on one that failed."""
        group = Group(works)
        if self._ended_by is not None and works[0].epoch <= self._ended_epoch:
            group.fail(self._ended_by)
            return group
        return self._with_outcome(group, self._commit)

    def begin(self, works: list[Work], sync: KernelSync) -> BegunGroup | None:
        """Begins to make plain adds durable, as `SyncedByKernel.begin_commit` does. The caller then calls `end`, and nothing else
        before that. None, and nothing has happened, if `process` must do it."""
        if works[0].epoch <= self._ended_epoch or not isinstance(self.storage, SyncedByKernel):
            return None
        mutations: list[Mutation] = []
        for work in works:
            # A work that needs more than a commit may have to read.
            if work.accepted.request.__class__ is not AddRequest or work.accepted.may_be_stored:
                return None
            mutations += work.accepted.mutations
        started_s = self._clock_s()
        try:
            end = self.storage.begin_commit(mutations, sync) if mutations else None
        except StorageError:
            # If there is no space, nothing has happened. If the storage has failed, it will say so again.
            return None
        return None if end is None else BegunGroup(Group(works), end, started_s)

    def end(self, begun: BegunGroup, problem: OSError | None) -> Group:
        """The group that was begun, with its outcomes. `problem` is what its sync failed with."""
        return self._with_outcome(begun.group, partial(self._end, begun, problem))

    def _end(self, begun: BegunGroup, problem: OSError | None, group: Group) -> None:
        begun.end(problem)
        self._committed(begun.started_s)
        group.outcomes += [DURABLE] * len(group.works)
        group.decided = len(group.works)

    def _with_outcome(self, group: Group, commit: Callable[[Group], None]) -> Group:
        """The group, after this commit of it. If that fails, its epoch ends."""
        try:
            try:
                commit(group)
            except StorageError:
                raise
            except Exception as error:
                raise broken_contract(self.storage, error) from error
        except StorageError as error:
            # Machines went ahead of the disk: nothing that was accepted with them may be committed now.
            # What else was accepted in this epoch builds on marks that are not on the disk.
            self._ended_epoch, self._ended_by = group.works[0].epoch, error
            group.fail(error)
        return group

    def _commit(self, group: Group) -> None:
        assert group.works[0].epoch == group.works[-1].epoch, "a group is of one epoch"
        mutations: list[Mutation] = []
        for work in group.works:
            accepted = work.accepted
            if accepted.may_be_stored:
                # So that the storage shows everything accepted before.
                self._decide(group, mutations)
                mutations = []
                group.outcomes.append(self._settle(accepted))
            else:
                group.outcomes.append(DURABLE)
            mutations += accepted.mutations
        self._decide(group, mutations)
        for place, work in enumerate(group.works):
            request = work.accepted.request
            if request.__class__ is AddRequest:  # nearly always
                continue
            if isinstance(request, RecoveryReadRequest) and work.accepted.refusal is None:
                group.outcomes[place] = self._look_up(request.ledger_id, request.entry_id, request.stamp)
            # After a restart the proof is only in a stored batch: it is read here, where the disk may be waited for
            # (R11).
            elif work.ledger.lacks_proof and isinstance(request, FenceRequest) and work.accepted.refusal is None:
                group.outcomes[place] = self._look_up_proof(work.ledger)
        assert group.decided == len(group.works), "what is answered was committed, or refused"

    def _decide(self, group: Group, mutations: Sequence[Mutation]) -> None:
        """Commits these mutations of all undecided works; if there is no space, those that fit."""
        assert group.decided <= len(group.outcomes), "outcomes are decided in their order"
        try:
            self._commit_mutations(mutations)
        except StorageFullError as error:
            group.error = error
            self._commit_what_fits(group, error)
        group.decided = len(group.outcomes)

    def _commit_what_fits(self, group: Group, error: StorageFullError) -> None:
        """Refuses new entries, and commits the rest: together, or one by one if that is too much. Raises
        `StorageFullError` at the first whose marks find no space: works accepted behind it may build on them."""
        undecided = range(group.decided, len(group.outcomes))
        new = [place for place in undecided if _is_new(group.works[place].accepted)]
        _gather_marks([group.works[place].accepted for place in new if group.refuse_entries(place, error)])
        try:
            self._commit_mutations([each for place in undecided for each in group.works[place].accepted.mutations])
        except StorageFullError:
            for place in undecided:
                self._commit_alone(group, place)

    def _commit_alone(self, group: Group, place: int) -> None:
        accepted = group.works[place].accepted
        try:
            self._commit_mutations(accepted.mutations)
        except StorageFullError as error:
            if not group.refuse_entries(place, error):
                raise
            assert group.outcomes[place].failure is not None, "an entry that was refused is not acknowledged (B1)"
            self._commit_mutations(accepted.mutations)
        group.decided = place + 1

    def _commit_mutations(self, mutations: Sequence[Mutation]) -> None:
        if mutations:
            started_s = self._clock_s()
            self.storage.commit(mutations)
            self._committed(started_s)

    def _committed(self, started_s: float) -> None:
        self.commit_s = self._clock_s() - started_s
        self.commit_latencies.observe(self.commit_s)
        self.commits += 1

    def _settle(self, accepted: Accepted) -> Outcome:
        """Stores the batch unless it is stored already (T3); its marks are raised in any case."""
        assert isinstance(accepted.request, AddRequest), "only entries may be stored already"
        batch = accepted.request.batch
        try:
            status = settle_add(batch, self._stored(batch), self._is_same)
            problem = f"other bytes than those of {batch!r} are stored for one of its entries"
        except StorageUncertainError as error:
            status, problem = Status.UNKNOWN, str(error)
            if isinstance(accepted.request, CopyRequest):
                status = self._settle_over_damage(batch)
        if status is not None:
            accepted.mutations = [each for each in accepted.mutations if not isinstance(each, PutBatch)]
        assert status is None or len(accepted.mutations) <= 1, "of an add that is not stored only its marks are left"
        return DURABLE if status in (None, Status.OK) else Outcome(status, problem)

    def _settle_over_damage(self, batch: Batch) -> Status | None:
        """Decides on a copy where a stored batch cannot be read: the copy is stored again, unless other bytes can be
        read (T3)."""
        assert batch.count, "a batch has entries"
        found: list[Batch] = []
        for entry_id in dict.fromkeys((batch.first_entry_id, batch.last_entry_id)):
            with suppress(StorageUncertainError):
                found += self.storage.read(batch.ledger_id, entry_id, batch.stamp, 1)[:1]
        return Status.CONFLICT if settle_add(batch, found, self._is_same) is Status.CONFLICT else None

    def _stored(self, batch: Batch) -> list[Batch]:
        """The stored batches of a batch's identities. Looks at its ends first: a difference there decides."""
        found: list[Batch] = []
        ids = batch.entry_ids
        assert ids, "a batch has entries"
        # Batches are resent whole, so an overlap nearly always shows at an end.
        for entry_id in (ids[0], ids[-1], *ids[1:-1]):
            found += self.storage.read(batch.ledger_id, entry_id, batch.stamp, 1)[:1]
            if found:
                break
        return found

    def _look_up_proof(self, ledger: LedgerOnBookie) -> Outcome:
        try:
            found = read_proof(self.storage, ledger)
        except StorageUncertainError:
            return Outcome(found=None)
        return Outcome(found=found, denial=self.storage.doubt().denial(ledger.ledger_id))

    def _look_up(self, ledger_id: int, entry_id: int, stamp: int) -> Outcome:
        try:
            found = self.storage.read(ledger_id, entry_id, stamp, 1)[:1]
        except StorageUncertainError:
            return Outcome(found=None)
        return Outcome(found=found, denial=self.storage.doubt().denial(ledger_id))
