"""`python -m tests.simulator.council`: seeded schedules of the metastore's members; prints each that breaks a rule."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time

from tests.simulator.council.world import broken_by

_AT_ONCE = 250  # seeds of one task; a worker looks for cycles after each, else that takes a tenth of the time


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 if no schedule breaks a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.council", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many schedules to run")
    parser.add_argument("--first", type=int, default=0, help="the first one's seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="how many processes run them")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    end = options.first + options.seeds
    blocks = [range(first, min(first + _AT_ONCE, end)) for first in range(options.first, end, _AT_ONCE)]
    done = broken = 0
    with multiprocessing.Pool(options.workers, initializer=gc.disable) as pool:
        for count, violations in pool.imap_unordered(_run, blocks):
            done, broken = done + count, broken + len(violations)
            for seed, violation in violations:
                print(f"seed {seed}: {violation}", flush=True)
            if done * 10 // options.seeds != (done - count) * 10 // options.seeds:
                print(f"{done} schedules in {time.monotonic() - start:.0f} s, {broken} broken", flush=True)
    return int(bool(broken))


def _run(seeds: range) -> tuple[int, list[tuple[int, str]]]:
    broken = [(seed, violation) for seed in seeds if (violation := broken_by(seed))]
    gc.collect()
    return len(seeds), broken


if __name__ == "__main__":
    sys.exit(main())
