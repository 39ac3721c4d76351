"""The size, leader and cursor lag of logs, as Prometheus' families.

Rules:

- Nothing is measured where entries pass. A look costs the metastore a few reads for each log, on each request for the
  metrics.
- Nothing is guessed or outdated: a value that the last look did not find has no sample.
- Counters count the entries appended between looks of this process, without those trimmed away in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

import trio
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from replog.client.ledgers import check_password
from replog.errors import MetastoreError
from replog.log.log_looks import LogListing, LogSource, list_logs, look_at_logs
from replog.log.log_summaries import LogSummary
from replog.metrics.collecting import Families
from replog.records.paths import log_key_path

LOOK_TIMEOUT_S = 5.0
_MS = 1000

_LOG_COUNTERS = {
    "appended_entries": "Entries that were appended, as looks from here found out.",
    "appended_bytes": "Bytes of values that were appended, as looks from here found out.",
}
_LOG_GAUGES = {
    "known": "1 if the last look found all that it looked for, 0 if bookies or the metastore did not answer.",
    "entries": "Entries that the log holds and that are known to be confirmed.",
    "bytes": "Bytes of the values of these entries.",
    "archived_bytes": "Those of these bytes that are in an archive, and not on bookies.",
    "segments": "Segments of the log.",
    "begins_segment": "The number of the first segment that was not trimmed away.",
    "confirmed_segment": "The segment of the position behind the last entry that is known to be confirmed.",
    "confirmed_entry": "The entry of that position: how many entries of that segment are known to be confirmed.",
    "term": "The term of the last segment: rises with each takeover of a log whose ledgers are unbounded.",
    "first_entry_time_seconds": "When the first entry was sent that was not trimmed away, by its writer's clock.",
    "last_entry_time_seconds": "When the last entry was sent, by its writer's clock.",
    "cursors": "Cursors of the log.",
    "droppable_segments": "Segments that no cursor needs any more.",
    "absent_bookies": "Bookies that the log is written to and that are not there: what is appended lacks copies.",
}
_CURSOR_GAUGES = {
    "lag_entries": "Entries that the cursor has not committed.",
    "lag_bytes": "Bytes of the values of these entries.",
    "lag_seconds": "How long ago the first of these entries was sent, by its writer's clock.",
    "kept_segments": "Segments that the cursor keeps from being trimmed.",
    "keeps_most": "1 for the cursor that keeps most: the one that a trim or a retention is blocked by.",
    "term": "How often the cursor was acquired or moved: rises when another worker takes it over.",
    "committed_time_seconds": "When the cursor was committed for the last time, by its worker's clock.",
}


class LogMetrics(Collector):
    """The metrics of a client's logs, or of those that are named: for `serve_metrics`, or a registry of your own.

    Without `names`, they are the first 200 logs. `look` looks at the logs and their cursors, each at the cost of a few reads of
    the metastore, and takes at most `timeout_s`; `collect` returns the results. `problem` says why the metastore could not list
    the logs; else "". `serve_metrics` looks whenever somebody asks, and those who ask at the same time share a look."""

    def __init__(
        self,
        client: LogSource,
        names: Iterable[str] = (),
        *,
        password: bytes = b"",
        timeout_s: float = LOOK_TIMEOUT_S,
    ) -> None:
        self._client = client
        self.problem = ""
        self._names = tuple(names)
        for name in self._names:
            log_key_path(name)
        check_password(password)
        self._password = password
        self._timeout_s = timeout_s
        self._looking = trio.Lock()
        self._begun = self._ended = 0  # the numbers of the last looks that began, and that came to their end
        self._listing: LogListing | None = None  # as of the last look, if the metastore answered
        self._summaries: dict[str, LogSummary] = {}  # what the last look found
        self._counted_to: dict[str, LogSummary] = {}  # by log: up to where the counters have counted
        self._appended: dict[str, tuple[int, int]] = {}  # entries and bytes of each log

    async def look(self) -> None:
        """Looks at the logs now; simultaneous callers share a look. It takes at most the timeout: values not known by
        then have no samples."""
        begun = self._begun
        async with self._looking:
            if self._ended > begun:
                return  # that look began after this was called
            self._begun += 1
            number, summaries = self._begun, dict[str, LogSummary]()

            def found(summary: LogSummary) -> None:
                summaries[summary.metadata.name] = summary

            listing, problem = None, f"the metastore did not answer within {self._timeout_s:g} s"
            with trio.move_on_after(self._timeout_s):
                try:
                    listing = await list_logs(self._client, self._timeout_s / 2, self._names)
                except MetastoreError as error:
                    problem = str(error)
                else:
                    problem = ""
                    # Half the time: one that hangs must leave some for those that come behind it.
                    looked = self._client, listing.names, self._password, self._timeout_s / 2
                    await look_at_logs(*looked, found, _failed)
            self.problem = problem
            self._listing, self._summaries, self._ended = listing, summaries, number
            for summary in summaries.values():
                self._count(summary)

    def _count(self, summary: LogSummary) -> None:
        name = summary.metadata.name
        before = self._counted_to.get(name)
        appended = None if before is None else summary.appended_since(before)
        entries, size_bytes = self._appended.get(name, (0, 0))
        if appended is not None:
            entries, size_bytes = entries + appended.entries, size_bytes + (appended.size_bytes or 0)
        self._appended[name] = entries, size_bytes
        if summary.end is not None and (appended is not None or before is None or _is_gone(before, summary)):
            self._counted_to[name] = summary

    def collect(self) -> Iterator[Metric]:
        """The results of the last look, as Prometheus' families with the labels `log` and `cursor`."""
        listing = self._listing
        yield GaugeMetricFamily(
            "replog_logs_listed", "1 if the metastore said which logs there are.", value=float(listing is not None)
        )
        if listing is None:
            return
        yield GaugeMetricFamily("replog_logs", "Logs that are looked at.", value=len(listing.names))
        yield GaugeMetricFamily(
            "replog_logs_left_out",
            "1 if there are logs that are not looked at: name those to look at.",
            value=float(listing.are_more),
        )
        yield from _families(listing, self._summaries, self._appended)


def _failed(name: str, problem: str) -> None:
    """Said by `replog_log_known`."""


def _is_gone(before: LogSummary, after: LogSummary) -> bool:
    """True if nobody knows any more what followed an earlier end."""
    assert before.end is not None, "only such are kept"
    return before.end.segment not in after.held


def _families(
    listing: LogListing, summaries: dict[str, LogSummary], appended: dict[str, tuple[int, int]]
) -> Iterator[Metric]:
    info = InfoMetricFamily("replog_log", "Who writes a log, and the state of its last ledger.", labels=["log"])
    logs = Families("replog_log_", ["log"], gauges=_LOG_GAUGES, counters=_LOG_COUNTERS)
    cursors = Families("replog_cursor_", ["log", "cursor"], gauges=_CURSOR_GAUGES, counters={})
    for name in listing.names:
        summary = summaries.get(name)
        is_known = summary is not None and summary.problem is None
        logs.add([name], {"known": float(is_known)})
        if summary is None:
            continue
        state = "unknown" if summary.state is None else summary.state.value
        info.add_metric([name], {"writer": summary.writer or "", "state": state})
        logs.add([name], _of_log(summary, listing.bookies))
        entries, size_bytes = appended[name]
        logs.add([name], {"appended_entries": entries})
        if _says_bytes(summary):
            logs.add([name], {"appended_bytes": size_bytes})
        for cursor_name, values in _of_cursors(summary):
            cursors.add([name, cursor_name], values)
    yield info
    yield from logs
    yield from cursors


def _says_bytes(summary: LogSummary) -> bool:
    """False for a log whose ledgers don't say how long they are, as unbounded ones of several writers."""
    last = None if summary.end is None else summary.held[summary.end.segment]
    return last is not None and (last.size_bytes is not None or not last.entries)


def _of_log(summary: LogSummary, bookies: Set[str] | None) -> dict[str, float | None]:
    head, end = summary.metadata, summary.end
    return {
        "entries": summary.entries,
        "bytes": summary.size_bytes,
        "archived_bytes": summary.archived_bytes,
        "segments": head.segment_count,
        "begins_segment": head.first_segment_number,
        "confirmed_segment": None if end is None else end.segment,
        "confirmed_entry": None if end is None else end.entry,
        "term": head.segments[-1].term if head.segments else None,
        "first_entry_time_seconds": _seconds(summary.first_sent_ms),
        "last_entry_time_seconds": _seconds(summary.last_sent_ms),
        "cursors": len(summary.cursors),
        "droppable_segments": summary.droppable_segments,
        "absent_bookies": summary.absent_bookies(bookies),
    }


def _of_cursors(summary: LogSummary) -> Iterator[tuple[str, dict[str, float | None]]]:
    head, slowest = summary.metadata, summary.slowest_cursor
    for cursor in summary.cursors:
        lag = summary.lags[cursor.name]
        begins_at = max(cursor.begins_at.segment, head.first_segment_number)
        yield (
            cursor.name,
            {
                "lag_entries": lag.entries,
                "lag_bytes": lag.size_bytes,
                "lag_seconds": lag.age_s,
                "kept_segments": max(0, head.next_segment_number - begins_at),
                "keeps_most": float(cursor is slowest),
                "term": cursor.term,
                "committed_time_seconds": _seconds(cursor.committed_at_ms or None),
            },
        )


def _seconds(time_ms: int | None) -> float | None:
    return None if time_ms is None else time_ms / _MS
