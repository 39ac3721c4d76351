"""The cases of the metastores, and what is compared with what: much of everything, with little of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.figures import Figures
from benchmarks.metastore.measuring import measure_ledgers, measure_logs
from benchmarks.metastore.stores import KINDS, Kind, missing
from benchmarks.setting import Comparison, Round, Setting

FLAT = 2.0  # no more, of what should cost the same at any size: it is measured on a machine that does other things too

_OF_LEDGERS: list[tuple[str, str, str, float | None]] = [
    ("create a ledger and close it", "create_ms", "ms", FLAT),
    ("open a closed ledger", "open_ms", "ms", FLAT),
    ("list all ledgers, for each", "list_us_each", "us", FLAT),
    ("look for garbage, bookie with all of them, for each", "collect_all_us_each", "us", FLAT),
    ("calls of the metastore for that", "collect_all_calls", "calls", None),
    ("look for garbage, bookie with 100 of them", "collect_few_ms", "ms", None),
    ("calls of the metastore for this", "collect_few_calls", "calls", None),
]
_OF_LOGS: list[tuple[str, str, str, float | None]] = [
    ("take over a log", "take_over_ms", "ms", FLAT),
    ("start to read near its end", "read_ms", "ms", FLAT),
    ("roll", "roll_ms", "ms", FLAT),
    ("trim one ledger", "trim_ms", "ms", FLAT),
    ("list logs", "list_ms", "ms", None),
    ("bytes of its record", "head_bytes", "B", None),
]


def _each(
    measure: Callable[[Kind, Path, Sequence[int], int], dict[str, Figures]], setting: Setting, field: str
) -> Round:
    """Of all metastores that are there."""
    found: dict[str, Figures] = {}
    for kind in KINDS:
        if kind.name not in missing():
            sizes = getattr(setting.scale, field)
            figures = measure(kind, setting.directory, sizes, setting.scale.metastore_times)
            found.update(figures)
            found[f"{kind.name} least"] = figures[f"{kind.name} {sizes[0]}"]
            found[f"{kind.name} most"] = figures[f"{kind.name} {sizes[-1]}"]
    return found


def ledgers(setting: Setting) -> Round:
    """1 000 ledgers, 10 000, and 100 000."""
    return _each(measure_ledgers, setting, "metastore_ledgers")


def logs(setting: Setting) -> Round:
    """Logs of 10 ledgers, 1 000 and 10 000."""
    return _each(measure_logs, setting, "metastore_segments")


CASES: dict[str, Callable[[Setting], Round]] = {"metastore-ledgers": ledgers, "metastore-logs": logs}


def _comparisons(case: str, kind: Kind, sizes: str, what: list[tuple[str, str, str, float | None]]) -> list[Comparison]:
    most, least = f"{kind.name} most", f"{kind.name} least"
    return [
        Comparison(case, f"{kind.name}: {title}, {sizes}", most, least, figure, figure, unit, goal, at_least=False)
        for title, figure, unit, goal in what
    ]


COMPARISONS = tuple(
    comparison
    for kind in KINDS
    for case, sizes, what in (
        ("metastore-ledgers", "most and fewest ledgers", _OF_LEDGERS),
        ("metastore-logs", "longest and shortest log", _OF_LOGS),
    )
    for comparison in _comparisons(case, kind, sizes, what)
)
