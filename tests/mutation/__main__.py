"""`python -m tests.mutation`: which test catches each mutant of the source."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from tests.mutation import page
from tests.mutation.running import UNCAUGHT, catching, copied_source
from tests.mutation.table import ROOT
from tests.mutation.tables import SOURCE_MUTANTS


def main() -> int:
    """Runs the mutants that were asked for; returns 1 if any was not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--layer", choices=list(SOURCE_MUTANTS), action="append", help="only of this layer")
    parser.add_argument("--name", action="append", help="only this one")
    parser.add_argument("--missing", action="store_true", help="only those that nothing is known to catch")
    parser.add_argument("--quick", action="store_true", help="only with the tests that are named first")
    parser.add_argument("--record", action="store_true", help="write down what caught them, and the page")
    parser.add_argument("--page", action="store_true", help="only write the page, of what is written down")
    options = parser.parse_args()
    if options.page:
        page.write()
        return 0
    caught = page.recorded()
    failures = 0
    with copied_source() as source:
        for layer, mutants in SOURCE_MUTANTS.items():
            for mutant in mutants:
                is_wanted = (not options.layer or layer in options.layer) and (
                    not options.name or mutant.name in options.name
                )
                if not is_wanted or (options.missing and mutant.name in caught):
                    continue
                named = mutant.tests[: max(1, len(mutant.tests) - 2)] if options.quick else mutant.tests
                found = catching(mutant, source, (*caught_by(caught, mutant.name), *named))
                failures += not found
                print(f"{layer} {mutant.name}: {found or 'not caught <--'}", flush=True)
                if found is not UNCAUGHT:
                    caught[mutant.name] = found
                else:
                    caught.pop(mutant.name, None)
                if options.record:
                    page.record(caught)
    if options.record:
        page.write()
    return 1 if failures else 0


def caught_by(caught: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The test that caught this mutant the last time, if it is known and still there."""
    test = caught.get(name, "")
    return (test,) if "::" in test and (ROOT / test.partition("::")[0]).exists() else ()


if __name__ == "__main__":
    sys.exit(main())
