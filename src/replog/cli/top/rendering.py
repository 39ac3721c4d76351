"""A cluster as lines of text for a terminal of some size. Pure: the same rows give the same lines.

Columns have fixed widths, so that nothing moves from one picture to the next; a narrow terminal leaves out the less
important ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import attrs
from rich.text import Text

from replog.cli.figures import as_count, as_duration, sparkline
from replog.cli.output import as_size
from replog.cli.top.model import Latencies, Row, State

_GAP = 2
_SPARK_WIDTH = 20
_NAME_WIDTH = 15
_STYLES = {
    State.WRITABLE: "green",
    State.DRAINING: "yellow",
    State.READ_ONLY: "yellow",
    State.FAILED: "bold red",
    State.UNREACHABLE: "bold red",
    State.UNKNOWN: "dim",
}


@attrs.frozen
class View:
    """The settings of a picture: the size of the terminal in characters, the title, the order, and whether it is paused.

    `has_keys` is true if somebody can press keys."""

    width: int
    height: int
    title: str = ""
    clock: str = ""
    sort: int = 0
    is_paused: bool = False
    is_unicode: bool = True
    has_keys: bool = True


@attrs.frozen
class _Column:
    heading: str
    width: int
    importance: int  # the lowest number is left out last
    show: Callable[[Row], str | None]


def _pair(latencies: Latencies) -> str | None:
    if latencies.p50_s is None:
        return None
    return f"{as_duration(latencies.p50_s)} {as_duration(latencies.p99_s)}"


def _bytes(value: float | None) -> str | None:
    return None if value is None else as_size(round(value))


def _both(one: float | None, other: float | None) -> str | None:
    return None if one is None and other is None else f"{as_count(one) or '-'}/{as_count(other) or '-'}"


_COLUMNS = (
    _Column("entries/s", 9, 2, lambda row: as_count(row.figures.entries_rate)),
    _Column("bytes/s", 10, 3, lambda row: _bytes(row.figures.added_bytes_rate)),
    _Column("adds/s", 6, 9, lambda row: as_count(row.figures.adds_rate)),
    _Column("reads/s", 7, 11, lambda row: as_count(row.figures.reads_rate)),
    _Column("commit p50 p99", 14, 4, lambda row: _pair(row.commit)),
    _Column("answer p50 p99", 14, 8, lambda row: _pair(row.answer)),
    _Column("queue", 10, 5, lambda row: _bytes(row.figures.queued_bytes)),
    _Column("used", 10, 7, lambda row: _bytes(row.figures.used_bytes)),
    _Column("free", 10, 6, lambda row: _bytes(row.figures.free_bytes)),
    _Column("open/ledgers", 12, 10, lambda row: _both(row.figures.active_ledgers, row.figures.ledgers)),
    _Column("fences/recovery", 15, 12, lambda row: _both(row.figures.fence_requests, row.figures.recovery_reads)),
    _Column("conns", 5, 13, lambda row: as_count(row.figures.connections)),
    _Column("damaged", 7, 14, lambda row: as_count(row.figures.damaged_batches)),
    _Column("up", 6, 15, lambda row: as_duration(row.figures.uptime_s)),
)
_STATE_WIDTH = max(len(state.value) for state in State)


@attrs.frozen
class _Order:
    name: str
    key: Callable[[Row], float | None]  # the highest comes first; None last


ORDERS = (
    _Order("bookie", lambda row: None),
    _Order("entries/s", lambda row: row.figures.entries_rate),
    _Order("commit p99", lambda row: row.commit.p99_s),
    _Order("queue", lambda row: row.figures.queued_bytes),
    _Order("least free", lambda row: None if row.figures.free_bytes is None else -row.figures.free_bytes),
)


def picture(rows: Sequence[Row], total: Row, problem: str, view: View) -> list[Text]:
    """The lines: at most as many as the terminal has, and none longer than it is wide."""
    lines = [_title(rows, view), _totals(total, view)]
    if total.figures.repair_under_replicated is not None:
        lines.append(_repairs(total))
    if problem:
        lines.append(Text(f"who is announced is not known: {problem}", style="bold red"))
    columns = _chosen(view.width)
    lines += [Text(), _headings(columns, view.width)]
    ordered = _ordered(rows, view.sort)
    space = max(1, view.height - len(lines) - 1)
    shown = ordered if len(ordered) <= space else ordered[: max(1, space - 1)]
    names = _names(rows)
    lines += [_line(row, names[row.bookie_id], columns, view) for row in shown]
    if len(shown) < len(ordered):
        lines.append(Text(f"... and {len(ordered) - len(shown)} more: press s for another order", style="dim"))
    if not rows:
        lines.append(Text("no bookie is announced in this metastore", style="dim"))
    if view.has_keys:
        lines += [Text()] * (view.height - len(lines) - 1)
        lines = [*lines[: max(0, view.height - 1)], _keys(view)]
    lines = lines[: view.height]
    for line in lines:
        line.no_wrap = True
        line.truncate(view.width, overflow="ellipsis")
    return lines


def _title(rows: Sequence[Row], view: View) -> Text:
    counts = Counter(row.state for row in rows)
    line = Text("replog top", style="bold")
    line.append(f"  {view.title}" if view.title else "", style="not bold")
    line.append(f"  {len(rows)} bookie{'' if len(rows) == 1 else 's'}", style="not bold")
    for place, state in enumerate(state for state in State if counts[state]):
        line.append(": " if place == 0 else ", ", style="not bold")
        line.append(f"{counts[state]} {state.value}", style=f"not bold {_STYLES[state]}")
    end = "PAUSED" if view.is_paused else view.clock
    line.append(" " * max(2, view.width - len(line.plain) - len(end)) + end, style="bold" if view.is_paused else "dim")
    return line


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


def _repairs(total: Row) -> Text:
    """What lacks copies, and how fast it heals: the sums of what bookies with `repair = "auto"` say of their shares."""
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


def _chosen(width: int) -> list[_Column]:
    """The most important columns that fit, in their order."""
    space = width - _NAME_WIDTH - _GAP - _STATE_WIDTH
    chosen = []
    for column in sorted(_COLUMNS, key=lambda each: each.importance):
        space -= _GAP + column.width
        # Not the next narrower one: then a less important column would stand in place of a more important one.
        if space < 0:
            break
        chosen.append(column)
    return [column for column in _COLUMNS if column in chosen]


def _used(columns: Sequence[_Column]) -> int:
    return _NAME_WIDTH + _GAP + _STATE_WIDTH + sum(_GAP + column.width for column in columns)


def _headings(columns: Sequence[_Column], width: int) -> Text:
    cells = ["bookie".ljust(_NAME_WIDTH), "state".ljust(_STATE_WIDTH)]
    cells += [column.heading.rjust(column.width) for column in columns]
    if width - _used(columns) >= _GAP + _SPARK_WIDTH:
        cells.append("the last minute".ljust(_SPARK_WIDTH))
    return Text((" " * _GAP).join(cells), style="bold reverse")


def _line(row: Row, name: str, columns: Sequence[_Column], view: View) -> Text:
    line = Text(name.ljust(_NAME_WIDTH + _GAP))
    line.append(row.state.value.ljust(_STATE_WIDTH), style=_STYLES[row.state])
    if row.state in (State.UNREACHABLE, State.UNKNOWN):
        since = "" if row.since_s is None else f"  for {as_duration(row.since_s)}"
        line.append(f"{since}{': ' + _reason(row) if row.problem else ''}", style="dim")
        return line
    for column in columns:
        line.append(" " * _GAP + (column.show(row) or "-").rjust(column.width))
    if view.is_unicode and view.width - _used(columns) >= _GAP + _SPARK_WIDTH:
        line.append(" " * _GAP + sparkline(row.history, _SPARK_WIDTH).rjust(_SPARK_WIDTH), style="cyan")
    return line


def _reason(row: Row) -> str:
    return row.problem.removeprefix(f"bookie {row.bookie_id}: ")


def _names(rows: Sequence[Row]) -> dict[str, str]:
    """Ids, shortened to the room there is, but long enough to be unique."""
    names = {row.bookie_id: row.bookie_id[:_NAME_WIDTH] for row in rows}
    return names if len(set(names.values())) == len(names) else {each: each[-_NAME_WIDTH:] for each in names}


def _ordered(rows: Sequence[Row], sort: int) -> list[Row]:
    key = ORDERS[sort % len(ORDERS)].key

    def place(row: Row) -> tuple[bool, float, str]:
        value = key(row)
        # By the id at last, so that rows with equal values do not change places from picture to picture.
        return value is None, -(value or 0.0), row.bookie_id

    return sorted(rows, key=place)


def _keys(view: View) -> Text:
    order = ORDERS[view.sort % len(ORDERS)].name
    return Text(f"q quit   p {'go on' if view.is_paused else 'pause'}   s order: {order}", style="dim")
