"""How far a storage was durable and what it doubts, as an inspection shows it (B8)."""

from __future__ import annotations

import attrs

from replog.abc import Doubt
from replog.backends.durable_mark import DOUBT_FILE, MARK_FILE, read_doubt, read_mark
from replog.backends.inspection.read_only import READ_ONLY
from replog.backends.inspection.reports import Problem, StorageReport
from replog.errors import StorageFailedError


@attrs.frozen
class Vouching:
    """The durable mark and the doubt as they are now. `position` is None if the mark is unreadable."""

    position: int | None = None
    accounted: int = 0
    doubt: Doubt = attrs.field(factory=Doubt)
    problems: tuple[Problem, ...] = ()

    def describe(self, report: StorageReport) -> None:
        """Adds this to the report of the storage."""
        report.durable_mark = self.position
        report.doubted_below, report.lost_below = self.doubt.doubted_below, self.doubt.lost_below
        report.doubt_reasons = list(self.doubt.reasons)
        report.problems += self.problems


def read_vouching(directory: str, identity: bytes) -> Vouching:
    """What both files say, and what is wrong with them. Never raises."""
    problems: list[Problem] = []

    def note(name: str, why: str) -> None:
        problems.append(Problem(f"{directory}/{name}", 0, "damage", f"it {why}: the next start doubts every ledger"))

    slot = record = None
    try:
        slot, why = read_mark(READ_ONLY, directory, identity)
        if slot is None:
            note(MARK_FILE, why)
    except StorageFailedError as error:
        note(MARK_FILE, f"can't be read: {error}")
    try:
        record, why = read_doubt(READ_ONLY, directory, identity)
        if record is None:
            note(DOUBT_FILE, why)
    except StorageFailedError as error:
        note(DOUBT_FILE, f"can't be read: {error}")
    doubt = Doubt() if record is None else record.doubt
    if slot is not None:
        # Both files have the bounds, and the higher one counts: a crash may have come between writing one and the other.
        doubted_below, lost_below = max(doubt.doubted_below, slot.doubted_below), max(doubt.lost_below, slot.lost_below)
        doubt = attrs.evolve(doubt, doubted_below=doubted_below, lost_below=lost_below)
    position = None if slot is None else slot.position
    return Vouching(position, 0 if record is None else record.accounted, doubt, tuple(problems))
