"""Runs trials of storage faults: `python -m tests.failures.storage_faults --trials 1000 --seed 1`; see `storage_trials`.

Prints each bad trial with the command that repeats it, and in the end a table of outcomes by fault; status 1 if one was bad.
Bookies, writers and takeovers are processes of their own, forked from this one; `--jobs` trials run at a time.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from replog.registry import Registry
from tests.failures.carrying_out import run_trial
from tests.failures.damages import FILES, LMDB
from tests.failures.fault_table import CELLS
from tests.failures.forks import Parent, Role, fork
from tests.failures.storage_trials import BAD, Outcome, Plan, Result, plan_of, report


def _lane(plans: list[tuple[str, Plan]], root: Path, kept: bool) -> Role:
    def run(parent: Parent) -> None:
        for name, plan in plans:
            directory = Path(tempfile.mkdtemp(prefix=f"trial-{plan.seed}-", dir=root))
            result = attrs.evolve(run_trial(plan, directory), name=name)
            if not (kept and result.outcome in BAD):
                shutil.rmtree(directory)
            parent.say(result=attrs.asdict(result))

    return run


def _load_everything() -> None:
    """Imports here what each child would import for itself: plugins, and what sockets need."""
    Registry()
    importlib.import_module("lmdb._envid")
    socket.getaddrinfo("127.0.0.1", 0)
    "localhost".encode("idna")
    gc.collect()
    gc.freeze()


def run_trials(
    plans: Mapping[str, Plan], root: Path, *, jobs: int, kept: bool, told: Callable[[Result], None]
) -> list[Result]:
    """Carries all of them out, so many at a time, and tells of each result at once."""
    _load_everything()
    lanes = [
        fork(f"lane-{lane}", _lane(list(plans.items())[lane::jobs], root, kept), root / f"lane-{lane}")
        for lane in range(jobs)
    ]
    results: list[Result] = []
    try:
        while len(results) < len(plans):
            for lane in lanes:
                for words in lane.hear_now(0.05):
                    found = words["result"]
                    results.append(Result(**{**found, "outcome": Outcome(found["outcome"])}))
                    told(results[-1])
                if (
                    lane.is_silent
                    and lane.has_ended()
                    and len(results) < len(plans)
                    and all(each.is_silent for each in lanes)
                ):
                    raise SystemExit(f"{lane.name} ended: {lane.output()}")
    finally:
        for lane in lanes:
            lane.kill()
    return results


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.failures.storage_faults", description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the first trial; the next ones have the next seeds")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--fault", choices=sorted({*FILES, *LMDB}), help="only this one")
    parser.add_argument("--storage", choices=("files", "lmdb"), help="only this one")
    parser.add_argument(
        "--cells",
        nargs="*",
        metavar="CELL",
        help="instead what docs/concepts/guarantees.md says: all cells, or rows, or cells",
    )
    parser.add_argument("--directory", help="where the trials' files are; a temporary one")
    parser.add_argument("--keep", action="store_true", help="leave the files of bad trials")
    parser.add_argument("--verbose", action="store_true", help="print each trial")
    parser.add_argument("--json", action="store_true", help="print results as lines of JSON instead")
    return parser.parse_args(arguments)


def _tell(result: Result, plan: Plan, chosen: argparse.Namespace, is_bad: bool) -> None:
    """Prints this as the arguments wish."""
    if chosen.json:
        sys.stdout.write(json.dumps(attrs.asdict(result)) + "\n")
    elif chosen.verbose or is_bad:
        again = f"--trials 1 --seed {result.seed}" + (f" --fault {result.fault!r}" if chosen.fault else "")
        again += f" --storage {chosen.storage}" if chosen.storage else ""
        sys.stdout.write(f"{result.outcome} in {result.took_s:.1f} s: {result.what}\n")
        sys.stdout.write(f"  {result.damage}; {plan.describe()}\n")
        sys.stdout.write(f"  {result.name}\n" if chosen.cells is not None else f"  repeat with {again}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    chosen = parse_arguments(arguments)
    if chosen.cells is not None:
        plans = {
            name: cell.plan for name, cell in CELLS.items() if not chosen.cells or {name, cell.row} & {*chosen.cells}
        }
    else:
        seeds = range(chosen.seed, chosen.seed + chosen.trials)
        plans = {str(seed): plan_of(seed, chosen.fault, chosen.storage) for seed in seeds}
    is_as_expected = True

    def told(result: Result) -> None:
        nonlocal is_as_expected
        allowed = {*Outcome} - {*BAD} if chosen.cells is None else CELLS[result.name].expected
        if is_bad := result.outcome not in allowed:
            is_as_expected = False
        _tell(result, plans[result.name], chosen, is_bad)

    root = Path(tempfile.mkdtemp(prefix="storage-faults-", dir=chosen.directory))
    began_s = time.monotonic()
    try:
        results = run_trials(plans, root, jobs=min(chosen.jobs, len(plans)), kept=chosen.keep, told=told)
    finally:
        if not chosen.keep:
            shutil.rmtree(root, ignore_errors=True)
    if not chosen.json:
        sys.stdout.write(f"{report(results)}\n{(time.monotonic() - began_s) / len(results):.2f} s a trial\n")
    return int(not is_as_expected)


if __name__ == "__main__":
    sys.exit(main())
