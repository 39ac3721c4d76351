"""What `spark_rounds` demands of a log to which jobs and a live app have written: pure functions of what was seen.

- Each row of each job that was committed is in the log once, and the rows of a job are next to each other and in order: one
  compare-and-set made all of them visible.
- The log has no row of a job that was given up, and none that nobody wrote.
- The app's appends are judged by `replog.testing.check_history`: each that was confirmed is there, once and in order.
- No commit deposes the app, unless it waited for the app's answer as long as it may (L10), or could not know that the app
  leads: the app had just begun to lead, or the metastore had lost its announcement with its leader.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise

import attrs

from replog.protocol.model import Position
from replog.testing import check_history
from replog.testing.history import Event
from tests.failures.actors import decode
from tests.failures.spark_driver import entry_of

APP = "app"
_JOBS = ("batch", "parts", "stream", "each", "given_up")
PATIENCE_S = 4.5  # of a commit, 5 s, as it is seen by one who looks ten times a second
_LEARNING_S = 30.0  # at most from when a commit gave up waiting until the app's next append fails, on a busy machine
_ANNOUNCING_S = 5.0
_SESSIONS_S = 40.0  # what the death of the metastore's leader does to announcements is over


def violations(
    entries: Sequence[tuple[Position, bytes]], events: Sequence[Event], row_counts: Mapping[str, int]
) -> list[str]:
    """What is wrong with the log: `row_counts` are the rows of each job that was committed, `events` the app's history."""
    of_app = [(position, decode(entry)) for position, entry in entries if _is_of_app(entry)]
    return [
        *map(str, check_history(events, of_app)),
        *_job_violations(entries, row_counts),
        *_order_violations(entries),
    ]


def _is_of_app(entry: bytes) -> bool:
    return entry.startswith(f"{APP}.".encode())


def _order_violations(entries: Sequence[tuple[Position, bytes]]) -> list[str]:
    pairs = pairwise(entries)
    return [f"{after} was read after {before}" for (before, _), (after, _) in pairs if before >= after]


def _job_violations(entries: Sequence[tuple[Position, bytes]], row_counts: Mapping[str, int]) -> list[str]:
    texts = [(position, APP if _is_of_app(entry) else entry.decode(errors="replace")) for position, entry in entries]
    found: dict[str, list[str]] = defaultdict(list)
    for _, text in texts:
        found[text.partition(" ")[0]].append(text)
    wrong = []
    for job, count in row_counts.items():
        wanted = [entry_of(job, row) for row in range(count)]
        if found[job] != wanted:
            wrong.append(f"{job}: {_difference(Counter(wanted), Counter(found[job]))}")
    wrong += [f"{text!r} at {position} is of no job" for position, text in texts if text != APP and _is_of_none(text)]
    unexpected = sorted(found.keys() - row_counts.keys() - {APP})
    wrong += [f"{job}: {len(found[job])} rows of a job that was not committed are there" for job in unexpected]
    runs = Counter(job for job, _ in groupby(text.partition(" ")[0] for _, text in texts))
    return wrong + [f"{job}: others are between its rows" for job, times in runs.items() if times > 1 and job != APP]


def _is_of_none(text: str) -> bool:
    return text.partition("-")[0] not in _JOBS


def _difference(wanted: Counter[str], found: Counter[str]) -> str:
    lost, twice = wanted - found, found - wanted
    if not lost and not twice:
        return "its rows are there in another order"
    return f"{lost.total()} of {wanted.total()} rows are lost, {twice.total()} too many: {[*lost, *twice][:3]}"


@attrs.frozen
class Waited:
    """A commit's request in the log's record: when it was seen first, and when it was gone."""

    began_s: float
    ended_s: float

    @property
    def is_long(self) -> bool:
        """True if the commit may have given up waiting."""
        return self.ended_s - self.began_s >= PATIENCE_S


def why_fenced(
    fenced_s: float, served_s: float, waits: Iterable[Waited], metastore_faults: Iterable[tuple[float, float]]
) -> str:
    """Why a commit deposed the app, which had led since `served_s`; "" if it may not have. `metastore_faults` began and ended
    then."""
    if any(each.is_long and 0 <= fenced_s - each.ended_s + 1 <= _LEARNING_S for each in waits):
        return "not answered in time"
    if any(began_s <= fenced_s <= ended_s + _SESSIONS_S for began_s, ended_s in metastore_faults):
        return "its announcement was lost"
    if fenced_s - served_s < _ANNOUNCING_S:
        return "not announced yet"
    return ""
