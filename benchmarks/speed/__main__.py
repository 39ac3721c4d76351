"""`make check-speed`: compares what the hot paths execute with the committed lines. Exit code 1 says that one got worse."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs

from benchmarks.speed import lines as files
from benchmarks.speed import ratios, setting
from benchmarks.speed.cases import CASES
from benchmarks.speed.lines import ANY_PYTHON, FILE, PYTHON, Line, Verdict
from benchmarks.speed.ratios import RATIOS
from benchmarks.speed.setting import Figures

_COUNTS_TOLERANCE = 0.02
_RATIO_TOLERANCE = 0.5
_ATTEMPTS = 3  # at a ratio that is above its line: a machine that was busy is not so three times


@attrs.define
class Found:
    """What came out: verdicts on all figures, and cases for which no line was drawn."""

    verdicts: list[Verdict] = attrs.field(factory=list)
    undrawn: list[str] = attrs.field(factory=list)

    @property
    def worse(self) -> list[Verdict]:
        """Figures above their line."""
        return [each for each in self.verdicts if each.is_worse]

    @property
    def better(self) -> list[Verdict]:
        """Figures below their line."""
        return [each for each in self.verdicts if each.is_better]


def measure(name: str) -> Figures:
    """Of this case or ratio."""
    with tempfile.TemporaryDirectory(prefix="replog-speed-") as directory:
        if name in RATIOS:
            return ratios.measure(RATIOS[name], Path(directory))
        return setting.measure(CASES[name], Path(directory))


def key_of(name: str) -> str:
    """Of which Pythons its figures are."""
    return ANY_PYTHON if name in RATIOS else PYTHON


def check(names: Sequence[str], drawn: dict[str, Line]) -> Found:
    """Measures and judges."""
    found = Found()
    for name in names:
        key, line = key_of(name), drawn.get(name)
        figures = measure(name)
        if line is None or not files.is_drawn(line, key, figures):
            found.undrawn.append(name)
            continue
        verdicts = files.judge(line, name, key, figures)
        for _ in range(_ATTEMPTS - 1):
            if name in RATIOS and any(each.is_worse for each in verdicts):
                verdicts = files.judge(line, name, key, measure(name))
        found.verdicts += verdicts
    return found


def move(names: Sequence[str], drawn: dict[str, Line], because: str) -> list[str]:
    """Moves the lines of these cases to where they are now, where that is further away than the tolerance; returns whose."""
    changed = []
    for name in names:
        key, line, figures = key_of(name), drawn.get(name), measure(name)
        is_off = line is None or not files.is_drawn(line, key, figures)
        if line is not None and not is_off:
            is_off = any(each.is_worse or each.is_better for each in files.judge(line, name, key, figures))
        if is_off:
            tolerance = _RATIO_TOLERANCE if name in RATIOS else _COUNTS_TOLERANCE
            drawn[name] = files.moved(line, key, figures, tolerance, because)
            changed.append(name)
    return changed


def _reason(given: str | None) -> str:
    """What was given, else what the last commit says, with the day."""
    if given is None:
        command = ["git", "-C", str(Path(__file__).parent), "log", "-1", "--format=after: %s"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        given = done.stdout.strip() or "nobody said why"
    return f"{datetime.now(UTC):%Y-%m-%d}: {given}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="make check-speed", description="Compare what the hot paths execute with the lines in benchmarks/speed/."
    )
    parser.add_argument("case", nargs="*", help=f"default: all of {', '.join([*CASES, *RATIOS])}")
    parser.add_argument("--counts", action="store_true", help="only what is the same each time: no ratios of CPU time")
    parser.add_argument(
        "--move", action="store_true", help="move the lines that are too far away to where things are now"
    )
    parser.add_argument("--because", help="why they are moved; default: what the last commit says")
    parser.add_argument("--lines", type=Path, default=FILE, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    known = [*CASES, *(() if options.counts else RATIOS)]
    if unknown := set(options.case) - set(known):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    options.case = [name for name in known if name in options.case or not options.case]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, and returns the exit code."""
    options = parse(arguments)
    drawn = files.read(options.lines)
    if options.move:
        changed = move(options.case, drawn, _reason(options.because))
        files.write({name: drawn[name] for name in [*CASES, *RATIOS] if name in drawn}, options.lines)
        print(
            f"check-speed: moved: {', '.join(changed)}" if changed else "check-speed: all lines stand where they should"
        )
        return 0
    found = check(options.case, drawn)
    for verdict in found.better:
        print(f"better  {verdict}")
    for verdict in found.worse:
        print(f"WORSE   {verdict}")
    if found.undrawn:
        print(f"no line for {PYTHON.replace('-', ' ', 1)}: {', '.join(found.undrawn)}")
    _print_advice(found)
    return 1 if found.worse else 0


def _print_advice(found: Found) -> None:
    command = "make check-speed ARGS='--move --because \"what changed\"'"
    if found.worse:
        print(
            "check-speed: a hot path does more than it did. Find out what (git stash; make profile CASE=push), or if that is"
        )
        print(f"check-speed: worth it, move the line, and commit it with the change:  {command}")
    elif found.better or found.undrawn:
        print(f"check-speed: nothing got worse. So that this stays so, move the lines:  {command}")
    else:
        print(f"check-speed: {len(found.verdicts)} figures stand at their lines")


if __name__ == "__main__":
    sys.exit(main())
