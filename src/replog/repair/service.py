"""A service that keeps a cluster's copies complete: audits its share of the ledgers, and fills what they lack (F1-F6).

It looks every few seconds which bookies there are. A pass, an audit and its filling, begins whenever these change and
at every interval. A bookie that is away is waited for, so that a restart costs nothing; one that was declared lost is
replaced at once. If that changes during a filling, the filling is cut and a new pass begins: the copies made stay (F6),
and the fragments most at risk now come first.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from replog.errors import MetastoreError
from replog.repair.audit_report import AuditReport, MissingCopies
from replog.repair.auditor import Bookies
from replog.repair.progress import RepairCounts
from replog.repair.repairer import Repairer
from replog.repair.shares import Share, Shares
from replog.runtime.loggers import logger
from replog.runtime.nursery import open_service_nursery

_log = logger("replog.repair")

LOOK_S = 5.0  # which bookies there are
_AGAIN_S = 60.0  # after a pass that left something to do, or failed; at most the interval
_REST = 4  # times as long as a pass took, however often bookies come and go: audits take a fifth of the time at most


@attrs.define
class RepairStatus:
    """Figures of one service, since its start. It audits its share of the cluster's ledgers."""

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


@attrs.frozen
class RepairTimes:
    """How long a service waits: for a bookie that is away, and between audits."""

    away_after_s: float = 600.0
    interval_s: float = 600.0


@attrs.frozen
class _Seen:
    """The facts that decide whether a pass is due, or one under way does the wrong thing."""

    announced: frozenset[str]
    lost: frozenset[str]
    draining: frozenset[str]
    due: frozenset[str]  # bookies that were away for too long
    services: tuple[str, ...]
    is_paused: bool

    def is_urgent(self, before: _Seen) -> bool:
        """True if a filling for `before` would copy too little, or too much."""
        ours, theirs = ((each.lost, each.due, each.services, each.is_paused) for each in (self, before))
        return ours != theirs


class RepairService:
    """Repairs while `run` runs. `reported` is called with each audit's report."""

    def __init__(
        self,
        repairer: Repairer,
        shares: Shares,
        times: RepairTimes,
        reported: Callable[[AuditReport], None] = lambda _report: None,
    ) -> None:
        self.status = RepairStatus(counts=repairer.counts)
        self._repairer = repairer
        self._shares = shares
        self._times = times
        self._reported = reported
        self._away_since_s: dict[str, float] = {}

    async def run(self) -> None:
        """Audits and repairs until cancelled. While the metastore fails, it waits."""
        again_s = min(_AGAIN_S, self._times.interval_s)
        while True:
            try:
                async with self._shares.announced():
                    await self._work()
            except MetastoreError as error:
                self.status.failures += 1
                _log.warning("repairs wait %g s for the metastore: %s", again_s, error)
            await trio.sleep(again_s)

    async def _work(self) -> None:
        last: _Seen | None = None
        next_s = rested_at_s = trio.current_time()
        while True:
            seen, share = await self._look()
            now_s = trio.current_time()
            is_changed = last is None or (seen != last and (now_s >= rested_at_s or seen.is_urgent(last)))
            if is_changed or now_s >= next_s:
                last = seen
                is_well = await self._pass(seen, share)
                ended_s = trio.current_time()
                rested_at_s = ended_s + _REST * (ended_s - now_s)
                wait_s = self._times.interval_s if is_well else min(_AGAIN_S, self._times.interval_s)
                next_s = max(ended_s + wait_s, rested_at_s)
            await trio.sleep(min(LOOK_S, self._times.interval_s))

    async def _look(self) -> tuple[_Seen, Share]:
        bookies = await self._repairer.bookies()
        share = await self._shares.current()
        self.status.is_paused = await self._repairer.pause.is_on()
        states = bookies.announced, bookies.lost, bookies.draining, self._due(bookies)
        return _Seen(*states, share.ids, self.status.is_paused), share

    def _due(self, bookies: Bookies) -> frozenset[str]:
        """The bookies that were waited for long enough. One that is back is forgotten."""
        now_s = trio.current_time()
        for bookie_id in self._away_since_s.keys() - bookies.away:
            del self._away_since_s[bookie_id]
        # By this service's own clock, and from when it first looked: one that was restarted waits again.
        since_s = {each: self._away_since_s.setdefault(each, now_s) for each in bookies.away}
        return frozenset(each for each in since_s if now_s - since_s[each] >= self._times.away_after_s)

    async def _pass(self, seen: _Seen, share: Share) -> bool:
        """Audits, fills and audits again. True if nothing is left that could be done."""
        await self._repairer.sweep(share.has)
        report = await self._audit(share)
        # Paused counts as done: the end of a pause is a change, and begins a pass at once.
        if seen.is_paused or not _is_to_do(report, seen.due):
            return True
        async with open_service_nursery() as nursery:
            with trio.CancelScope() as filling:
                nursery.start_soon(self._cut_when_wrong, seen, filling)
                await self._repairer.fill(report, seen.due, share.has)
        if filling.cancelled_caught:
            self.status.passes_cut += 1
            return False
        return not _is_to_do(await self._audit(share), seen.due)

    async def _audit(self, share: Share) -> AuditReport:
        began_at_s = trio.current_time()
        report = await self._repairer.audit(share.has)
        self.status.audited(report, began_at_s)
        self._reported(report)
        return report

    async def _cut_when_wrong(self, before: _Seen, filling: trio.CancelScope) -> None:
        while True:
            await trio.sleep(LOOK_S)
            seen, _ = await self._look()
            if seen.is_urgent(before):
                filling.cancel()
                return


def _is_to_do(report: AuditReport, due: frozenset[str]) -> bool:
    """True if something lacks copies that is not merely waited for, or is to be named for other bookies."""
    is_named = any(each.leaving or not due.isdisjoint(each.away) for each in report.idle)
    return bool(report.draining or report.misplaced or is_named) or any(
        _is_due(each, due) for fragment in report.lacking for each in fragment.missing
    )


def _is_due(missing: MissingCopies, due: frozenset[str]) -> bool:
    return missing.state != "away" or missing.bookie_id in due
