"""A simulated bookie: the real machine of each ledger, around a disk that forgets what was not synced.

Accepted works wait in memory for the next group commit, as on a real bookie; a commit is atomic and ordered. A crash
forgets all that waits; of the group being synced, some first part survives, or nothing. The disk is what the oracle
looks at. A disk that lied, or was damaged, forgets more: its last groups, though they were acknowledged. The bookie
then knows that it lost something, or only that it cannot vouch for its disk (B8), or on some seeds nothing at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from replog.abc import Doubt
from replog.protocol.batch import Batch
from replog.protocol.bookie import Accepted, LedgerOnBookie, read_answer, settle_add
from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    LedgerRequest,
    RangesRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Response,
    Status,
)
from replog.protocol.mutations import DELETED_TERM, Marks, PutBatch, SetMarks
from replog.testing.simulating.disks import damaged
from tests.simulator.bookie_checks import BookieChecks
from tests.simulator.calls import Call, Reply, Server
from tests.simulator.disks import LedgerOnDisk
from tests.simulator.world import Action, World


@attrs.define
class _Waiting:
    """A request between its acceptance and its answer."""

    ledger: LedgerOnBookie
    accepted: Accepted
    reply: Reply | None
    response: Response | None = None


class SimulatedBookie(Server):
    """One bookie."""

    def __init__(self, world: World, name: str, checks: BookieChecks) -> None:
        super().__init__(world, name)
        self.disk: dict[int, LedgerOnDisk] = {}
        self.slow = 0
        self.doubt = Doubt()
        self.is_gone = False  # for good
        self.history: list[dict[int, LedgerOnDisk | None]] | None = None  # what each group changed; None: not kept
        self._checks = checks
        self._ledgers: dict[int, LedgerOnBookie] = {}
        self._queue: list[_Waiting] = []
        self._syncing: list[_Waiting] = []
        self.epoch = 0  # of its process
        self.seen_terms: dict[int, int] = {}  # by ledger: of the last fragment when this process first looked (B8)

    # -- requests --------------------------------------------------------------------------------------------------

    def handle(self, request: LedgerRequest, reply: Reply, client_number: int) -> None:
        """Takes a request; `reply` sends the answer, None meaning that the connection is refused."""
        ledger = self.machine(request.ledger_id)
        if isinstance(request, ReadRequest | ReadLastAddConfirmedRequest):
            self._answer_read(ledger, request, reply, client_number)
            return
        rates = self.world.rates
        if isinstance(request, AddRequest):
            subject = 1000 * request.ledger_id + request.batch.first_entry_id
            if rates.refused and self.world.fault(
                "refuse", rates.refused, client_number, self.number, "refuse", subject
            ):
                reply(Response(request.request_id, Status.READ_ONLY))
                return
        assert not isinstance(request, RangesRequest), "answered like a read"
        accepted = ledger.accept(request)
        self._queue.append(_Waiting(ledger, accepted, reply))
        self._sync_next()

    def wake(self, action: Action, arguments: tuple[Any, ...]) -> None:
        """A process that is down refuses connections; a machine that is down says nothing."""
        call = getattr(action, "__self__", None)
        if not self.alive and isinstance(call, Call):
            bits, _ = self.world.draw(self.number, call.client.number, "tear", 1)
            if bits & 1:
                self.world.count("connection refused")
                call.reply(None)
            return
        super().wake(action, arguments)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be synced."""
        return not self._syncing and not self._queue

    def machine(self, ledger_id: int) -> LedgerOnBookie:
        """The one object of this ledger (B2), made from what is durable."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            disk = self.disk.get(ledger_id)
            is_in_doubt = not self.doubt.takes_adds(ledger_id)
            marks = disk.marks() if disk is not None else Marks()
            ledger = LedgerOnBookie(ledger_id, marks, is_in_doubt=is_in_doubt)
            self._ledgers[ledger_id] = ledger
        return ledger

    def drop(self, ledger_id: int) -> None:
        """Garbage collection found that the ledger was deleted (B6)."""
        if self.alive:
            ledger = self.machine(ledger_id)
            self._queue.append(_Waiting(ledger, ledger.drop(), None))
            self._sync_next()

    def _answer_read(
        self, ledger: LedgerOnBookie, request: ReadRequest | ReadLastAddConfirmedRequest, reply: Reply, client: int
    ) -> None:
        refusal = ledger.refuse_read(request)
        if refusal is not None:
            reply(refusal)
        elif isinstance(request, ReadRequest):
            reply(self._looked_up(ledger, request, client))
        else:
            reply(self._with_batches(ledger, request, client))

    def _with_batches(self, ledger: LedgerOnBookie, request: ReadLastAddConfirmedRequest, client: int) -> Response:
        """How far the ledger is confirmed, and what a read would find, confirmed or not: readers have to see to it."""
        if ledger.lacks_proof:
            ledger.proof_read(self._proving(ledger, client))
        response = Response(request.request_id, Status.OK, ledger.last_add_confirmed, proof=ledger.proof)
        self._boast(response, request.ledger_id, client)
        if request.bytes_max:
            read = ReadRequest(0, request.ledger_id, request.key, request.entry_id, request.stamp, request.bytes_max)
            response.batches = self._looked_up(ledger, read, client).batches
        return response

    def _proving(self, ledger: LedgerOnBookie, client: int) -> Sequence[Batch] | None:
        """The batch that proves the last add confirmed after a restart (R11), or None if it can't be read."""
        entry_id, stamp = ledger.proof_place
        held = self.disk[ledger.ledger_id].held if ledger.ledger_id in self.disk else {}
        if ledger.may_have_later_terms:
            stamp, entry_id = max(held, default=(stamp, entry_id))
        doubted, subject = self.world.rates.doubted, 1000 * ledger.ledger_id + entry_id
        if doubted and self.world.fault("doubt", doubted, client, self.number, "doubt", subject):
            return None
        disk = self.disk.get(ledger.ledger_id)
        return disk.read(entry_id, stamp)[:1] if disk is not None else []

    def _boast(self, response: Response, ledger_id: int, client: int) -> None:
        """The bare number may be anything: nobody may trust it. A proof may be damaged on its way (R11)."""
        bits, _ = self.world.draw(client, self.number, "boast", ledger_id)
        if bits & 7 == 0:
            response.last_add_confirmed += 1 + (bits >> 3) % 5
        rate, proof = self.world.rates.damaged, response.proof
        if proof and rate and self.world.fault("damage", rate, client, self.number, "boast", ledger_id):
            self.world.count("damaged proof")
            response.proof = proof[:24] + bytes([proof[24] ^ 4]) + proof[25:]

    def _looked_up(self, ledger: LedgerOnBookie, request: ReadRequest | RecoveryReadRequest, client: int) -> Response:
        rates = self.world.rates
        subject = 1000 * request.ledger_id + request.entry_id
        if rates.doubted and self.world.fault("doubt", rates.doubted, client, self.number, "doubt", subject):
            return read_answer(request.request_id, None, ledger.last_add_confirmed)
        disk = self.disk.get(request.ledger_id)
        found = disk.read(request.entry_id, request.stamp) if disk is not None else []
        if (
            found
            and rates.damaged
            and self.world.fault("damage", rates.damaged, client, self.number, "damage", subject)
        ):
            found[0] = damaged(found[0])
        return read_answer(request.request_id, found, ledger.last_add_confirmed, self.doubt.denial(request.ledger_id))

    # -- group commit ----------------------------------------------------------------------------------------------

    def _sync_next(self) -> None:
        if self._syncing or not self._queue:
            return
        self._syncing, self._queue = self._queue, []
        bits, _ = self.world.draw(self.number, self.number, "sync", 0)
        delay = 1 + bits % 12 + self.slow
        if self.world.rates.slow_sync:
            fault = self.world.fault("stall", self.world.rates.slow_sync, self.number, self.number, "sync", 1)
            delay += fault.amount if fault is not None else 0
        self.world.at(delay, self._synced, self.epoch)

    def _synced(self, epoch: int) -> None:
        if epoch != self.epoch:
            return  # it crashed meanwhile
        group, self._syncing = self._syncing, []
        rates = self.world.rates
        if rates.full and self.world.fault("full", rates.full, self.number, self.number, "sync", 2):
            self._fail_commit(group)
            return
        self._make_durable(group)
        for waiting in group:
            if waiting.reply is not None and waiting.response is not None:
                waiting.reply(waiting.response)
        self._sync_next()

    def _fail_commit(self, group: list[_Waiting]) -> None:
        """No space: nothing of the group happened, nor of what builds on it; the machines are made anew."""
        failed, self._queue = group + self._queue, []
        self._ledgers = {}
        for waiting in failed:
            if waiting.reply is not None:
                waiting.reply(Response(waiting.accepted.request.request_id, Status.READ_ONLY))

    def _make_durable(self, group: list[_Waiting]) -> None:
        if self.history is not None:
            touched = {waiting.ledger.ledger_id: self.disk.get(waiting.ledger.ledger_id) for waiting in group}
            self.history.append({each: disk and disk.copy() for each, disk in touched.items()})
        for waiting in group:
            status = self._commit(waiting)
            request = waiting.accepted.request
            if status is Status.CONFLICT:
                waiting.response = Response(request.request_id, Status.CONFLICT, detail="other bytes (T3)")
            elif isinstance(request, RecoveryReadRequest) and waiting.accepted.refusal is None:
                looked_up = self._looked_up(waiting.ledger, request, self.number)
                found = None if looked_up.status is Status.UNKNOWN else looked_up.batches
                denial = self.doubt.denial(request.ledger_id)
                waiting.response = waiting.ledger.answer(waiting.accepted, found, denial)
            elif isinstance(request, FenceRequest) and waiting.accepted.refusal is None:
                read = self._proving(waiting.ledger, self.number) if waiting.ledger.lacks_proof else ()
                waiting.response = waiting.ledger.answer(waiting.accepted, read)
                self._boast(waiting.response, request.ledger_id, self.number)
            else:
                waiting.response = waiting.ledger.answer(waiting.accepted)
            self._checks.answered(self.name, self.disk.get(request.ledger_id), request, waiting.response)

    def _commit(self, waiting: _Waiting) -> Status | None:
        status = None
        ledger_id = waiting.ledger.ledger_id
        for mutation in waiting.accepted.mutations:
            disk = self.disk.setdefault(ledger_id, LedgerOnDisk())
            if isinstance(mutation, PutBatch):
                request = waiting.accepted.request
                assert isinstance(request, AddRequest)
                if waiting.accepted.may_be_stored:
                    status = settle_add(mutation.batch, disk.overlapping(mutation.batch))
                if status is None:
                    disk.put(mutation.batch)
                    self._checks.stored(self.name, disk, request)
            elif isinstance(mutation, SetMarks):
                disk.raise_marks(mutation)
            else:
                self.disk[ledger_id] = self.tombstone()
                self._ledgers.pop(ledger_id, None)
                self._checks.dropped(self.name, ledger_id)
        return status

    def tombstone(self) -> LedgerOnDisk:
        """The remains of a deleted ledger: its fence."""
        disk = LedgerOnDisk()
        disk.fence_term, disk.deleted = DELETED_TERM, True
        return disk

    # -- crashing --------------------------------------------------------------------------------------------------

    def crash(self, duration: int) -> None:
        """Power loss. The group being synced is either durable (and unanswered) or lost; what waits is lost."""
        if not self.alive:
            return
        bits, _ = self.world.draw(self.number, self.number, "tear", 0)
        kept = (bits >> 8) % (len(self._syncing) + 1) if bits & 1 else 0
        lost = [*self._syncing[kept:], *self._queue]
        if kept:
            self._make_durable(self._syncing[:kept])
            self.world.count("crash after a sync, before its answers")
        if any(waiting.accepted.mutations for waiting in lost):
            self.world.count("crash that lost unsynced writes")
        self._queue, self._syncing = [], []
        self.epoch += 1
        self.seen_terms = {}
        self._ledgers = {}
        self.alive = False
        self.world.at(duration, self.restart)

    def forget(self, groups: int, trace: str) -> None:
        """Its disk loses the last groups, while the bookie is down. `trace` is what the bookie finds when it restarts: "loss",
        "doubt", or "nothing", which only a cluster survives whose other bookies can all be reached."""
        assert self.history is not None
        assert not self.alive
        held = {ledger_id: set(disk.held) for ledger_id, disk in self.disk.items()}
        for changed in reversed(self.history[-groups:]):
            for ledger_id, disk in changed.items():
                if disk is None:
                    self.disk.pop(ledger_id, None)
                else:
                    self.disk[ledger_id] = disk
        del self.history[-groups:]
        for ledger_id, before in held.items():
            now = self.disk.get(ledger_id)
            gone = before - set(now.held if now is not None else ())
            self._checks.forgot(self.name, ledger_id, gone, is_noticed=trace != "nothing")
        if trace != "nothing":
            below = self._checks.ledger_ids_end
            self.doubt = self.doubt.raised(("simulated",), is_lost=trace == "loss").bounded(below)

    # -- healing ---------------------------------------------------------------------------------------------------

    def fence(self, ledger_id: int, term: int, reply: Reply) -> None:
        """Fences a ledger on its own account, as the ledger's record says (B8)."""
        ledger = self.machine(ledger_id)
        self._queue.append(_Waiting(ledger, ledger.fence(term), reply))
        self._sync_next()

    def settle_doubt(self, left: Doubt) -> None:
        """It vouches again for some ledgers."""
        self.doubt = left
        for ledger in self._ledgers.values():
            ledger.is_in_doubt = not left.takes_adds(ledger.ledger_id)

    def leave_for_good(self) -> None:
        """Its machine burns."""
        self.crash(0)
        self.is_gone = True
        self.world.count("bookie gone for good")

    def restart(self) -> None:
        """Comes back with what is durable."""
        if self.is_gone:
            return
        self.alive = True
        self._checks.restarted(self.name)
