"""The tables at the end."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from replog.demo.results import ActResult, Result

_DIGEST_SHOWN = 16
_WIDE = 76  # columns that the table of all acts needs
_SECTION = "-"
_NAMES = (
    "confirmed by then",
    "in flight then",
    "  of these in the log",
    _SECTION,
    "appends stalled",
    "takeover",
    "  process and client",
    "  recovery",
    "  replay",
    "  first append",
    "bookie replaced in",
    "knew it is fenced in",
    _SECTION,
    "entries/s",
    _SECTION,
    "verdict",
)


def summary(result: Result, width: int) -> Group:
    """A table of the acts, a column each, or one below the other where there is no room; then one of the log. What the rows
    mean is told in docs/demo.md."""
    acts = [result.acts] if width >= _WIDE else [[act] for act in result.acts]
    return Group(*(_acts(each) for each in acts), _log(result))


def _table(*headings: str) -> Table:
    table = Table(box=box.ROUNDED, header_style="bold", show_edge=True)
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _acts(acts: Sequence[ActResult]) -> Table:
    table = _table(*(act.title.replace(": ", ":\n") for act in acts))
    for name, *cells in zip(_NAMES, *map(_cells, acts), strict=True):
        if name == _SECTION:
            table.add_section()
        elif any(cell != "-" for cell in cells):
            table.add_row(str(name), *cells)
    return table


def _cells(act: ActResult) -> list[Text | str]:
    parts = ["-"] * 5
    if (took := act.takeover) is not None:
        parts = [_seconds(each) for each in (took.total_s, took.start_s, took.recovery_s, took.replay_s, took.append_s)]
    return [
        f"{act.confirmed:,}",
        f"{act.in_flight:,}",
        "-" if act.survived is None else f"{act.survived:,}",
        "",
        _seconds(act.stalled_s),
        *parts,
        _seconds(act.replaced_s),
        _seconds(act.learnt_s),
        "",
        f"{act.rate.entries_per_s:,.0f}",
        "",
        _verdict("PASSED", "FAILED", not act.faults),
    ]


def _log(result: Result) -> Table:
    reading, findings = result.reading, result.reading.findings
    is_same = findings.digest_expected == findings.digest_read
    table = _table("The log")
    table.add_row("entries confirmed", f"{findings.confirmed:,}")
    table.add_row("entries read back", _marked(f"{findings.read:,}", findings.read == findings.confirmed))
    table.add_row("SHA-256 of the input", findings.digest_expected[:_DIGEST_SHOWN])
    table.add_row("SHA-256 read back", _marked(findings.digest_read[:_DIGEST_SHOWN], is_same))
    table.add_row("order and content", _verdict("as confirmed", "WRONG", not findings.faults))
    table.add_section()
    table.add_row("read by the follower", _marked(f"{reading.followed:,}", not reading.followers_faults))
    table.add_row("  behind the last append", _seconds(reading.behind_s))
    table.add_section()
    table.add_row("throughput, entries/s", f"{result.entries_per_s:,.0f}")
    table.add_row("throughput, MB/s", f"{result.bytes_per_s / 1e6:,.1f}")
    table.add_section()
    table.add_row("verdict", _verdict("PASSED", "FAILED", not result.faults))
    return table


def _seconds(duration_s: float | None) -> str:
    return "-" if duration_s is None else f"{duration_s:.3f} s"


def _marked(text: str, is_good: bool) -> Text:
    return Text(text, style="" if is_good else "bold red")


def _verdict(good: str, bad: str, is_good: bool) -> Text:
    return Text(good, style="bold green") if is_good else Text(bad, style="bold red")
