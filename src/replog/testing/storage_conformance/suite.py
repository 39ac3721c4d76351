"""The whole suite: all checks in their order."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from replog.testing.storage_conformance import (
    basics,
    bounds,
    doubts,
    holdings,
    kills,
    life,
    maintenance,
    marks,
    threads,
)
from replog.testing.storage_conformance.candidate import Candidate, OpenStorage

Check = Callable[[Candidate], None]


def check_storage(
    open_storage: OpenStorage,
    directory: Path,
    *,
    survives_processes: bool = True,
    kills: int = 16,
    steps: int = 300,
    seed: int = 0,
) -> None:
    """Check a kind of storage. Raise `AssertionError` with the sentence of the contract that does not hold.

    `open_storage(path)` opens the storage at a path, or creates it; opened again after `close`, it must hold all
    commits. The suite uses paths below `directory`, which must exist and be empty. It removes the files of each check
    that passes, and leaves those of one that fails. It needs no test framework, takes about ten seconds, writes about
    100 MB, and calls the storage from several threads.

    `survives_processes=False` is for a storage in this process's memory: it skips the check in which child processes are
    killed `kills` times while they commit. The children are forks, so that `open_storage` may be any closure. Other threads
    of this process should be idle then: a lock that one of them holds at the fork stays locked in the child. The suite
    itself has nothing open or running at a fork. `steps` is the length of the random sequence of operations, and `seed`
    decides it and the kills: use other values for long runs.
    """
    for name, check in _checks(survives_processes, kills, steps, seed):
        place = directory / name
        place.mkdir()
        try:
            check(Candidate(open_storage, place / "storage"))
        except Exception as error:
            error.add_note(f"in the check {name!r} of the conformance suite of storages, below {place}")
            raise
        # Only now: the files of a check that fails are evidence.
        shutil.rmtree(place)


def _checks(survives_processes: bool, kills_count: int, steps: int, seed: int) -> Iterator[tuple[str, Check]]:
    """All checks. The basic ones come first; then those that fork, before the suite starts threads."""
    for module in (basics, marks, doubts, holdings):
        yield from _named(module.CHECKS)
    if survives_processes:
        yield "kills", partial(kills.check_kills, kills=kills_count, seed=seed)
    yield "life", partial(life.check_life, steps=steps, seed=seed)
    for module in (bounds, maintenance, threads):
        yield from _named(module.CHECKS)


def _named(checks: tuple[Check, ...]) -> Iterator[tuple[str, Check]]:
    for check in checks:
        yield check.__name__.removeprefix("check_"), check
