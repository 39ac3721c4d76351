"""What the throughput is compared with: a yardstick given from outside, or else our own floor."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import floor
from benchmarks.figures import Figures
from benchmarks.raw import zero_filled

_JOURNAL_FILES = 3


class Against:
    """Measures cases by name: those of `floor.CASES`."""

    def __init__(self, name: str, measure: Callable[[str, float], Figures]) -> None:
        self.name = name
        self.measure = measure


def own_floor(directory: Path) -> Against:
    """Our own floor."""
    return Against("floor", lambda case, seconds: floor.CASES[case](directory, seconds))


def yardstick(path: Path, directory: Path) -> Against:
    """The yardstick in this file: a module with `CASES`, functions of journal paths and seconds, and `JOURNAL_BYTES`."""
    module = _load(path)
    journals = [zero_filled(directory / f"journal-{number}", module.JOURNAL_BYTES) for number in range(_JOURNAL_FILES)]
    return Against(f"yardstick ({module.CRC32_SOURCE})", lambda case, seconds: module.CASES[case](journals, seconds))


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("yardstick", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SystemExit(f"benchmarks: {path} is no Python file with a yardstick")
    module = importlib.util.module_from_spec(spec)
    sys.modules["yardstick"] = module
    spec.loader.exec_module(module)
    return module
