"""The random life finds what only a long one shows, and tells it in few steps."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from replog.abc import Mutation, PutBatch
from replog.backends.memory import MemoryStorage, _Content
from replog.protocol.batch import Batch
from replog.testing.storage_conformance import basics, marks
from replog.testing.storage_conformance.candidate import Candidate
from replog.testing.storage_conformance.life import check_life
from replog.testing.storage_conformance.workload import Workload
from tests.testing.storage_conformance.log_storage import LogStorage
from tests.testing.storage_conformance.test_basics import opener


class Cheat(MemoryStorage):
    """Right in a short life, but for what a subclass does."""


class ForgetsLateOnesOfAGathering(Cheat):
    def _apply(self, content: _Content, mutation: Mutation) -> None:
        if isinstance(mutation, PutBatch) and mutation.batch.stride > 1:
            ledger = content.ledgers.get(mutation.batch.ledger_id)
            if ledger is not None and ledger.last_entry_id > mutation.batch.last_entry_id + 1:
                return
        super()._apply(content, mutation)


class RevivesWhatComesAgain(Cheat):
    """A ledger that was deleted comes back with a batch of a later writer."""

    def _apply(self, content: _Content, mutation: Mutation) -> None:
        if isinstance(mutation, PutBatch) and mutation.batch.stamp > 1:
            ledger_id = mutation.batch.ledger_id
            if ledger_id in content.deleted:
                kept = [(first, last) for first, last in content.deleted if not first <= ledger_id <= last]
                content.deleted = type(content.deleted)(kept)
        super()._apply(content, mutation)


class ConfusesLaterStamps(Cheat):
    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        found = super().read(ledger_id, entry_id, stamp, bytes_max)
        return found or (super().read(ledger_id, entry_id, stamp - 1, bytes_max) if 3 < stamp < 9 else [])


class FailsAtHighIds(Cheat):
    def commit(self, mutations: Sequence[Mutation]) -> None:
        if any(isinstance(each, PutBatch) and 1 << 33 < each.batch.ledger_id < 1 << 40 for each in mutations):
            raise OverflowError("an id of more than 32 bits")
        super().commit(mutations)


SENTENCES = {
    ForgetsLateOnesOfAGathering: r"(read|marks|ranges).* (gives|are) ",
    RevivesWhatComesAgain: "ledger_ids|marks",
    ConfusesLaterStamps: r"read\(.* gives .*, not (nothing|StorageUncertainError)",
    FailsAtHighIds: "OverflowError: an id of more than 32 bits",
}


@pytest.mark.parametrize("kind", Cheat.__subclasses__())
def test_cheating_storage_learns_its_fault(kind: type[Cheat], tmp_path: Path) -> None:
    open_storage = opener(kind)
    for check in (*basics.CHECKS, *marks.CHECKS):
        check(Candidate(open_storage, tmp_path / check.__name__))
    with pytest.raises(AssertionError, match="broken contract of Storage: read, marks, ledger_ids") as raised:
        check_life(Candidate(open_storage, tmp_path / "life"), steps=600, seed=3)
    words = str(raised.value)
    assert re.search(SENTENCES[kind], words)
    said = re.search(r"after step (\d+) of a random life \(seed=3, steps=600\); these (\d+) steps are enough:\n", words)
    assert said
    assert int(said[2]) < 8
    assert words.count("\n    ") == int(said[2])


def test_a_right_one_lives_on(tmp_path: Path) -> None:
    for seed in range(3):
        check_life(Candidate(LogStorage, tmp_path / str(seed)), steps=300, seed=seed)


def test_a_seed_makes_one_life_with_one_payload_per_identity() -> None:
    """T3."""
    workload, same = Workload(5), Workload(5)
    seen: dict[tuple[int, int, int], Batch] = {}
    for _ in range(500):
        mutations = workload.next_commit()
        assert mutations == same.next_commit()
        for mutation in mutations:
            if isinstance(mutation, PutBatch):
                batch = mutation.batch
                for entry_id in batch.entry_ids:
                    assert seen.setdefault((batch.ledger_id, entry_id, batch.stamp), batch) == batch
