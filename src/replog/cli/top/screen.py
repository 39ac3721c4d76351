"""The table on a terminal, and the keys that are pressed there."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

import attrs
import trio
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

# -- table ------------------------------------------------------------------------------------------------------------
#
# The common part of the pictures of `replog top`: a table that fits a terminal, below a title and above the keys.


GAP = 2
RowT = TypeVar("RowT")


@attrs.frozen
class View:
    """The settings of a picture: the size of the terminal in characters, the title, the order, and whether it is paused.

    `has_keys` is true if keys can be pressed."""

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
    """The first line: the subject, the count in each state (each with its style), and the time."""
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


# -- terminal ---------------------------------------------------------------------------------------------------------
#
# A terminal for a live view: the other screen, keys without Enter, and everything restored at the end in any case.


_KEYS_AT_ONCE = 64
_SEVERAL_BYTES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)  # arrows and the like mean nothing here


class Screen:
    """The terminal of standard output, and of standard input if that is one, as a context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.has_keys = sys.stdin is not None and sys.stdin.isatty()
        self._live: Live | None = None
        self._modes: list[object] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """The present width and height, in characters."""
        return self.console.size.width, self.console.size.height

    @contextmanager
    def open(self) -> Iterator[None]:
        """Take the terminal, and restore it at the end."""
        self._take()
        try:
            yield
        finally:
            self._give_back()

    def _take(self) -> None:
        if self.has_keys:
            self._modes = termios.tcgetattr(sys.stdin.fileno())
            # Cbreak and not raw: Ctrl-C and Ctrl-Z stay signals. At once, without waiting for output to drain.
            tty.setcbreak(sys.stdin.fileno(), termios.TCSANOW)
        self._live = Live(console=self.console, screen=True, auto_refresh=False, redirect_stdout=False)
        self._live.start()

    def _give_back(self) -> None:
        try:
            if self._live is not None:
                self._live.stop()
        finally:
            self._live = None
            if self._modes is not None:
                with suppress(termios.error):  # the terminal itself may be gone
                    termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._modes)  # type: ignore[arg-type]
                self._modes = None

    def show(self, lines: Sequence[Text]) -> None:
        """Draw this over the earlier picture, in one write."""
        if self._live is not None:
            self._live.update(Group(*lines), refresh=True)

    def stop_here(self) -> None:
        """Do what Ctrl-Z means: restore the terminal, stop this process, and take the terminal again when it goes on."""
        self._give_back()
        # SIGTSTP is caught here, so stopping oneself takes the signal that cannot be.
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()


async def watch_terminal(
    screen: Screen, redraw: Callable[[], None], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Redraw when the terminal's size changes, and handle Ctrl-Z. Runs until cancelled."""
    with trio.open_signal_receiver(signal.SIGWINCH, signal.SIGTSTP) as signals:
        task_status.started()
        async for number in signals:
            if number == signal.SIGTSTP:
                screen.stop_here()
            redraw()


async def watch_keys(screen: Screen, pressed: Callable[[str], None]) -> None:
    """Report each key, as its character. Returns when the terminal is gone, or at once if there is none."""
    if not screen.has_keys:
        return
    descriptor = sys.stdin.fileno()
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        try:
            found = os.read(descriptor, _KEYS_AT_ONCE)
        except OSError:
            # The terminal is gone; SIGHUP says so to the whole command.
            return
        if not found:
            return
        for character in _SEVERAL_BYTES.sub(b"", found).decode("utf-8", "replace"):
            pressed(character)
