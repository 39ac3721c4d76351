"""All cases."""

from __future__ import annotations

from benchmarks.speed import bookies, reading, wire, writing
from benchmarks.speed.setting import Case

CASES: dict[str, Case] = {case.name: case for case in (*writing.CASES, *bookies.CASES, *reading.CASES, *wire.CASES)}
