"""What a repair service has done and has still to do, for statistics and metrics."""

from __future__ import annotations

import attrs
import trio

from replog.client.audit_report import AuditReport
from replog.client.repair_progress import RepairCounts


@attrs.define
class RepairStatus:
    """Figures of one service, since its start. What it audits is its share of the cluster's ledgers."""

    audits: int = 0
    failures: int = 0  # passes that the metastore's errors ended
    passes_cut: int = 0  # because bookies came, went or were declared lost meanwhile
    report: AuditReport = attrs.field(factory=AuditReport)  # of the last audit
    audited_at_s: float | None = None  # by trio's clock
    audit_s: float = 0.0  # how long the last audit took
    is_paused: bool = False
    counts: RepairCounts = attrs.field(factory=RepairCounts)

    def audited(self, report: AuditReport, began_at_s: float) -> None:
        """An audit ended with this."""
        self.audits += 1
        self.report = report
        self.audited_at_s = trio.current_time()
        self.audit_s = self.audited_at_s - began_at_s

    def statistics(self) -> dict[str, float]:
        """Counters and gauges."""
        found: dict[str, float] = {
            "repair_audits": self.audits,
            "repair_failures": self.failures,
            "repair_passes_cut": self.passes_cut,
            "repair_paused": float(self.is_paused),
            "repair_copied_batches": self.counts.copied_batches,
            "repair_copied_bytes": self.counts.copied_bytes,
            "repair_fragments": self.counts.repaired_fragments,
            "repair_fragments_left": self.counts.fragments_left,
        }
        if self.audited_at_s is not None:
            found["repair_audited_ledgers"] = self.report.ledgers
            found["repair_under_replicated"] = self.report.under_replicated
            found["repair_misplaced"] = len(self.report.misplaced)
            found["repair_last_audit_s"] = self.audit_s
            found["repair_since_audit_s"] = trio.current_time() - self.audited_at_s
        return found
