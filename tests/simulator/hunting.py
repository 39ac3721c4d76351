"""Hunts for known bugs: the seed that found one the last time comes first, then all others.

So a hunt costs one schedule as long as the code around the bug stays as it is, and still says within how many seeds the bug is
found when it does not. `FOUND` keeps the seeds; with `REPLOG_RECORD_SEEDS=1` in the environment each hunt writes its own there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.simulator.mutation import Mutant

FOUND = Path(__file__).with_name("found.json")
RECORDING = "REPLOG_RECORD_SEEDS"


def hunt(suite: str, mutant: Mutant, breaks: Callable[[int], bool]) -> int | None:
    """The first seed with which `breaks` says that this bug, which is in the code now, broke a rule; None if none does."""
    recorded: dict[str, int] = json.loads(FOUND.read_text(encoding="utf-8"))
    name = f"{suite}/{mutant.name}"
    seed = next(filter(breaks, _in_order(mutant, recorded.get(name))), None)
    if os.environ.get(RECORDING) and seed is not None and recorded.get(name) != seed:
        text = json.dumps({**recorded, name: seed}, indent=1, sort_keys=True)
        FOUND.write_text(f"{text}\n", encoding="utf-8")
    return seed


def _in_order(mutant: Mutant, recorded: int | None) -> Iterator[int]:
    seeds = range(mutant.step - 1, mutant.seeds, mutant.step)
    if recorded is not None and recorded in seeds:
        yield recorded
    yield from (each for each in seeds if each != recorded)
