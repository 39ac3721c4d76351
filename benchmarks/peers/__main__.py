"""Measures replog and what people would use instead, in turns:

python -m benchmarks.peers                                  # everything that is there
python -m benchmarks.peers --system replog --system etcd --case append
python -m benchmarks.peers report FILE --markdown FILE      # the tables again, of what was measured before
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import attrs
from rich.console import Console
from rich.markdown import Markdown

from benchmarks.interrupts import until_interrupted
from benchmarks.peers import systems as found_here
from benchmarks.peers.machine import describe
from benchmarks.peers.markdown import page
from benchmarks.peers.plan import CASES, QUICK, ROUNDS, Scale
from benchmarks.peers.quiet import Limits
from benchmarks.peers.results import Results, failed, from_json, merged, to_json, write
from benchmarks.peers.running import Asked, Runner, ThisMachine, candidates
from benchmarks.peers.system import System

ROOT = Path(__file__).parents[2]
PUBLISHED_JSON = ROOT / "docs" / "figures" / "peers.json"
PUBLISHED_MARKDOWN = ROOT / "docs" / "concepts" / "peers-results.md"
PUBLISHED_CHARTS = ROOT / "docs" / "figures"
_ORDER: tuple[str, ...] = ("replog", "bookkeeper", "kafka-synced", "kafka", "etcd", "redis", "nats-synced", "nats")
_ORDER += ("zookeeper", "zookeeper-session", "rabbitmq", "rabbitmq-stream", "pysyncobj")
_ORDER += ("replog-local", "sqlite", "lmdb", "file")


def systems() -> tuple[list[System], list[str]]:
    """Those of the modules in `benchmarks.peers.systems` that have a `SYSTEM`, replog first; and which modules are broken."""
    found: list[System] = []
    broken = []
    for each in pkgutil.iter_modules(found_here.__path__):
        try:
            module = importlib.import_module(f"{found_here.__name__}.{each.name}")
        except (
            Exception
        ) as error:  # whatever it is: the other systems can be measured. It is told in the end, with code 1
            broken.append(f"{each.name} cannot be imported: {type(error).__name__}: {error}")
            continue
        found += [module.SYSTEM] if hasattr(module, "SYSTEM") else []
    found.sort(key=lambda one: (_ORDER.index(one.name) if one.name in _ORDER else len(_ORDER), one.name))
    return found, broken


def parse(arguments: Sequence[str], known: Sequence[str]) -> argparse.Namespace:
    """The command line of a run."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.peers",
        description="Measure replog and what people would use instead, in turns, on one disk.",
        epilog="`report FILE ...` instead makes tables and charts again, of what was measured before: report --help",
    )
    parser.add_argument("--system", action="append", choices=known, metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--case", action="append", choices=CASES, metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="to take the medians of (default: %(default)d)")
    parser.add_argument("--seconds", type=float, help=f"for each load of appends (default: {Scale().seconds:g})")
    parser.add_argument(
        "--sustained-seconds", type=float, help=f"for the case sustained (default: {Scale().sustained_s:g})"
    )
    parser.add_argument("--dir", type=Path, default=Path(), help="on the disk to measure (default: here); takes 20 GiB")
    parser.add_argument(
        "--quick", action="store_true", help="one size, short loads: to see that it works, not how well"
    )
    parser.add_argument(
        "--raw-us",
        type=float,
        default=Limits().raw_p50_us,
        help="what is measured while fdatasync alone takes longer is thrown away (default: %(default)g)",
    )
    parser.add_argument(
        "--foreign-cpus",
        type=float,
        default=Limits().foreign_cpus,
        help="and while other processes use more processors than so many (default: %(default)g)",
    )
    parser.add_argument(
        "--publish", action="store_true", help="write results, tables and charts to where the documentation has them"
    )
    _add_outputs(parser)
    options = parser.parse_args(arguments)
    if options.rounds < 1 or any(
        each <= 0 for each in (options.seconds, options.sustained_seconds) if each is not None
    ):
        parser.error("--rounds, --seconds and --sustained-seconds must be positive")
    if options.publish:
        options.json, options.markdown, options.charts = PUBLISHED_JSON, PUBLISHED_MARKDOWN, PUBLISHED_CHARTS
    _check_charts(parser, options)
    return options


def parse_report(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line of a report."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.peers report", description="Tables and charts of what was measured before."
    )
    parser.add_argument("file", type=Path, nargs="+", help="of --json; several of one machine count as one run")
    _add_outputs(parser)
    options = parser.parse_args(arguments)
    _check_charts(parser, options)
    return options


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured here")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables here instead of printing them")
    parser.add_argument("--charts", type=Path, metavar="DIR", help="draw charts there, as PNG and SVG")


def _check_charts(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Before an hour is spent on measuring."""
    if options.charts and not importlib.util.find_spec("matplotlib"):
        parser.error("charts need matplotlib: pip install 'replog[bench]'")


def measure(options: argparse.Namespace, known: Sequence[System], command: str) -> Results:
    """All rounds, or those before an interrupt (SIGINT, SIGTERM). What was measured is on the disk after each turn."""
    console = Console(stderr=True)
    limits = Limits(options.raw_us, options.foreign_cpus)
    scale = QUICK if options.quick else Scale()
    sustained_s = options.sustained_seconds or scale.sustained_s
    scale = attrs.evolve(scale, seconds=options.seconds or scale.seconds, sustained_s=sustained_s)
    chosen = [each for each in known if not options.system or each.name in options.system]
    results = Results(
        machine=describe(options.dir),
        commands=[command],
        dates=[datetime.now(UTC).isoformat(timespec="minutes")],
        rounds=options.rounds,
        seconds=scale.seconds,
        limits=limits,
    )
    results.candidates, results.failures = candidates(chosen)
    missing = {each.name: each.missing for each in results.candidates if each.missing}
    for name, words in missing.items():
        console.print(f"skipped: {name}: {words}", markup=False, highlight=False)
    there = [each for each in chosen if each.name not in missing]
    asked = Asked(options.case or CASES, scale, limits, is_quick=options.quick)
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            until_interrupted(results),
            tempfile.TemporaryDirectory(prefix="peers-", dir=options.dir.resolve()) as made,
        ):
            runner = Runner(Path(made), asked, ThisMachine(Path(made)), results, say)
            for number in range(options.rounds):
                for _ in runner.round(number, there):
                    if options.json:
                        write(options.json, to_json(results))
    finally:
        signal.signal(signal.SIGTERM, before)
    return results


def tell(results: Results, options: argparse.Namespace) -> None:
    """Writes what was asked for, or prints the tables."""
    if options.json:
        write(options.json, to_json(results))
    names: list[str] = []
    if options.charts:
        from benchmarks.peers.charts import draw  # the only part that needs matplotlib

        names = draw(results, options.charts)
    charts = options.charts.resolve() if options.charts else None
    if options.markdown:
        write(options.markdown, page(results, _images(names, charts, options.markdown.resolve().parent)))
    else:
        Console(width=None if sys.stdout.isatty() else 150).print(Markdown(page(results, {})))


def _images(names: Sequence[str], charts: Path | None, beside: Path) -> dict[str, str]:
    """Where each chart is, as the page tells it."""
    if charts is None:
        return {}
    # A published page and its charts are in two folders of the documentation; elsewhere a page may be given away without them.
    is_near = charts.is_relative_to(beside) or (charts.is_relative_to(ROOT) and beside.is_relative_to(ROOT))
    place = Path(os.path.relpath(charts, beside)) if is_near else charts
    return {name: f"{place.as_posix()}/peers-{name}.svg" for name in names}


def main(arguments: Sequence[str] | None = None, known: Sequence[System] | None = None) -> None:
    """Measures, or tells again what was measured."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["report"]:
        options = parse_report(given[1:])
        tell(merged([from_json(each.read_text(encoding="utf-8")) for each in options.file]), options)
        return
    known, broken = systems() if known is None else (known, [])
    options = parse(given, [each.name for each in known])
    command = shlex.join(["make", "bench-peers", *([f"ARGS={shlex.join(given)}"] if given else [])])
    results = measure(options, known, command)
    results.failures += broken
    tell(results, options)
    wrong = list(failed(results))
    for each in wrong:
        print(f"failed: {each}", file=sys.stderr)
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
