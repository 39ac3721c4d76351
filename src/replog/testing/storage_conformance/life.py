"""A long random sequence of operations: the storage must always equal one in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from replog.abc import Storage
from replog.protocol.mutations import Mutation
from replog.testing.storage_conformance.candidate import Candidate, expect
from replog.testing.storage_conformance.model import Model
from replog.testing.storage_conformance.workload import Workload

Step = Sequence[Mutation] | str  # a commit, or the name of something else that is done

_SHRINK_STEPS = 2_000  # some fifteen seconds on a disk; not by the clock: a seed is told in the same words everywhere
_TOLD_STEPS = 40
_OTHER_STEPS: dict[str, Callable[[Storage], None]] = {
    "compact()": lambda storage: storage.compact(),
    "compact(is_major=True)": lambda storage: storage.compact(is_major=True),
    "scrub()": lambda storage: storage.scrub(),
}
_REOPEN = "close and open again"


class _Wrong(Exception):
    """The storage differs from what it must be after this step."""

    def __init__(self, at: int, words: str) -> None:
        super().__init__(words)
        self.at = at
        self.words = words


def check_life(candidate: Candidate, steps: int, seed: int) -> None:
    """Run a sequence; if the storage is wrong, look for a shorter sequence that shows it, too."""
    life = _make_life(steps, seed)
    try:
        _live(candidate, life, random.Random(seed))
    except _Wrong as wrong:
        shortest, words = _shrink(candidate, life[: wrong.at + 1], wrong.words)
        story = "\n".join(f"    {step}" for step in shortest[-_TOLD_STEPS:])
        expect(
            False,
            "read, marks, ledger_ids: what was committed can be read, whatever was done since",
            f"{words}\n  after step {wrong.at + 1} of a random life (seed={seed}, steps={steps}); "
            f"these {len(shortest)} steps are enough{f', the last {_TOLD_STEPS} are' * (len(shortest) > _TOLD_STEPS)}:\n"
            f"{story}",
        )


def _make_life(steps: int, seed: int) -> list[Step]:
    chance = random.Random(seed)
    workload = Workload(seed)
    # Opening again twice as often: it finds entries that are only in memory.
    others = [*_OTHER_STEPS, _REOPEN, _REOPEN]
    return [chance.choice(others) if chance.random() < 0.15 else workload.next_commit() for _ in range(steps)]


def _live(candidate: Candidate, steps: Sequence[Step], chance: random.Random | None) -> None:
    """Take these steps on a new storage. Raises `_Wrong`.

    Compares a sample after each step, and everything whenever the storage is opened; everything after each step if
    `chance` is None."""
    at = 0
    model = Model()
    try:
        storage = candidate.open()
        try:
            for at, step in enumerate(steps):
                if step == _REOPEN:
                    storage.close()
                    storage = candidate.open()
                else:
                    _take(storage, step, model)
                if chance is None or step == _REOPEN:
                    wrong = model.difference(storage)
                else:
                    wrong = model.sampled_difference(storage, chance)
                if wrong is not None:
                    raise _Wrong(at, wrong)
        finally:
            storage.close()
        with candidate.opened() as storage:
            if wrong := model.difference(storage):
                raise _Wrong(len(steps) - 1, f"{wrong} (after it was closed and opened again)")
    except _Wrong:
        raise
    except Exception as error:
        raise _Wrong(at, f"{type(error).__name__}: {error}") from error


def _take(storage: Storage, step: Step, model: Model) -> None:
    if isinstance(step, str):
        _OTHER_STEPS[step](storage)
        return
    storage.commit(step)
    model.commit(step)


def _shrink(candidate: Candidate, steps: list[Step], words: str) -> tuple[list[Step], str]:
    """The fewest of these steps that a search of some seconds finds to make the storage wrong, and the fault."""
    tries = taken = 0

    def shorter(those: list[Step]) -> tuple[list[Step], str] | None:
        nonlocal tries, taken
        tries, taken = tries + 1, taken + len(those)
        try:
            _live(candidate.sibling(f"shrunk_{tries}"), those, None)
        except _Wrong as wrong:
            return those[: wrong.at + 1], wrong.words
        return None

    steps, words = shorter(steps) or (steps, words)  # looking at everything finds it sooner
    size = len(steps) // 2
    while size:
        at = 0
        while at < len(steps) - 1 and taken < _SHRINK_STEPS:
            found = shorter(steps[:at] + steps[at + size :])
            if found is None:
                at += size
            else:
                steps, words = found
        size //= 2
    return steps, words
