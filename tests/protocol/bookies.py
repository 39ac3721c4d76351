"""Bookies for tests: the machine of each ledger over a disk in memory."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from replog.protocol.batch import Batch
from replog.protocol.bookie import Accepted, LedgerOnBookie, OrderedRequest, read_answer, settle_add
from replog.protocol.digest import Digest, DigestType
from replog.protocol.messages import (
    AddRequest,
    CopyRequest,
    FenceRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Response,
    Status,
)
from replog.protocol.mutations import DELETED_TERM, DropEntries, DropLedger, Marks, Mutation, PutBatch
from replog.protocol.proofs import better_proof, prove
from replog.protocol.releasing import Release


def proof_of(last_add_confirmed: int, *, ledger_id: int = 7, stamp: int = 1) -> bytes:
    """An explicit proof under CRC32C, which needs no password (R11)."""
    return prove(Digest(DigestType.CRC32C, ledger_id, b""), ledger_id, stamp, last_add_confirmed)


class Disk:
    """The state that survives when a bookie's process dies."""

    def __init__(self) -> None:
        self.marks: dict[int, Marks] = {}
        self.batches: dict[int, list[Batch]] = {}
        self.damaged: set[tuple[int, int]] = set()
        self.dropped: list[DropEntries] = []

    def commit(self, mutations: Sequence[Mutation]) -> None:
        for mutation in mutations:
            self._apply(mutation)

    def _apply(self, mutation: Mutation) -> None:
        if isinstance(mutation, DropLedger):
            self.marks[mutation.ledger_id] = Marks(fence_term=DELETED_TERM)
            self.batches.pop(mutation.ledger_id, None)
        elif isinstance(mutation, DropEntries):
            kept = [batch for batch in self.batches.get(mutation.ledger_id, ()) if not _drops(mutation, batch)]
            self.batches[mutation.ledger_id] = kept
            self.dropped.append(mutation)
        elif isinstance(mutation, PutBatch):
            batch = mutation.batch
            self.batches.setdefault(batch.ledger_id, []).append(batch)
            marks = self.marks.get(batch.ledger_id, Marks())
            self.marks[batch.ledger_id] = attrs.evolve(
                marks,
                last_add_confirmed=max(marks.last_add_confirmed, batch.last_add_confirmed),
                last_entry_id=max(marks.last_entry_id, batch.last_entry_id),
            )
        else:
            marks = self.marks.get(mutation.ledger_id, Marks())
            self.marks[mutation.ledger_id] = attrs.evolve(
                marks,
                key=marks.key or mutation.key,
                fence_term=max(marks.fence_term, mutation.fence_term or 0),
                last_add_confirmed=max(marks.last_add_confirmed, _or_none(mutation.last_add_confirmed)),
                proof=better_proof(marks.proof, mutation.proof),
            )

    def read(self, ledger_id: int, entry_id: int, stamp: int) -> list[Batch] | None:
        """None for doubt, as `LedgerOnBookie.answer` wants it."""
        if (ledger_id, entry_id) in self.damaged:
            return None
        ours = [batch for batch in self.batches.get(ledger_id, ()) if batch.stamp == stamp]
        first = [batch for batch in ours if batch.holds(entry_id)]
        after = sorted((batch for batch in ours if batch.first_entry_id > entry_id), key=_first_entry_id)
        if not first and any(
            (each.ledger_id, each.stamp) == (ledger_id, stamp)
            and entry_id in range(each.first_entry_id, each.last_entry_id + 1, each.stride)
            for each in self.dropped
        ):
            return None
        return [*first[:1], *after] if first else []

    def lose_from(self, ledger_id: int, entry_id: int) -> None:
        """The end of the journal is gone: the batches from this entry on, and all marks."""
        kept = [batch for batch in self.batches.get(ledger_id, ()) if batch.last_entry_id < entry_id]
        self.batches[ledger_id] = kept
        last = max((batch.last_entry_id for batch in kept), default=-1)
        confirmed = max((batch.last_add_confirmed for batch in kept), default=-1)
        self.marks[ledger_id] = Marks(None, 0, confirmed, last)

    def holds(self, ledger_id: int, entry_id: int) -> bool:
        return any(batch.holds(entry_id) for batch in self.batches.get(ledger_id, ()))


def _drops(dropped: DropEntries, batch: Batch) -> bool:
    """True if all entries of the batch are dropped."""
    entries = range(dropped.first_entry_id, dropped.last_entry_id + 1, dropped.stride)
    return batch.stamp == dropped.stamp and all(entry_id in entries for entry_id in batch.entry_ids)


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


def _first_entry_id(batch: Batch) -> int:
    return batch.first_entry_id


class Bookie:
    """One bookie: a machine for each ledger, and the disk that it is rebuilt from. `denial` is what its absences are worth."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.denial = Status.NO_ENTRY
        self.leaving: dict[int, Release] = {}
        self._ledgers: dict[int, LedgerOnBookie] = {}

    def ledger(self, ledger_id: int) -> LedgerOnBookie:
        if ledger_id not in self._ledgers:
            marks = self.disk.marks.get(ledger_id, Marks())
            is_in_doubt = self.denial is not Status.NO_ENTRY
            self._ledgers[ledger_id] = LedgerOnBookie(ledger_id, marks, is_in_doubt=is_in_doubt)
        return self._ledgers[ledger_id]

    def crash(self) -> None:
        """The process dies: what was accepted and not committed is gone."""
        self.leaving.clear()
        self._ledgers.clear()

    def restart_in_doubt(self, denial: Status = Status.NO_ENTRY_AFTER_LOSS) -> None:
        """Restarts with a storage that cannot vouch for what it has (B8)."""
        self.denial = denial
        self.crash()

    def accept(self, request: OrderedRequest) -> Accepted:
        return self.ledger(request.ledger_id).accept(request)

    def finish(self, accepted: Accepted) -> Response:
        """Commits what was accepted, and answers."""
        request, mutations = accepted.request, accepted.mutations
        ledger = self.ledger(request.ledger_id)
        if accepted.may_be_stored:
            assert isinstance(request, AddRequest)
            settled = settle_add(request.batch, self.disk.batches.get(request.ledger_id, ()))
            if isinstance(request, CopyRequest) and settled is Status.OK:
                self.disk.damaged -= {(request.ledger_id, each) for each in request.batch.entry_ids}
            if settled is not None:
                mutations = [mutation for mutation in mutations if not isinstance(mutation, PutBatch)]
            if settled is Status.CONFLICT:
                self.disk.commit(mutations)
                return Response(request.request_id, Status.CONFLICT)
        self.disk.commit(mutations)
        if accepted.refusal is None and isinstance(request, RecoveryReadRequest):
            found = self.disk.read(request.ledger_id, request.entry_id, request.stamp)
            return ledger.answer(accepted, found, self.denial)
        if accepted.refusal is None and isinstance(request, FenceRequest) and ledger.lacks_proof:
            return ledger.answer(accepted, self.disk.read(request.ledger_id, *ledger.proof_place))
        return ledger.answer(accepted)

    def handle(self, request: OrderedRequest) -> Response:
        release = self.leaving.get(request.ledger_id)
        if release is not None and isinstance(request, CopyRequest) and release.refuses(request.batch):
            return Response(request.request_id, Status.TOO_BUSY)
        return self.finish(self.accept(request))

    def read(self, request: ReadRequest) -> Response:
        ledger = self.ledger(request.ledger_id)
        refusal = ledger.refuse_read(request)
        if refusal is not None:
            return refusal
        found = self.disk.read(request.ledger_id, request.entry_id, request.stamp)
        return read_answer(request.request_id, found, ledger.last_add_confirmed, self.denial)

    def read_last_add_confirmed(self, request: ReadLastAddConfirmedRequest) -> Response:
        ledger = self.ledger(request.ledger_id)
        assert ledger.refuse_read(request) is None
        if ledger.lacks_proof:
            ledger.proof_read(self.disk.read(request.ledger_id, *ledger.proof_place))
        return Response(request.request_id, Status.OK, ledger.last_add_confirmed, proof=ledger.proof)
