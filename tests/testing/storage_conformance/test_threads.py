"""The conformance suite of threads fails storages whose readers see what never was."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest
import trio

from replog.abc import Marks, Mutation, PutBatch, SetMarks
from replog.backends.memory import MemoryStorage, _Content
from replog.protocol.batch import Batch
from replog.testing.storage_conformance import basics, marks, threads
from replog.testing.storage_conformance.candidate import Candidate
from tests.testing.storage_conformance.log_storage import LogStorage
from tests.testing.storage_conformance.test_basics import opener


class Cheat(MemoryStorage):
    """Right for one thread, but for what a subclass does."""


class LastBatchFirst(Cheat):
    def commit(self, mutations: Sequence[Mutation]) -> None:
        batches = [each for each in mutations if isinstance(each, PutBatch)]
        if len(batches) == 8:
            super().commit(batches[-1:])
            time.sleep(0.001)
        super().commit(mutations)


class MarksFirst(Cheat):
    def commit(self, mutations: Sequence[Mutation]) -> None:
        if all(isinstance(each, PutBatch | SetMarks) for each in mutations):
            super().commit([each for each in mutations if isinstance(each, SetMarks)])
            time.sleep(0.001)
        super().commit(mutations)


class LastEntryFirst(Cheat):
    """The marks tell of a batch that can't be read yet."""

    coming = -1

    def commit(self, mutations: Sequence[Mutation]) -> None:
        batches = [each.batch for each in mutations if isinstance(each, PutBatch)]
        if len(batches) == 8:
            self.coming = batches[0].last_entry_id
            time.sleep(0.001)
        super().commit(mutations)
        self.coming = -1

    def marks(self, ledger_id: int) -> Marks | None:
        found = super().marks(ledger_id)
        return found and attrs.evolve(found, last_entry_id=max(found.last_entry_id, self.coming))


class ShowsItLater(Cheat):
    """To other threads: what they read is what was committed before."""

    def __init__(self, content: _Content | None = None) -> None:
        super().__init__(content)
        self.late: list[list[Mutation]] = []

    def commit(self, mutations: Sequence[Mutation]) -> None:
        self.late.append(list(mutations))
        if len(mutations) != 11 or len(self.late) > 1:
            self.show()

    def show(self) -> None:
        while self.late:
            super().commit(self.late.pop(0))

    def close(self) -> None:
        if not self.is_closed:
            self.show()
        super().close()


class Remembers(Cheat):
    """`read_nowait` gives what it gave before."""

    def __init__(self, content: _Content | None = None) -> None:
        super().__init__(content)
        self.remembered: dict[tuple[int, int, int, int], list[Batch]] = {}

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        found = super().read_nowait(ledger_id, entry_id, stamp, bytes_max)
        asked = ledger_id, entry_id, stamp, bytes_max
        return self.remembered.setdefault(asked, found) if found or asked in self.remembered else found


class NothingAtHandIsAbsent(Cheat):
    """`read_nowait` is empty while it would have to wait for a commit."""

    is_busy = False

    def commit(self, mutations: Sequence[Mutation]) -> None:
        self.is_busy = True
        time.sleep(0.0001)
        try:
            super().commit(mutations)
        finally:
            self.is_busy = False

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        return [] if self.is_busy else super().read_nowait(ledger_id, entry_id, stamp, bytes_max)


class NothingAtHandAfterClosing(Cheat):
    """`read_nowait` is empty for what was not read since it was opened, far back in a ledger."""

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        if entry_id > 500 and self._content.commits > 500:
            return []
        return super().read_nowait(ledger_id, entry_id, stamp, bytes_max)


SENTENCES = {
    LastBatchFirst: "never sees a later mutation of a ledger without an earlier one|marks: of one moment",
    MarksFirst: "marks: of one moment",
    LastEntryFirst: "marks: last_entry_id is the highest|marks: of one moment",
    ShowsItLater: "seen by every thread once it has returned",
    Remembers: "what was dropped is gone|read_nowait: as `read`",
    NothingAtHandIsAbsent: "never empty for what is there",
    NothingAtHandAfterClosing: "never empty for what is there",
}


@pytest.mark.parametrize("kind", Cheat.__subclasses__())
def test_cheating_storage_learns_its_fault(kind: type[Cheat], tmp_path: Path) -> None:
    for check in (*basics.CHECKS, *marks.CHECKS):
        check(Candidate(opener(kind), tmp_path / check.__name__))
    with pytest.raises(AssertionError, match=f"broken contract of Storage: .*({SENTENCES[kind]})"):
        for attempt in range(5):  # readers look when the scheduler lets them
            for check in threads.CHECKS:
                check(Candidate(opener(kind), tmp_path / f"{check.__name__}_{attempt}"))


class WouldWait(MemoryStorage):
    """It always would wait for a disk, which is allowed."""

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        raise trio.WouldBlock


@pytest.mark.parametrize("check", threads.CHECKS)
@pytest.mark.parametrize("kind", ["memory", "log", "would wait"])
def test_a_right_one_passes(check: Callable[[Candidate], None], kind: str, tmp_path: Path) -> None:
    kinds = {"memory": opener(MemoryStorage), "log": LogStorage, "would wait": opener(WouldWait)}
    check(Candidate(kinds[kind], tmp_path / "st"))
