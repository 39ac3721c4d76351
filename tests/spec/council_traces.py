"""`python -m tests.spec.council_traces`: TLC reads what the simulated members of a metastore did, and accepts it or says where it
is wrong.

python -m tests.spec.council_traces --seeds 500           # all must be accepted
python -m tests.spec.council_traces --mutants             # known bugs: a table of who rejects which
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress

import attrs

from tests.simulator.council.mutants import MUTANTS
from tests.simulator.council.violation import Violation
from tests.simulator.council.world import World
from tests.simulator.mutation import Mutant
from tests.spec import tlc
from tests.spec.council_recording import Assembler, Trace, recording_members
from tests.spec.traces import in_tla, module_of, rejections

EVENTS_MAX = 250  # of one trace: what follows is cut off
_AT_ONCE = 100  # traces that one TLC reads


@attrs.frozen
class Named:
    """A trace, and the seed that it is of."""

    seed: int
    trace: Trace


def record(seeds: Iterable[int]) -> list[Named]:
    """The traces of these seeds."""
    return [Named(seed, _record(seed)) for seed in seeds]


def _record(seed: int) -> Trace:
    assembler = Assembler()
    with recording_members(assembler.tell):
        # A known bug ends it: TLC has what came before.
        with suppress(Violation, AssertionError):
            World(seed).run()
    trace = assembler.trace
    return attrs.evolve(trace, events=trace.events[:EVENTS_MAX])


def check(traces: Sequence[Named]) -> list[tuple[Named, int, str]]:
    """The traces that TLC rejects, with the number of the event that is wrong and its kind. Raises `CheckerError`."""
    groups: dict[tuple[str, ...], list[Named]] = defaultdict(list)
    for each in traces:
        groups[each.trace.first].append(each)
    rejected: list[tuple[Named, int, str]] = []
    for first, group in sorted(groups.items()):
        for start in range(0, len(group), _AT_ONCE):
            part = group[start : start + _AT_ONCE]
            data = module_of([(_fields(each.trace), each.trace.events) for each in part])
            ends = rejections("CouncilTrace", _config(first, part), data, [len(each.trace.events) for each in part])
            rejected += [(part[number - 1], *end) for number, end in sorted(ends.items())]
    return rejected


def _fields(trace: Trace) -> str:
    (term,) = set(trace.begun.values())
    return f"together |-> {trace.together}, begun |-> {_set(sorted(trace.begun))}, term |-> {term}"


def _config(first: tuple[str, ...], traces: Sequence[Named]) -> str:
    names = {*first, *(name for each in traces for event in each.trace.events for name in _names_of(event))}
    lines = ["SPECIFICATION TraceSpec", "CONSTANTS"]
    lines += [f"  Names = {_set(sorted(names))}", f"  First = {_set(first)}", "  Targets = {}", "  Alike = {}"]
    lines += [f"  {name} = 1000000" for name in ("TermsMax", "LogMax", "CommandsMax")]
    return "\n".join([*lines, "  StandsMax = 0", "  LossesMax = 0", "  Removed = {}", ""])


def _names_of(event: Sequence[object]) -> set[str]:
    """Everything in it that is text, but for its kind."""
    found: set[str] = set()
    for each in event[1:]:
        if isinstance(each, tuple):
            found |= _names_of(("", *each))
        elif isinstance(each, str):
            found.add(each)
    return found


def _set(names: Iterable[str]) -> str:
    return f"{{{', '.join(map(in_tla, names))}}}"


def check_mutant(mutant: Mutant, seeds: int) -> str:
    """The event at which TLC rejects a trace of this known bug; "" if it accepts those of so many seeds."""
    with mutant.applied():
        traces = record(range(seeds))
    return next((f"{kind} (seed {named.seed}, event {place})" for named, place, kind in check(traces)), "")


def _count(seeds: range) -> tuple[int, int, list[str]]:
    traces = record(seeds)
    rejected = [
        f"rejected: seed {named.seed}, event {place}: {named.trace.events[place - 1]} ({kind})"
        for named, place, kind in check(traces)
    ]
    return len(traces), sum(len(each.trace.events) for each in traces), rejected


def main() -> int:
    """Returns 1 if a trace is rejected, or with mutants if none is."""
    parser = argparse.ArgumentParser(prog="python -m tests.spec.council_traces", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--mutants", action="store_true", help="the simulator's known bugs: who rejects which")
    options = parser.parse_args()
    tlc.fetch()
    if options.mutants:
        found = 0
        for mutant in MUTANTS:
            event = check_mutant(mutant, options.seeds)
            found += bool(event)
            print(f"{mutant.name:26} {mutant.rule:4} {event or '-'}", flush=True)
        print(f"{found} of {len(MUTANTS)} rejected")
        return int(not found)
    end = options.first + options.seeds
    blocks = [range(first, min(first + 500, end)) for first in range(options.first, end, 500)]
    traces = events = 0
    rejected: list[str] = []
    with multiprocessing.Pool(options.workers) as pool:
        for count, many, wrong in pool.imap_unordered(_count, blocks):
            traces, events, rejected = traces + count, events + many, rejected + wrong
            print(*wrong, f"{traces} traces of {events} events: {len(rejected)} rejected", sep="\n", flush=True)
    return int(bool(rejected))


if __name__ == "__main__":
    sys.exit(main())
