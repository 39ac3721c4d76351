"""The logs of a cluster as lines of text for a terminal of some size. Pure: the same rows give the same lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich.text import Text

from replog.cli.figures import as_count, as_duration
from replog.cli.output import as_size
from replog.cli.top.logs import LogRow
from replog.cli.top.table import GAP, Column, Order, View, chosen, fitted, more_line, ordered, rows_that_fit, title_line
from replog.log.log_summaries import LogSummary

_NAME_WIDTH = 20
_STATE_WIDTH = len("in-recovery")
_STYLES = {"open": "green", "in-recovery": "yellow", "closed": "dim", "unknown": "bold red"}


def _of(show: Callable[[LogSummary], str | None]) -> Callable[[LogRow], str | None]:
    """What a column shows of what is known; nothing while nothing is."""
    return lambda row: None if row.summary is None else show(row.summary)


def _cursor(summary: LogSummary) -> str | None:
    slowest = summary.slowest_cursor
    return None if slowest is None else slowest.name[:14]


_COLUMNS: tuple[Column[LogRow], ...] = (
    Column("entries/s", 9, 2, lambda row: as_count(row.entries_rate)),
    Column("entries", 7, 3, _of(lambda summary: as_count(summary.entries))),
    Column("bytes", 10, 5, _of(lambda summary: as_size(summary.size_bytes))),
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


def log_picture(rows: Sequence[LogRow], left_out: int, problem: str, view: View) -> list[Text]:
    """The lines: at most as many as the terminal has, and none longer than it is wide."""
    counts = Counter(row.state for row in rows)
    states = [(f"{counts[state]} {state}", style) for state, style in _STYLES.items() if counts[state]]
    lines = [title_line(view, f"{len(rows) + left_out} log{'' if len(rows) + left_out == 1 else 's'}", states)]
    if problem:
        lines.append(Text(f"which logs there are is not known: {problem}", style="bold red"))
    if left_out:
        lines.append(Text(f"{left_out} more are not looked at: replog log list --long", style="dim"))
    columns = chosen(_COLUMNS, view.width - _NAME_WIDTH - GAP - _STATE_WIDTH)
    lines += [Text(), _headings(columns)]
    order = LOG_ORDERS[view.sort % len(LOG_ORDERS)]
    shown = rows_that_fit(ordered(rows, order, lambda row: row.name), len(lines), view)
    lines += [_line(row, columns) for row in shown]
    if len(shown) < len(rows):
        lines.append(more_line(len(rows) - len(shown)))
    if not rows:
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
