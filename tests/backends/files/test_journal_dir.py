"""B4 and the two writes of seed 002: a journal on a device of its own, and whose it is."""

import contextlib
import json
import random
import shutil
from pathlib import Path

import pytest

from replog.abc import UNBOUNDED, DropLedger, PutBatch, Storage
from replog.backends.files.catalog import unpack_catalog
from replog.backends.files.log_file import EntryLogFile
from replog.backends.files.options import FilesTuning
from replog.backends.files.scanning import scan_entry_log
from replog.backends.files.storage import FilesStorage, open_storage
from replog.backends.memory import MemoryStorage
from replog.errors import ConfigError, StorageIdentityError, StorageInUseError
from replog.testing import check_storage
from replog.testing.disk import MemoryDisk, PowerLoss
from replog.testing.storage_conformance import make_batch
from tests.backends.files.small_storage import ELSEWHERE, ROOT, SmallStorage, commits, small_options
from tests.backends.files.small_storage import small_files as small_files
from tests.backends.files.workload import count_changes, stop_at


def options(journal: Path, flush_bytes: int = 256 << 20) -> FilesTuning:
    return FilesTuning(journal_dir=str(journal), journal_file_bytes=64 << 10, spare_files=1, flush_bytes=flush_bytes)


def opened(path: Path, wanted: FilesTuning | None = None) -> contextlib.closing[FilesStorage]:
    return contextlib.closing(open_storage(str(path), wanted))


def tree(*paths: Path) -> dict[str, bytes | None]:
    """All names and contents, but for who holds the locks."""
    found = [each for path in paths for each in path.rglob("*") if each.name != "lock"]
    return {str(each): each.read_bytes() if each.is_file() else None for each in found}


@pytest.mark.long(is_sampled=False)
def test_conformance(tmp_path: Path) -> None:
    def open_with_journal(path: Path) -> Storage:
        return open_storage(str(path), options(path.with_name(path.name + "-journal"), flush_bytes=128 << 10))

    check_storage(open_with_journal, tmp_path)


# -- two writes ---------------------------------------------------------------------------------------------------


def test_full_files_are_flushed_in_the_order_of_their_ledgers() -> None:
    made = SmallStorage(MemoryDisk(), small_options(elsewhere=True), MemoryStorage())
    with contextlib.closing(made.open(made.disk)) as storage:
        for part in ((1, 2, 3), (4, 5, 6), (7, 8), (9, 10)):
            for mutations in commits(part):
                storage.commit(mutations)
                made.acknowledged.commit(mutations)
        assert storage.statistics()["entry_logs"] == 0, "not before there is enough"
        current = storage._journal.current
        storage.compact()
        statistics = storage.statistics()
        assert statistics["entry_logs"] == 1
        assert statistics["journal_files"] == 1
        assert statistics["journal_recycled_files"] >= 3
        assert made.read_all(storage, ()) == []
        (file,) = storage._contents.entry_logs.values()
        found = [
            (each.ledger_id, each.stamp, each.first)
            for each in scan_entry_log(made.disk, EntryLogFile(file.number, file.path, -1), storage._contents.identity)
        ]
        assert found == sorted(found)
        assert len({ledger_id for ledger_id, _, _ in found}) >= 6
    catalog = unpack_catalog(bytes(made.disk.content(f"{ROOT}/catalog")))
    assert catalog is not None
    assert [(each.is_journal, each.number) for each in catalog.files] == [(False, file.number)]
    assert catalog.first_journal == current.number
    with contextlib.closing(made.open(made.disk)) as storage:
        assert made.read_all(storage, ()) == []
        assert not [path for path in made.disk.paths() if path.startswith(ELSEWHERE) and path.endswith(".index")]


def test_commits_wait_when_flush_is_behind(tmp_path: Path) -> None:
    """With the threads: the journal is never further ahead than four times `flush_bytes`, and one file."""
    wanted = options(tmp_path / "journal", flush_bytes=100_000)
    batches = [make_batch(number % 7, 2 * number, 2, size_bytes=8000) for number in range(200)]
    with opened(tmp_path / "data", wanted) as storage:
        for batch in batches:
            storage.commit([PutBatch(batch)])
            assert storage.statistics()["journal_replay_bytes"] <= 4 * 100_000 + 2 * (64 << 10)
        assert storage.statistics()["entry_logs"] >= 1
        assert storage.statistics()["journal_recycled_files"] > 5
        assert all(storage.read(each.ledger_id, each.first_entry_id, 1, 1) == [each] for each in batches)
    with opened(tmp_path / "data", wanted) as storage:
        assert all(storage.read(each.ledger_id, each.first_entry_id, 1, 1) == [each] for each in batches)
    assert not list((tmp_path / "journal").glob("*.log"))
    assert not (tmp_path / "data" / "journal").exists()


def test_dropped_ledger_is_not_flushed() -> None:
    made = SmallStorage(MemoryDisk(), small_options(elsewhere=True), MemoryStorage())
    with contextlib.closing(made.open(made.disk)) as storage:
        for mutations in commits((1, 2, 3, 4, 5, 6, 7, 8)):
            storage.commit(mutations)
        storage.commit([DropLedger(ledger_id) for ledger_id in range(1, 9)])
        storage.compact()
        assert storage.statistics()["copied_bytes"] == 0
        assert storage.statistics()["entry_logs"] == 0


# -- whose it is (B4) ---------------------------------------------------------------------------------------------


def test_journal_cookie_names_its_bookie(tmp_path: Path) -> None:
    with opened(tmp_path / "data", options(tmp_path / "journal")) as storage:
        cookie = json.loads((tmp_path / "journal" / "journal.json").read_text())
        assert cookie == {"format": "replog files journal", "version": 1, "bookie_id": storage.bookie_id}
    assert json.loads((tmp_path / "data" / "storage.json").read_text())["journal"] == "elsewhere"
    assert not (tmp_path / "data" / "making.json").exists()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A closed storage and its journal."""
    data, journal = tmp_path / "data", tmp_path / "journal"
    with opened(data, options(journal)) as storage:
        storage.commit([PutBatch(make_batch(1, 0))])
    return data, journal


def expect_refusal(error: type[Exception], match: str, data: Path, wanted: FilesTuning, *paths: Path) -> None:
    before = tree(*paths)
    with pytest.raises(error, match=match):
        open_storage(str(data), wanted)
    assert tree(*paths) == before, "nothing was touched"


def test_journal_of_another_bookie_is_refused(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    data, journal = pair
    with opened(tmp_path / "other", options(tmp_path / "other-journal")) as other:
        owner = other.bookie_id
    match = f"other-journal is the journal of {owner}, expected bookie-"
    expect_refusal(StorageIdentityError, match, data, options(tmp_path / "other-journal"), tmp_path)
    expect_refusal(
        StorageIdentityError, "journal is the journal of bookie-", tmp_path / "new", options(journal), journal
    )


def test_storage_is_refused_when_its_journal_is_lost(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    data, journal = pair
    shutil.rmtree(journal)
    expect_refusal(StorageIdentityError, r"is the journal of nobody.*acknowledged", data, options(journal), tmp_path)
    journal.mkdir()
    expect_refusal(StorageIdentityError, "is the journal of nobody", data, options(journal), tmp_path)
    (journal / "journal.json").write_text('{"format": "replog files journal", "version": 2}')
    expect_refusal(StorageIdentityError, "journal.json can't be read", data, options(journal), tmp_path)


def test_storage_is_in_doubt_when_its_journal_was_emptied(pair: tuple[Path, Path]) -> None:
    data, journal = pair
    for path in journal.glob("*.journal"):
        path.unlink()
    for _ in range(2):
        with opened(data, options(journal)) as storage:
            assert storage.doubt().lost_below == UNBOUNDED
            assert f"{journal} has no journal file: group 1 is unreadable" in storage.doubt().reasons[0]


def test_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "draft.txt").write_text("years of work")
    expect_refusal(
        StorageIdentityError,
        r"thesis is not empty: it has draft\.txt",
        tmp_path / "new",
        options(tmp_path / "thesis"),
        tmp_path / "thesis",
    )


def test_journal_place_cannot_change(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    data, journal = pair
    expect_refusal(ConfigError, "is in another directory: name it with journal_dir", data, FilesTuning(), tmp_path)
    with opened(tmp_path / "inside"):
        pass
    match = "is in it: open it without journal_dir"
    expect_refusal(ConfigError, match, tmp_path / "inside", options(journal), tmp_path)
    with opened(data, options(journal)) as storage:
        assert storage.read(1, 0, 1, 1) == [make_batch(1, 0)]


def test_copied_storage_is_refused_the_journal(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    """The lock of the journal's directory is taken before anything in it is read, let alone changed."""
    data, journal = pair
    shutil.copytree(data, tmp_path / "copy")
    with opened(data, options(journal)) as storage:
        (journal / "new.journal.tmp").write_bytes(b"what the first one is about to make")
        expect_refusal(StorageInUseError, "journal is open in process", tmp_path / "copy", options(journal), journal)
        storage.commit([PutBatch(make_batch(1, 3))])
    with opened(data, options(journal)) as storage:
        assert storage.read(1, 0, 1, 1000) == [make_batch(1, 0), make_batch(1, 3)]


def test_storage_is_made_after_crash_at_every_change() -> None:
    made = SmallStorage(MemoryDisk(), small_options(elsewhere=True), MemoryStorage())
    count = count_changes(made.disk)
    made.open(made.disk).close()
    for change in range(1, count[0] + 1):
        for kind in ("power", "kill"):
            disk = MemoryDisk(change)
            stop_at(disk, change)
            with contextlib.suppress(PowerLoss):
                made.open(disk).close()
            disk = disk.after_power_loss(random.Random(change)) if kind == "power" else disk.after_kill()
            with contextlib.closing(made.open(disk)) as storage:
                bookie_id = storage.bookie_id
                storage.commit([PutBatch(make_batch(1, 0))])
            with contextlib.closing(made.open(disk)) as storage:
                assert storage.bookie_id == bookie_id
                assert storage.read(1, 0, 1, 1) == [make_batch(1, 0)]
            assert f"{ROOT}/making.json" not in disk.paths()
