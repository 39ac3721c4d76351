"""Turns repeated answers of bookies into rows: states, rates, latencies of the last seconds.

Pure: the caller says what time it is. A rate is the difference between two answers of one bookie. After a restart, when its
counters begin at 0, a bookie has no rates until its next answer. Bookies that vanish stay listed for a while.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import attrs

from replog.client.administration import BookieStatistics
from replog.runtime.latencies import LatencyHistogram

HISTORY_S = 60.0  # the sparkline
HISTORY_STEP_S = 2.0
LATENCY_WINDOW_S = 10.0  # over which quantiles are taken
FORGET_AFTER_S = 3600.0  # a bookie that is gone
_SAMPLES_MAX = 600  # of one bookie, however often it is asked


class State(enum.Enum):
    """The state of a bookie."""

    WRITABLE = "writable"
    DRAINING = "draining"
    READ_ONLY = "read-only"
    METASTORE_DOUBTED = "doubts"  # its metastore seems to have gone back (B6a)
    FAILED = "failed"  # its storage has stopped
    UNREACHABLE = "unreachable"
    UNKNOWN = "connecting"  # not asked yet


@attrs.frozen
class Latencies:
    """Quantiles of the last seconds, in seconds; None if there were no calls."""

    p50_s: float | None = None
    p99_s: float | None = None

    @classmethod
    def of(cls, histogram: LatencyHistogram | None) -> Latencies:
        """The quantiles of these observations."""
        return cls() if histogram is None else cls(histogram.quantile(0.5), histogram.quantile(0.99))


@attrs.frozen(kw_only=True)
class Figures:
    """The figures of a bookie. Unknown ones are None; rates are per second."""

    uptime_s: float | None = None
    entries_rate: float | None = None
    added_bytes_rate: float | None = None
    adds_rate: float | None = None
    reads_rate: float | None = None
    read_bytes_rate: float | None = None
    commits_rate: float | None = None
    queued_requests: float | None = None
    queued_bytes: float | None = None
    used_bytes: float | None = None
    free_bytes: float | None = None
    ledgers: float | None = None
    active_ledgers: float | None = None
    fence_requests: float | None = None
    recovery_reads: float | None = None
    damaged_batches: float | None = None
    repair_under_replicated: float | None = None
    repair_fragments_left: float | None = None
    repair_fragments_rate: float | None = None
    repair_bytes_rate: float | None = None
    connections: float | None = None
    metastore_leads: float | None = None
    metastore_stopped: float | None = None
    metastore_survives: float | None = None


@attrs.frozen(kw_only=True)
class Row:
    """One bookie, or with the id "" all of them."""

    bookie_id: str
    endpoints: tuple[str, ...] = ()
    labels: Mapping[str, str] = attrs.field(factory=dict)
    state: State = State.UNKNOWN
    since_s: float | None = None  # how long it has been unreachable
    problem: str = ""
    version: str = ""
    figures: Figures = Figures()
    commit: Latencies = Latencies()
    answer: Latencies = Latencies()
    history: tuple[float, ...] = ()  # entries per second, at every other second of the last minute, oldest first


_RATES = {
    "entries_rate": "added_entries",
    "added_bytes_rate": "added_bytes",
    "adds_rate": "added_batches",
    "reads_rate": "reads",
    "read_bytes_rate": "read_bytes",
    "commits_rate": "commits",
    "repair_fragments_rate": "repair_fragments",
    "repair_bytes_rate": "repair_copied_bytes",
}
_GAUGES = (
    "uptime_s",
    "queued_requests",
    "queued_bytes",
    "used_bytes",
    "free_bytes",
    "ledgers",
    "active_ledgers",
    "fence_requests",
    "recovery_reads",
    "damaged_batches",
    "repair_under_replicated",
    "repair_fragments_left",
    "metastore_leads",
    "metastore_stopped",
    "metastore_survives",
)
# Sums over a cluster. Not its ledgers, because each is on several bookies.
_SUMMED = (
    *_RATES,
    "queued_requests",
    "queued_bytes",
    "used_bytes",
    "free_bytes",
    "fence_requests",
    "recovery_reads",
    "damaged_batches",
    "repair_under_replicated",
    "repair_fragments_left",
    "connections",
)


@attrs.frozen
class _Sample:
    at_s: float
    statistics: BookieStatistics


class _Bookie:
    """One bookie, as long as it is listed."""

    def __init__(self, bookie_id: str, now_s: float) -> None:
        self.bookie_id = bookie_id
        self.endpoints: tuple[str, ...] = ()
        self.labels: Mapping[str, str] = {}
        self.is_read_only = False
        self.problem = ""  # with it, as asked
        self.announced_problem = ""  # why it takes no entries
        self.lost_at_s: float | None = None
        self.heard_at_s = now_s
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES_MAX)

    def sampled(self, statistics: BookieStatistics, now_s: float) -> None:
        if self._samples and _is_restarted(self._samples[-1].statistics, statistics):
            self._samples.clear()
        if self._samples and now_s <= self._samples[-1].at_s:
            return
        self.problem, self.lost_at_s, self.heard_at_s = "", None, now_s
        self._samples.append(_Sample(now_s, statistics))
        while now_s - self._samples[0].at_s > HISTORY_S:
            self._samples.popleft()

    def failed(self, problem: str, now_s: float) -> None:
        self.problem = problem
        self.lost_at_s = now_s if self.lost_at_s is None else self.lost_at_s

    def row(self, now_s: float) -> Row:
        row = Row(
            bookie_id=self.bookie_id,
            endpoints=self.endpoints,
            labels=self.labels,
            problem=self.problem or self.announced_problem,
        )
        if self.lost_at_s is not None:
            version = self._samples[-1].statistics.version if self._samples else ""
            return attrs.evolve(
                row, state=State.UNREACHABLE, since_s=max(0.0, now_s - self.heard_at_s), version=version
            )
        if not self._samples:
            return row
        numbers = self._samples[-1].statistics.numbers
        return attrs.evolve(
            row,
            state=self._state(numbers),
            version=self._samples[-1].statistics.version,
            commit=Latencies.of(self.observed("commit", now_s)),
            answer=Latencies.of(self.observed("answer", now_s)),
            history=self.history(now_s),
            figures=Figures(
                connections=_connections(numbers), **{name: numbers.get(name) for name in _GAUGES}, **self._rates()
            ),
        )

    def _state(self, numbers: Mapping[str, float]) -> State:
        if numbers.get("storage_failed"):
            return State.FAILED
        if numbers.get("metastore_doubted"):
            return State.METASTORE_DOUBTED
        if numbers.get("read_only", self.is_read_only):
            return State.READ_ONLY
        return State.DRAINING if numbers.get("draining") else State.WRITABLE

    def _rates(self) -> dict[str, float | None]:
        if len(self._samples) < 2:
            return {}
        return {name: _rate(self._samples[-2], self._samples[-1], counter) for name, counter in _RATES.items()}

    def history(self, now_s: float) -> tuple[float, ...]:
        """Rates at fixed distances from now, as far back as is known, so that those of several bookies can be added."""
        samples = list(self._samples)
        if not samples:
            return ()
        ends_s = [each.at_s for each in samples]
        found = []
        for back in range(int(HISTORY_S / HISTORY_STEP_S)):
            then_s = now_s - back * HISTORY_STEP_S
            # It does not answer: that is a load of nothing, and not the last known one.
            if then_s > ends_s[-1] and self.lost_at_s is not None:
                found.append(0.0)
                continue
            # The rate of the span between two answers holds for every moment in it.
            later = min(bisect_left(ends_s, then_s), len(samples) - 1)
            if later == 0:
                break
            found.append(_rate(samples[later - 1], samples[later], "added_entries") or 0.0)
        return tuple(reversed(found))

    def observed(self, name: str, now_s: float) -> LatencyHistogram | None:
        """The values observed in the window; None if the bookie does not report them."""
        if self.lost_at_s is not None or not self._samples:
            return None
        newest = self._samples[-1].statistics.latencies.get(name)
        within = [each for each in self._samples if each.at_s >= now_s - LATENCY_WINDOW_S]
        oldest = within[0].statistics.latencies.get(name) if len(within) > 1 else None
        if newest is None or oldest is None:
            return None
        return newest.since(oldest)


def _rate(earlier: _Sample, later: _Sample, counter: str) -> float | None:
    before, after = earlier.statistics.numbers.get(counter), later.statistics.numbers.get(counter)
    if before is None or after is None:
        return None
    return max(0.0, after - before) / (later.at_s - earlier.at_s)


def _connections(numbers: Mapping[str, float]) -> float | None:
    """The number of connections of all transports that report it: `tcp_connections`."""
    return _sum(value for name, value in numbers.items() if name.partition("_")[2] == "connections")


def _is_restarted(before: BookieStatistics, after: BookieStatistics) -> bool:
    return any(
        after.numbers.get(name, 0.0) < before.numbers.get(name, 0.0)
        for name in ("uptime_s", "added_batches", "commits", "reads")
    )


class Cluster:
    """All bookies that were seen. `problem` is empty, or says why it is unknown whether there are others."""

    def __init__(self) -> None:
        self.problem = ""
        self._bookies: dict[str, _Bookie] = {}

    @property
    def bookie_ids(self) -> tuple[str, ...]:
        """The ids of the listed bookies."""
        return tuple(self._bookies)

    def announced(
        self,
        bookies: Mapping[str, tuple[Sequence[str], bool]],
        now_s: float,
        labels: Mapping[str, Mapping[str, str]] | None = None,
        problems: Mapping[str, str] | None = None,
    ) -> None:
        """These bookies are announced, with addresses, whether they are read-only, labels, and why they take no entries. Others
        stay listed for a while."""
        self.problem = ""
        for bookie_id, (endpoints, is_read_only) in bookies.items():
            bookie = self._bookies.setdefault(bookie_id, _Bookie(bookie_id, now_s))
            bookie.endpoints, bookie.is_read_only = tuple(endpoints), is_read_only
            bookie.labels = (labels or {}).get(bookie_id, {})
            bookie.announced_problem = (problems or {}).get(bookie_id, "")
        for bookie in list(self._bookies.values()):
            # Both: one that lost its announcement may answer still, and one that is announced may be only slow.
            is_gone = bookie.bookie_id not in bookies and bookie.lost_at_s is not None
            if is_gone and now_s - bookie.heard_at_s > FORGET_AFTER_S:
                del self._bookies[bookie.bookie_id]

    def metastore_failed(self, problem: str) -> None:
        """The metastore could not list the announced bookies."""
        self.problem = problem

    def sampled(self, statistics: BookieStatistics, now_s: float) -> None:
        """A bookie answered."""
        if statistics.bookie_id in self._bookies:
            self._bookies[statistics.bookie_id].sampled(statistics, now_s)

    def failed(self, bookie_id: str, problem: str, now_s: float) -> None:
        """A bookie did not answer."""
        if bookie_id in self._bookies:
            self._bookies[bookie_id].failed(problem, now_s)

    def rows(self, now_s: float) -> list[Row]:
        """One row for each bookie, by their ids."""
        return [self._bookies[bookie_id].row(now_s) for bookie_id in sorted(self._bookies)]

    def total(self, now_s: float) -> Row:
        """Sums over all bookies that answer; latencies of all of their commits together."""
        rows = self.rows(now_s)
        return Row(
            bookie_id="",
            commit=self._merged("commit", now_s),
            answer=self._merged("answer", now_s),
            history=_added(bookie.history(now_s) for bookie in self._bookies.values()),
            figures=Figures(**{name: _sum(getattr(row.figures, name) for row in rows) for name in _SUMMED}),
        )

    def _merged(self, name: str, now_s: float) -> Latencies:
        found = [bookie.observed(name, now_s) for bookie in self._bookies.values()]
        return Latencies.of(LatencyHistogram.merged(each for each in found if each is not None))


def _sum(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def _added(histories: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """The sum of histories that end at the same time."""
    kept = [list(reversed(each)) for each in histories if each]
    longest = max(map(len, kept), default=0)
    return tuple(sum(each[place] for each in kept if place < len(each)) for place in reversed(range(longest)))
