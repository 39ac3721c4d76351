"""The cases of the metastores, and what is compared with what: much of everything, with little of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
    ("calls of the metastore for a takeover", "take_over_calls", "calls", None),
    ("start to read near its end", "read_ms", "ms", FLAT),
    ("roll", "roll_ms", "ms", FLAT),
    ("calls of the metastore for a roll", "roll_calls", "calls", None),
    ("trim one ledger", "trim_ms", "ms", FLAT),
    ("calls of the metastore for that trim", "trim_calls", "calls", None),
    ("list logs", "list_ms", "ms", None),
    ("bytes of its record", "head_bytes", "B", None),
]


def measure(kind: Kind, setting: Setting) -> Round:
    """1 000 ledgers, 10 000, and 100 000; then logs of 10 ledgers, 1 000 and 10 000."""
    if kind.name in missing():
        return {"not there": {}}
    scale = setting.scale
    found = measure_ledgers(kind, setting.directory, scale.metastore_ledgers, scale.metastore_times)
    found |= measure_logs(kind, setting.directory, scale.metastore_segments, scale.metastore_times)
    for what, sizes in (("ledgers", scale.metastore_ledgers), ("log", scale.metastore_segments)):
        found[f"{kind.name} least {what}"] = found[f"{kind.name} {sizes[0]} {what}"]
        found[f"{kind.name} most {what}"] = found[f"{kind.name} {sizes[-1]} {what}"]
    return found


CASES: dict[str, Callable[[Setting], Round]] = {
    f"metastore-{kind.name.lower()}": partial(measure, kind) for kind in KINDS
}


def _comparisons(
    kind: Kind, what: str, sizes: str, figures: list[tuple[str, str, str, float | None]]
) -> list[Comparison]:
    case, most, least = f"metastore-{kind.name.lower()}", f"{kind.name} most {what}", f"{kind.name} least {what}"
    return [
        Comparison(case, f"{kind.name}: {title}, {sizes}", most, least, figure, figure, unit, goal, at_least=False)
        for title, figure, unit, goal in figures
    ]


COMPARISONS = tuple(
    comparison
    for kind in KINDS
    for what, sizes, figures in (
        ("ledgers", "most and fewest ledgers", _OF_LEDGERS),
        ("log", "longest and shortest log", _OF_LOGS),
    )
    for comparison in _comparisons(kind, what, sizes, figures)
)
