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
        ledgers = "1 ledger" if takeover.ledgers_recovered == 1 else f"{takeover.ledgers_recovered} ledgers"
        recovered = f"fenced {ledgers} in {takeover.recovery_s * 1000:,.0f} ms"
        self.view.done(f"{who} took over in {takeover.total_s:.2f} s: {recovered}, then replayed the log")

    async def read_back(self, directory: Path, told: Sequence[Confirmed]) -> Findings:
        """Reads everything back and compares it."""
        self.view.step("reading everything back through a fresh client")
        findings = await verify(directory, self.bookies, self.source, told, self.view)
        what = "NOT what was confirmed" if findings.faults else "exactly those confirmed, in order"
        self.view.done(f"read back {findings.read:,} entries: {what}", bad=bool(findings.faults))
        return findings
