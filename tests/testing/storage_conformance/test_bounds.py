"""The conformance suite of large and small things fails storages that have limits of their own."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from replog.abc import Mutation, PutBatch
from replog.backends.memory import MemoryStorage
from replog.protocol.batch import Batch
from replog.testing.storage_conformance import basics, bounds, marks
from replog.testing.storage_conformance.candidate import Candidate
from tests.testing.storage_conformance.log_storage import LogStorage
from tests.testing.storage_conformance.test_basics import opener


class Cheat(MemoryStorage):
    """Right in the middle, but for what a subclass does."""


class TakesSixteenMebibytes(Cheat):
    def commit(self, mutations: Sequence[Mutation]) -> None:
        room = 16 << 20
        for mutation in mutations:
            room -= len(mutation.batch.data) if isinstance(mutation, PutBatch) else 0
            if room > 0:
                super().commit([mutation])


class TakesNotQuiteTheLargest(Cheat):
    def commit(self, mutations: Sequence[Mutation]) -> None:
        super().commit(
            [each for each in mutations if not isinstance(each, PutBatch) or len(each.batch.data) < 32 << 20]
        )


class TakesFourThousand(Cheat):
    def commit(self, mutations: Sequence[Mutation]) -> None:
        super().commit(mutations[:4000])


class GivesAThousandAtMost(Cheat):
    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        return super().read(ledger_id, entry_id, stamp, bytes_max)[:1000]


class RoundsTheLimit(Cheat):
    """It counts in pages, above some."""

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        return super().read(ledger_id, entry_id, stamp, bytes_max if bytes_max < 4000 else (bytes_max + 4095) & ~4095)


class TakesNothingForAbsent(Cheat):
    def commit(self, mutations: Sequence[Mutation]) -> None:
        super().commit([each for each in mutations if not isinstance(each, PutBatch) or len(each.batch.data) > 84])


class RepeatsWhenReadOn(Cheat):
    """At every hundredth batch it begins with the one before."""

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        at = entry_id - 3 if entry_id and entry_id % 300 == 0 and entry_id > 1000 else entry_id
        return super().read(ledger_id, at, stamp, bytes_max)


class KnowsForty(Cheat):
    """Its ids have 40 bits."""

    def ledger_ids(self) -> list[int]:
        found = super().ledger_ids()
        return sorted(each & ((1 << 40) - 1) for each in found) if len(found) > 500 else found


CAUGHT_BY: dict[type[Cheat], tuple[Callable[[Candidate], None], ...]] = {
    TakesSixteenMebibytes: (bounds.check_large_commit,),
    TakesNotQuiteTheLargest: (bounds.check_large_commit,),
    TakesFourThousand: (bounds.check_many_in_one_commit,),
    GivesAThousandAtMost: (bounds.check_many_in_one_commit,),
    RoundsTheLimit: (bounds.check_many_in_one_commit,),
    TakesNothingForAbsent: (bounds.check_many_in_one_commit,),
    RepeatsWhenReadOn: (bounds.check_reading_on,),
    KnowsForty: (bounds.check_many_ledgers,),
}


@pytest.mark.parametrize("kind", Cheat.__subclasses__())
def test_cheating_storage_learns_its_fault(kind: type[Cheat], tmp_path: Path) -> None:
    for check in (*basics.CHECKS, *marks.CHECKS):
        check(Candidate(opener(kind), tmp_path / check.__name__))
    for check in CAUGHT_BY[kind]:
        with pytest.raises(AssertionError, match="broken contract of Storage: ") as raised:
            check(Candidate(opener(kind), tmp_path / check.__name__))
        assert len(str(raised.value)) < 3000


@pytest.mark.parametrize("check", bounds.CHECKS)
def test_a_right_one_passes(check: Callable[[Candidate], None], tmp_path: Path) -> None:
    check(Candidate(LogStorage, tmp_path / "st"))
