"""`python -m tests.spec`: checks the specification, and prints a table. `make spec` and `make spec-long` run it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

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
    parser.add_argument("--workers", type=int, default=1, help="threads of TLC")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for each model")
    options = parser.parse_args()
    tlc.fetch()
    if options.fetch:
        return 0
    wrong = 0
    for line in _lines(options):
        print(line.text, flush=True)
        wrong += not line.is_right
    print(f"spec: {wrong} of the lines above are not as expected" if wrong else "spec: all is as expected")
    return 1 if wrong else 0


def _lines(options: argparse.Namespace) -> Iterator[Line]:
    is_all = not (options.model or options.rule or options.goal)
    for model in ALL_MODELS:
        if (is_all and (options.long or not model.is_long)) or model.name in (options.model or ()):
            yield check_model(model, options.workers, options.timeout)
    for removal in ALL_REMOVALS:
        if is_all or removal.rule in (options.rule or ()):
            yield check_removal(removal, options.workers, options.timeout)
    for name, place, meaning in ALL_GOALS:
        if is_all or name in (options.goal or ()):
            yield check_goal(name, place, meaning, options.workers, options.timeout)


if __name__ == "__main__":
    sys.exit(main())
