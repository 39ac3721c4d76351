"""What both acts need, and do alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import attrs

from replog.demo.appending import Quota
from replog.demo.input import Input
from replog.demo.reports import Confirmed
from replog.demo.results import Takeover
from replog.demo.verdict import Findings
from replog.demo.verifying import verify
from replog.demo.view import View


@attrs.frozen
class Stage:
    """Where an act is played, on what, how long and before whom."""

    directory: Path
    bookies: int
    source: Input
    quota: Quota
    view: View

    def show(self, told: Confirmed, before: int, started: float) -> float:
        """Shows how far a leader is that began behind `before` entries; returns how much of its quota is used up."""
        fraction = self.quota.fraction(told.entries - before, time.monotonic() - started)
        in_flight = told.pushed - told.entries
        self.view.progress(told.entries, str(told.position), in_flight=in_flight, fraction=fraction)
        return fraction or 0.0

    def taken_over(self, who: str, takeover: Takeover) -> None:
        """Tells of a takeover that was done."""
        recovered = f"{takeover.ledgers_recovered} ledgers recovered in {takeover.recovery_s * 1000:,.0f} ms"
        replayed = f"log replayed in {takeover.replay_s:.2f} s"
        self.view.done(f"{who} took over in {takeover.total_s:.2f} s: {recovered}, {replayed}")

    async def read_back(self, directory: Path, told: Sequence[Confirmed]) -> Findings:
        """Reads everything back and compares it."""
        self.view.step("reading everything back through a fresh client")
        findings = await verify(directory, self.bookies, self.source, told, self.view)
        what = "is not what was confirmed" if findings.faults else "is what was confirmed, in order"
        self.view.done(f"read back: {findings.read:,} entries; it {what}", bad=bool(findings.faults))
        return findings
