"""The exam as a whole: which checks, in which order."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from replog.testing.storage_exam import basics, bounds, doubts, kills, life, marks, threads, upkeep
from replog.testing.storage_exam.candidate import Candidate, OpenStorage

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
    """Examines a kind of storage. Raises AssertionError, with the sentence of the contract that does not hold.

    `open_storage(path)` opens what stands under the path, or makes it new if nothing does; opened again after `close`,
    it must hold what was committed. The exam uses paths below `directory`, which must exist and be empty; what stands
    there of a check is removed once it is passed, and left if it failed. It needs no test framework, takes some ten
    seconds, writes some 100 MB, and calls from several threads.

    `survives_processes=False` is for a storage that lives in this process's memory: it is spared the check in which
    child processes are killed `kills` times while they commit. The children are forks, so that `open_storage` may be
    any closure: this process should have no other threads that do anything then, because a lock that one of them
    holds at that moment stays locked in the child. Nothing of the exam's own is open or running at a fork.
    `steps` is the length of the random life, and `seed` what it and the kills are drawn from: give others for long runs.
    """
    for name, check in _checks(survives_processes, kills, steps, seed):
        place = directory / name
        place.mkdir()
        try:
            check(Candidate(open_storage, place / "storage"))
        except Exception as error:
            error.add_note(f"in the check {name!r} of the exam of storages, below {place}")
            raise
        shutil.rmtree(place)


def _checks(survives_processes: bool, kills_count: int, steps: int, seed: int) -> Iterator[tuple[str, Check]]:
    """What everything else stands on comes first; then forks, before the exam starts threads of its own."""
    for module in (basics, marks, doubts):
        yield from _named(module.CHECKS)
    if survives_processes:
        yield "kills", partial(kills.check_kills, kills=kills_count, seed=seed)
    yield "life", partial(life.check_life, steps=steps, seed=seed)
    for module in (bounds, upkeep, threads):
        yield from _named(module.CHECKS)


def _named(checks: tuple[Check, ...]) -> Iterator[tuple[str, Check]]:
    for check in checks:
        yield check.__name__.removeprefix("check_"), check
