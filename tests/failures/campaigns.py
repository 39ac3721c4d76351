"""The command line of tests that run rounds of failures for hours: `--rounds 2000 --seed 1`, in campaigns with one seed each."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

Campaign = Callable[[Path, int, int], Awaitable[tuple[Counter[str], list[str]]]]
"""Runs so many rounds of this seed in an empty directory; returns what was done, and what was wrong."""


def run_campaigns(campaign: Campaign, name: str, description: str | None, campaign_rounds: int) -> int:
    """Runs what the command line says, and prints a line for each campaign. Returns 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.failures.{name}", description=description)
    parser.add_argument("--rounds", type=int, default=campaign_rounds)
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args()
    done, wrong, total = 0, 0, Counter[str]()
    while done < words.rounds:
        rounds = min(campaign_rounds, words.rounds - done)
        started_s = time.monotonic()
        directory = Path(tempfile.mkdtemp(prefix=f"{name}-{words.seed}-"))
        counts, found = trio.run(partial(campaign, directory, words.seed, rounds))
        done, total, wrong = done + rounds, total + counts, wrong + len(found)
        said = ", ".join(f"{count} {what}" for what, count in counts.items())
        print(
            f"seed {words.seed}: {rounds} rounds in {time.monotonic() - started_s:.0f} s: {said}",
            *found,
            sep="\n  ",
            flush=True,
        )
        if found:
            print(f"  its histories and logs are in {directory}", flush=True)
        else:
            shutil.rmtree(directory)  # of hundreds of campaigns, each with files of several bookies
        words.seed += 1
    print(f"{done} rounds, {dict(total)}: {wrong} violations")
    return 1 if wrong else 0
