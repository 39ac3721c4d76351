"""The cases of shapes and sizes, and what is compared: the largest with the smallest, other shapes with the usual one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.setting import Comparison, Round, Setting
from benchmarks.shapes import ledgers, lengths, quorums, takeovers

FLAT = 1.3  # no more, of what should cost the same at any size
_USUAL = "3,3,2"

CASES: dict[str, Callable[[Setting], Round]] = {
    "shapes-ledgers": ledgers.measure_embedded,
    "shapes-ledgers-remote": ledgers.measure_remote,
    "shapes-segments": lengths.segments,
    "shapes-entries": lengths.entries,
    "shapes-bookies": quorums.copies_embedded,
    "shapes-bookies-remote": quorums.copies_remote,
    "shapes-ensembles": quorums.shapes,
    "shapes-take-over-in-flight": takeovers.against_in_flight,
    "shapes-take-over-length": takeovers.against_length,
}

Row = tuple[str, str, str, float | None]  # title, figure, unit, goal

_LENGTH: tuple[Row, ...] = (
    ("CPU of an entry, many in flight", "push_cpu_us", "us of CPU", FLAT),
    ("CPU of a lone append", "append_cpu_us", "us of CPU", FLAT),
    ("append, p50", "append_us", "us", FLAT),
    ("take over, whose leader is there", "take_over_ms", "ms", FLAT),
    ("start to read at its end", "end_ms", "ms", FLAT),
    ("read one entry anywhere", "point_us", "us", FLAT),
)
_SHAPE: tuple[Row, ...] = (
    ("CPU of an entry, many in flight", "push_cpu_us", "us of CPU", None),
    ("CPU of a lone append", "append_cpu_us", "us of CPU", None),
    ("append, p50", "append_us", "us", None),
    ("CPU of an entry of 100 B that is scanned", "scan_cpu_us", "us of CPU", None),
)


def _growth(case: str, name: str, sizes: str, rows: Sequence[Row]) -> list[Comparison]:
    return [
        Comparison(
            case, f"{sizes}: {title}", f"{name} most", f"{name} least", figure, figure, unit, goal, at_least=False
        )
        for title, figure, unit, goal in rows
    ]


def _of_ledgers(case: str, where: str) -> list[Comparison]:
    loads: tuple[tuple[str, str, str, float | None], ...] = (
        ("one", "all in flight to one of them, CPU of an entry", "total_cpu_us", FLAT),
        ("turns", "appends to each in turn, CPU", "total_cpu_us", FLAT),
        ("turns", "the same, p50", "p50_us", FLAT),
        ("dealt", "dealt out to all, CPU of an entry", "total_cpu_us", None),
    )
    return [
        each
        for load, title, figure, goal in loads
        for each in _growth(case, load, f"most and fewest ledgers{where}", [(title, figure, "us", goal)])
    ]


def _of_copies(case: str, where: str) -> list[Comparison]:
    rows: list[Row] = [
        ("CPU of a copy of an entry, many in flight", "copy_cpu_us", "us of CPU", FLAT),
        ("CPU of a lone append", "append_cpu_us", "us of CPU", None),
        ("append, p50", "append_us", "us", None),
    ]
    return [
        Comparison(
            case,
            f"most bookies and three{where}: {title}",
            "bookies most",
            "bookies 3",
            figure,
            figure,
            unit,
            goal,
            at_least=False,
        )
        for title, figure, unit, goal in rows
    ]


def _of_shapes() -> list[Comparison]:
    return [
        Comparison("shapes-ensembles", f"{name}: {title}", name, _USUAL, figure, figure, unit, goal, at_least=False)
        for name in map(quorums.name_of, quorums.SHAPES)
        if name != _USUAL
        for title, figure, unit, goal in _SHAPE
    ]


_TAKE_OVER: tuple[Row, ...] = (("killed, until the next one's first append", "take_over_ms", "ms", None),)

COMPARISONS = (
    *_of_ledgers("shapes-ledgers", ""),
    *_of_ledgers("shapes-ledgers-remote", ", TCP"),
    *_growth("shapes-segments", "segments", "longest and shortest log", _LENGTH),
    *_growth("shapes-entries", "entries", "longest and shortest ledger", _LENGTH),
    *_of_copies("shapes-bookies", ""),
    *_of_copies("shapes-bookies-remote", ", TCP"),
    *_of_shapes(),
    *_growth("shapes-take-over-in-flight", "in flight", "most and fewest bytes in flight", _TAKE_OVER),
    *_growth("shapes-take-over-length", "length", "longest and shortest ledger, leader", _TAKE_OVER),
)
