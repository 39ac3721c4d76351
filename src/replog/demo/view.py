"""The output for people: steps as they are done, a live line in a terminal or plain lines anywhere else, and the tables
at the end."""

from __future__ import annotations

import time
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from replog.demo.results import Result

_PLAIN_EVERY_S = 1.0
_WIDE = 76  # columns that the table of all acts needs


class View:
    """Shows what is done, and what goes on while the context manager `status` is entered.

    Without a terminal there are no control codes: one line for each step, and one a second while a step goes on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._is_unicode = not console.options.ascii_only
        # Without a terminal, `status` prints nothing.
        self.status = console.status("", spinner="dots" if self._is_unicode else "line")
        self._step = ""
        self._begun: tuple[float, int] | None = None
        self._spoken_s = 0.0

    def heading(self, text: str) -> None:
        """An act begins."""
        self._console.print()
        self._console.print(Text(text, style="bold"))

    def step(self, text: str) -> None:
        """Something goes on from now on, until `done`."""
        self._step, self._begun, self._spoken_s = text, None, time.monotonic()
        self.status.update(Text(text))

    def progress(self, entries: int, remark: str) -> None:
        """Show how far the present step is. This may be called as often as one likes."""
        now_s = time.monotonic()
        self._begun = self._begun or (now_s, entries)
        elapsed_s = now_s - self._begun[0]
        rate = (entries - self._begun[1]) / elapsed_s if elapsed_s > 0 else 0.0
        text = f"{self._step}: {entries:,} entries, {rate:,.0f}/s, {remark}"
        if self._is_live:
            self.status.update(Text(text))
        elif now_s - self._spoken_s >= _PLAIN_EVERY_S:
            self._spoken_s = now_s
            self._console.print(Text(f"  ..  {text}"), soft_wrap=True)

    def done(self, text: str, *, is_bad: bool = False) -> None:
        """A step has ended with this; it stays on the screen."""
        marks = ("✔", "✘") if self._is_unicode else ("ok", "!!")
        mark = (marks[is_bad], "bold red" if is_bad else "green")
        self._console.print(Text.assemble("  ", mark, "  ", text), soft_wrap=not self._is_live)
        self.step("")

    def note(self, text: str) -> None:
        """Something that stays on the screen as it is."""
        self._console.print(Text(text), soft_wrap=not self._is_live)


def show_result(console: Console, result: Result) -> None:
    """Print the tables, and what is wrong, if anything. docs/tutorial/demo.md explains the rows."""
    found = result.to_json()
    acts = found["acts"]
    console.print()
    for each in [acts] if console.width >= _WIDE else [[act] for act in acts]:
        console.print(_table_of_acts(each))
    console.print(_table_of_log(found))
    for line in result.faults or ["Every confirmed entry is there: once, unchanged, in order."]:
        console.print(Text(line, style="red" if result.faults else "green"), soft_wrap=True)


def _table_of_acts(acts: list[dict[str, Any]]) -> Table:
    takeovers = [act["takeover_s"] or {} for act in acts]
    rows = [
        ("confirmed by then", [act["entries_confirmed"] for act in acts]),
        ("in flight then", [act["entries_in_flight"] for act in acts]),
        ("  of these in the log", [act["entries_in_flight_survived"] for act in acts]),
        ("appends stalled", [act["stalled_s"] for act in acts]),
        ("takeover", [each.get("total") for each in takeovers]),
        ("  process and client", [each.get("start_s") for each in takeovers]),
        ("  recovery", [each.get("recovery_s") for each in takeovers]),
        ("  replay", [each.get("replay_s") for each in takeovers]),
        ("  first append", [each.get("append_s") for each in takeovers]),
        ("bookie replaced in", [act["bookie_replaced_s"] for act in acts]),
        ("knew it is fenced in", [act["leader_learnt_s"] for act in acts]),
        ("entries/s", [round(act["entries_per_s"]) for act in acts]),
    ]
    rows = [row for row in rows if any(value is not None for value in row[1])]
    return _table([act["title"].replace(": ", ":\n") for act in acts], rows, [act["passed"] for act in acts])


def _table_of_log(found: dict[str, Any]) -> Table:
    log = found["log"]
    rows = [
        ("entries confirmed", [log["entries_confirmed"]]),
        ("in flight, and kept", [log["entries_read"] - log["entries_confirmed"]]),
        ("entries read back", [log["entries_read"]]),
        ("read by the follower", [log["entries_followed"]]),
        ("  behind the last append", [log["follower_behind_s"]]),
        ("throughput, entries/s", [round(found["entries_per_s"])]),
        ("throughput, bytes/s", [round(found["bytes_per_s"])]),
    ]
    return _table(["The log"], rows, [found["passed"]])


def _table(headings: list[str], rows: list[tuple[str, list[float | None]]], passed: list[bool]) -> Table:
    table = Table(box=box.ROUNDED, header_style="bold")
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for name, values in rows:
        table.add_row(name, *map(_shown, values))
    table.add_section()
    table.add_row("verdict", *(Text("PASSED", "bold green") if each else Text("FAILED", "bold red") for each in passed))
    return table


def _shown(value: float | None) -> str:
    """A duration has a fraction, a number of entries has none."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f} s"
