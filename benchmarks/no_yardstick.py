"""A yardstick that measures nothing, where only replog's own work is to be seen: for `make profile`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

JOURNAL_BYTES = 4096
CRC32_SOURCE = "none"
_NAMES = (
    "local-append-1",
    "append-1",
    "append-1000-1k",
    "append-1000-100",
    "extend-10000-100",
    "append-200-64k",
    "scan-100",
)


def _nothing(journals: Sequence[object], seconds: float) -> dict[str, float]:
    return {"entries_per_s": 1.0, "total_cpu_us": 1.0, "p50_us": 1.0}


CASES: dict[str, Callable[[Sequence[object], float], dict[str, float]]] = dict.fromkeys(_NAMES, _nothing)
