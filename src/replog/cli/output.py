"""The output of commands: results on standard output, as tables for people or JSON for programs; progress on standard error.

Functions that draw import rich, and nothing else does: bookies and commands that print for programs start without it.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from replog.errors import ConfigError, ReplogError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

_WIDE = 4096  # where there is no terminal, nothing is wrapped
_PROGRESS_AFTER_S = 0.5
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class OutputClosed(Exception):
    """Nobody reads standard output any more, as after `| head`: the command ends without a message."""


class StreamError(ReplogError):
    """Standard input or output failed, as on a full disk. Retry: when the cause is removed."""


def console(stderr: bool = False) -> Console:
    """A console that prints texts as they are: paths and inputs are not markup."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def emit(text: str) -> None:
    """Print a text as it is. Raises `OutputClosed`, `StreamError`, and `ConfigError` if there is no standard output."""
    with _told_as_ours():
        standard_output().write(text)


def emit_bytes(data: bytes) -> None:
    """Print these bytes, and nothing else. Raises as `emit`."""
    with _told_as_ours():
        output = standard_output()
        # What was printed as text waits in another buffer, and must come first.
        output.flush()
        output.buffer.write(data)
        output.buffer.flush()


def flush() -> None:
    """Print the buffered text. Raises `OutputClosed`, `StreamError`."""
    if sys.stdout is not None:
        with _told_as_ours():
            sys.stdout.flush()


def standard_output() -> TextIO:
    """Standard output. Raises `ConfigError` if it was closed before the command began: another file may have its number now."""
    if sys.stdout is None:
        raise ConfigError("there is no standard output: it is closed")
    return sys.stdout


@contextmanager
def _told_as_ours() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise OutputClosed from error
    except OSError as error:
        raise output_failed(error) from error


def output_failed(error: OSError) -> StreamError:
    """The error to raise if standard output cannot be written. From now on output is dropped, because it would fail again."""
    forget_output()
    return StreamError(f"standard output: cannot be written: {error.strerror}")


def forget_output() -> None:
    """Drop all output from now on, so that buffered output cannot fail at the exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        # At the descriptor, since Python flushes its buffers once more when it ends, and would report the error again.
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


# -- JSON ---------------------------------------------------------------------------------------------------------


def print_json(value: object) -> None:
    """Print one document."""
    emit(json.dumps(value, indent=2) + "\n")


def print_json_line(kind: str, value: dict[str, object]) -> None:
    """Print one line of a listing: an object that says of what kind it is."""
    emit(json.dumps({"kind": kind, **value}) + "\n")


# -- tables -------------------------------------------------------------------------------------------------------


def new_table(*headings: str) -> Table:
    """A table with these columns. A heading that begins with ">" is for numbers, aligned to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.ROUNDED, header_style="bold")
    for heading in headings:
        table.add_column(heading.removeprefix(">"), justify="right" if heading.startswith(">") else "left")
    return table


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal, or as wide as it needs if there is none."""
    from rich.console import Console

    target = io.StringIO()
    # The table is made in memory first: rich writes to its file by itself, and errors there would not be ours.
    is_terminal = standard_output().isatty()
    wide = Console(
        file=target,
        force_terminal=is_terminal,
        width=None if is_terminal else _WIDE,
        markup=False,
        emoji=False,
        highlight=False,
    )
    wide.print(table)
    emit(target.getvalue())


def add_row(table: Table, *values: object) -> None:
    """Add a row; None is shown as a dash."""
    from rich.text import Text

    table.add_row(*(Text("-" if value is None else str(value)) for value in values))


class Listing:
    """Rows that are printed one by one. Each column has a width, which grows if a value needs it."""

    def __init__(self, *columns: tuple[str, int]) -> None:
        self._widths = [width for _, width in columns]
        self._headings = [heading for heading, _ in columns]
        self._has_begun = False

    @classmethod
    def show(cls, columns: Iterable[tuple[str, int]], rows: Iterable[Sequence[object]]) -> None:
        """Print all these rows, and end."""
        listing = cls(*columns)
        for row in rows:
            listing.add(row)
        listing.end()

    def add(self, values: Sequence[object]) -> None:
        """Print a row; None is shown as a dash. A column with a negative width is aligned to the left."""
        if not self._has_begun:
            self._has_begun = True
            self.add(self._headings)
        cells = ("-" if value is None else str(value) for value in values)
        row = (
            cell.ljust(-width) if width < 0 else cell.rjust(width)
            for cell, width in zip(cells, self._widths, strict=True)
        )
        emit("  ".join(row).rstrip() + "\n")

    def end(self) -> None:
        """Print an empty line, if there was any row. The next row gets headings again."""
        if self._has_begun:
            emit("\n")
        self._has_begun = False


def as_size(size_bytes: int | None) -> str | None:
    """A number of bytes for people: "1.5 MiB"."""
    if size_bytes is None:
        return None
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def as_share(share: float | None) -> str | None:
    """A share for people: "83 %"."""
    return None if share is None else f"{100 * share:.0f} %"


def as_range(first: object, last: object) -> str | None:
    """From first to last for people."""
    return None if first is None or last is None else f"{first}..{last}"


# -- progress -----------------------------------------------------------------------------------------------------


@contextmanager
def watched(what: str, total_bytes: int | None, *, is_quiet: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of bytes that were read.

    After a while it shows a bar, if standard error is a terminal; never if `is_quiet`: then rows go to the same terminal, or the
    result is for programs."""
    if is_quiet or not sys.stderr.isatty():
        yield _tell_nobody
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    )
    task = bar.add_task(what, total=total_bytes)
    began_s = time.monotonic()
    has_begun = False

    def tell(size_bytes: int) -> None:
        nonlocal has_begun
        bar.advance(task, size_bytes)
        if not has_begun and time.monotonic() - began_s > _PROGRESS_AFTER_S:
            # A bar that appears and vanishes at once only flickers.
            has_begun = True
            bar.start()

    try:
        yield tell
    finally:
        bar.stop()


def _tell_nobody(size_bytes: int) -> None:
    pass
