"""Threads that commit, read, compact, scrub and close at the same time, on a real directory: every read is right."""

from __future__ import annotations

import contextlib
import errno
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import trio

from replog.abc import Storage
from replog.backends.disk import Buffer, Disk
from replog.backends.files import maintenance
from replog.backends.files.options import FilesTuning
from replog.backends.files.storage import open_storage
from replog.errors import StorageFullError
from replog.protocol.batch import Batch
from replog.protocol.mutations import DropLedger, Mutation, PutBatch, SetMarks
from replog.testing.storage_conformance import make_batch
from tests.backends.files.workload import TinyOptions, frequent_looks

LEDGERS_AT_ONCE = 5
BATCHES_MAX = 80
CLOSE_TIMEOUT_S = 20.0
PATIENCE_S = 30.0
WRITES_MIN = 60
WORK = ("write", "read_at_random", "read_in_order", "look_after")
HAPPENS = ("copied_batches", "removed_files", "journal_recycled_files", "ledger_cache_loaded_pages")


def hurried(journal_dir: str = "") -> FilesTuning:
    return TinyOptions(
        journal_dir=journal_dir,
        journal_file_bytes=64 << 10,
        spare_files=2,
        fill_ahead_bytes=16 << 10,
        flush_bytes=128 << 10,
        open_files_max=3,
        ledger_cache_bytes=4000,
        entry_log_bytes=100 << 10,
        minor_compaction_threshold=0.6,
        minor_compaction_interval_s=0.05,
        major_compaction_interval_s=0.11,
        scrub_interval_s=0.17,
        scrub_bytes_per_s=0,
        compaction_bytes_per_s=0,
    )


@pytest.fixture(autouse=True)
def _threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with frequent_looks():
            yield
    finally:
        sys.setswitchinterval(before)


class OftenFullDisk(Disk):
    """Real files; now and then there is no space. What is written may be taken in part. A place that was refused is taken
    the next time: where something was allocated, as the beginning of a group is, a file system finds space."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.is_often_full = True
        self.refusals = 0
        self._refused: set[int] = set()  # descriptors

    def _refuse(self, path: str) -> None:
        if self.is_often_full and self.chance.random() < 0.03:
            self.refusals += 1
            raise OSError(errno.ENOSPC, "No space left on device", path)

    def open(self, path: str, *, create: bool = False) -> int:
        if create:
            self._refuse(path)
        return super().open(path, create=create)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        if fd in self._refused:
            self._refused.discard(fd)
            return super().pwritev(fd, buffers, offset)
        try:
            self._refuse(f"descriptor {fd}")
        except OSError:
            self._refused.add(fd)
            raise
        if self.is_often_full and self.chance.random() < 0.03:
            return super().pwritev(fd, [b"".join(buffers)[:5000]], offset)
        return super().pwritev(fd, buffers, offset)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        self._refuse(f"descriptor {fd}")
        super().allocate(fd, offset, size)

    def rename(self, source: str, target: str) -> None:
        self._refuse(source)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._refuse(path)
        super().unlink(path)


class Crowd:
    """Threads around one storage. `live` has what was acknowledged, by ledger, but for ledgers that are being dropped."""

    def __init__(self, storage: Storage, seed: int, first_ledger: int) -> None:
        self.storage = storage
        self.chance = random.Random(seed)
        self.live: dict[int, list[Batch]] = {
            ledger: [] for ledger in range(first_ledger, first_ledger + LEDGERS_AT_ONCE)
        }
        self.dropped: list[int] = []
        self.is_closing = False
        self.errors: list[BaseException] = []
        self.rounds: dict[str, int] = {}
        self.statistics: dict[str, float] = {}

    def run(self, duration_s: float) -> None:
        """Everybody at once, then a close in the middle of it."""
        work = (self.write, self.read_at_random, self.read_in_order, self.look_after, self.look_after)
        threads = [threading.Thread(target=self._guarded, args=(each, at)) for at, each in enumerate(work)]
        for thread in threads:
            thread.start()
        began_s = time.monotonic()
        while not self.errors and not self._is_enough(time.monotonic() - began_s, duration_s):
            time.sleep(0.02)
        closer = threading.Thread(target=self._guarded, args=(self.close, 99))
        closer.start()
        for thread in (closer, *threads):
            thread.join(CLOSE_TIMEOUT_S)
            assert not thread.is_alive(), "it hangs"
        if self.errors:
            raise self.errors[0]

    def _is_enough(self, passed_s: float, duration_s: float) -> bool:
        """On a slow disk it takes longer until something has happened."""
        had_turns = min(self.rounds.get(name, 0) for name in WORK) > 0 and self.rounds["write"] >= WRITES_MIN
        return passed_s > duration_s and (had_turns or passed_s > PATIENCE_S)

    def _guarded(self, work: Callable[[random.Random], None], at: int) -> None:
        chance = random.Random(f"{at} {self.chance.random()}")
        name = work.__name__
        try:
            while True:
                with contextlib.suppress(StorageFullError):
                    work(chance)
                self.rounds[name] = self.rounds.get(name, 0) + 1
                if self.is_closing and name == "close":
                    return
        except trio.ClosedResourceError:
            if not self.is_closing:
                raise
        except BaseException as error:
            self.errors.append(error)

    def close(self, chance: random.Random) -> None:
        time.sleep(chance.random() * 0.05)
        self.statistics = dict(self.storage.statistics())
        self.is_closing = True
        began_s = time.monotonic()
        self.storage.close()
        assert time.monotonic() - began_s < CLOSE_TIMEOUT_S

    def write(self, chance: random.Random) -> None:
        mutations: list[Mutation] = []
        made: list[Batch] = []
        for ledger_id in chance.sample(sorted(self.live), chance.choice((1, 1, 2, 4))):
            batches = self.live[ledger_id]
            if batches and chance.random() < 0.05:
                mutations.append(PutBatch(chance.choice(batches)))  # once more
                continue
            first = batches[-1].last_entry_id + 1 if batches else 0
            batch = make_batch(ledger_id, first, 3, size_bytes=chance.choice((20, 500, 2000, 8000)))
            made.append(batch)
            mutations += [PutBatch(batch), SetMarks(ledger_id, b"key", fence_term=first)]
        self.storage.commit(mutations)
        for batch in made:
            self.live[batch.ledger_id].append(batch)
        full = [ledger_id for ledger_id, batches in self.live.items() if len(batches) > BATCHES_MAX]
        if full or chance.random() < 0.01:
            victim = full[0] if full else min(self.live)
            del self.live[victim]
            self.dropped.append(victim)
            self.live[
                max(*self.live, *self.dropped) + 1
            ] = []  # no id is used again: the storage would refuse it for ever
            while True:
                with contextlib.suppress(StorageFullError):
                    self.storage.commit([DropLedger(victim)])
                    break

    def read_at_random(self, chance: random.Random) -> None:
        ledger_id = chance.choice(sorted(self.live.copy()))
        batches = self.live.get(ledger_id)
        if not batches:
            return
        batch = chance.choice(batches)
        entry_id = chance.choice(batch.entry_ids)
        read = chance.choice((self.storage.read, self.storage.read_nowait))
        try:
            found = read(ledger_id, entry_id, 1, 0)
        except trio.WouldBlock:
            assert read == self.storage.read_nowait
            return
        if ledger_id in self.live:
            assert found == [batch], f"{ledger_id}/{entry_id}: {found}"
            marks = self.storage.marks(ledger_id)
            assert marks is not None
            assert ledger_id not in self.live or marks.last_entry_id >= batch.last_entry_id

    def read_in_order(self, chance: random.Random) -> None:
        ledger_id = chance.choice(sorted(self.live.copy()))
        batches = list(self.live.get(ledger_id, ()))
        found: list[Batch] = []
        while len(found) < len(batches):
            first = found[-1].last_entry_id + 1 if found else 0
            more = self.storage.read(ledger_id, first, 1, chance.choice((0, 9000, 60_000, 1 << 20)))
            if ledger_id not in self.live:
                return
            assert more, f"{ledger_id}/{first} was acknowledged"
            found += more
        assert found[: len(batches)] == batches

    def look_after(self, chance: random.Random) -> None:
        storage = self.storage
        match chance.randrange(4):
            case 0 | 1:
                storage.compact(is_major=chance.random() < 0.7)
            case 2:
                storage.scrub()
            case 3:
                assert storage.statistics()["commits"] >= 0
                assert (storage.free_bytes() or 0) > 0
                assert storage.ledger_ids() is not None
        assert storage.damage() == ()


def check(storage: Storage, crowd: Crowd) -> None:
    for ledger_id, batches in crowd.live.items():
        if batches:
            assert storage.read(ledger_id, 0, 1, 1 << 40)[: len(batches)] == batches
            for batch in batches:
                assert storage.read(ledger_id, batch.last_entry_id, 1, 0) == [batch]
    for ledger_id in crowd.dropped[:-1]:  # of the last one the close may have been quicker
        assert storage.read(ledger_id, 0, 1, 0) == []
        assert ledger_id not in storage.ledger_ids()


@pytest.mark.sized
@pytest.mark.crash
@pytest.mark.parametrize(
    ("where", "is_often_full"),
    [
        pytest.param("inside", False, id="inside-space"),
        pytest.param("elsewhere", True, id="elsewhere-often-full"),
        pytest.param("inside", True, id="inside-often-full", marks=pytest.mark.long(is_sampled=False)),
        pytest.param("elsewhere", False, id="elsewhere-space", marks=pytest.mark.long(is_sampled=False)),
    ],
)
def test_reads_are_right_during_any_concurrent_work(
    where: str, is_often_full: bool, tmp_path: Path, is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_TRY_AGAIN_S", 0.05)
    options = hurried("" if where == "inside" else str(tmp_path / "journal"))
    path = str(tmp_path / "storage")
    open_storage(path, options).close()
    total: Counter[str] = Counter()
    first_ledger, runs = 1, 8 if is_long else 1
    for seed in range(100 * runs):
        if seed >= runs and all(total[name] for name in HAPPENS) and bool(total["refusals"]) == is_often_full:
            break  # else some were too short for something
        disk = OftenFullDisk(seed)
        disk.is_often_full = False
        storage = open_storage(path, options, disk=disk)
        disk.is_often_full = is_often_full
        crowd = Crowd(storage, seed, first_ledger)
        with contextlib.closing(storage):
            crowd.run(4.0 if is_long else 0.5)
        with contextlib.closing(open_storage(path, options)) as storage:
            check(storage, crowd)
            storage.compact(is_major=True)
            check(storage, crowd)
        total.update({name: int(value) for name, value in crowd.statistics.items()})
        total["refusals"] += disk.refusals
        first_ledger = max(crowd.live) + 1
        assert min(crowd.rounds.get(name, 0) for name in WORK) > 0
    assert (total["refusals"] > 0) == is_often_full
    for name in HAPPENS:
        assert total[name] > 0, name
