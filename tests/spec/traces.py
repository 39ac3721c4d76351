"""`python -m tests.spec.traces`: TLC reads what the simulator's machines did, and accepts it or says where it is wrong.

python -m tests.spec.traces --seeds 50                    # all must be accepted
python -m tests.spec.traces --mutants                     # the simulator's known bugs: a table of who rejects which
python -m tests.spec.traces --seeds 50 --mutant NAME      # one of them
python -m tests.spec.traces --seeds 50 --write FILE       # JSON lines, one for each trace
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from tests.simulator import conversation, draw_plan, simulate
from tests.simulator.mutants import MUTANTS, mutant_named
from tests.simulator.mutation import Mutant
from tests.simulator.plan import Plan
from tests.spec import tlc
from tests.spec.models import DEFAULTS, written
from tests.spec.recording import CREATOR, Recorder, Trace
from tests.spec.simulated import recording

EVENTS_MAX = 600  # of one trace: what follows is cut off
_LOSSES = {"shorten", "burn", "declare"}  # operations that the specification of traces does not have
_NAMELESS = {"fenced", "denied", "published", "read", "trimmed", "restarted"}  # events that name no client
_TIMEOUT_S = 3600.0
_REJECTED = re.compile(r'<<"rejected", (\d+), (\d+), "([^"]+)">>')
CONVERSATIONS = Path(__file__).parent.parent / "protocol" / "conversations"
MUTANTS_REJECTED_MIN = 30
SEEDS_KEPT = 2  # whose traces TLC gets where the oracle sees nothing


@attrs.frozen
class Named:
    """A trace, and the seed that it is of."""

    seed: int
    trace: Trace
    violation: str = ""


def record(seeds: Iterable[int], scenario: str | None = None, strategy: str | None = None) -> list[Named]:
    """The traces of these seeds. Seeds in which bookies lose something are left out."""
    return [trace for seed in seeds for trace in _traces(draw_plan(seed, scenario, strategy))[0]]


def record_mutant(mutant: Mutant, seeds: int) -> list[Named]:
    """The traces of the first seed in which the simulator's oracle sees this known bug, or of the first few seeds. A bug that is
    rare has a conversation that shows it."""
    kept: list[Named] = []
    with mutant.applied():
        if mutant.conversation:
            return _traces(conversation.read(CONVERSATIONS / f"{mutant.conversation}.txt").plan)[0]
        for seed in range(min(seeds, mutant.seeds)):
            plan = draw_plan(seed, mutant.scenario, mutant.strategy)
            traces, is_seen = _traces(attrs.evolve(plan, overlook=mutant.overlook))
            if is_seen:
                return traces
            kept += traces if seed < SEEDS_KEPT else []
    return kept


def _traces(plan: Plan) -> tuple[list[Named], bool]:
    with recording() as recorder:
        rule = simulate(plan).rule
    is_kept = not any(op.verb in _LOSSES for op in plan.ops)
    traces = [trace for trace in recorder.traces.values() if trace.events and is_kept]
    if rule and not traces:
        # Nothing for TLC, but the oracle's word counts.
        traces = [Trace(0, (3, 3, 2), ("b1", "b2", "b3"))]
    return [Named(plan.seed, renamed(trace, recorder), rule) for trace in traces], bool(rule)


def renamed(trace: Trace, recorder: Recorder) -> Trace:
    """The same with the names that the specification has: the creator, and recoveries by their numbers."""
    names = {CREATOR: CREATOR}
    events = []
    for event in trace.events[:EVENTS_MAX]:
        if event[0] in _NAMELESS:
            events.append(event)
            continue
        place = 2 if event[0] == "stored" else 1
        name = names.setdefault(recorder.named(event[place]), f"r{len(names)}")
        events.append((*event[:place], name, *event[place + 1 :]))
    return attrs.evolve(trace, events=events)


def check(traces: Sequence[Named]) -> list[tuple[Named, int, str]]:
    """The traces that TLC rejects, with the number of the event that is wrong and its kind. Raises `CheckerError`."""
    by_kind: dict[tuple[tuple[int, int, int], bool], list[Named]] = defaultdict(list)
    for each in traces:
        by_kind[each.trace.quorum, each.trace.is_unbounded].append(each)
    rejected: list[tuple[Named, int, str]] = []
    for _, group in sorted(by_kind.items()):
        lengths = [len(each.trace.events) for each in group]
        ends = rejections("LedgerTrace", _config(group), _module(group), lengths)
        rejected += [(group[number - 1], *end) for number, end in sorted(ends.items())]
    return rejected


def rejections(module: str, config: str, data: str, lengths: Sequence[int]) -> dict[int, tuple[int, str]]:
    """By its number, from 1 on: the event at which TLC rejects a trace, and its kind. Raises `CheckerError`."""
    outcome = tlc.check(
        module, config, timeout_s=_TIMEOUT_S, modules={"TraceData": data}, options=("-deadlock",), is_short=True
    )
    ends = {int(number): (int(place), kind) for number, place, kind in _REJECTED.findall(outcome.output)}
    # A state for each event and one more: TLC came to each trace's end, and did not only find nothing to print.
    followed = sum(ends.get(number, (length, ""))[0] + 1 for number, length in enumerate(lengths, 1))
    if not outcome.is_exhaustive or outcome.states < followed:
        raise tlc.CheckerError(f"TLC followed {outcome.states} of {followed} states of traces: nothing is known")
    return ends


def _config(traces: Sequence[Named]) -> str:
    events = [event for each in traces for event in each.trace.events]
    bookies = {
        name for each in traces for name in re.findall(r"'(b\d+)'", repr((each.trace.ensemble, each.trace.events)))
    }
    recoveries = {name for event in events for name in event if isinstance(name, str) and re.fullmatch(r"r\d+", name)}
    first = traces[0].trace
    quorum = zip(("E", "Qw", "Qa"), first.quorum, strict=True)
    values: Mapping[str, int | bool | str] = {**DEFAULTS, **dict(quorum), "Unbounded": first.is_unbounded}
    lines = ["SPECIFICATION TraceSpec", "CONSTANTS", '  Creator = "creator"', "  Removed = {}"]
    lines.append("  Bookies = {%s}" % ", ".join(f'"{name}"' for name in sorted(bookies)))  # noqa: UP031
    lines.append("  Recoveries = {%s}" % ", ".join(f'"{name}"' for name in sorted(recoveries | {"r1"})))  # noqa: UP031
    lines += [f"  {name} = {written(value)}" for name, value in values.items()]
    return "\n".join([*lines, ""])


def _module(traces: Sequence[Named]) -> str:
    written = [(f"ensemble |-> {in_tla(each.trace.ensemble)}", each.trace.events) for each in traces]
    return module_of(written)


def module_of(traces: Sequence[tuple[str, Sequence[object]]]) -> str:
    """The module with these traces: for each, its fields in TLA+, and its events."""
    written = [f"[{fields}, events |-> <<\n  " + ",\n  ".join(map(in_tla, events)) + ">>]" for fields, events in traces]
    return "---- MODULE TraceData ----\nEXTENDS Integers\nTraces == <<\n" + ",\n".join(written) + "\n>>\n====\n"


def in_tla(value: object) -> str:
    """A text, number, or tuple of them, as TLA+ writes it."""
    if isinstance(value, tuple):
        return f"<<{', '.join(map(in_tla, value))}>>"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return f'"{value}"' if isinstance(value, str) else str(value)


def check_mutants(names: Sequence[str], seeds: int) -> list[tuple[str, str, str]]:
    """For each known bug: its name, the rule by which the simulator's oracle saw it, and the event at which TLC did, or ""."""
    recorded = {name: record_mutant(mutant_named(name), seeds) for name in names}
    rejected = check([trace for traces in recorded.values() for trace in traces])
    events: dict[int, str] = {
        id(named): f"{kind} (seed {named.seed}, event {place})" for named, place, kind in rejected
    }
    lines = []
    for name, traces in recorded.items():
        oracle = next((each.violation for each in traces if each.violation), "")
        lines.append((name, oracle, next((events[id(each)] for each in traces if id(each) in events), "")))
    return lines


def main() -> int:
    """Returns 1 if a trace is rejected, or with a mutant if none is."""
    parser = argparse.ArgumentParser(prog="python -m tests.spec.traces", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--scenario", choices=("ledger", "log", "unbounded"))
    parser.add_argument("--strategy")
    parser.add_argument("--mutant", default="", help="a known bug of the simulator")
    parser.add_argument("--mutants", action="store_true", help="all of them: who rejects which")
    parser.add_argument("--write", type=Path, help="write the traces to this file")
    options = parser.parse_args()
    tlc.fetch()
    if options.mutants:
        return _print_mutants(options.seeds)
    if options.mutant:
        traces = record_mutant(mutant_named(options.mutant), options.seeds)
    else:
        seeds = range(options.first, options.first + options.seeds)
        traces = record(seeds, options.scenario, options.strategy)
    if options.write is not None:
        written = [json.dumps({"seed": each.seed, **attrs.asdict(each.trace)}) for each in traces]
        options.write.write_text("\n".join([*written, ""]), encoding="utf-8")
    rejected = check(traces)
    for named, place, kind in rejected:
        event = named.trace.events[place - 1]
        print(f"rejected: seed {named.seed}, ledger {named.trace.ledger_id}, event {place}: {event} ({kind})")
    events = sum(len(each.trace.events) for each in traces)
    print(f"{len(traces)} traces of {events} events: {len(rejected)} rejected")
    return int(bool(rejected) is not bool(options.mutant))


def _print_mutants(seeds: int) -> int:
    lines = check_mutants([mutant.name for mutant in MUTANTS], seeds)
    for name, oracle, event in lines:
        print(f"{name:32} oracle {oracle or '-':10} TLC {event or '-'}")
    by_checker = sum(bool(event) for _, _, event in lines)
    by_either = sum(bool(oracle or event) for _, oracle, event in lines)
    print(f"{len(lines)} mutants: TLC rejects {by_checker}, TLC or the oracle {by_either}")
    return 0 if by_either >= MUTANTS_REJECTED_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
