"""How far an audit or a repair has come, and how long it will take."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

_REPORT_S = 0.2  # between two reports


@attrs.frozen
class RepairProgress:
    """How far an audit or a repair has come. `stage` is "audit", which counts ledgers, "copy" or "move", which count fragments:
    what lacks copies is copied first, then what drains or is in a wrong place is moved. A repair ends with an audit.

    `under_replicated` fragments were found by this audit until now, or are still to be filled. `copied_bytes` and `bytes_per_s`
    are of the whole repair, and of this stage. `left_s` is an estimate for this stage, or None."""

    stage: str
    done: int
    total: int
    under_replicated: int
    copied_bytes: int
    elapsed_s: float
    bytes_per_s: float
    left_s: float | None


ReportProgress = Callable[[RepairProgress], None]


@attrs.define
class RepairCounts:
    """Finished and remaining work of one client's repairs."""

    copied_batches: int = 0
    copied_bytes: int = 0
    repaired_fragments: int = 0
    fragments_left: int = 0  # of the repair under way


class ProgressTracker:
    """Reports the progress of one audit or repair, a few times a second. Without a `report`, it only counts."""

    def __init__(self, counts: RepairCounts, report: ReportProgress | None = None) -> None:
        self.under_replicated = 0
        self._counts = counts
        self._report = report
        self._stage, self._done, self._total = "", 0, 0
        self._copied_before_bytes = self._stage_copied_before_bytes = counts.copied_bytes
        self._began_at_s = self._reported_at_s = trio.current_time()

    @property
    def is_watched(self) -> bool:
        """True if a caller wants the total."""
        return self._report is not None

    def begin(self, stage: str, total: int, under_replicated: int = 0) -> None:
        """A stage begins, with so much to do."""
        self._stage, self._done, self._total, self.under_replicated = stage, 0, total, under_replicated
        self._stage_copied_before_bytes = self._counts.copied_bytes
        self._began_at_s = trio.current_time()
        self._tell()

    def step(self) -> None:
        """One more is done."""
        self._done += 1
        now_s = trio.current_time()
        if now_s >= self._reported_at_s + _REPORT_S or self._done == self._total:
            self._tell()

    def _tell(self) -> None:
        now_s = self._reported_at_s = trio.current_time()
        if self._report is None:
            return
        elapsed_s, copied_bytes = now_s - self._began_at_s, self._counts.copied_bytes
        left_s = elapsed_s * (self._total - self._done) / self._done if self._done else None
        self._report(
            RepairProgress(
                self._stage,
                self._done,
                # Ledgers that were created meanwhile are audited, too.
                max(self._done, self._total),
                self.under_replicated,
                copied_bytes - self._copied_before_bytes,
                elapsed_s,
                (copied_bytes - self._stage_copied_before_bytes) / elapsed_s if elapsed_s else 0.0,
                None if left_s is None else max(0.0, left_s),
            )
        )
