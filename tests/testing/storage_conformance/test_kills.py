"""The conformance suite kills processes: what they had acknowledged must be there, and nothing of a half of a commit (B1)."""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from replog.abc import Marks, Mutation, PutBatch, SetMarks, Storage
from replog.backends.memory import MemoryStorage
from replog.errors import StorageDamagedError
from replog.testing import check_storage
from replog.testing.storage_conformance import basics, kills, marks
from replog.testing.storage_conformance.candidate import Candidate
from replog.testing.storage_conformance.kills import check_kills
from tests.testing.storage_conformance.log_storage import LogStorage
from tests.testing.storage_conformance.test_basics import opener


class Cheat(LogStorage):
    """Right as long as nobody kills it, but for what a subclass does."""


class AcknowledgesFirst(Cheat):
    """It writes what it has acknowledged a little later."""

    def __init__(self, path: Path) -> None:
        self.late: list[bytes] = []
        super().__init__(path)

    def write(self, record: bytes) -> None:
        self.late.append(record)
        if len(self.late) == 3:
            self.write_late()

    def write_late(self) -> None:
        super().write(b"".join(self.late))
        self.late.clear()

    def close(self) -> None:
        if not self.is_closed:
            self.write_late()
        super().close()


class WritesPieceByPiece(Cheat):
    def commit(self, mutations: Sequence[Mutation]) -> None:
        for mutation in mutations:
            super().commit([mutation])
            time.sleep(0.002)


class ShowsItBeforeItIsThere(Cheat):
    def commit(self, mutations: Sequence[Mutation]) -> None:
        MemoryStorage.commit(self, mutations)
        time.sleep(0.003)
        super().commit(mutations)


class KeepsFencesInMemory(Cheat):
    """They are written when it is closed."""

    def __init__(self, path: Path) -> None:
        self.fences: list[Mutation] = []
        super().__init__(path)

    def record(self, mutations: Sequence[Mutation]) -> bytes:
        fences = [each for each in mutations if isinstance(each, SetMarks) and each.fence_term is not None]
        self.fences += fences
        return super().record([each for each in mutations if each not in fences])

    def close(self) -> None:
        if not self.is_closed:
            self.write(super().record(self.fences))
        super().close()


class TearsAndRefuses(Cheat):
    """A torn tail is damage to it."""

    def write(self, record: bytes) -> None:
        super().write(record[:20])
        time.sleep(0.002)
        super().write(record[20:])

    def torn(self, position: int) -> None:
        raise StorageDamagedError(f"{self.path}/log is damaged at {position}")


class IsMadeInTwoSteps(Cheat):
    """What was killed while it was made can't be opened."""

    gap_s = 0.0

    def __init__(self, path: Path) -> None:
        if path.exists() and not (path / "identity").exists():
            raise StorageDamagedError(f"{path}/identity is missing")
        path.mkdir(exist_ok=True)
        time.sleep(self.gap_s)
        super().__init__(path)


class DiesByItself(Cheat):
    def commit(self, mutations: Sequence[Mutation]) -> None:
        super().commit(mutations)
        if len([each for each in mutations if isinstance(each, PutBatch)]) > 8:
            os._exit(3)


class FailsWithoutItsMother(Cheat):
    """It does not work in a process in which it was not imported."""

    importer = os.getpid()

    def __init__(self, path: Path) -> None:
        if os.getpid() != self.importer:
            raise RuntimeError("where am I?")
        super().__init__(path)


SENTENCES = {
    # it breaks both, for what it acknowledges it shows: a kill between the two tells of the second
    AcknowledgesFirst: "durable when it returns, even if the process is killed|a reader sees a mutation only when it",
    WritesPieceByPiece: "in flight is there wholly or not at all",
    ShowsItBeforeItIsThere: "a reader sees a mutation only when it is durable",
    KeepsFencesInMemory: "durable when it returns, even if the process is killed",
    TearsAndRefuses: "opens after a kill.*\n.*StorageDamagedError.*log is damaged at",
    IsMadeInTwoSteps: "opens after a kill.*\n.*StorageDamagedError.*identity is missing",
    DiesByItself: "the child died by itself: 3",
    FailsWithoutItsMother: "RuntimeError: where am I",
}


def test_an_honest_one_survives(tmp_path: Path) -> None:
    check_kills(Candidate(LogStorage, tmp_path / "st"), kills=12, seed=1)
    with Candidate(LogStorage, tmp_path / "st").opened() as storage:
        found = storage.marks(0)
    assert found is not None
    assert found.last_add_confirmed > 12  # otherwise hardly anything was examined


@pytest.mark.parametrize("kind", Cheat.__subclasses__())
def test_cheating_storage_learns_its_fault(kind: type[Cheat], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for check in (*basics.CHECKS, *marks.CHECKS):
        if kind is not DiesByItself:
            check(Candidate(kind, tmp_path / check.__name__))
    # Much longer than a new process waits for its turn on a busy machine: then most kills are within it.
    monkeypatch.setattr(IsMadeInTwoSteps, "gap_s", 0.2)
    with pytest.raises(AssertionError, match=SENTENCES[kind]):
        check_kills(Candidate(kind, tmp_path / "kills"), kills=40, seed=2)


class HangsElsewhere(LogStorage):
    """As one whose lock was held by another thread when its process was forked."""

    opener = os.getpid()

    def commit(self, mutations: Sequence[Mutation]) -> None:
        if os.getpid() != self.opener:
            time.sleep(60)
        super().commit(mutations)


def test_hanging_child_is_killed_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "DEADLINE_S", 0.5)
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text()  # servers that other tests use, say
    with pytest.raises(AssertionError, match=r"no commit within .* It hangs; or a thread of this process held a lock"):
        check_kills(Candidate(HangsElsewhere, tmp_path / "st"), kills=4, seed=1)
    assert children.read_text() == before
    HangsElsewhere(tmp_path / "st").close()  # nobody has it open any more


class FailsReaders(LogStorage):
    opener = os.getpid()

    def marks(self, ledger_id: int) -> Marks | None:
        found = super().marks(ledger_id)
        if os.getpid() != self.opener and ledger_id == 0 and found is not None and found.last_add_confirmed > 5:
            raise RuntimeError("too many")
        return found


def test_failing_reader_in_the_child_is_reported(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"(?s)opens after a kill.* in _watch\n.*RuntimeError: too many"):
        check_kills(Candidate(FailsReaders, tmp_path / "st"), kills=20, seed=1)


def test_memory_storage_may_skip_this_exam(tmp_path: Path) -> None:
    open_storage = opener(MemoryStorage)

    def open_it(path: Path) -> Storage:
        return open_storage(path)

    with pytest.raises(AssertionError, match="survives_processes=False"):
        check_storage(open_it, tmp_path)
