"""The conformance suite of maintenance fails storages that change something by it, or that it keeps from ending."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
import pytest
import trio

from replog.abc import Damage, Mutation
from replog.backends.memory import MemoryStorage, _Content
from replog.testing.storage_conformance import background, basics, maintenance, marks
from replog.testing.storage_conformance.candidate import Candidate
from tests.testing.storage_conformance.log_storage import LogStorage
from tests.testing.storage_conformance.test_basics import opener


class Honest(MemoryStorage):
    """All of it, as it should be: whoever is busy with maintenance ends when it is closed."""

    def __init__(self, content: _Content | None = None) -> None:
        super().__init__(content)
        self.ended = threading.Event()

    def compact(self, *, is_major: bool = False) -> None:
        with self._opened() as content:
            self.rewrite(content, is_major)
        self.wait()

    def rewrite(self, content: _Content, is_major: bool) -> None:
        """What a compaction does to the content."""

    def scrub(self) -> None:
        self.damage()
        self.wait()

    def wait(self) -> None:
        """As something that takes its time."""
        self.ended.wait(0.002)

    def damage(self) -> Sequence[Damage]:
        with self._opened():
            return []

    def free_bytes(self) -> int | None:
        with self._opened():
            return 1 << 30

    def close(self) -> None:
        super().close()
        self.ended.set()


class Cheat(Honest):
    """Honest, but for what a subclass does."""


class LosesTheFiftieth(Cheat):
    def rewrite(self, content: _Content, is_major: bool) -> None:
        for ledger in content.ledgers.values():
            for batches in ledger.stamps.values():
                if len(batches._batches) > 50:
                    for each in (batches._batches, batches.keys, batches._reaches):
                        del each[50]


class ForgetsTheDeleted(Cheat):
    def rewrite(self, content: _Content, is_major: bool) -> None:
        if is_major and not content.ledgers:
            content.deleted = type(content.deleted)()


class LowersMarks(Cheat):
    def rewrite(self, content: _Content, is_major: bool) -> None:
        for ledger in content.ledgers.values():
            ledger.marks = attrs.evolve(ledger.marks, key=ledger.marks.key or None)


class Blinks(Cheat):
    """For a moment it is empty."""

    def compact(self, *, is_major: bool = False) -> None:
        with self._opened() as content:
            content.ledgers, kept = {}, content.ledgers
        time.sleep(0.0005)
        with self._opened() as content:
            kept.update(content.ledgers)
            content.ledgers = kept


class LosesWhatComesMeanwhile(Cheat):
    def compact(self, *, is_major: bool = False) -> None:
        with self._opened() as content:
            copy = dict(content.ledgers)
        time.sleep(0.002)
        with self._opened() as content:
            content.ledgers = copy


class FailsWithNothingToDo(Cheat):
    def rewrite(self, content: _Content, is_major: bool) -> None:
        min(content.ledgers.values(), key=lambda ledger: ledger.last_entry_id)


class SeesGhosts(Cheat):
    def damage(self) -> Sequence[Damage]:
        super().damage()
        return [Damage(1, 1, 0, 2, "perhaps")]


class OwesSpace(Cheat):
    def free_bytes(self) -> int | None:
        return super().free_bytes() and -1


class CountsInWords(Cheat):
    def statistics(self) -> Mapping[str, float]:
        numbers = super().statistics()
        return {**numbers, "compactions": "none"} if self._content.deleted else numbers  # type: ignore[dict-item]


class CompactsWhenClosed(Cheat):
    def compact(self, *, is_major: bool = False) -> None:
        if not self.is_closed:
            super().compact(is_major=is_major)


class CountsWhenClosed(Cheat):
    def free_bytes(self) -> int | None:
        return None


class FailsWhenClosedMeanwhile(Cheat):
    def wait(self) -> None:
        if self.ended.wait(0.002):
            raise OSError(9, "bad file descriptor")


class DropsTheCommitAtTheEnd(Cheat):
    """One that is under way when it is closed says that it is done."""

    def commit(self, mutations: Sequence[Mutation]) -> None:
        with self._opened():
            pass
        time.sleep(0.002)
        if not self.is_closed:
            super().commit(mutations)


class ClosesNever(Cheat):
    """It waits for a compaction, which waits for it."""

    def compact(self, *, is_major: bool = False) -> None:
        with self._opened():
            pass
        self.busy = True
        self.ended.wait(0.05)
        self.ended.wait(3 if self.ending else 0)
        self.busy = False

    def close(self) -> None:
        self.ending = True
        while self.busy:
            time.sleep(0.001)
        super().close()

    busy = ending = False


class CompactsOnAndOn(Cheat):
    def compact(self, *, is_major: bool = False) -> None:
        super().compact(is_major=is_major)
        if self.is_closed:
            time.sleep(4)


SENTENCES = {
    # `read_nowait` tells it if the compaction came between the two reads of a reader
    LosesTheFiftieth: "(what can be read stays the same|read_nowait: as `read`)",
    ForgetsTheDeleted: "stays fenced permanently",
    LowersMarks: "what can be read stays the same",
    # the next check tells of these two if all was written before the first compaction of this one
    Blinks: "(what can be read stays the same throughout|ledger_ids: all ledgers|read_nowait: as `read`|committed stays)",
    LosesWhatComesMeanwhile: "(what can be read stays the same|what was committed stays)",
    SeesGhosts: "there are none in a healthy storage",
    OwesSpace: "free_bytes: how many",
    CountsInWords: "statistics: counters and gauges",
    CompactsWhenClosed: "compact after close raises",
    CountsWhenClosed: "free_bytes after close raises",
    DropsTheCommitAtTheEnd: "what was committed stays",
    ClosesNever: "makes it wait for long\n  found: close is not back",
    CompactsOnAndOn: "return early if the storage is closed meanwhile.*\n  found: (minor )?compact is not back",
}
RAISES: dict[type[Cheat], tuple[type[Exception], str]] = {
    FailsWithNothingToDo: (ValueError, "empty"),
    FailsWhenClosedMeanwhile: (OSError, "bad file descriptor"),
}


@pytest.mark.parametrize("kind", Cheat.__subclasses__())
def test_cheating_storage_learns_its_fault(kind: type[Cheat], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind in (ClosesNever, CompactsOnAndOn):  # for others a busy machine may take its time
        monkeypatch.setattr(background, "DEADLINE_S", 2.0)
    for check in (*basics.CHECKS, *marks.CHECKS):
        if kind is not CountsInWords:
            check(Candidate(opener(kind), tmp_path / check.__name__))
    error, words = RAISES.get(kind) or (AssertionError, f"broken contract of Storage: .*{SENTENCES[kind]}")
    with pytest.raises(error, match=words):
        for attempt in range(3):  # threads meet when the scheduler lets them
            for check in maintenance.CHECKS:
                check(Candidate(opener(kind), tmp_path / f"{check.__name__}_{attempt}"))


@pytest.mark.parametrize("check", maintenance.CHECKS)
@pytest.mark.parametrize("kind", ["memory", "honest", "log"])
def test_a_right_one_passes(check: Callable[[Candidate], None], kind: str, tmp_path: Path) -> None:
    kinds = {"memory": opener(MemoryStorage), "honest": opener(Honest), "log": LogStorage}
    check(Candidate(kinds[kind], tmp_path / "st"))


def test_honest_storage_keeps_its_claims() -> None:
    storage = Honest()
    storage.compact()
    storage.close()
    for call in (storage.compact, storage.scrub, storage.damage, storage.free_bytes, storage.statistics):
        with pytest.raises(trio.ClosedResourceError):
            call()
