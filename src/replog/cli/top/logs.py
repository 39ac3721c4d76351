"""Turns repeated summaries of logs into rows. Pure: the caller says what time it is.

A rate is the number of entries appended between two summaries, where both have it: otherwise it is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import attrs
from rich.text import Text

from replog.cli.figures import as_count, as_duration
from replog.cli.output import as_size
from replog.cli.top.screen import (
    GAP,
    Column,
    Order,
    View,
    chosen,
    fitted,
    more_line,
    ordered,
    rows_that_fit,
    title_line,
)
from replog.log.log_looks import LogListing
from replog.log.log_summaries import CursorLag, LogSummary


@attrs.frozen(kw_only=True)
class LogRow:
    """One log. `summary` is None while nothing is known of it; `problem` says why the last look failed."""

    name: str
    summary: LogSummary | None = None
    entries_rate: float | None = None  # per second
    absent_bookies: int | None = None  # that it is written to, and that are not announced
    problem: str = ""

    @property
    def state(self) -> str:
        """The state of its last ledger, in a word."""
        if self.summary is None or self.summary.state is None:
            return "unknown"
        return self.summary.state.value

    @property
    def lag(self) -> CursorLag:
        """How far its slowest cursor is behind; all None without cursors, or if it is unknown."""
        slowest = None if self.summary is None else self.summary.slowest_cursor
        if self.summary is None or slowest is None:
            return CursorLag()
        return self.summary.lags[slowest.name]


class Logs:
    """The known facts about logs, from polls. `problem` says why the list of logs is unknown."""

    def __init__(self) -> None:
        self.problem = ""
        self.are_more = False  # there are logs that are not looked at
        self._bookies: frozenset[str] | None = None
        self._rows: dict[str, LogRow] = {}
        self._looked_s: dict[str, float] = {}

    def listed(self, listing: LogListing) -> None:
        """These are the logs that are looked at, of all that there are."""
        self.problem, self.are_more, self._bookies = "", listing.are_more, listing.bookies
        self._rows = {name: self._rows.get(name, LogRow(name=name)) for name in listing.names}
        self._looked_s = {name: at_s for name, at_s in self._looked_s.items() if name in self._rows}

    def summarized(self, summary: LogSummary, now_s: float) -> None:
        """A log holds this now."""
        name = summary.metadata.name
        before = self._rows.get(name)
        if before is None:
            return  # it vanished from the list meanwhile
        rate = None
        if before.summary is not None:
            appended, seconds = summary.appended_since(before.summary), now_s - self._looked_s[name]
            rate = None if appended is None or seconds <= 0 else appended.entries / seconds
        absent = summary.absent_bookies(self._bookies)
        self._rows[name] = LogRow(
            name=name, summary=summary, entries_rate=rate, absent_bookies=absent, problem=summary.problem or ""
        )
        self._looked_s[name] = now_s

    def failed(self, name: str, problem: str) -> None:
        """A log could not be looked at. Its known values stay."""
        if name in self._rows:
            self._rows[name] = attrs.evolve(self._rows[name], entries_rate=None, problem=problem)

    def rows(self) -> list[LogRow]:
        """All of them, by name."""
        return [self._rows[name] for name in sorted(self._rows)]


# -- log rendering ----------------------------------------------------------------------------------------------------
#
# The logs of a cluster as lines of text for a terminal of some size. Pure: the same rows give the same lines.


_NAME_WIDTH = 20
_STATE_WIDTH = len("in-recovery")
_STYLES = {"open": "green", "in-recovery": "yellow", "closed": "dim", "unknown": "bold red"}


def _of(show: Callable[[LogSummary], str | None]) -> Callable[[LogRow], str | None]:
    """The cell of a column for known values; nothing while there are none."""
    return lambda row: None if row.summary is None else show(row.summary)


def _cursor(summary: LogSummary) -> str | None:
    slowest = summary.slowest_cursor
    return None if slowest is None else slowest.name[:14]


_COLUMNS: tuple[Column[LogRow], ...] = (
    Column("entries/s", 9, 2, lambda row: as_count(row.entries_rate)),
    Column("entries", 7, 3, _of(lambda summary: as_count(summary.entries))),
    Column("bytes", 10, 5, _of(lambda summary: as_size(summary.size_bytes))),
    Column("archived", 10, 13, _of(lambda summary: as_size(summary.archived_bytes))),
    Column("segments", 8, 7, _of(lambda summary: as_count(summary.metadata.segment_count))),
    Column("slowest cursor", 14, 6, _of(_cursor)),
    Column("lag", 6, 4, lambda row: as_count(row.lag.entries)),
    Column("lag bytes", 10, 9, lambda row: as_size(row.lag.size_bytes)),
    Column("behind", 6, 8, lambda row: as_duration(row.lag.age_s)),
    Column("droppable", 9, 10, _of(lambda summary: as_count(summary.droppable_segments))),
    Column("absent", 6, 11, lambda row: as_count(row.absent_bookies)),
    Column("writer", 16, 12, _of(lambda summary: (summary.writer or "")[:16])),
)
LOG_ORDERS: tuple[Order[LogRow], ...] = (
    Order("log", lambda row: None),
    Order("entries/s", lambda row: row.entries_rate),
    Order("lag", lambda row: row.lag.entries),
    Order("bytes", lambda row: None if row.summary is None else row.summary.size_bytes),
)


def log_picture(rows: Sequence[LogRow], are_more: bool, problem: str, view: View) -> list[Text]:
    """The lines: at most as many as the terminal has, and none longer than it is wide."""
    counts = Counter(row.state for row in rows)
    states = [(f"{counts[state]} {state}", style) for state, style in _STYLES.items() if counts[state]]
    lines = [title_line(view, f"{'first ' if are_more else ''}{len(rows)} log{'' if len(rows) == 1 else 's'}", states)]
    if problem:
        lines.append(Text(f"which logs there are is not known: {problem}", style="bold red"))
    if are_more:
        lines.append(Text("more are not looked at: replog log list --long", style="dim"))
    columns = chosen(_COLUMNS, view.width - _NAME_WIDTH - GAP - _STATE_WIDTH)
    lines += [Text(), _headings(columns)]
    order = LOG_ORDERS[view.sort % len(LOG_ORDERS)]
    shown = rows_that_fit(ordered(rows, order, lambda row: row.name), len(lines), view)
    lines += [_line(row, columns) for row in shown]
    if len(shown) < len(rows):
        lines.append(more_line(len(rows) - len(shown)))
    if not rows and not problem:
        lines.append(Text("there is no log in this metastore", style="dim"))
    return fitted(lines, f"s order: {order.name}   l bookies", view)


def _headings(columns: Sequence[Column[LogRow]]) -> Text:
    cells = ["log".ljust(_NAME_WIDTH), "state".ljust(_STATE_WIDTH)]
    cells += [column.heading.rjust(column.width) for column in columns]
    return Text((" " * GAP).join(cells), style="bold reverse")


def _line(row: LogRow, columns: Sequence[Column[LogRow]]) -> Text:
    name = row.name if len(row.name) <= _NAME_WIDTH else f"{row.name[: _NAME_WIDTH - 1]}~"
    line = Text(name.ljust(_NAME_WIDTH + GAP))
    line.append(row.state.ljust(_STATE_WIDTH), style=_STYLES.get(row.state, ""))
    if row.summary is not None:
        for column in columns:
            line.append(" " * GAP + (column.show(row) or "-").rjust(column.width))
    if row.problem:
        line.append(f"  {row.problem}", style="red")
    return line
