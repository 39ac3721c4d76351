"""Invariants of a bookie after each of its steps, looked up on its disk."""

from __future__ import annotations

from replog.protocol.batch import Batch
from replog.protocol.bookie import OrderedRequest
from replog.protocol.messages import AddRequest, FenceRequest, RecoveryReadRequest, Response, Status
from tests.simulator.disks import LedgerOnDisk
from tests.simulator.facts import Facts, LedgerTruth
from tests.simulator.quorums import check_confirmed


class BookieChecks:
    """Checks what bookies store, answer, drop and forget. A bookie is known by its name."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._fences: dict[tuple[str, int], int] = {}  # what bookies said is durable
        self._lost_fences: dict[tuple[str, int], int] = {}  # of what a disk forgot, and the bookie noticed
        self._denied: dict[tuple[str, int], dict[int, int]] = {}

    def stored(self, bookie: str, disk: LedgerOnDisk, request: AddRequest) -> None:
        """A batch became durable."""
        batch = request.batch
        truth = self._facts.ledgers[batch.ledger_id]
        known = truth.bytes_of.get((batch.stamp, batch.first_entry_id))
        if known is None:
            self._learn(truth, batch)
        elif known is not batch.data and known != batch.data:
            self._facts.fail("O9", f"{bookie} stored other bytes for {batch!r} than were stored before (T3, W4)")
        denied = self._denied.get((bookie, batch.ledger_id))
        if denied:
            for entry_id in batch.entry_ids:
                if request.term < denied.get(entry_id, 0):
                    self._facts.fail(
                        "O10", f"{bookie} denied entry {entry_id} to term {denied[entry_id]}, then stored it"
                    )
        if disk.deleted:
            self._facts.fail("L5", f"{bookie} stored {batch!r} of a ledger that was deleted there")

    def _learn(self, truth: LedgerTruth, batch: Batch) -> None:
        for entry_id, payload in zip(batch.entry_ids, batch.payloads(), strict=True):
            submitted = truth.lists.get(batch.stamp, [])
            if entry_id >= len(submitted) or submitted[entry_id] != payload:
                self._facts.fail(
                    "I4", f"entry {truth.ledger_id}/{entry_id} is stored as {payload!r}, and was not submitted so"
                )
            if entry_id <= truth.confirmed and batch.last_add_confirmed >= entry_id:
                self._facts.fail("W3", f"{batch!r} says that it is confirmed itself")
        truth.bytes_of[batch.stamp, batch.first_entry_id] = batch.data

    def answered(self, bookie: str, disk: LedgerOnDisk | None, request: OrderedRequest, response: Response) -> None:
        """A bookie answers, having made durable what the answer depends on (R3, B1)."""
        if isinstance(request, AddRequest):
            if response.status is Status.OK:
                batch = request.batch
                if disk is None or disk.held.get((batch.stamp, batch.first_entry_id)) != batch:
                    self._facts.fail("B1", f"{bookie} acknowledged {batch!r}, which is not durable there")
                lost = self._lost_fences.get((bookie, batch.ledger_id), 0)
                if request.term < lost:
                    self._facts.fail("B8", f"{bookie} acknowledged {batch!r}, and had lost a fence of term {lost}")
            elif response.status is Status.CONFLICT:
                self._facts.fail("O9", f"{bookie} met other bytes for {request.batch!r} than it has (W4)")
            return
        if response.status in (Status.FENCED, Status.UNAUTHORIZED):
            return
        if not isinstance(request, FenceRequest | RecoveryReadRequest):
            return
        if disk is None or disk.fence_term < request.term:
            self._facts.fail("R3", f"{bookie} answered a fencing request before the fence was durable")
        self._fences[bookie, request.ledger_id] = 0 if disk is None else disk.fence_term
        if isinstance(request, RecoveryReadRequest) and response.status is Status.NO_ENTRY:
            self._denied.setdefault((bookie, request.ledger_id), {})[request.entry_id] = request.term
            if disk is not None and (request.stamp, request.entry_id) in disk.held:
                self._facts.fail("R4", f"{bookie} denied entry {request.entry_id}, which is on its disk")

    def dropped(self, bookie: str, ledger_id: int) -> None:
        """A bookie's garbage collection removed a ledger."""
        if not self._facts.ledgers[ledger_id].deleted:
            self._facts.fail("B6", f"{bookie} dropped ledger {ledger_id}, which exists")
        self.fence_kept(bookie, ledger_id)

    @property
    def ledger_ids_end(self) -> int:
        """An id above those of all ledgers that were ever made."""
        return 1 + max(self._facts.ledgers, default=0)

    def forgot(self, bookie: str, ledger_id: int, identities: set[tuple[int, int]], *, is_noticed: bool) -> None:
        """A bookie's disk lost these, and maybe fences."""
        self._facts.forgotten.add(bookie, ledger_id, self._facts.ledgers[ledger_id].confirmed, identities)
        disk = self._facts.disks[bookie].get(ledger_id)
        now = 0 if disk is None else disk.fence_term
        if now < (fence := self._fences.get((bookie, ledger_id), 0)):
            self._fences[bookie, ledger_id] = now
            if is_noticed:
                self._lost_fences[bookie, ledger_id] = max(fence, self._lost_fences.get((bookie, ledger_id), 0))
            self._facts.world.count("bookie forgot a fence")

    def restarted(self, bookie: str) -> None:
        """A bookie came back after a crash: what it said to be durable must be there."""
        for name, ledger_id in self._fences:
            if name == bookie:
                self.fence_kept(bookie, ledger_id)
        for truth in self._facts.ledgers.values():
            if any(bookie in fragment.ensemble for fragment in truth.record.fragments):
                check_confirmed(self._facts, truth, 0)

    def fence_kept(self, bookie: str, ledger_id: int) -> None:
        """Fences only rise, durably."""
        disk = self._facts.disks[bookie].get(ledger_id)
        durable = 0 if disk is None else disk.fence_term
        if durable < self._fences.get((bookie, ledger_id), 0):
            self._facts.fail("R3", f"the fence of ledger {ledger_id} on {bookie} fell to {durable}")

    def reaches_past_end(self, ledger_id: int) -> bool:
        """Whether a batch that holds an entry of the closed ledger holds ids behind its end, too (R7)."""
        truth = self._facts.ledgers[ledger_id]
        last = truth.last_entry_id
        assert last is not None
        names = {name for fragment in truth.record.fragments[-1:] for name in fragment.ensemble}
        disks = [self._facts.disks[name].get(ledger_id) for name in sorted(names)]
        held = [batch for disk in disks if disk is not None for batch in disk.held.values()]
        return any(batch.first_entry_id <= last < batch.last_entry_id for batch in held)
