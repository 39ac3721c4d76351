"""B6: what happens between two steps of compaction, scrubbing and closing: each race once, in a fixed order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from replog.backends.dropped import EntryDroppedError
from replog.backends.files import compaction, index_repair
from replog.backends.files.background_pace import Pace
from replog.backends.files.caches import LedgerCache
from replog.backends.files.index import LedgerIndex
from replog.backends.files.log_file import LogFile, Section
from replog.backends.files.open_parts import Contents
from replog.backends.files.storage import FilesStorage, open_storage
from replog.protocol.mutations import DropEntries, DropLedger, Mutation, PutBatch
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.workload import ELSEWHERE, INSIDE, frequent_looks, open_small


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.001)


def fill(storage: FilesStorage, ledgers: int) -> None:
    """Full journal files, of each of which little is needed; one kept ledger in each."""
    for ledger_id in range(1, ledgers + 1):
        for at in range(3):
            storage.commit([PutBatch(make_batch(1000 + ledger_id, 3 * at, 3, size_bytes=6000))])
        storage.commit([PutBatch(make_batch(ledger_id, 0, 3, size_bytes=300))])
        storage.commit([DropLedger(1000 + ledger_id)])


def test_file_is_removed_when_it_empties_during_compaction() -> None:
    disk = MemoryDisk()
    options = attrs.evolve(INSIDE, entry_log_bytes=1, open_files_max=1)  # each file makes an entry log
    storage = open_storage("/st", options, disk=disk)
    fill(storage, 8)
    rewriter = storage._maintenance.jobs._rewriter
    rewrite = rewriter.rewrite
    rewritten: list[LogFile] = []
    retired: list[LogFile] = []

    def rewrite_and_drop(files: Sequence[LogFile], pace: Pace) -> None:
        gone = [file for file in files if file.is_retired]
        wait_until(lambda: not any(file.path in disk.paths() for file in gone))
        retired.extend(gone)
        rewrite(files, pace)
        if not rewritten:
            storage.commit([DropLedger(ledger_id) for ledger_id in range(2, 9)])
        rewritten.extend(files)

    rewriter.rewrite = rewrite_and_drop  # type: ignore[method-assign]
    wait_until(lambda: storage.statistics()["catalogs_written"] > 0)
    storage.compact(is_major=True)
    assert len(retired) > 2
    assert storage.read(1, 0, 1, 0)
    rewriter.rewrite = rewrite  # type: ignore[method-assign]
    storage.compact(is_major=True)
    assert storage.damage() == ()
    storage.close()
    assert disk.open_count == 0


class WatchedLock:
    """A lock that knows who has come to it."""

    def __init__(self, lock: threading.Lock) -> None:
        self.came: set[threading.Thread] = set()
        self._lock = lock

    def __enter__(self) -> None:
        self.came.add(threading.current_thread())
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_waiting_maintenance_does_nothing_after_close() -> None:
    """B4: by then the directory may be somebody else's."""
    disk = MemoryDisk()
    storage = open_storage("/st", INSIDE, disk=disk)
    fill(storage, 4)
    working = WatchedLock(storage._contents.working)
    storage._contents.working = working  # type: ignore[assignment]
    calls = (storage.compact, lambda: storage.compact(is_major=True), storage.scrub)
    threads = [threading.Thread(target=call) for call in calls]
    closer = threading.Thread(target=storage.close)
    changes: list[str] = []
    with working:
        for thread in threads:
            thread.start()
        wait_until(lambda: working.came.issuperset(threads))
        closer.start()
        wait_until(storage._contents.closing.is_set)
        disk.fault = lambda operation, path: changes.append(f"{operation} {path}")
    for thread in (closer, *threads):
        thread.join(10.0)
        assert not thread.is_alive()
    assert sum("catalog" in change for change in changes if change.startswith("rename")) <= 1
    assert not [change for change in changes if "/logs/" in change]
    assert disk.open_count == 0
    open_small(disk, INSIDE).close()


@pytest.mark.parametrize("is_scrub", [True, False])
def test_maintenance_opens_no_file_after_close(is_scrub: bool) -> None:
    disk = MemoryDisk()
    options = attrs.evolve(INSIDE, open_files_max=1, entry_log_bytes=1)
    storage = open_storage("/st", options, disk=disk)
    fill(storage, 6)
    descriptors = storage._contents.descriptors
    unpin = descriptors.unpin
    closer = threading.Thread(target=storage.close)
    turns: list[None] = []

    def unpin_and_close(files: Sequence[LogFile]) -> None:
        unpin(files)
        if threading.current_thread() is thread and not turns:
            turns.append(None)
            storage._contents.lock.release()  # as if a thread changed here, which may happen at the end of the with
            closer.start()
            wait_until(lambda: storage._contents.closing.is_set() and not (is_scrub and closer.is_alive()))
            storage._contents.lock.acquire()

    descriptors.unpin = unpin_and_close  # type: ignore[method-assign,assignment]
    thread = threading.Thread(target=storage.scrub if is_scrub else lambda: storage.compact(is_major=True))
    thread.start()
    thread.join(20.0)
    assert not thread.is_alive()
    assert turns
    closer.join(20.0)
    assert not closer.is_alive()
    assert disk.open_count == 0


def test_long_flush_is_not_started_twice() -> None:
    disk = MemoryDisk()
    storage = open_small(disk, attrs.evolve(ELSEWHERE, flush_bytes=400 << 10))
    with frequent_looks():
        for at in range(60):
            storage.commit([PutBatch(make_batch(1 + at % 3, at - at % 3, 3, size_bytes=3000))])
    statistics = storage.statistics()
    assert statistics["entry_logs"] > 0
    assert 30 < statistics["copied_batches"] <= 60, "each batch is moved once"
    storage.close()


def test_compaction_gives_the_lock_back_between_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    """B6, F5: a file has up to 100,000 ledgers. Commits get their turn while reads begin to find the copies, and what they
    drop meanwhile stays dropped."""
    monkeypatch.setattr(index_repair, "_AT_ONCE", 1)
    disk = MemoryDisk()
    storage = open_storage("/st", attrs.evolve(INSIDE, entry_log_bytes=1 << 20, open_files_max=64), disk=disk)
    fill(storage, 8)
    wait_until(lambda: storage.statistics()["catalogs_written"] > 0)
    commits: list[list[Mutation]] = [
        [DropLedger(2)],
        [DropEntries(3, 1, 0, 2)],
        [PutBatch(make_batch(4, 3, 3))],
        [DropLedger(8)],
    ]
    turns = 0

    def replace(contents: Contents, files: Sequence[LogFile], fresh: Sequence[Section], _: Callable[[], None]) -> None:
        def commit_between() -> None:
            nonlocal turns
            assert contents.lock.acquire(timeout=10.0), "the lock is held from one ledger to the next"
            contents.lock.release()
            if turns < len(commits):
                storage.commit(commits[turns])
            turns += 1

        index_repair.replace_sections(contents, files, fresh, commit_between)

    monkeypatch.setattr(compaction, "replace_sections", replace)
    storage.compact(is_major=True)
    assert turns > len(commits)
    for _ in range(2):
        for ledger_id in (1, 4, 5, 6, 7):
            assert storage.read(ledger_id, 0, 1, 0) == [make_batch(ledger_id, 0, 3, size_bytes=300)]
        assert storage.read(4, 3, 1, 0) == [make_batch(4, 3, 3)]
        assert not set(storage.ledger_ids()) & {2, 8}
        with pytest.raises(EntryDroppedError):
            storage.read(3, 0, 1, 0)
        for file in storage._contents.files():
            assert file.live_bytes == sum(each.data_bytes - each.dead_bytes for each in file.sections)
        storage.close()
        storage = open_storage("/st", INSIDE, disk=disk)
    storage.close()


def test_checkpoint_gives_the_lock_back_after_a_few_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    """B3: commits and reads wait for the lock, so it is never held for all ledgers of an index, a catalog or a compaction."""
    storage = open_storage("/st", attrs.evolve(INSIDE, open_files_max=64), disk=MemoryDisk(), background=False)
    for ledger_id in range(600):
        storage.commit([PutBatch(make_batch(ledger_id, 0, 3, size_bytes=40))])
    contents = storage._contents
    done: list[int] = []  # ledgers, each time that the lock is held

    class CountingLock:
        def __enter__(self) -> None:
            contents.lock.acquire()
            done.append(0)

        def __exit__(self, *_: object) -> None:
            contents.lock.release()

        def notify_all(self) -> None:
            pass

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            done[-1] += 1
            return original(*arguments)

        return call

    monkeypatch.setattr(LedgerIndex, "pack", counted(LedgerIndex.pack))
    monkeypatch.setattr(LedgerCache, "admit", counted(LedgerCache.admit))
    monkeypatch.setattr(contents, "changed", CountingLock())
    storage.compact(is_major=True)
    assert sum(done) >= 600
    assert max(done) <= 200
    monkeypatch.undo()
    storage.close()
