"""`python -m tests.simulator`: run seeds, look for a violation, print it as a conversation to commit."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import attrs

from tests.simulator import conversation, draw_plan, simulate, steering
from tests.simulator.cluster import Result
from tests.simulator.coverage import missing
from tests.simulator.mutants import MUTANTS, mutant_named
from tests.simulator.mutation import Mutant
from tests.simulator.plan import CHUNKS, CHUNKS_LOG, UNBOUNDED_LOG
from tests.simulator.scenarios import STRATEGIES
from tests.simulator.shells import command as shells
from tests.simulator.shells.weather import ALL_STRATEGIES as SHELL_STRATEGIES
from tests.simulator.shrink import shrink
from tests.simulator.term_mutants import TERM_MUTANTS

_COLLECT_EVERY = 100  # seeds, of which each leaves 150 kB in cycles


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 if all is as it should be."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.mutants:
        for each in (*MUTANTS, *TERM_MUTANTS):
            print(f"{each.name:26} {each.rule:3} {each.seeds:>5} seeds  {each.conversation or '-':34} {each.story}")
        shells.list_mutants()
        return 0
    strategies = SHELL_STRATEGIES if options.shells else (*STRATEGIES, *steering.STRATEGIES, "wild")
    if options.strategy is not None and options.strategy not in strategies:
        parser.error(f"there is no strategy {options.strategy!r}; known: {', '.join(strategies)}")
    if options.shells:
        return shells.run_shells(
            options.first,
            options.seeds,
            options.seconds,
            options.mutant,
            options.strategy,
            swarm=options.swarm,
            trace=options.trace,
        )
    if options.rewrite:
        for path in options.rewrite:
            path.write_text(str(conversation.read(path).run()[1]), encoding="utf-8")
            print(f"rewritten: {path}")
        return 0
    if options.replay is not None:
        return _replay(options.replay)
    mutant = mutant_named(options.mutant) if options.mutant else None
    with _rarely_collected(), mutant.applied() if mutant is not None else nullcontext():
        small = _search(options, mutant)
    if small is not None:  # a conversation puts the mutant in by itself
        title = (f"Seed {small.plan.seed}, strategy {small.plan.strategy}: {small.violation}",)
        print(conversation.conversation_of(small, title, options.mutant or ""))
    return int((small is None) == (mutant is not None))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--shells", action="store_true", help="run client, log and bookie, not only their machines")
    parser.add_argument(
        "--swarm", action="store_true", help="of the shells: each seed draws who acts, and for how long"
    )
    parser.add_argument("--trace", action="store_true", help="of the shells: print all that happens")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, help="stop after this time, whatever the number of seeds")
    parser.add_argument(
        "--scenario",
        choices=("ledger", "log", "unbounded", CHUNKS, UNBOUNDED_LOG, CHUNKS_LOG),
        help="instead of what the seed says",
    )
    parser.add_argument(
        "--strategy",
        help=f"instead of what the seed says: one of {', '.join((*sorted(STRATEGIES), 'wild'))}; "
        f"of the shells: {', '.join(SHELL_STRATEGIES)}",
    )
    parser.add_argument("--mutant", metavar="NAME", help="put a known bug in; `--mutants` lists them")
    parser.add_argument("--mutants", action="store_true", help="list the known bugs and how soon each is found")
    parser.add_argument("--replay", metavar="FILE", type=Path, help="run a conversation, and print what is said now")
    parser.add_argument(
        "--rewrite", metavar="FILE", type=Path, nargs="+", help="run conversations, and write them anew"
    )
    return parser


def _replay(path: Path) -> int:
    written = conversation.read(path)
    result, said = written.run()
    print(said, end="")
    if (said.lines, said.expect) != (written.lines, written.expect):
        print(f"{path}: this differs from what is written there", file=sys.stderr)
        return 1
    print(f"{path}: as written, {result.steps} steps", file=sys.stderr)
    return 0


@contextmanager
def _rarely_collected() -> Iterator[None]:
    """Leaves it to `_search` when Python looks for cycles: else that takes a sixth of the time."""
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()  # and what pytest has frozen stays so


def _search(options: argparse.Namespace, mutant: Mutant | None) -> Result | None:
    """Runs seeds until one fails; returns that one, shrunk."""
    start = time.monotonic()
    counts: Counter[str] = Counter()
    steps = seeds = 0
    found: Result | None = None
    for seed in range(options.first, options.first + options.seeds):
        if options.seconds is not None and time.monotonic() - start > options.seconds:
            break
        if seeds % _COLLECT_EVERY == 0:
            gc.collect()
        plan = draw_plan(seed, options.scenario, options.strategy)
        if mutant is not None:
            plan = attrs.evolve(plan, overlook=mutant.overlook)
        result = simulate(plan)
        seeds, steps = seeds + 1, steps + result.steps
        counts += result.world.coverage
        if result.violation is not None:
            found = result
            break
    elapsed = time.monotonic() - start
    if found is None:
        for situation, count in sorted(counts.items()):
            print(f"{count:>10}  {situation}")
        print(f"never happened: {', '.join(missing(counts)) or 'nothing of what must'}")
    print(f"{seeds} seeds, {steps} steps in {elapsed:.1f} s ({steps / elapsed:.0f} steps/s): ", end="")
    print("no violation" if found is None else f"seed {found.plan.seed}: {found.violation}")
    return None if found is None else shrink(found)


if __name__ == "__main__":
    sys.exit(main())
