"""B3, seed 002: the mark advances only over what is indexed or flushed, at every moment, whatever a power loss leaves."""

import contextlib
import random

import pytest

from replog.abc import PutBatch
from replog.backends.files.catalog import Catalog, unpack_catalog
from replog.backends.files.directory import entry_log_name, journal_name
from replog.backends.files.index_file import HEADER_BYTES, unpack_index_header
from replog.backends.memory import MemoryStorage
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.small_storage import ROOT, SmallStorage, commits, index_is_whole, small_options
from tests.backends.files.small_storage import small_files as small_files
from tests.backends.files.workload import CHANGES, SMALL, open_small

PARTS = ((1, 2, 3), (4, 5, 6), (7, 8), (9, 10))


def expect_true(disk: MemoryDisk, made: SmallStorage) -> int:
    """All that the catalog vouches for is there; returns the mark. Before there is a catalog nothing is promised."""
    if f"{ROOT}/catalog" not in disk.paths() or f"{ROOT}/storage.json" not in disk.paths():
        return 0
    catalog = unpack_catalog(bytes(disk.content(f"{ROOT}/catalog")))
    assert catalog is not None, "it is replaced atomically"
    for file in catalog.files:
        path = path_of(made, file.is_journal, file.number)
        assert path in disk.paths(), f"{path} was removed before a catalog without it was durable"
        assert len(disk.content(path)) >= file.end_bytes
        index = bytes(disk.content(f"{path.rpartition('.')[0]}.index"))
        assert index_is_whole(index, file.number), "a file is in the catalog when its index is durable"
        header = unpack_index_header(index[:HEADER_BYTES])
        assert header is not None
        assert (header.is_journal, header.end_bytes) == (file.is_journal, file.end_bytes)
    expect_journal(disk, made, catalog)
    return catalog.first_journal


def path_of(made: SmallStorage, is_journal: bool, number: int) -> str:
    journal = made.options.journal_dir or f"{ROOT}/journal"
    return f"{journal}/{journal_name(number)}" if is_journal else f"{ROOT}/logs/{entry_log_name(number)}"


def expect_journal(disk: MemoryDisk, made: SmallStorage, catalog: Catalog) -> None:
    """The journal goes on where the mark is, without a gap."""
    number = catalog.first_journal
    assert path_of(made, True, number) in disk.paths(), "there is always one to write to"
    while path_of(made, True, number) in disk.paths():
        number += 1
    last = max(int(path[-20:-8]) for path in disk.paths() if path.endswith(".journal") and "spare" not in path)
    assert last < number


@pytest.mark.parametrize("elsewhere", [False, True])
def test_mark_is_right_at_every_change_of_the_disk(elsewhere: bool) -> None:
    made = SmallStorage(MemoryDisk(seed=5), small_options(elsewhere=elsewhere), MemoryStorage())
    marks: list[int] = []
    changes = 0

    def look(operation: str, path: str) -> None:
        nonlocal changes
        if operation in CHANGES:
            changes += 1
            chance = random.Random(changes)
            for survivor in (made.disk.after_kill(), *(made.disk.after_power_loss(chance) for _ in range(3))):
                marks.append(expect_true(survivor, made))

    made.disk.fault = look
    storage = made.open(made.disk)
    for part in PARTS:
        for mutations in commits(part):
            storage.commit(mutations)
        storage.compact(is_major=part[0] != 7)
    storage.close()
    assert changes > 150
    assert len(set(marks)) > 3, "it advanced"
    assert max(marks) == storage._journal.current.number


def test_start_replays_only_records_behind_the_mark() -> None:
    disk = MemoryDisk()
    storage = open_small(disk)
    batches = [make_batch(1, 2 * number, 2, size_bytes=12_000) for number in range(40)]
    for batch in batches:
        storage.commit([PutBatch(batch)])
    statistics = storage.statistics()
    assert statistics["journal_files"] > 10, "full files are adopted, not written again"
    assert statistics["catalogs_written"] >= 5
    assert statistics["copied_bytes"] == 0
    reads: list[str] = []
    disk = disk.after_kill()
    disk.fault = lambda operation, path: reads.append(path) if operation == "pread" else None
    with contextlib.closing(open_small(disk)) as storage:
        replayed = {path for path in reads if path.endswith(".journal")}
        assert len(replayed) <= 3
        assert storage.statistics()["journal_replay_bytes"] <= 2 * SMALL.capacity_bytes
        assert storage.read(1, 0, 1, 1 << 30) == batches


def test_without_indexes_everything_is_replayed() -> None:
    """What a crash leaves before the first catalog that has them: the indexes are no part of the storage yet."""
    disk = MemoryDisk()
    storage = open_small(disk)
    first = {name: bytes(disk.content(f"{ROOT}/{name}")) for name in ("catalog", "durable-mark")}
    batches = [make_batch(1, 2 * number, 2, size_bytes=12_000) for number in range(20)]
    for batch in batches:
        storage.commit([PutBatch(batch)])
    disk = disk.after_kill()
    for name, content in first.items():
        disk.content(f"{ROOT}/{name}")[:] = content
    with contextlib.closing(open_small(disk)) as storage:
        assert storage.read(1, 0, 1, 1 << 30) == batches
        assert storage.statistics()["journal_files"] > 5
