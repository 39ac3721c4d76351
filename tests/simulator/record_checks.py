"""Invariants of the records in the metastore after each of their changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import attrs

from replog.protocol.gaps import merged
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState, LogMetadata, LogPage, PendingLedger
from tests.simulator.facts import Facts, LedgerTruth
from tests.simulator.log_checks import LogChecks
from tests.simulator.quorums import check_ack_quorum, check_confirmed


class RecordChecks:
    """Checks each change of a ledger's record, and passes those of the log on."""

    def __init__(self, facts: Facts, log: LogChecks) -> None:
        self.on_deleted: Callable[[int], None] | None = None
        self._facts = facts
        self._log = log

    def record_changed(self, key: int | str, old: object, new: object) -> None:
        """A record got a new version."""
        if isinstance(new, LogMetadata):
            assert old is None or isinstance(old, LogMetadata)
            self._log.changed(old, new)
            return
        if isinstance(new, LogPage):
            self._log.page_written(new)
            return
        if isinstance(new, PendingLedger):
            return
        assert isinstance(new, LedgerMetadata)
        truth = self._facts.ledgers.get(new.ledger_id)
        self._check_fragments(new)
        if truth is None:
            self._facts.ledgers[new.ledger_id] = LedgerTruth(new)
            return
        if truth.deleted:
            self._facts.world.count("deleted ledger created again by a late request")
            return
        self._check_history(truth.record, new)
        self._note_change(truth.record, new)
        old, truth.record = truth.record, new
        if new.open_term != old.open_term:
            self._opened(truth, old)
        if new.state is LedgerState.CLOSED:
            self._closed(truth)
        else:
            check_confirmed(self._facts, truth, new.last_fragment.first_entry_id)

    def _check_fragments(self, record: LedgerMetadata) -> None:
        firsts = [fragment.first_entry_id for fragment in record.fragments]
        if firsts[0] != record.trim_to or any(after <= before for before, after in itertools.pairwise(firsts)):
            self._facts.fail("I5", f"ledger {record.ledger_id}: fragments start at {firsts}")
        ends = [gap.last_entry_id for gap in record.gaps]
        if merged(record.gaps, record.fragments) != record.gaps or (record.last_entry_id is not None and None in ends):
            self._facts.fail("W7", f"ledger {record.ledger_id}: {record.gaps} in {record.fragments}")
        for fragment in record.fragments:
            if (
                len(set(fragment.ensemble)) != record.quorum.ensemble
                or len(fragment.ensemble) != record.quorum.ensemble
            ):
                self._facts.fail(
                    "I5", f"ledger {record.ledger_id}: {fragment} is no ensemble of {record.quorum.ensemble}"
                )

    def _check_history(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        order = (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED)
        falls = order.index(new.state) < order.index(old.state) and not self._is_opening(old, new)
        is_trimming = old.state is LedgerState.CLOSED and attrs.evolve(new, token=old.token) == old.trimmed(new.trim_to)
        if (old.state is LedgerState.CLOSED and not is_trimming) or falls or new.term < old.term:
            self._facts.fail(
                "O8", f"ledger {old.ledger_id} went from {old.state} to {new.state}, term {old.term} to {new.term}"
            )
        if new.trim_to < old.trim_to or new.open_term < old.open_term:
            self._facts.fail("O8", f"ledger {old.ledger_id}: {new.trim_to=} after {old.trim_to}, {new.open_term=}")
        if new.term != old.term and new.is_unbounded and (new.state, new.open_term) != (order[1], old.open_term):
            self._facts.fail("O8", f"ledger {old.ledger_id}: term {new.term} was claimed as {new.state}")
        settled: Sequence[Fragment] = [each for each in old.fragments[:-1] if each.first_entry_id >= new.trim_to]
        if tuple(settled) != new.fragments[: len(settled)]:
            self._facts.fail("O8", f"ledger {old.ledger_id}: {settled}, with successors, became {new.fragments}")
        both_in_recovery = old.state is new.state is LedgerState.IN_RECOVERY
        if both_in_recovery and old.trimmed(new.trim_to).fragments != new.fragments:
            self._facts.fail("R6", f"ledger {old.ledger_id}: recovery published {new.fragments} before it closed")

    def _is_opening(self, old: LedgerMetadata, new: LedgerMetadata) -> bool:
        """A takeover opens its term (T2): the one that it has claimed, and nobody else since."""
        return (
            old.is_unbounded
            and (old.state, new.state) == (LedgerState.IN_RECOVERY, LedgerState.OPEN)
            and new.is_owned_by(old)
            and new.term == new.open_term == new.last_fragment.term > old.open_term
        )

    def _opened(self, truth: LedgerTruth, old: LedgerMetadata) -> None:
        """A takeover has ended: it fixes what was confirmed before, and everybody must find it (I1, I3, O2)."""
        new = truth.record
        last, former = new.last_fragment.first_entry_id - 1, truth.lists[old.open_term]
        where = f"ledger {truth.ledger_id} was opened in term {new.term} behind entry {last}"
        if not self._is_opening(old, new):
            self._facts.fail("O8", f"{where}: it went from {old} to {new}")
        if truth.confirmed > last:
            self._facts.fail("I1", f"{where}; entry {truth.confirmed} was confirmed")
        if truth.read_through > last:
            self._facts.fail("O2", f"{where}; entry {truth.read_through} was read")
        if last >= len(former):
            self._facts.fail("I4", f"{where}; only {len(former)} were submitted")
        for entry_id in range(max(new.trim_to, old.last_fragment.first_entry_id), last + 1):
            check_ack_quorum(self._facts, truth, entry_id, "I3")
        if last + 1 < len(former):
            self._facts.world.count("unconfirmed entries dropped by a takeover")
        if last > truth.confirmed:
            self._facts.world.count("unconfirmed entries kept by a takeover")
        self._facts.world.count(f"opened in term {min(new.term, 8)}")
        truth.lists[new.term] = former[: last + 1]
        del truth.barriers[last + 1 :]
        truth.confirmed = last

    def _note_change(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        if old.state is LedgerState.OPEN and new.state is LedgerState.OPEN:
            appended = len(new.fragments) > len(old.fragments)
            self._facts.world.count("fragment appended" if appended else "fragment replaced in place")
        if old.state is LedgerState.IN_RECOVERY and new.state is LedgerState.CLOSED:
            changed = [fragment for fragment in new.fragments if fragment not in old.fragments]
            if changed:
                self._facts.world.count("recovery closed with a private ensemble")

    def _closed(self, truth: LedgerTruth) -> None:
        last = truth.record.last_entry_id
        assert last is not None
        if truth.confirmed > last:
            self._facts.fail("I1", f"ledger {truth.ledger_id} closed at {last}; entry {truth.confirmed} was confirmed")
        if truth.read_through > last:
            self._facts.fail("O2", f"ledger {truth.ledger_id} closed at {last}; entry {truth.read_through} was read")
        if last >= len(truth.submitted):
            self._facts.fail(
                "I4", f"ledger {truth.ledger_id} closed at {last}; only {len(truth.submitted)} were submitted"
            )
        for entry_id in range(truth.record.trim_to, last + 1):
            check_ack_quorum(self._facts, truth, entry_id, "I3")
        if last > truth.confirmed:
            self._facts.world.count("unconfirmed entries kept by recovery")
        if last + 1 < len(truth.submitted):
            self._facts.world.count("unconfirmed entries dropped by recovery")
        self._facts.world.count("ledger closed empty" if last < 0 else "ledger closed with entries")
        if truth.record.gaps:
            self._facts.world.count("ledger closed with gaps")

    def ledger_deleted(self, ledger_id: int) -> None:
        """A ledger's record was deleted: no log may name it (L3)."""
        truth = self._facts.ledgers[ledger_id]
        truth.deleted = True
        if any(segment.ledger_id == ledger_id for segment in self._facts.list):
            self._facts.fail("L3", f"ledger {ledger_id} was deleted, and the log still names it")
        if ledger_id not in self._facts.segments and truth.confirmed >= 0:
            self._facts.fail(
                "I2", f"ledger {ledger_id} has confirmed entries, and was deleted without having been in the log"
            )
        if self.on_deleted is not None:
            self.on_deleted(ledger_id)
