"""`python -m tests.simulator --shells`: run seeds of the shells, and show what went wrong."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext

from replog.protocol.digest import DigestType
from tests.simulator.shells.mutants import SHELL_MUTANTS, shell_mutant_named
from tests.simulator.shells.running import ShellResult, simulate_shells
from tests.simulator.shells.weather import STRATEGIES

# What must happen in some dozens of seeds, or they have proven little.
MUST_HAPPEN = (
    *(f"strategy {name}" for name in STRATEGIES),
    *(f"digest {each.name}" for each in DigestType),
    "a wrong password was refused",
    "add refused in doubt",
    "as many bookies as an ensemble has",
    "batch written back",
    "bookie declared lost",
    "bookie forgot a fence",
    "bookie forgot entries",
    "bookie healed",
    "bookie that was declared lost does not start",
    "client died right after a change of the metadata",
    "writer died while a bookie missed its last entries",
    "EnsembleChanged",
    "LedgerRecovered",
    "LogRolled",
    "LogTakenOver",
    "LogTrimmed",
    "StorageFailed",
    "StorageInDoubt",
    "WriterFenced",
    "writer went on whose ledger was deleted",
    "answer lost",
    "commit without space",
    "entry confirmed",
    "entry read",
    "job committed",
    "job was committed before",
    "leader deposed",
    "leader serves",
    "ledger dropped",
    "ledger recovered by somebody",
    "ledger swept",
    "log deleted",
    "log trimmed",
    "metastore: answer lost",
    "metastore: arrives late",
    "metastore: request lost",
    "metastore: unavailable",
    "one-way partition",
    "page of a log: create",
    "page of a log: delete",
    "page of a log: get",
    "partition",
    "process cancelled",
    "process killed",
    "process stopped and went on",
    "read damaged",
    "read uncertain",
    "record confirmed",
    "record followed",
    "request lost",
    "session lost",
    "short-lived record read",
    "sync failed",
)
_LINES_BEFORE = 60  # of the trace, shown before a violation


def missing(happened: Counter[str]) -> list[str]:
    """The events that must happen and did not."""
    return [situation for situation in MUST_HAPPEN if not happened[situation]]


def list_mutants() -> None:
    """Prints the known bugs."""
    for each in SHELL_MUTANTS:
        print(f"{each.name:26} {each.rule:3} {each.seeds:>5} seeds  {'-':34} {each.story}")


def run_shells(
    first: int,
    seeds: int,
    seconds: float | None,
    mutant_name: str | None,
    strategy: str | None,
    *,
    swarm: bool,
    trace: bool,
) -> int:
    """Runs seeds until one fails, and shows that one. Returns the exit status: 0 if all is as it should be."""
    start_s = time.monotonic()
    happened: Counter[str] = Counter()
    steps = ran = 0
    found: ShellResult | None = None
    transcript: list[str] = []
    mutant = shell_mutant_named(mutant_name) if mutant_name else None
    strategy = strategy or (mutant.strategy if mutant is not None else None)
    with mutant.applied() if mutant is not None else nullcontext():
        for seed in range(first, first + seeds):
            if seconds is not None and time.monotonic() - start_s > seconds:
                break
            transcript.clear()
            result = simulate_shells(seed, transcript, strategy, swarm=swarm)
            ran, steps = ran + 1, steps + result.steps
            happened += result.coverage
            if trace:
                print("\n".join(transcript))
            if result.violation is not None:
                found = result
                break
    elapsed_s = time.monotonic() - start_s
    if found is None:
        for situation, count in sorted(happened.items()):
            print(f"{count:>10}  {situation}")
        print(f"never happened: {', '.join(missing(happened)) or 'nothing of what must'}")
    elif not trace:
        print("\n".join(_around_violation(transcript)))
    said = "no violation" if found is None else f"seed {found.seed}, {found.strategy}: {found.violation}"
    print(f"shells: {ran} seeds, {steps} steps of tasks in {elapsed_s:.1f} s: {said}")
    if found is not None:
        options = [f"--first {found.seed} --seeds 1 --trace"]
        options += [f"--mutant {mutant_name}"] if mutant_name else []
        options += [f"--strategy {strategy}"] if strategy else []
        options += ["--swarm"] if swarm else []
        print(f"all of it: python -m tests.simulator --shells {' '.join(options)}")
    return int((found is None) == (mutant is not None))


def _around_violation(transcript: list[str]) -> list[str]:
    places = [place for place, line in enumerate(transcript) if " VIOLATION " in line]
    place = places[0] if places else len(transcript) - 1
    return transcript[max(0, place - _LINES_BEFORE) : place + 1]
