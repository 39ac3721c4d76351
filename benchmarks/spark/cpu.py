"""CPU time of trees of processes, as Linux tells it: in hundredths of a second, which is enough for a job."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import attrs

_PARENT, _FIRST_TIME, _TIMES = (
    1,
    11,
    4,
)  # in /proc/PID/stat, behind the name: user, system, and both of children that ended


@attrs.frozen
class _Process:
    parent: int
    ticks: int


def tree_cpu_s(roots: Iterable[int]) -> float:
    """Of these processes and all that descend from them, with those that ended and were waited for."""
    found = _processes()
    counted = set(roots)
    grown = True
    while grown:
        children = {each for each, process in found.items() if process.parent in counted} - counted
        counted |= children
        grown = bool(children)
    return sum(found[each].ticks for each in counted if each in found) / os.sysconf("SC_CLK_TCK")


def _processes() -> dict[int, _Process]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()  # the name, before it, may have anything in it
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        times = fields[_FIRST_TIME : _FIRST_TIME + _TIMES]
        found[int(path.parent.name)] = _Process(int(fields[_PARENT]), sum(map(int, times)))
    return found
