"""The conformance suite of storages fails those that break the contract, and says which sentence."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from replog.abc import Doubt, DropEntries, DropLedger, Marks, Mutation, PutBatch, SetMarks, Storage
from replog.backends.memory import MemoryStorage, _Content
from replog.errors import StorageInUseError, StorageUncertainError
from replog.protocol.batch import Batch
from replog.testing import check_storage


class Broken(MemoryStorage):
    """Right, but for what a subclass does."""


class DoubtsForNoReason(Broken):
    def doubt(self) -> Doubt:
        return Doubt(1)


class SettlesAnyDoubt(Broken):
    _left = Doubt()

    def doubt(self) -> Doubt:
        return self._left

    def settle_doubt(self, found: Doubt, left: Doubt) -> None:
        self._left = left


class Forgetful(Broken):
    def close(self) -> None:
        if not self.is_closed and self._content.ledgers:
            self._content.ledgers.popitem()
        super().close()


class LosesMarks(Broken):
    def close(self) -> None:
        for ledger in self._content.ledgers.values():
            ledger.marks = Marks(ledger.marks.key, 0, ledger.marks.last_add_confirmed, ledger.marks.last_entry_id)
        super().close()


class OtherBytes(Broken):
    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        return super().read(ledger_id, entry_id, 1, bytes_max)


class IgnoresLimit(Broken):
    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        return super().read(ledger_id, entry_id, stamp, bytes_max + 1)


class GivesNothingThatDoesNotFit(Broken):
    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        found = super().read(ledger_id, entry_id, stamp, bytes_max)
        return found if sum(len(batch.data) for batch in found) <= bytes_max else []


class GivesTheNextIfAbsent(Broken):
    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        found: list[Batch] = []
        while not found and entry_id < 100:
            found = super().read(ledger_id, entry_id, stamp, bytes_max)
            entry_id += 1
        return found


class KeepsEveryCopy(Broken):
    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        found = super().read(ledger_id, entry_id, stamp, bytes_max)
        return [batch for batch in found for _ in range(2)] if len(found) == 3 else found


class NoStrides(Broken):
    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        found = super().read(ledger_id, entry_id, stamp, bytes_max)
        return [] if found and found[0].first_entry_id + 5 < entry_id and found[0].stride > 1 else found


class Rewrites(Broken):
    def _apply(self, content: _Content, mutation: Mutation) -> None:
        if isinstance(mutation, SetMarks) and mutation.fence_term is not None:
            ledger = content.ledgers.get(mutation.ledger_id)
            if ledger is not None:
                ledger.marks = Marks(ledger.marks.key, 0, ledger.marks.last_add_confirmed, ledger.marks.last_entry_id)
        super()._apply(content, mutation)


class ForgetsHeaders(Broken):
    def _apply(self, content: _Content, mutation: Mutation) -> None:
        super()._apply(content, mutation)
        if isinstance(mutation, PutBatch):
            ledger = content.ledgers.get(mutation.batch.ledger_id)
            if ledger is not None:
                ledger.marks = Marks(ledger.marks.key, ledger.marks.fence_term, -1, ledger.marks.last_entry_id)


class RevivesTheDeleted(Broken):
    def marks(self, ledger_id: int) -> Marks | None:
        found = super().marks(ledger_id)
        return None if ledger_id in self._content.deleted else found


class DropsTooLittle(Broken):
    def _apply(self, content: _Content, mutation: Mutation) -> None:
        if not isinstance(mutation, DropLedger):
            super()._apply(content, mutation)


class DeniesTheDropped(Broken):
    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        try:
            return super().read(ledger_id, entry_id, stamp, bytes_max)
        except StorageUncertainError:
            return []


class KeepsTheDropped(Broken):
    def _apply(self, content: _Content, mutation: Mutation) -> None:
        if not isinstance(mutation, DropEntries):
            super()._apply(content, mutation)


class DropsMarksToo(Broken):
    def _apply(self, content: _Content, mutation: Mutation) -> None:
        super()._apply(content, mutation)
        if isinstance(mutation, DropEntries) and mutation.ledger_id in content.ledgers:
            content.ledgers[mutation.ledger_id].marks = Marks()


class DropsTheStraddling(Broken):
    def _apply(self, content: _Content, mutation: Mutation) -> None:
        if isinstance(mutation, DropEntries):
            mutation = DropEntries(
                mutation.ledger_id, mutation.stamp, mutation.first_entry_id, mutation.last_entry_id + 9
            )
        super()._apply(content, mutation)


class BackToFront(Broken):
    def commit(self, mutations: Sequence[Mutation]) -> None:
        super().commit(list(reversed(mutations)))


class AnswersAfterClose(Broken):
    def marks(self, ledger_id: int) -> Marks | None:
        return Marks() if self.is_closed else super().marks(ledger_id)


class Unsorted(Broken):
    def ledger_ids(self) -> list[int]:
        return super().ledger_ids()[::-1]


class OneIdentityForAll(Broken):
    @property
    def bookie_id(self) -> str:
        return "bookie"


class NamelessNumbers(Broken):
    def statistics(self) -> Mapping[str, float]:
        return {"commits": "many"}  # type: ignore[dict-item]


def opener(kind: type[MemoryStorage]) -> Callable[[Path], Storage]:
    contents: dict[Path, _Content] = {}

    def open_storage(path: Path) -> Storage:
        content = contents.setdefault(path, _Content())
        if content.is_open:
            raise StorageInUseError("open already")
        content.is_open = True
        return kind(content)

    return open_storage


@pytest.mark.long(is_sampled=False)  # tests/backends/test_memory.py sees the same of the storage below it
def test_a_right_one_passes_and_nothing_is_left(tmp_path: Path) -> None:
    check_storage(opener(Broken), tmp_path, survives_processes=False)
    assert list(tmp_path.iterdir()) == []


def test_failure_names_the_check_and_leaves_its_files(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as raised:
        check_storage(opener(Forgetful), tmp_path, survives_processes=False)
    (place,) = tmp_path.iterdir()
    assert raised.value.__notes__ == [
        f"in the check {place.name!r} of the conformance suite of storages, below {place}"
    ]


@pytest.mark.parametrize("kind", Broken.__subclasses__())
def test_broken_storage_learns_its_fault(kind: type[MemoryStorage], tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"broken contract of Storage: .*\n  found: "):
        check_storage(opener(kind), tmp_path, survives_processes=False)
