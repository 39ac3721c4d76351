"""`python -m tests.spec`: checks the specification, and prints a table. `make spec` and `make spec-long` run it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.spec import tlc
from tests.spec.catalog import ALL_GOALS, ALL_MODELS, ALL_REMOVALS
from tests.spec.checks import Line, check_goal, check_model, check_removal


def main() -> int:
    """Checks what was asked for. Returns 1 if anything is otherwise than expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.spec", description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="only fetch TLC")
    parser.add_argument("--long", action="store_true", help="the larger models, too")
    parser.add_argument("--model", action="append", help="only this one")
    parser.add_argument("--rule", action="append", help="only leave out this rule")
    parser.add_argument("--goal", action="append", help="only see that this situation comes about")
    parser.add_argument("--workers", type=int, default=1, help="TLCs at a time; threads of a larger model")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for each model")
    options = parser.parse_args()
    tlc.fetch()
    if options.fetch:
        return 0
    wrong, processor_s = 0, 0.0
    # A process to each TLC, whose processor time is that of its children. One thread each: two would wait for each other.
    with ProcessPoolExecutor(options.workers) as pool:
        for line in pool.map(_run, _checks(options)):
            print(line.text, flush=True)
            wrong += not line.is_right
            processor_s += line.processor_s
    print(f"spec: {processor_s:.0f} s of processor")
    print(f"spec: {wrong} of the lines above are not as expected" if wrong else "spec: all is as expected")
    return 1 if wrong else 0


def _run(check: Callable[[], Line]) -> Line:
    return check()


def _checks(options: argparse.Namespace) -> Iterator[Callable[[], Line]]:
    is_all = not (options.model or options.rule or options.goal)
    for model in ALL_MODELS:
        if (is_all and (options.long or not model.is_long)) or model.name in (options.model or ()):
            threads = options.workers if model.is_long else 1
            yield partial(check_model, model, threads, options.timeout)
    for removal in ALL_REMOVALS:
        if is_all or removal.rule in (options.rule or ()):
            yield partial(check_removal, removal, 1, options.timeout)
    for name, place, meaning in ALL_GOALS:
        if is_all or name in (options.goal or ()):
            yield partial(check_goal, name, place, meaning, 1, options.timeout)


if __name__ == "__main__":
    sys.exit(main())
