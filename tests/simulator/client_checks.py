"""Invariants of the answers to writers and readers."""

from __future__ import annotations

from collections.abc import Sequence

from replog.protocol.batch import Batch
from replog.protocol.model import LedgerMetadata
from tests.simulator.facts import Facts, LedgerTruth
from tests.simulator.plan import LOG_SCENARIOS
from tests.simulator.quorums import check_confirmed


class ClientChecks:
    """Checks what was confirmed to writers, and what was handed to readers."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def added(self, ledger_id: int, first_entry_id: int, payloads: Sequence[bytes], stamp: int = 1) -> None:
        """The writer of this term submits entries. If it is deposed, it may not know that yet."""
        truth = self._facts.ledgers[ledger_id]
        submitted = truth.lists[stamp]
        if first_entry_id != len(submitted):
            self._facts.fail("W1", f"ledger {ledger_id}: id {first_entry_id} given to submission {len(submitted)}")
        submitted += payloads
        if stamp == truth.record.open_term:
            truth.barriers += [self._facts.highest_position] * len(payloads)
        if truth.superseded_from is None and self._is_superseded(truth):
            truth.superseded_from = first_entry_id

    def _is_superseded(self, truth: LedgerTruth) -> bool:
        number, owner = self._facts.served
        return owner != truth.owner and number > self._facts.segments.get(truth.ledger_id, number)

    def confirmed(self, ledger_id: int, last_add_confirmed: int, stamp: int = 1) -> None:
        """The writer of this term reports entries as confirmed."""
        truth = self._facts.ledgers[ledger_id]
        before = truth.confirmed_of.get(stamp, -1)
        if last_add_confirmed <= before or last_add_confirmed >= len(truth.lists[stamp]):
            self._facts.fail("O5", f"ledger {ledger_id}: confirmed {last_add_confirmed} after {before}")
        truth.confirmed_of[stamp] = last_add_confirmed
        if stamp < truth.record.open_term:
            self._confirmed_late(truth, stamp, last_add_confirmed)
            return
        last = truth.last_entry_id
        if last is not None and last_add_confirmed > last:
            self._facts.fail(
                "I1", f"entry {ledger_id}/{last_add_confirmed} was confirmed; the ledger is closed at {last}"
            )
        first, truth.confirmed = truth.confirmed + 1, last_add_confirmed
        check_confirmed(self._facts, truth, first)
        if truth.superseded_from is not None and last_add_confirmed >= truth.superseded_from:
            self._facts.fail(
                "L5", f"entry {ledger_id}/{last_add_confirmed}, submitted after a takeover served, was confirmed"
            )
        if self._facts.world.plan.scenario in LOG_SCENARIOS:
            self._confirmed_in_log(truth, first, last_add_confirmed)

    def _confirmed_late(self, truth: LedgerTruth, stamp: int, last_add_confirmed: int) -> None:
        """A deposed writer's entries: only what the takeover has kept may be confirmed to it (O6)."""
        if last_add_confirmed > truth.record.end_of_stamp(stamp):
            where = f"ledger {truth.ledger_id}, which is open in term {truth.record.open_term}"
            self._facts.fail("O6", f"entry {last_add_confirmed} of term {stamp} was confirmed in {where}")
        self._facts.world.count("an entry was confirmed to a deposed writer, and was kept")

    def _confirmed_in_log(self, truth: LedgerTruth, first: int, last: int) -> None:
        number = self._facts.segments.get(truth.ledger_id)
        if number is None:
            self._facts.fail(
                "L1", f"entry {truth.ledger_id}/{last} was confirmed, and the log does not name its ledger"
            )
            return
        for entry_id in range(first, last + 1):
            if (number, entry_id) <= truth.barriers[entry_id]:
                barrier = truth.barriers[entry_id]
                self._facts.fail("O7", f"record {number}:{entry_id} was submitted after {barrier} was confirmed")
        self._facts.highest_position = max(self._facts.highest_position, (number, last))

    def writer_fenced(self, ledger_id: int, unconfirmed: range, first: int = 0, stamp: int = 1) -> None:
        """A writer learns that it is deposed, and of which entries the fate is unknown (W4). `first` is its term's first
        entry."""
        truth = self._facts.ledgers[ledger_id]
        confirmed, submitted = truth.confirmed_of.get(stamp, first - 1), truth.lists[stamp]
        if unconfirmed != range(confirmed + 1, len(submitted)):
            said = f"{confirmed} of {len(submitted)} were confirmed, and it says {unconfirmed} were not"
            self._facts.fail("W4", f"ledger {ledger_id}: {said}")

    def writer_closed(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """A writer closed its ledger: at what it confirmed, and that is what the metadata says (R1)."""
        truth = self._facts.ledgers[ledger_id]
        if metadata.last_entry_id != truth.confirmed or (metadata != truth.record and not truth.deleted):
            self._facts.fail("R1", f"closed at {truth.confirmed} as {metadata}, the truth is {truth.record}")

    def delivered(self, reader: str, ledger_id: int, first: int, last: int, batches: Sequence[Batch]) -> None:
        """A reader handed out entries."""
        truth = self._facts.ledgers[ledger_id]
        end = truth.last_entry_id
        bound = truth.confirmed if end is None else end
        if last > bound:
            what = "confirmed through" if end is None else "closed at"
            self._facts.fail("R7", f"{reader} read entry {ledger_id}/{last}, which is only {what} {bound}")
        truth.read_through = max(truth.read_through, last)
        for entry_id in range(first, last + 1):
            self._check_read(reader, truth, entry_id, batches)
        self._check_progress(reader, truth, first, last)

    def _check_read(self, reader: str, truth: LedgerTruth, entry_id: int, batches: Sequence[Batch]) -> None:
        holders = [batch for batch in batches if batch.holds(entry_id)]
        if not holders:
            self._facts.fail(
                "O3", f"{reader} was given {batches} for entry {truth.ledger_id}/{entry_id}: none holds it"
            )
        for batch in holders:
            payload = batch.payloads()[(entry_id - batch.first_entry_id) // batch.stride]
            if payload != truth.submitted[entry_id]:
                self._facts.fail(
                    "O1", f"{reader} read {payload!r} as {entry_id}, which is {truth.submitted[entry_id]!r}"
                )

    def reader_starts(self, reader: str, ledger_id: int, first: int) -> None:
        """A reader begins at this entry: what comes next is no gap."""
        self._facts.progress[reader] = (ledger_id, first - 1)

    def _check_progress(self, reader: str, truth: LedgerTruth, first: int, last: int) -> None:
        ledger_id, before = self._facts.progress[reader]
        if ledger_id != truth.ledger_id or first != before + 1:
            self._facts.fail("O3", f"{reader} read {truth.ledger_id}/{first} after {ledger_id}/{before}")
        self._facts.progress[reader] = truth.ledger_id, last
