"""The oracle: what must be true after every step, looked up on the bookies' disks and in the metastore's history.

It never asks the code under test, but for what clients were told (confirmed, delivered, finished). Names in brackets
are those of the rules in the protocol and of the invariants: I1 nothing confirmed lies past a closed ledger's end, I2
nothing confirmed is lost or changed, I3 a closed ledger is at its ack quorums, I4 order, I5 valid fragments, O1 two
readers never differ, O3 readers go on without a gap, O5 one confirmation for each entry, O8 metadata history, O9 an
identity has one payload, O10 a negative recovery answer is for ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from replog.protocol.batch import Batch
from replog.protocol.gaps import merged
from replog.protocol.messages import AddRequest, FenceRequest, RecoveryReadRequest, Response, Status
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState, LogMetadata, LogPage, PendingLedger, Segment
from tests.simulator.forgetting import Forgotten
from tests.simulator.quorums import Sendings, check_ack_quorum
from tests.simulator.world import World

if TYPE_CHECKING:
    from replog.protocol.bookie import OrderedRequest
    from tests.simulator.bookies import LedgerOnDisk, SimulatedBookie


class Violation(Exception):
    """An invariant is broken: `rule` says which."""

    def __init__(self, rule: str, problem: str) -> None:
        super().__init__(f"{rule}: {problem}")
        self.rule = rule


class LedgerTruth:
    """What really happened to one ledger."""

    __slots__ = (
        "barriers",
        "bytes_of",
        "confirmed",
        "confirmed_by",
        "deleted",
        "ledger_id",
        "owner",
        "read_through",
        "record",
        "submitted",
        "superseded_from",
    )

    def __init__(self, record: LedgerMetadata) -> None:
        self.ledger_id = record.ledger_id
        self.record = record
        self.owner = ""
        self.submitted: list[bytes] = []
        self.confirmed = -1
        self.read_through = -1
        self.deleted = False
        self.superseded_from: int | None = None
        self.bytes_of: dict[tuple[int, int], bytes] = {}  # by stamp and first entry id
        self.barriers: list[tuple[int, int]] = []  # by entry id: the highest position confirmed when it was submitted

    @property
    def last_entry_id(self) -> int | None:
        """Where the ledger ends, if that is decided."""
        return self.record.last_entry_id if self.record.state is LedgerState.CLOSED else None


class Oracle:
    """Watches a world's ledgers, and the log if there is one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ledgers: dict[int, LedgerTruth] = {}
        self.bookies: Mapping[str, SimulatedBookie] = {}
        self.log: LogMetadata | None = None
        self.pages: dict[int, LogPage] = {}  # of the log
        self.list: tuple[Segment, ...] = ()  # all that the log has, in pages and in its head
        self.segments: dict[int, int] = {}  # of all times: segment number by ledger id
        self.highest_position = (-1, -1)
        self.served = (-1, "")  # the highest segment that a takeover served, and its leader
        self.on_deleted: Callable[[int], None] | None = None
        self._fences: dict[tuple[str, int], int] = {}  # what bookies said is durable
        self._denied: dict[tuple[str, int], dict[int, int]] = {}
        self.forgotten = Forgotten(world)
        self.sendings = Sendings()
        self._progress: dict[str, tuple[int, int]] = {}  # by reader: the last position handed out

    def fail(self, rule: str, problem: str) -> None:
        """Ends the run, unless the plan overlooks this rule."""
        if rule not in self.world.plan.overlook:
            raise Violation(rule, problem)

    # -- what bookies do ---------------------------------------------------------------------------------------------

    def stored(self, bookie: SimulatedBookie, disk: LedgerOnDisk, request: AddRequest) -> None:
        """A batch became durable."""
        batch = request.batch
        truth = self.ledgers[batch.ledger_id]
        known = truth.bytes_of.get((batch.stamp, batch.first_entry_id))
        if known is None:
            self._learn(truth, batch)
        elif known is not batch.data and known != batch.data:
            self.fail("O9", f"{bookie.name} stored other bytes for {batch!r} than were stored before (T3, W4)")
        denied = self._denied.get((bookie.name, batch.ledger_id))
        if denied:
            for entry_id in batch.entry_ids:
                if request.term < denied.get(entry_id, 0):
                    self.fail(
                        "O10", f"{bookie.name} denied entry {entry_id} to term {denied[entry_id]}, then stored it"
                    )
        if disk.deleted:
            self.fail("L5", f"{bookie.name} stored {batch!r} of a ledger that was deleted there")

    def _learn(self, truth: LedgerTruth, batch: Batch) -> None:
        for entry_id, payload in zip(batch.entry_ids, batch.payloads(), strict=True):
            if entry_id >= len(truth.submitted) or truth.submitted[entry_id] != payload:
                self.fail(
                    "I4", f"entry {truth.ledger_id}/{entry_id} is stored as {payload!r}, and was not submitted so"
                )
            if entry_id <= truth.confirmed and batch.last_add_confirmed >= entry_id:
                self.fail("W3", f"{batch!r} says that it is confirmed itself")
        truth.bytes_of[batch.stamp, batch.first_entry_id] = batch.data

    def answered(self, bookie: SimulatedBookie, request: OrderedRequest, response: Response) -> None:
        """A bookie answers, having made durable what the answer depends on (R3, B1)."""
        disk = bookie.disk.get(request.ledger_id)
        if isinstance(request, AddRequest):
            if response.status is Status.OK:
                batch = request.batch
                if disk is None or disk.held.get((batch.stamp, batch.first_entry_id)) != batch:
                    self.fail("B1", f"{bookie.name} acknowledged {batch!r}, which is not durable there")
            elif response.status is Status.CONFLICT:
                self.fail("O9", f"{bookie.name} met other bytes for {request.batch!r} than it has (W4)")
            return
        if response.status in (Status.FENCED, Status.UNAUTHORIZED):
            return
        if not isinstance(request, FenceRequest | RecoveryReadRequest):
            return
        if disk is None or disk.fence_term < request.term:
            self.fail("R3", f"{bookie.name} answered a fencing request before the fence was durable")
        self._fences[bookie.name, request.ledger_id] = 0 if disk is None else disk.fence_term
        if isinstance(request, RecoveryReadRequest) and response.status is Status.NO_ENTRY:
            self._denied.setdefault((bookie.name, request.ledger_id), {})[request.entry_id] = request.term
            if disk is not None and (request.stamp, request.entry_id) in disk.held:
                self.fail("R4", f"{bookie.name} denied entry {request.entry_id}, which is on its disk")

    def dropped(self, bookie: SimulatedBookie, ledger_id: int) -> None:
        """A bookie's garbage collection removed a ledger."""
        if not self.ledgers[ledger_id].deleted:
            self.fail("B6", f"{bookie.name} dropped ledger {ledger_id}, which exists")
        self.fence_kept(bookie, ledger_id)

    @property
    def ledger_ids_end(self) -> int:
        """An id above those of all ledgers that were ever made."""
        return 1 + max(self.ledgers, default=0)

    def forgot(self, bookie: SimulatedBookie, ledger_id: int, identities: set[tuple[int, int]]) -> None:
        """A bookie's disk lost these, and maybe fences."""
        self.forgotten.add(bookie.name, self.ledgers[ledger_id], identities)
        disk = bookie.disk.get(ledger_id)
        now = 0 if disk is None else disk.fence_term
        if now < self._fences.get((bookie.name, ledger_id), 0):
            self._fences[bookie.name, ledger_id] = now
            self.world.count("bookie forgot a fence")

    def restarted(self, bookie: SimulatedBookie) -> None:
        """A bookie came back after a crash: what it said to be durable must be there."""
        for name, ledger_id in self._fences:
            if name == bookie.name:
                self.fence_kept(bookie, ledger_id)
        for truth in self.ledgers.values():
            if any(bookie.name in fragment.ensemble for fragment in truth.record.fragments):
                self.check_confirmed(truth, 0)

    def fence_kept(self, bookie: SimulatedBookie, ledger_id: int) -> None:
        """Fences only rise, durably."""
        disk = bookie.disk.get(ledger_id)
        durable = 0 if disk is None else disk.fence_term
        if durable < self._fences.get((bookie.name, ledger_id), 0):
            self.fail("R3", f"the fence of ledger {ledger_id} on {bookie.name} fell to {durable}")

    def reaches_past_end(self, ledger_id: int) -> bool:
        """Whether a batch that holds an entry of the closed ledger holds ids behind its end, too (R7)."""
        truth = self.ledgers[ledger_id]
        last = truth.last_entry_id
        assert last is not None
        names = {name for fragment in truth.record.fragments[-1:] for name in fragment.ensemble}
        disks = [self.bookies[name].disk.get(ledger_id) for name in sorted(names)]
        held = [batch for disk in disks if disk is not None for batch in disk.held.values()]
        return any(batch.first_entry_id <= last < batch.last_entry_id for batch in held)

    # -- what the metastore does -----------------------------------------------------------------------------------

    def record_changed(self, key: int | str, old: object, new: object) -> None:
        """A record got a new version."""
        if isinstance(new, LogMetadata):
            assert old is None or isinstance(old, LogMetadata)
            self._log_changed(old, new)
            return
        if isinstance(new, LogPage):
            self._page_written(new)
            return
        if isinstance(new, PendingLedger):
            return
        assert isinstance(new, LedgerMetadata)
        truth = self.ledgers.get(new.ledger_id)
        self._check_fragments(new)
        if truth is None:
            self.ledgers[new.ledger_id] = LedgerTruth(new)
            return
        if truth.deleted:
            self.world.count("deleted ledger created again by a late request")
            return
        self._check_history(truth.record, new)
        self._note_change(truth.record, new)
        truth.record = new
        if new.state is LedgerState.CLOSED:
            self._closed(truth)
        else:
            self.check_confirmed(truth, new.last_fragment.first_entry_id)

    def _check_fragments(self, record: LedgerMetadata) -> None:
        firsts = [fragment.first_entry_id for fragment in record.fragments]
        if firsts[0] != 0 or any(after <= before for before, after in itertools.pairwise(firsts)):
            self.fail("I5", f"ledger {record.ledger_id}: fragments start at {firsts}")
        ends = [gap.last_entry_id for gap in record.gaps]
        if merged(record.gaps, record.fragments) != record.gaps or (record.last_entry_id is not None and None in ends):
            self.fail("W7", f"ledger {record.ledger_id}: {record.gaps} in {record.fragments}")
        for fragment in record.fragments:
            if (
                len(set(fragment.ensemble)) != record.quorum.ensemble
                or len(fragment.ensemble) != record.quorum.ensemble
            ):
                self.fail("I5", f"ledger {record.ledger_id}: {fragment} is no ensemble of {record.quorum.ensemble}")

    def _check_history(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        order = (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED)
        if old.state is LedgerState.CLOSED or order.index(new.state) < order.index(old.state) or new.term < old.term:
            self.fail(
                "O8", f"ledger {old.ledger_id} went from {old.state} to {new.state}, term {old.term} to {new.term}"
            )
        settled: Sequence[Fragment] = old.fragments[:-1]
        if tuple(settled) != new.fragments[: len(settled)]:
            self.fail("O8", f"ledger {old.ledger_id}: {settled}, with successors, became {new.fragments}")
        both_in_recovery = old.state is new.state is LedgerState.IN_RECOVERY
        if both_in_recovery and old.fragments != new.fragments:
            self.fail("R6", f"ledger {old.ledger_id}: recovery published {new.fragments} before it closed")

    def _note_change(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        if old.state is LedgerState.OPEN and new.state is LedgerState.OPEN:
            appended = len(new.fragments) > len(old.fragments)
            self.world.count("fragment appended" if appended else "fragment replaced in place")
        if old.state is LedgerState.IN_RECOVERY and new.state is LedgerState.CLOSED:
            changed = [fragment for fragment in new.fragments if fragment not in old.fragments]
            if changed:
                self.world.count("recovery closed with a private ensemble")

    def _closed(self, truth: LedgerTruth) -> None:
        last = truth.record.last_entry_id
        assert last is not None
        if truth.confirmed > last:
            self.fail("I1", f"ledger {truth.ledger_id} closed at {last}; entry {truth.confirmed} was confirmed")
        if truth.read_through > last:
            self.fail("O2", f"ledger {truth.ledger_id} closed at {last}; entry {truth.read_through} was read")
        if last >= len(truth.submitted):
            self.fail("I4", f"ledger {truth.ledger_id} closed at {last}; only {len(truth.submitted)} were submitted")
        for entry_id in range(last + 1):
            check_ack_quorum(self, truth, entry_id, "I3")
        if last > truth.confirmed:
            self.world.count("unconfirmed entries kept by recovery")
        if last + 1 < len(truth.submitted):
            self.world.count("unconfirmed entries dropped by recovery")
        self.world.count("ledger closed empty" if last < 0 else "ledger closed with entries")
        if truth.record.gaps:
            self.world.count("ledger closed with gaps")

    def check_confirmed(self, truth: LedgerTruth, first: int) -> None:
        """Every confirmed entry from `first` on is at its ack quorum (I2)."""
        if not truth.deleted:
            for entry_id in range(first, truth.confirmed + 1):
                check_ack_quorum(self, truth, entry_id, "I2")

    def ledger_deleted(self, ledger_id: int) -> None:
        """A ledger's record was deleted: no log may name it (L3)."""
        truth = self.ledgers[ledger_id]
        truth.deleted = True
        if any(segment.ledger_id == ledger_id for segment in self.list):
            self.fail("L3", f"ledger {ledger_id} was deleted, and the log still names it")
        if ledger_id not in self.segments and truth.confirmed >= 0:
            self.fail("I2", f"ledger {ledger_id} has confirmed entries, and was deleted without having been in the log")
        if self.on_deleted is not None:
            self.on_deleted(ledger_id)

    # -- what writers are told ---------------------------------------------------------------------------------------

    def added(self, ledger_id: int, first_entry_id: int, payloads: Sequence[bytes]) -> None:
        """A writer submits entries."""
        truth = self.ledgers[ledger_id]
        if first_entry_id != len(truth.submitted):
            self.fail("W1", f"ledger {ledger_id}: id {first_entry_id} given to submission {len(truth.submitted)}")
        truth.submitted += payloads
        truth.barriers += [self.highest_position] * len(payloads)
        if truth.superseded_from is None and self._is_superseded(truth):
            truth.superseded_from = first_entry_id

    def _is_superseded(self, truth: LedgerTruth) -> bool:
        number, owner = self.served
        return owner != truth.owner and number > self.segments.get(truth.ledger_id, number)

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        """A writer reports entries as confirmed."""
        truth = self.ledgers[ledger_id]
        if last_add_confirmed <= truth.confirmed or last_add_confirmed >= len(truth.submitted):
            self.fail("O5", f"ledger {ledger_id}: confirmed {last_add_confirmed} after {truth.confirmed}")
        last = truth.last_entry_id
        if last is not None and last_add_confirmed > last:
            self.fail("I1", f"entry {ledger_id}/{last_add_confirmed} was confirmed; the ledger is closed at {last}")
        first, truth.confirmed = truth.confirmed + 1, last_add_confirmed
        self.check_confirmed(truth, first)
        if truth.superseded_from is not None and last_add_confirmed >= truth.superseded_from:
            self.fail("L5", f"entry {ledger_id}/{last_add_confirmed}, submitted after a takeover served, was confirmed")
        if self.world.plan.scenario == "log":
            self._confirmed_in_log(truth, first, last_add_confirmed)

    def _confirmed_in_log(self, truth: LedgerTruth, first: int, last: int) -> None:
        number = self.segments.get(truth.ledger_id)
        if number is None:
            self.fail("L1", f"entry {truth.ledger_id}/{last} was confirmed, and the log does not name its ledger")
            return
        for entry_id in range(first, last + 1):
            if (number, entry_id) <= truth.barriers[entry_id]:
                barrier = truth.barriers[entry_id]
                self.fail("O7", f"record {number}:{entry_id} was submitted after {barrier} was confirmed")
        self.highest_position = max(self.highest_position, (number, last))

    def writer_fenced(self, ledger_id: int, unconfirmed: range) -> None:
        """A writer learns that it is deposed, and of which entries the fate is unknown (W4)."""
        truth = self.ledgers[ledger_id]
        if unconfirmed != range(truth.confirmed + 1, len(truth.submitted)):
            said = f"{truth.confirmed} of {len(truth.submitted)} were confirmed, and it says {unconfirmed} were not"
            self.fail("W4", f"ledger {ledger_id}: {said}")

    def writer_closed(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """A writer closed its ledger: at what it confirmed, and that is what the metadata says (R1)."""
        truth = self.ledgers[ledger_id]
        if metadata.last_entry_id != truth.confirmed or (metadata != truth.record and not truth.deleted):
            self.fail("R1", f"closed at {truth.confirmed} as {metadata}, the truth is {truth.record}")

    # -- what readers are told -----------------------------------------------------------------------------------------

    def delivered(self, reader: str, ledger_id: int, first: int, last: int, batches: Sequence[Batch]) -> None:
        """A reader handed out entries."""
        truth = self.ledgers[ledger_id]
        end = truth.last_entry_id
        bound = truth.confirmed if end is None else end
        if last > bound:
            what = "confirmed through" if end is None else "closed at"
            self.fail("R7", f"{reader} read entry {ledger_id}/{last}, which is only {what} {bound}")
        truth.read_through = max(truth.read_through, last)
        for entry_id in range(first, last + 1):
            self._check_read(reader, truth, entry_id, batches)
        self._check_progress(reader, truth, first, last)

    def _check_read(self, reader: str, truth: LedgerTruth, entry_id: int, batches: Sequence[Batch]) -> None:
        holders = [batch for batch in batches if batch.holds(entry_id)]
        if not holders:
            self.fail("O3", f"{reader} was given {batches} for entry {truth.ledger_id}/{entry_id}: none holds it")
        for batch in holders:
            payload = batch.payloads()[(entry_id - batch.first_entry_id) // batch.stride]
            if payload != truth.submitted[entry_id]:
                self.fail("O1", f"{reader} read {payload!r} as {entry_id}, which is {truth.submitted[entry_id]!r}")

    def reader_starts(self, reader: str, ledger_id: int, first: int) -> None:
        """A reader begins at this entry: what comes next is no gap."""
        self._progress[reader] = (ledger_id, first - 1)

    def _check_progress(self, reader: str, truth: LedgerTruth, first: int, last: int) -> None:
        ledger_id, before = self._progress[reader]
        if ledger_id != truth.ledger_id or first != before + 1:
            self.fail("O3", f"{reader} read {truth.ledger_id}/{first} after {ledger_id}/{before}")
        self._progress[reader] = truth.ledger_id, last

    # -- the log -----------------------------------------------------------------------------------------------------

    def _log_changed(self, old: LogMetadata | None, new: LogMetadata) -> None:
        if new.faults():
            self.fail("L3", f"the log's record: {'; '.join(new.faults())}")
        before, self.log = self.list, new
        self.list = after = tuple(
            filter(None, map(self._named, range(new.first_segment_number, new.next_segment_number)))
        )
        if len(after) != new.segment_count:
            listed = [segment.number for segment in after]
            self.fail(
                "L3", f"the log has {new.first_segment_number} to {new.next_segment_number - 1}, only {listed} stand"
            )
        if old is not None:
            kept = [segment for segment in before if segment in after]
            added = [segment for segment in after if segment not in before]
            if [*kept, *added] != list(after) or kept != list(before[len(before) - len(kept) :]):
                self.fail("L3", f"the log's list went from {before} to {after}")
            if any(segment.number < old.next_segment_number for segment in added) or len(added) > 1:
                self.fail("L3", f"segments {added} were added, the next number was {old.next_segment_number}")
            if old.is_deleted and added:
                self.world.count("log begun anew")
        for segment in after:
            self.segments.setdefault(segment.ledger_id, segment.number)
        for segment in after[:-2]:
            state = self.ledgers[segment.ledger_id].record.state
            if state is not LedgerState.CLOSED:
                self.fail("I11", f"segment {segment.number} is {state.value}, and is not one of the last two")

    def _named(self, number: int) -> Segment | None:
        """What a reader finds under this number: in the head, else in the page."""
        assert self.log is not None
        listed = self.log.listed(number)
        if listed is not None:
            return listed
        page = self.pages.get(self.log.page_of(number))
        return next((each for each in page.segments if each.number == number), None) if page is not None else None

    def _page_written(self, page: LogPage) -> None:
        if page.number in self.pages:
            self.fail("L3", f"page {page.number} was written twice")
        if any(self.segments.get(segment.ledger_id) != segment.number for segment in page.segments):
            self.fail("L3", f"page {page.number} names {page.segments}, and the log never did")
        self.pages[page.number] = page

    def page_deleted(self, page: LogPage) -> None:
        """A page was deleted: the log needs none of it (L3)."""
        del self.pages[page.number]
        assert self.log is not None
        if any(self._named(segment.number) is None for segment in self.list):
            self.fail("L3", f"page {page.number} was deleted, and the log needs it")

    def page_lacks(self, expected: int, version: int) -> None:
        """A page exists without some of what somebody wanted to write there: then the log was trimmed meanwhile."""
        if expected == version:
            self.fail("L3", "a page does not hold what the log's record says")

    def took_over(self, ledger_id: int, owner: str) -> None:
        """A takeover serves: it will append to this ledger. All before it is closed (L1)."""
        number = self.segments.get(ledger_id)
        if number is None:
            self.fail("L1", f"{owner} serves ledger {ledger_id}, which the log does not name")
            return
        for other, its_number in self.segments.items():
            truth = self.ledgers[other]
            if its_number < number and truth.record.state is not LedgerState.CLOSED and not truth.deleted:
                self.fail("L1", f"{owner} serves segment {number}, and segment {its_number} is not closed")
        self.served = max(self.served, (number, owner))

    def follower_crosses(self, reader: str, before: int, after: int) -> None:
        """A follower goes on in another segment: it read all before it that is not trimmed (L6, O3)."""
        assert self.log is not None
        if any(before < segment.number < after for segment in self.list):
            self.fail("L6", f"{reader} went from segment {before} to {after}, and there is another between")
        if any(segment.number == before for segment in self.list):
            ledger_id, read = self._progress[reader]
            if read != self.ledgers[ledger_id].last_entry_id:
                self.fail("L6", f"{reader} left segment {before} at entry {read}")

    def progress_of(self, reader: str) -> tuple[int, int]:
        """The position that a follower of the log read last."""
        ledger_id, read = self._progress.get(reader, (0, -1))
        return self.segments.get(ledger_id, -1), read

    def check_leaks(self, ledger_ids: Sequence[int]) -> None:
        """At the end: the log names every ledger that exists (L7)."""
        named = {segment.ledger_id for segment in self.list}
        left = [ledger_id for ledger_id in ledger_ids if ledger_id not in named]
        if left:
            self.fail("L7", f"ledgers {left} exist, and nothing names them: nobody will ever delete them")
        if self.log is not None and self.log.dropped:
            self.fail("L7", f"the log says that ledgers of {self.log.dropped} may exist")

    def check_log(self) -> None:
        """At the end: every leader's records stand in the log without a hole or a repeat, in their order (O4)."""
        for truth in self.ledgers.values():
            if truth.confirmed >= 0 and truth.ledger_id not in self.segments:
                self.fail("I2", f"{truth.owner} confirmed records in ledger {truth.ledger_id}, which is not in the log")
        seen: dict[str, int] = {}
        for ledger_id, number in sorted(self.segments.items(), key=lambda item: item[1]):
            truth = self.ledgers[ledger_id]
            last = truth.last_entry_id
            if last is None and truth.deleted:  # trimmed before it was closed, when all of it was confirmed
                last = truth.confirmed
            if last is None:
                raise Violation("liveness", f"segment {number} was never closed")
            for entry_id in range(last + 1):
                owner, _, sequence = truth.submitted[entry_id].decode().partition(":")
                expected = seen.get(owner, 0)
                if int(sequence) != expected:
                    self.fail("O4", f"record {number}:{entry_id} is {owner}'s {sequence}; its {expected} is missing")
                seen[owner] = expected + 1
