"""The lines that figures are compared with: read, judged by, and written again when somebody moves them.

They stand in `lines.toml`: for each case a tolerance, why its line stands where it does, and the figures, for each minor
version of Python that they depend on (`python-3-11`), or for all (`any`).
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from benchmarks.speed.setting import Figures

FILE = Path(__file__).with_name("lines.toml")
PYTHON = f"python-{sys.version_info.major}-{sys.version_info.minor}"
ANY_PYTHON = "any"
_ROUNDING = 0.001  # what figures of a thousandth may differ by beside the tolerance
_HEADER = """\
# What the hot paths cost, for an entry: `make check-speed` compares with these lines, and fails where one is exceeded by more
# than the tolerance (0.02 is two hundredths). After a change that is worth its price, or that makes a path better, move them:
#     make check-speed ARGS='--move --because "what changed"'
# calls: of and by replog's code; instructions: of Python bytecode; steps: turns of tasks; held: bytes of memory for each byte
# of payload; cpu: CPU time, divided by the floor's in the same run.
"""


@attrs.define
class Line:
    """Where the line of one case stands."""

    tolerance: float
    because: str
    figures: dict[str, Figures]  # by `PYTHON` or `ANY_PYTHON`


@attrs.frozen
class Verdict:
    """One figure, and its line."""

    case: str
    figure: str
    measured: float
    line: float
    tolerance: float

    @property
    def is_worse(self) -> bool:
        """Whether it is above its line by more than the tolerance."""
        return self.measured > self.line * (1 + self.tolerance) + _ROUNDING

    @property
    def is_better(self) -> bool:
        """Whether it is below its line by more than the tolerance: the line should follow, else it guards no longer."""
        return self.measured < self.line * (1 - self.tolerance) - _ROUNDING

    def __str__(self) -> str:
        change = f"{abs(self.measured - self.line) / self.line:.1%}" if self.line else f"{self.measured:.3f}"
        direction = "more" if self.measured > self.line else "less"
        return (
            f"{self.case}: {self.measured:,.3f} {self.figure}, {change} {direction} than its line {self.line:,.3f} "
            f"({self.tolerance:.0%} is allowed)"
        )


def read(file: Path = FILE) -> dict[str, Line]:
    """The lines of all cases. A file that is not there has none. Raises ValueError for what is no such file."""
    if not file.exists():
        return {}
    found = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: _line(name, table) for name, table in found.items()}


def _line(name: str, table: dict[str, Any]) -> Line:
    try:
        figures = {key: value for key, value in table.items() if isinstance(value, dict)}
        return Line(float(table["tolerance"]), str(table["because"]), figures)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the line of {name!r} has no tolerance, or no reason") from error


def write(lines: Mapping[str, Line], file: Path = FILE) -> None:
    """Writes them all, in their order."""
    parts = [_HEADER]
    for name, line in lines.items():
        because = line.because.replace("\\", "\\\\").replace('"', '\\"')
        parts.append(f'\n[{name}]\nbecause = "{because}"\ntolerance = {line.tolerance}\n')
        for key, figures in sorted(line.figures.items()):
            shown = ", ".join(f"{figure} = {round(value, 4)}" for figure, value in figures.items())
            parts.append(f"{key} = {{ {shown} }}\n")
    file.write_text("".join(parts), encoding="utf-8")


def judge(line: Line, case: str, key: str, measured: Figures) -> list[Verdict]:
    """Each figure beside its line; one that the line lacks is left out."""
    known = line.figures.get(key, {})
    return [
        Verdict(case, figure, value, known[figure], line.tolerance)
        for figure, value in measured.items()
        if figure in known
    ]


def is_drawn(line: Line | None, key: str, measured: Iterable[str]) -> bool:
    """Whether there is a line for each of these figures."""
    return line is not None and set(measured) <= line.figures.get(key, {}).keys()


def moved(line: Line | None, key: str, measured: Figures, tolerance: float, because: str) -> Line:
    """The line at these figures, for this Python; those of others stay. The tolerance is kept where there was one."""
    before = line.figures if line is not None else {}
    kept = line.tolerance if line is not None else tolerance
    return Line(kept, because, {**before, key: dict(measured)})
