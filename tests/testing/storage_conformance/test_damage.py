"""The conformance suite of damage fails storages that swallow it, and says what was damaged and which sentence is broken."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from replog.abc import UNBOUNDED, Damage, Doubt, Mutation, PutBatch, Storage
from replog.backends.dropped import EntryDroppedError
from replog.backends.memory import MemoryStorage
from replog.errors import StorageDamagedError, StorageInUseError, StorageUncertainError
from replog.protocol.batch import Batch
from replog.testing import check_storage, check_storage_damage
from replog.testing.storage_conformance import basics, doubts, holdings, marks
from replog.testing.storage_conformance.candidate import Candidate
from tests.testing.storage_conformance.log_storage import LogStorage
from tests.testing.storage_conformance.test_basics import opener


@pytest.mark.sized
def test_an_honest_one_passes_both_exams(tmp_path: Path, is_long: bool) -> None:
    """The checks that are left out of `make test` have tests in which the honest one passes each of them."""
    for name in ("conformance", "damage"):
        (tmp_path / name).mkdir()
    if is_long:
        check_storage(LogStorage, tmp_path / "conformance", kills=2, steps=50)
    else:
        for number, check in enumerate((*basics.CHECKS, *marks.CHECKS, *doubts.CHECKS, *holdings.CHECKS)):
            check(Candidate(LogStorage, tmp_path / "conformance" / f"{number}"))
    check_storage_damage(LogStorage, tmp_path / "damage", sample=6)


class GivesWhatItFinds(LogStorage):
    def damaged_batch(self, data: bytes) -> bytes:
        return data


class ForgetsIt(LogStorage):
    def damaged_batch(self, data: bytes) -> None:
        del data


class AnswersAbsent(LogStorage):
    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        try:
            return super().read(ledger_id, entry_id, stamp, bytes_max)
        except EntryDroppedError:
            raise
        except StorageUncertainError:
            return []


class SkipsIt(LogStorage):
    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        found = MemoryStorage.read(self, ledger_id, entry_id, stamp, bytes_max)
        if found and not found[0].data:
            self.uncertain(found[0])
        return [batch for batch in found if batch.data]


class LetsOSErrorThrough(LogStorage):
    def uncertain(self, batch: Batch) -> None:
        raise OSError(5, f"can't read {batch}")


class TakesDamageForATornTail(LogStorage):
    def damaged(self, name: str, offset: int) -> None:
        pass


class RefusesOnce(LogStorage):
    """It tells of the damage, and removes the files that prove it."""

    def damaged(self, name: str, offset: int) -> None:
        for each in ("log", "end"):
            (self.path / each).unlink(missing_ok=True)
        super().damaged(name, offset)


class SaysThatItIsInUse(LogStorage):
    def damaged(self, name: str, offset: int) -> None:
        raise StorageInUseError(f"{self.path}: could not open {name} at {offset}")


class DoesNotSayWhere(LogStorage):
    def damaged(self, name: str, offset: int) -> None:
        raise StorageDamagedError("something is damaged")


class RaisesAnything(LogStorage):
    def damaged(self, name: str, offset: int) -> None:
        raise ValueError(f"{name} at {offset}")


class MakesANewIdentity(LogStorage):
    def damaged_identity(self) -> str:
        return "bookie-new"


class ListsNothing(LogStorage):
    def damage(self) -> Sequence[Damage]:
        return ()


class ListsTheHealthy(LogStorage):
    def damage(self) -> Sequence[Damage]:
        with self._opened() as content:
            ledger_id = min(content.ledgers)
        return [*super().damage(), Damage(ledger_id, 99, 0, 0, "no such thing")]


class CannotBeMended(LogStorage):
    def commit(self, mutations: Sequence[Mutation]) -> None:
        known = {(each.ledger_id, each.stamp, each.first_entry_id) for each in self.damage()}
        super().commit(
            [
                each
                for each in mutations
                if not isinstance(each, PutBatch)
                or (each.batch.ledger_id, each.batch.stamp, each.batch.first_entry_id) not in known
            ]
        )


class CannotBeBounded(LogStorage):
    def doubt(self) -> Doubt:
        return Doubt(UNBOUNDED, UNBOUNDED, ("log at 0",))


class ForgetsThatItDoubted(LogStorage):
    """Who opens it after its doubt was bounded is told that there is none."""

    bounds: ClassVar[list[int]] = []

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_forgetful = bool(self.bounds)

    def doubt(self) -> Doubt:
        below = self.bounds[0] if self.bounds else UNBOUNDED
        return Doubt() if self.is_forgetful else Doubt(below, below, ("log at 0",))

    def bound_doubt(self, below_ledger_id: int) -> None:
        self.bounds.append(below_ledger_id)


class NeverSettles(LogStorage):
    bounds: ClassVar[list[int]] = []

    def doubt(self) -> Doubt:
        below = self.bounds[0] if self.bounds else UNBOUNDED
        return Doubt(below, below, ("log at 0",))

    def bound_doubt(self, below_ledger_id: int) -> None:
        self.bounds.append(below_ledger_id)


class DoubtsWithoutAReason(LogStorage):
    def doubt(self) -> Doubt:
        return Doubt(UNBOUNDED, 0)


SENTENCES = {
    CannotBeBounded: "bound_doubt: lowers whichever bound is UNBOUNDED",
    ForgetsThatItDoubted: "doubt: kept durably across restarts",
    NeverSettles: "settle_doubt: leaves this doubt",
    DoubtsWithoutAReason: "doubt: `reasons` name files",
    GivesWhatItFinds: "every batch returned was checked against damage",
    ForgetsIt: "(damage is doubt|every batch returned was checked)",
    AnswersAbsent: "(damage is doubt, never absence|only doubt ends it before)",
    SkipsIt: "(damage is doubt|every batch returned was checked)",
    LetsOSErrorThrough: "exceptions of others never cross the seam bare.*\n  found: OSError",
    TakesDamageForATornTail: "damage is doubt",
    RefusesOnce: "damage is doubt",
    SaysThatItIsInUse: "not that it is in use or full",
    DoesNotSayWhere: "names file and offset",
    RaisesAnything: "or another StorageError.*\n  found: ValueError",
    MakesANewIdentity: "the identity never changes",
    ListsNothing: "what it finds is in `damage`",
    ListsTheHealthy: "reads of them raise StorageUncertainError",
    CannotBeMended: "what was damaged and is stored again (can be read|is held) again",
}


@pytest.mark.parametrize("kind", SENTENCES)  # not all subclasses: other files have some, and may be imported
def test_cheating_storage_learns_its_fault(kind: type[LogStorage], tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError,
        match=rf"(?s)broken contract of Storage: .*{SENTENCES[kind]}.*\n  after damage: .* \[\w+, \d+ bytes; seed=0\]",
    ):
        check_storage_damage(kind, tmp_path, sample=60)


def test_one_more_way_to_damage_a_file(tmp_path: Path) -> None:
    asked: list[str] = []

    def lose(path: Path, chance: random.Random) -> str | None:
        asked.append(path.name)
        if path.name != "log":
            return None
        path.unlink()
        (path.parent / "end").unlink()
        return f"it was lost with all {chance.choice(['its', 'the'])} traces"

    with pytest.raises(
        AssertionError, match=r"damage is doubt(.|\n)*after damage: it was lost with all \w+ traces \[log, "
    ):
        check_storage_damage(LogStorage, tmp_path, sample=4, damage=lose)
    assert asked == ["end"] * 4 + ["identity"] * 4 + ["lock"] * 4 + ["log"]


@pytest.mark.parametrize("has_directory", [True, False])
def test_it_is_for_storages_in_files(has_directory: bool, tmp_path: Path) -> None:
    open_in_memory = opener(MemoryStorage)

    def open_storage(path: Path) -> Storage:
        if has_directory:
            path.mkdir(exist_ok=True)
        return open_in_memory(path)

    with pytest.raises(AssertionError, match="this conformance suite is for storages in files"):
        check_storage_damage(open_storage, tmp_path)


def test_written_files_are_removed_unless_it_failed(tmp_path: Path) -> None:
    check_storage_damage(LogStorage, tmp_path, sample=1)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(AssertionError):
        check_storage_damage(GivesWhatItFinds, tmp_path)
    assert (tmp_path / "storage" / "log").exists()
