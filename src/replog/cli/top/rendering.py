"""The bookies of a cluster as lines of text for a terminal of some size. Pure: the same rows give the same lines.

A narrow terminal leaves out the less important columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from replog.cli.figures import as_count, as_duration, sparkline
from replog.cli.output import as_size
from replog.cli.top.model import Latencies, Row, State
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

_SPARK_WIDTH = 20
_NAME_WIDTH = 15
_STYLES = {
    State.WRITABLE: "green",
    State.DRAINING: "yellow",
    State.READ_ONLY: "yellow",
    State.METASTORE_DOUBTED: "red",
    State.FAILED: "bold red",
    State.UNREACHABLE: "bold red",
    State.UNKNOWN: "dim",
}


def _pair(latencies: Latencies) -> str | None:
    if latencies.p50_s is None:
        return None
    return f"{as_duration(latencies.p50_s)} {as_duration(latencies.p99_s)}"


def _bytes(value: float | None) -> str | None:
    return None if value is None else as_size(round(value))


def _both(one: float | None, other: float | None) -> str | None:
    return None if one is None and other is None else f"{as_count(one) or '-'}/{as_count(other) or '-'}"


_COLUMNS: tuple[Column[Row], ...] = (
    Column("entries/s", 9, 2, lambda row: as_count(row.figures.entries_rate)),
    Column("bytes/s", 10, 3, lambda row: _bytes(row.figures.added_bytes_rate)),
    Column("adds/s", 6, 9, lambda row: as_count(row.figures.adds_rate)),
    Column("reads/s", 7, 11, lambda row: as_count(row.figures.reads_rate)),
    Column("commit p50 p99", 14, 4, lambda row: _pair(row.commit)),
    Column("answer p50 p99", 14, 8, lambda row: _pair(row.answer)),
    Column("queue", 10, 5, lambda row: _bytes(row.figures.queued_bytes)),
    Column("used", 10, 7, lambda row: _bytes(row.figures.used_bytes)),
    Column("free", 10, 6, lambda row: _bytes(row.figures.free_bytes)),
    Column("open/ledgers", 12, 10, lambda row: _both(row.figures.active_ledgers, row.figures.ledgers)),
    Column("fences/recovery", 15, 12, lambda row: _both(row.figures.fence_requests, row.figures.recovery_reads)),
    Column("conns", 5, 13, lambda row: as_count(row.figures.connections)),
    Column("damaged", 7, 14, lambda row: as_count(row.figures.damaged_batches)),
    Column("up", 6, 15, lambda row: as_duration(row.figures.uptime_s)),
)
_STATE_WIDTH = max(len(state.value) for state in State)


ORDERS: tuple[Order[Row], ...] = (
    Order("bookie", lambda row: None),
    Order("entries/s", lambda row: row.figures.entries_rate),
    Order("commit p99", lambda row: row.commit.p99_s),
    Order("queue", lambda row: row.figures.queued_bytes),
    Order("least free", lambda row: None if row.figures.free_bytes is None else -row.figures.free_bytes),
)


def picture(rows: Sequence[Row], total: Row, problem: str, view: View) -> list[Text]:
    """The lines: at most as many as the terminal has, and none longer than it is wide."""
    lines = [_title(rows, view), _totals(total, view)]
    if total.figures.repair_under_replicated is not None:
        lines.append(_repairs(total))
    if any(row.figures.metastore_leads is not None for row in rows):
        lines.append(_metastore(rows))
    if problem:
        lines.append(Text(f"who is announced is not known: {problem}", style="bold red"))
    columns = chosen(_COLUMNS, view.width - _NAME_WIDTH - GAP - _STATE_WIDTH)
    lines += [Text(), _headings(columns, view.width)]
    order = ORDERS[view.sort % len(ORDERS)]
    shown = rows_that_fit(ordered(rows, order, lambda row: row.bookie_id), len(lines), view)
    names = _names(rows)
    lines += [_line(row, names[row.bookie_id], columns, view) for row in shown]
    if len(shown) < len(rows):
        lines.append(more_line(len(rows) - len(shown)))
    if not rows:
        lines.append(Text("no bookie is announced in this metastore", style="dim"))
    return fitted(lines, f"s order: {order.name}   l logs", view)


def _title(rows: Sequence[Row], view: View) -> Text:
    counts = Counter(row.state for row in rows)
    states = [(f"{counts[state]} {state.value}", _STYLES[state]) for state in State if counts[state]]
    return title_line(view, f"{len(rows)} bookie{'' if len(rows) == 1 else 's'}", states)


def _totals(total: Row, view: View) -> Text:
    line = Text()
    facts = [
        ("entries/s", as_count(total.figures.entries_rate)),
        ("bytes/s", _bytes(total.figures.added_bytes_rate)),
        ("adds/s", as_count(total.figures.adds_rate)),
        ("reads/s", as_count(total.figures.reads_rate)),
        ("commit p50 p99", _pair(total.commit)),
        ("fences", as_count(total.figures.fence_requests)),
        ("recovery reads", as_count(total.figures.recovery_reads)),
    ]
    line.append("all bookies", style="dim")
    for name, value in facts:
        if len(line.plain) + len(name) + len(value or "-") + 3 > view.width:
            return line
        line.append(f"  {name} ", style="dim")
        line.append(value or "-", style="bold")
    space = view.width - len(line.plain) - 2
    if view.is_unicode and space >= _SPARK_WIDTH and any(total.history):
        line.append("  " + sparkline(total.history, min(2 * _SPARK_WIDTH, space)), style="cyan")
    return line


def _metastore(rows: Sequence[Row]) -> Text:
    """The members of a metastore in the bookies' processes: who leads, how many may be lost, and who has stopped."""
    line = Text("metastore", style="dim")
    names = _names(rows)
    led = next((row for row in rows if row.figures.metastore_leads and row.state is not State.UNREACHABLE), None)
    if led is None:
        line.append("  no member leads", style="bold red")
    else:
        spare = led.figures.metastore_survives or 0
        line.append(f"  led by {names[led.bookie_id]}")
        line.append(f"  survives the loss of {spare:.0f}", style="green" if spare >= 1 else "bold yellow")
    stopped = [names[row.bookie_id] for row in rows if row.figures.metastore_stopped]
    if stopped:
        line.append(f"  stopped: {', '.join(stopped)}", style="bold red")
    return line


def _repairs(total: Row) -> Text:
    """The missing copies, and the rate of repair: the sums over the shares of bookies with `repair = "auto"`."""
    figures = total.figures
    line = Text("repairs", style="dim")
    lacking, left, rate = figures.repair_under_replicated, figures.repair_fragments_left, figures.repair_fragments_rate
    line.append(f"  {as_count(lacking)} fragments lack copies", style="bold yellow" if lacking else "green")
    if left:
        line.append(f"  {as_count(left)} to fill", style="bold")
        line.append(f"  {_bytes(figures.repair_bytes_rate) or '-'}/s copied")
        if rate:
            line.append(f"  {as_duration(left / rate)} left")
    return line


def _used(columns: Sequence[Column[Row]]) -> int:
    return _NAME_WIDTH + GAP + _STATE_WIDTH + sum(GAP + column.width for column in columns)


def _headings(columns: Sequence[Column[Row]], width: int) -> Text:
    cells = ["bookie".ljust(_NAME_WIDTH), "state".ljust(_STATE_WIDTH)]
    cells += [column.heading.rjust(column.width) for column in columns]
    if width - _used(columns) >= GAP + _SPARK_WIDTH:
        cells.append("the last minute".ljust(_SPARK_WIDTH))
    return Text((" " * GAP).join(cells), style="bold reverse")


def _line(row: Row, name: str, columns: Sequence[Column[Row]], view: View) -> Text:
    line = Text(name.ljust(_NAME_WIDTH + GAP))
    line.append(row.state.value.ljust(_STATE_WIDTH), style=_STYLES[row.state])
    if row.state in (State.UNREACHABLE, State.UNKNOWN):
        since = "" if row.since_s is None else f"  for {as_duration(row.since_s)}"
        line.append(f"{since}{': ' + _reason(row) if row.problem else ''}", style="dim")
        return line
    for column in columns:
        line.append(" " * GAP + (column.show(row) or "-").rjust(column.width))
    if view.is_unicode and view.width - _used(columns) >= GAP + _SPARK_WIDTH:
        line.append(" " * GAP + sparkline(row.history, _SPARK_WIDTH).rjust(_SPARK_WIDTH), style="cyan")
    return line


def _reason(row: Row) -> str:
    return row.problem.removeprefix(f"bookie {row.bookie_id}: ")


def _names(rows: Sequence[Row]) -> dict[str, str]:
    """Ids, shortened to the room there is, but long enough to be unique."""
    names = {row.bookie_id: row.bookie_id[:_NAME_WIDTH] for row in rows}
    return names if len(set(names.values())) == len(names) else {each: each[-_NAME_WIDTH:] for each in names}
