"""A directory of version 1 becomes one of version 2, and a crash at any moment of that loses nothing.

`files-storage-v1-directory.hex` was written by the code of version 1 with the commits below: files 1 and 4 were recycled and
are excused by CHECKPOINT records, one of which stands in the last file, 6; file 7 was prepared and never used."""

import contextlib
import itertools
import json
import random
from collections.abc import Iterator

import pytest

from replog.abc import DropLedger, Mutation, PutBatch, SetMarks, Storage
from replog.backends.files.catalog import unpack_catalog
from replog.backends.memory import MemoryStorage
from replog.errors import StorageDamagedError, StorageFullError
from replog.testing.disk import MemoryDisk, PowerLoss
from replog.testing.storage_exam import make_batch
from tests.backends.files.golden import FORMATS, disk_with, files_from_hex
from tests.backends.files.workload import CHANGES, count_changes, open_small, stop_at

VERSION_1 = files_from_hex((FORMATS / "files-storage-v1-directory.hex").read_text())


def commits() -> Iterator[list[Mutation]]:
    for ledger_id in range(1, 15):
        mutations: list[Mutation] = [PutBatch(make_batch(ledger_id, first, 2, size_bytes=3000)) for first in (0, 2, 4)]
        mutations.append(SetMarks(ledger_id, b"key %d" % ledger_id, ledger_id, 3))
        yield mutations
        if ledger_id > 3 and ledger_id % 3:
            yield [DropLedger(ledger_id - 3)]


def what_was_committed() -> Storage:
    model = MemoryStorage()
    for mutations in itertools.islice(commits(), 18):
        model.commit(mutations)
    return model


def state(storage: Storage, ledgers: range = range(16)) -> tuple[object, ...]:
    entries = [storage.read(ledger_id, entry_id, 1, 1) for ledger_id in ledgers for entry_id in range(7)]
    whole = [storage.read(ledger_id, 0, 1, 1 << 20) for ledger_id in ledgers]
    return storage.ledger_ids(), [storage.marks(ledger_id) for ledger_id in ledgers], entries, whole


EXPECTED = state(what_was_committed())


def version_of(disk: MemoryDisk) -> int:
    return int(json.loads(disk.content("/st/storage.json"))["version"])


def test_everything_is_there_and_the_directory_is_of_version_2() -> None:
    disk = disk_with(VERSION_1)
    assert version_of(disk) == 1
    with contextlib.closing(open_small(disk)) as storage:
        assert state(storage) == EXPECTED
        assert storage.bookie_id == "bookie-01010101010141018101010101010101"
        assert version_of(disk) == 2
        catalog = unpack_catalog(bytes(disk.content("/st/catalog")))
        assert catalog is not None
        assert [file.number for file in catalog.files] == [2, 3, 5]
        assert catalog.first_journal == 6
        for number in (2, 3, 5):
            assert f"/st/journal/{number:012}.index" in disk.paths()
    with contextlib.closing(open_small(disk)) as storage:
        assert state(storage) == EXPECTED
        assert storage.statistics()["journal_replay_bytes"] < 64 << 10, "only the last file is replayed"
        storage.commit([PutBatch(make_batch(20, 0, 2))])
        storage.compact(is_major=True)
        assert state(storage)[1:] == EXPECTED[1:]
    with contextlib.closing(open_small(disk)) as storage:
        assert storage.ledger_ids()[-1] == 20


def test_the_format_file_says_so_last() -> None:
    """Until it does, version 1 is what is there: none of its files may be gone."""
    disk = disk_with(VERSION_1)
    log: list[tuple[str, str]] = []
    disk.fault = lambda operation, path: log.append((operation, path))
    storage = open_small(disk)
    end = log.index(("rename", "/st/storage.json.tmp"))
    assert ("rename", "/st/catalog.tmp") in log[:end]
    touched = [each for each in log[:end] if each[0] in CHANGES and each[1].endswith(".journal")]
    assert {operation for operation, _ in touched} <= {"pwritev", "fdatasync"}, (
        "the last group is settled, nothing else"
    )
    assert {path for _, path in touched} == {"/st/journal/000000000006.journal"}
    storage.close()


@pytest.mark.parametrize("kind", ["power", "kill"])
def test_a_crash_at_every_change_of_the_upgrade(kind: str) -> None:
    count = count_changes(disk := disk_with(VERSION_1))
    open_small(disk).close()
    assert count[0] > 20
    versions = set()
    for change in range(1, count[0] + 1):
        disk = disk_with(VERSION_1)
        stop_at(disk, change)
        with contextlib.suppress(PowerLoss):
            open_small(disk).close()
        chance = random.Random(change)
        for _ in range(3):  # and while it is tried again
            disk = disk.after_power_loss(chance) if kind == "power" else disk.after_kill()
            versions.add(version_of(disk))
            stop_at(disk, chance.randint(1, 30))
            with contextlib.suppress(PowerLoss):
                open_small(disk).close()
        disk = disk.after_power_loss(chance) if kind == "power" else disk.after_kill()
        with contextlib.closing(open_small(disk)) as storage:
            assert state(storage) == EXPECTED
            assert version_of(disk) == 2
        with contextlib.closing(open_small(disk)) as storage:
            assert state(storage) == EXPECTED
    assert versions == {1, 2}


def test_a_full_disk_refuses_the_upgrade_and_loses_nothing() -> None:
    disk = disk_with(VERSION_1)
    disk.capacity_bytes = disk.size_bytes() + 100
    with pytest.raises(StorageFullError):
        open_small(disk)
    assert disk.open_count == 0
    assert version_of(disk) == 1
    assert all(bytes(disk.content(f"/st/{name}")) == content for name, content in VERSION_1.items())
    disk.capacity_bytes = 1 << 30
    with contextlib.closing(open_small(disk)) as storage:
        assert state(storage) == EXPECTED


def test_damage_is_told_before_anything_is_upgraded() -> None:
    for name in VERSION_1:
        if not name.startswith("journal/") or name.endswith(("6.journal", "7.journal")):
            continue
        for offset in (8, 5000):
            content = bytearray(VERSION_1[name])
            content[offset] ^= 4
            disk = disk_with({**VERSION_1, name: bytes(content)})
            with pytest.raises(StorageDamagedError, match="is damaged at"):
                open_small(disk)
            assert version_of(disk) == 1
        disk = disk_with({other: content for other, content in VERSION_1.items() if other != name})
        with pytest.raises(StorageDamagedError, match=r"missing|unreadable"):
            open_small(disk)
        assert version_of(disk) == 1


def test_an_old_format_file_put_back_is_refused_or_harmless() -> None:
    """As from a backup: version 1 would not look at the catalog, and miss what is in entry logs."""
    disk = disk_with(VERSION_1)
    refused = 0
    for ledger_id in range(20, 60):
        with contextlib.closing(open_small(disk)) as storage:
            storage.commit([PutBatch(make_batch(ledger_id, 0, 2, size_bytes=9000)), DropLedger(ledger_id - 2)])
            if ledger_id % 10 == 0:
                storage.compact(is_major=True)
            expected = state(storage, range(62))
        new = bytes(disk.content("/st/storage.json"))
        survivor = disk.after_kill()
        survivor.content("/st/storage.json")[:] = VERSION_1["storage.json"]
        try:
            storage = open_small(survivor)
        except StorageDamagedError:
            refused += 1
            survivor.content("/st/storage.json")[:] = new
            storage = open_small(survivor)
        with contextlib.closing(storage):
            assert state(storage, range(62)) == expected
    assert refused > 20
