"""What must be true of the records in the metastore after each of their changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

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
        truth.record = new
        if new.state is LedgerState.CLOSED:
            self._closed(truth)
        else:
            check_confirmed(self._facts, truth, new.last_fragment.first_entry_id)

    def _check_fragments(self, record: LedgerMetadata) -> None:
        firsts = [fragment.first_entry_id for fragment in record.fragments]
        if firsts[0] != 0 or any(after <= before for before, after in itertools.pairwise(firsts)):
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
        if old.state is LedgerState.CLOSED or order.index(new.state) < order.index(old.state) or new.term < old.term:
            self._facts.fail(
                "O8", f"ledger {old.ledger_id} went from {old.state} to {new.state}, term {old.term} to {new.term}"
            )
        settled: Sequence[Fragment] = old.fragments[:-1]
        if tuple(settled) != new.fragments[: len(settled)]:
            self._facts.fail("O8", f"ledger {old.ledger_id}: {settled}, with successors, became {new.fragments}")
        both_in_recovery = old.state is new.state is LedgerState.IN_RECOVERY
        if both_in_recovery and old.fragments != new.fragments:
            self._facts.fail("R6", f"ledger {old.ledger_id}: recovery published {new.fragments} before it closed")

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
        for entry_id in range(last + 1):
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
