"""Measures the cases in turns, and prints each figure beside what it is compared with."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

import attrs
from rich.console import Console
from rich.table import Table

from benchmarks.against import own_floor, yardstick
from benchmarks.cases import ALONE, CASES, COMPARISONS, GROUPS, ONCE, QUIET_RAW_P50_US
from benchmarks.figures import medians
from benchmarks.interrupts import until_interrupted
from benchmarks.loads import MIB, Place
from benchmarks.metastore import stores as metastores
from benchmarks.remote.place import RemotePlaces
from benchmarks.setting import QUICK, Comparison, NotMeasured, Round, Scale, Setting
from benchmarks.spark import place as spark
from benchmarks.storage import stores as storages
from replog.runtime.platform import keep_freed_memory

_ATTEMPTS_PER_ROUND = 3  # at a case whose rounds are discarded when the machine is not quiet

_WIDTH = 150  # of the table, where nobody says how wide it may be


@attrs.define
class Results:
    """The rounds of each case that count, how many did not, and why cases could not be measured."""

    rounds: dict[str, list[Round]] = attrs.field(factory=dict)
    discarded: dict[str, int] = attrs.field(factory=dict)
    failed: dict[str, list[str]] = attrs.field(factory=dict)
    is_interrupted: bool = False

    def take(self, case: str, found: Round) -> bool:
        """Keeps a round if it says something."""
        if found:
            self.rounds.setdefault(case, []).append(found)
            return True
        self.discarded[case] = self.discarded.get(case, 0) + 1
        return False

    def fail(self, case: str, reason: str) -> None:
        """A round of this case could not be measured."""
        self.failed.setdefault(case, []).append(reason)


def measure(setting: Setting, names: Sequence[str], runs: int, console: Console) -> Results:
    """Runs the cases in turns, so that noise meets them all. A failure, or Ctrl-C, takes nothing from what was measured."""
    results = Results()
    with until_interrupted(results):
        for run in range(runs):
            for name in names:
                if run and name in ONCE:
                    continue
                console.print(f"[dim]round {run + 1} of {runs}: {name}[/]")
                _measure(results, setting, name)
    return results


def _measure(results: Results, setting: Setting, name: str) -> None:
    try:
        for _ in range(_ATTEMPTS_PER_ROUND):
            if results.take(name, CASES[name](setting)):
                break
    except NotMeasured as error:
        results.fail(name, str(error))
    except Exception as error:  # whatever it is: the other cases can be measured. It is told in the end, with code 1
        traceback.print_exc()
        results.fail(name, f"{type(error).__name__}: {error}")


def table(results: Results, against: str) -> Table:
    """The comparisons of what was measured."""
    found = Table(title=f"against: {against}", title_justify="left")
    for heading in ("case", "figure", "compared with", "ratio", "of rounds", "goal", ""):
        found.add_column(heading, justify="left" if heading in ("case", "") else "right")
    for each in COMPARISONS:
        rounds, failures = results.rounds.get(each.case, []), len(results.failed.get(each.case, ()))
        if rounds and each.is_there(rounds):
            *cells, verdict = _cells(each, rounds)
            found.add_row(*cells, f"{verdict} [red]{failures} failed[/]".strip() if failures else verdict)
        elif failures:
            found.add_row(each.title, "", "", "", "", _goal(each), "[red]failed[/]")
        elif rounds:
            found.add_row(each.title, "", "", "", "", _goal(each), "[yellow]not there[/]")
        elif each.case in results.discarded:
            found.add_row(each.title, "", "", "", "", _goal(each), "[yellow]not quiet[/]")
    return found


def _cells(each: Comparison, rounds: Sequence[Round]) -> list[str]:
    measured = medians([found[each.measured] for found in rounds])[each.figure]
    against = medians([found[each.against] for found in rounds])[each.against_figure]
    ratio, ratios = each.median(rounds), each.ratios(rounds)
    decimals = 0 if measured >= 100 else 2
    verdict = {True: "[green]met[/]", False: "[red]not met[/]", None: ""}[each.is_met(ratio)]
    spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
    figure = f"{measured:,.{decimals}f} {each.unit}"
    return [each.title, figure, f"{against:,.{decimals}f}", f"{ratio:.2f}", spread, _goal(each), verdict]


def _goal(each: Comparison) -> str:
    return "" if each.goal is None else f"{'>=' if each.at_least else '<='} {each.goal:g}"


def as_json(results: Results, setting: Setting) -> str:
    """All rounds, and the comparisons of their medians."""
    compared = [
        {**attrs.asdict(each), "ratio": each.median(rounds), "met": each.is_met(each.median(rounds))}
        for each in COMPARISONS
        if (rounds := results.rounds.get(each.case)) and each.is_there(rounds)
    ]
    skipped = [each.title for each in COMPARISONS if not each.is_there(results.rounds.get(each.case, ()))]
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[1], 1),  # of the last five minutes: whoever draws charts says how busy it was
        "seconds": setting.seconds,
    }
    return json.dumps(
        {**about, "against": setting.against.name, "compared": compared, "skipped": skipped, **attrs.asdict(results)},
        indent=1,
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    usual = [name for name in CASES if name not in ALONE or name in GROUPS["remote"]]
    parser = argparse.ArgumentParser(
        prog="benchmarks", description="Measure replog against the disk, SQLite and a floor."
    )
    parser.add_argument(
        "--case",
        action="append",
        choices=[*CASES, *GROUPS, "all"],
        help=f"may be repeated; default, which takes minutes: {', '.join(usual)}; all takes an hour",
    )
    parser.add_argument("--runs", type=int, default=5, help="rounds, to take the medians of (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement (default: 1)")
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="on the disk to measure (default: here); takes 4 GiB, the storages 25"
    )
    parser.add_argument(
        "--memory-mib", type=int, default=10 << 10, help="through the log of the case memory (default: 10 GiB)"
    )
    parser.add_argument(
        "--yardstick", type=Path, help="a Python file to compare with; else $REPLOG_YARDSTICK, else our own floor"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="write little in the cases storage-..., metastore-... and spark-...: to see that they work, not how well",
    )
    parser.add_argument("--json", action="store_true", help="print all rounds as JSON")
    options = parser.parse_args(arguments)
    if options.runs < 1 or options.seconds <= 0 or options.memory_mib < 1:
        parser.error("--runs, --seconds and --memory-mib must be positive")
    given = [name for case in options.case or usual for name in GROUPS.get(case, [case])]
    options.case = list(CASES) if "all" in given else [name for name in CASES if name in given]
    if options.yardstick is None and os.environ.get("REPLOG_YARDSTICK"):
        options.yardstick = Path(os.environ["REPLOG_YARDSTICK"])
    return options


def main(arguments: Sequence[str] | None = None, *, spare_files: int = 12, scale: Scale | None = None) -> None:
    """Measures and prints."""
    options = parse(arguments)
    keep_freed_memory()  # as a program would that embeds bookies, and cares for speed
    progress = Console(stderr=True)
    scale = scale or (QUICK if options.quick else Scale())
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="benchmarks-", dir=options.dir.resolve())  # other processes are told
        directory = Path(stack.enter_context(made))
        against = yardstick(options.yardstick, directory) if options.yardstick else own_floor(directory)
        one, three = (Place(directory / f"bookies-{count}", count, spare_files) for count in (1, 3))
        remote = stack.enter_context(closing(RemotePlaces(directory, spare_files)))
        driver = stack.enter_context(closing(spark.SparkDriver(directory / "spark")))
        memory_bytes = options.memory_mib * MIB
        setting = Setting(directory, options.seconds, against, one, three, remote, driver, memory_bytes, scale)
        if set(options.case) - ALONE:
            for place in (one, three):
                place.directory.mkdir()
                place.warm_up()
        results = measure(setting, options.case, options.runs, progress)
    if options.json:
        print(as_json(results, setting))
    else:
        _print(results, against.name)
    if results.is_interrupted:
        raise SystemExit(130)
    if results.failed:
        raise SystemExit(1)


def _print(results: Results, against: str) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(table(results, against))
    if results.is_interrupted:
        console.print("interrupted: what was measured until then")
    for name, reason in {**storages.missing(), **metastores.missing(), **spark.missing()}.items():
        console.print(f"not there: {name}: {reason}")
    for case, reasons in results.failed.items():
        for reason in dict.fromkeys(reasons):
            console.print(f"{case} failed: {reason}")
    for case, count in results.discarded.items():
        console.print(_discarded(case, count))


def _discarded(case: str, count: int) -> str:
    if case == "latency":
        return f"{case}: {count} rounds discarded: fdatasync alone never took less than {QUIET_RAW_P50_US:.0f} us"
    return f"{case}: not measured: the disk has no room for it"


if __name__ == "__main__":
    main()
