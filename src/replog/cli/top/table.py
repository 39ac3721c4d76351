"""What the pictures of `replog top` have in common: a table that fits a terminal, below a title and above the keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import attrs
from rich.text import Text

GAP = 2
RowT = TypeVar("RowT")


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
class Column(Generic[RowT]):
    """Columns have fixed widths, so that nothing moves from one picture to the next."""

    heading: str
    width: int
    importance: int  # the lowest number is left out last
    show: Callable[[RowT], str | None]


@attrs.frozen
class Order(Generic[RowT]):
    """By what rows are ordered: the highest comes first; None last."""

    name: str
    key: Callable[[RowT], float | None]


def chosen(columns: Sequence[Column[RowT]], space: int) -> list[Column[RowT]]:
    """The most important columns that fit, in their order."""
    found = []
    for column in sorted(columns, key=lambda each: each.importance):
        space -= GAP + column.width
        # Not the next narrower one: then a less important column would stand in place of a more important one.
        if space < 0:
            break
        found.append(column)
    return [column for column in columns if column in found]


def ordered(rows: Iterable[RowT], order: Order[RowT], name_of: Callable[[RowT], str]) -> list[RowT]:
    """The rows in this order; by their names at last, so that equal ones do not change places from picture to picture."""

    def place(row: RowT) -> tuple[bool, float, str]:
        value = order.key(row)
        return value is None, -(value or 0.0), name_of(row)

    return sorted(rows, key=place)


def title_line(view: View, what: str, counts: Iterable[tuple[str, str]]) -> Text:
    """The first line: what is watched, how many there are in which state (each with its style), and the time."""
    line = Text("replog top", style="bold")
    line.append(f"  {view.title}" if view.title else "", style="not bold")
    line.append(f"  {what}", style="not bold")
    for place, (count, style) in enumerate(counts):
        line.append(": " if place == 0 else ", ", style="not bold")
        line.append(count, style=f"not bold {style}")
    end = "PAUSED" if view.is_paused else view.clock
    line.append(" " * max(2, view.width - len(line.plain) - len(end)) + end, style="bold" if view.is_paused else "dim")
    return line


def rows_that_fit(rows: Sequence[RowT], lines_above: int, view: View) -> Sequence[RowT]:
    """As many rows as there is room for below so many lines, with room for a line that says how many are missing."""
    space = max(1, view.height - lines_above - 1)
    return rows if len(rows) <= space else rows[: max(1, space - 1)]


def more_line(count: int) -> Text:
    """How many rows are left out."""
    return Text(f"... and {count} more: press s for another order", style="dim")


def fitted(lines: list[Text], keys: str, view: View) -> list[Text]:
    """The lines, with the keys at the bottom if there are any: no more than the terminal has, and none is too wide for it."""
    if view.has_keys:
        lines = lines + [Text()] * (view.height - len(lines) - 1)
        paused = "go on" if view.is_paused else "pause"
        lines = [*lines[: max(0, view.height - 1)], Text(f"q quit   p {paused}   {keys}", style="dim")]
    lines = lines[: view.height]
    for line in lines:
        line.no_wrap = True
        line.truncate(view.width, overflow="ellipsis")
    return lines
