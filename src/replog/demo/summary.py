"""The table at the end."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from replog.demo.results import ActResult

_DIGEST_SHOWN = 16


def summary(results: Sequence[ActResult]) -> Table:
    """A column for each act. What the rows mean is told in docs/demo.md."""
    table = Table(box=box.ROUNDED, header_style="bold", show_edge=True)
    table.add_column("")
    for result in results:
        before, _, title = result.title.partition(": ")
        table.add_column(f"{before}:\n{title or before}", justify="right")
    for name, cells in zip(_NAMES, zip(*map(_cells, results), strict=True), strict=True):
        if name == _SECTION:
            table.add_section()
        else:
            table.add_row(name, *cells)
    return table


_SECTION = "-"
_NAMES = (
    "entries confirmed",
    "  by the first leader",
    "  in flight at its end",
    "  of these in the log",
    "entries read back",
    _SECTION,
    "SHA-256 of the input",
    "SHA-256 read back",
    "order and content",
    _SECTION,
    "takeover",
    "  process and bookies",
    "  recovery",
    "  replay",
    "  first append",
    "deposed one knew in",
    "confirmed to it since",
    _SECTION,
    "throughput, entries/s",
    "throughput, MB/s",
    _SECTION,
    "verdict",
)


def _cells(result: ActResult) -> list[Text | str]:
    findings, takeover = result.findings, result.takeover
    is_same = findings.digest_expected == findings.digest_read
    return [
        f"{findings.confirmed:,}",
        f"{result.confirmed_by_first:,}",
        f"{result.in_flight:,}",
        f"{result.survived:,}",
        Text(f"{findings.read:,}", style="" if findings.read == findings.confirmed else "bold red"),
        "",
        findings.digest_expected[:_DIGEST_SHOWN],
        Text(findings.digest_read[:_DIGEST_SHOWN], style="" if is_same else "bold red"),
        _verdict("as confirmed", "WRONG", not findings.faults),
        "",
        f"{takeover.total_s:.3f} s",
        f"{takeover.start_s:.3f} s" if takeover.start_s else "-",
        f"{takeover.recovery_s:.3f} s",
        f"{takeover.replay_s:.3f} s",
        f"{takeover.append_s:.3f} s",
        "-" if result.learnt_s is None else f"{result.learnt_s:.3f} s",
        "-" if result.confirmed_afterwards is None else f"{result.confirmed_afterwards:,}",
        "",
        f"{result.entries_per_s:,.0f}",
        f"{result.bytes_per_s / 1e6:,.1f}",
        "",
        _verdict("PASSED", "FAILED", not result.faults),
    ]


def _verdict(good: str, bad: str, is_good: bool) -> Text:
    return Text(good, style="bold green") if is_good else Text(bad, style="bold red")
