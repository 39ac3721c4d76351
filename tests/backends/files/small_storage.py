"""A small storage that has a file of each kind, and what must be true of it whatever happens to one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import attrs
import pytest
import trio

from replog.abc import Damage, Doubt, Storage
from replog.backends.files import options as options_module
from replog.backends.files.index_file import (
    BATCH_BYTES,
    HEADER_BYTES,
    SECTION_BYTES,
    unpack_directory,
    unpack_index_header,
)
from replog.backends.files.log_file import Section
from replog.backends.files.options import FilesTuning
from replog.backends.files.storage import FilesStorage, open_storage
from replog.backends.memory import MemoryStorage
from replog.errors import StorageError, StorageUncertainError
from replog.protocol.mutations import DropLedger, Mutation, PutBatch, SetMarks
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.golden import crc32c_of

LEDGERS = range(1, 12)
ENTRIES = range(7)
PARTS = ((1, 2, 3), (4, 5, 6), (7, 8), (9, 10))  # of the ledgers: those of the first two are compacted
DROPPED = {part[1] for part in PARTS}
ROOT = "/st"
ELSEWHERE = "/jn"


def sections_of(storage: FilesStorage, ledger_id: int) -> list[Section]:
    """The sections of a ledger of one stamp."""
    (stamps,) = storage._contents.index.ledgers[ledger_id].stamps
    return stamps.sections


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journal files may have two pages: all their bytes can be flipped one by one."""
    monkeypatch.setattr(options_module, "JOURNAL_FILE_BYTES_MIN", 8 << 10)


def small_options(*, elsewhere: bool) -> FilesTuning:
    """Options under which files become full soon. Only below `small_files`."""
    return FilesTuning(
        journal_file_bytes=8 << 10,
        spare_files=1,
        fill_ahead_bytes=0,
        flush_bytes=1 << 30,  # flushed when compaction is asked for
        journal_dir=ELSEWHERE if elsewhere else "",
        minor_compaction_interval_s=0,
        major_compaction_interval_s=0,
        scrub_interval_s=0,
        compaction_bytes_per_s=0,
        scrub_bytes_per_s=0,
    )


def commits(ledgers: Sequence[int], size_bytes: int = 120) -> Iterator[list[Mutation]]:
    """The ledgers alternate, some are fenced, one is dropped."""
    for first in (0, 2, 4):
        for ledger_id in ledgers:
            mutations: list[Mutation] = [PutBatch(make_batch(ledger_id, first, 2, size_bytes=size_bytes))]
            if first == 2:
                mutations.append(SetMarks(ledger_id, b"key %d" % ledger_id, ledger_id, 1))
            yield mutations
    yield [DropLedger(ledgers[1])]


@attrs.define
class SmallStorage:
    """What stands on the disk after a clean close, and what was acknowledged."""

    disk: MemoryDisk
    options: FilesTuning
    acknowledged: Storage
    ends: dict[str, int] = attrs.field(factory=dict)  # where the records of the log files end, by path
    current: str = ""  # the journal file that is written

    def open(self, disk: MemoryDisk) -> FilesStorage:
        """Opens it on a disk; work in the background is done when it is asked for."""
        return open_storage(ROOT, self.options, disk=disk, background=False)

    def note(self, storage: FilesStorage) -> None:
        """Remembers how far its files go."""
        self.ends = {file.path: file.position for file in storage._contents.files()}
        self.current = storage._journal.current.path

    def files(self) -> dict[str, bytes]:
        """All files by path, but for the locks."""
        return {path: bytes(self.disk.content(path)) for path in self.disk.paths() if not path.endswith("/lock")}

    def examine(self, disk: MemoryDisk, culprits: Sequence[str]) -> str:
        """Opens, reads, scrubs, compacts and reopens it on a damaged disk. Says what happened: `refused`, `doubted`,
        `uncertain` or `right`; asserts that nothing else did."""
        try:
            storage = self.open(disk)
        except StorageError as error:
            assert_names(error, culprits)
            return "refused"
        if storage.doubt() != Doubt():
            self.examine_doubt(storage, disk, culprits)
            return "doubted"
        with contextlib.closing(storage):
            unreadable = self.read_all(storage, culprits)
            storage.scrub()
            known = {(each.ledger_id, at) for each in storage.damage() for at in _range(each)}
            for entry in self.read_all(storage, culprits):
                assert entry in known, f"{entry} is unreadable, and no damage"
            assert_indexes_are_whole(storage, disk)
            storage.compact(is_major=True)
            for entry in self.read_all(storage, culprits):
                assert entry in known, f"compaction made {entry} unreadable"
        with contextlib.closing(self.open(disk)) as storage:
            assert set(self.read_all(storage, culprits)) <= known
        assert disk.open_count == 0
        return "uncertain" if unreadable else "right"

    def examine_doubt(self, storage: FilesStorage, disk: MemoryDisk, culprits: Sequence[str]) -> None:
        """What it serves is right, the reasons name a culprit, and it stays in doubt without finding the same again, also
        when it is killed at once (B8)."""
        doubt = storage.doubt()
        assert doubt.is_unbounded
        assert any(path in reason for path in culprits for reason in doubt.reasons), doubt
        killed = disk.after_kill()
        with contextlib.closing(self.open(killed)) as again:
            assert again.doubt() == doubt
            self.read_in_doubt(again)
        with contextlib.closing(storage):
            served = self.read_in_doubt(storage)
            if not doubt.lost_below:
                self.read_all(storage, culprits)  # all is there, or uncertain
            storage.bound_doubt(100)
            storage.commit([PutBatch(make_batch(200, 0))])
            storage.scrub()
            storage.compact(is_major=True)
        for _ in range(2):
            with contextlib.closing(self.open(disk)) as storage:
                bounded = storage.doubt()
                assert bounded == Doubt(100, 100 if doubt.lost_below else 0, doubt.reasons)
                assert served <= self.read_in_doubt(storage) | {
                    entry for each in storage.damage() for entry in _of(each)
                }
                assert storage.read(200, 0, 1, 0), "what was committed since"
        assert disk.open_count == 0

    def read_in_doubt(self, storage: Storage) -> set[tuple[int, int]]:
        """Asserts that what is served was stored once; returns which entries are."""
        served = set()
        for ledger_id in set(LEDGERS) - DROPPED:
            for entry_id in ENTRIES:
                with contextlib.suppress(StorageUncertainError):
                    found = storage.read(ledger_id, entry_id, 1, 1)
                    assert found in ([], self.acknowledged.read(ledger_id, entry_id, 1, 1))
                    served |= {(ledger_id, entry_id)} if found else set()
        return served

    def read_all(self, storage: Storage, culprits: Sequence[str]) -> list[tuple[int, int]]:
        """Asserts that all is there or uncertain; returns the entries that are uncertain."""
        expected = self.acknowledged
        assert storage.ledger_ids() == expected.ledger_ids()
        unreadable = []
        for ledger_id in LEDGERS:
            assert storage.marks(ledger_id) == expected.marks(ledger_id)
            for entry_id in ENTRIES:
                right = expected.read(ledger_id, entry_id, 1, 1)
                try:
                    found = storage.read(ledger_id, entry_id, 1, 1)
                except StorageUncertainError as error:
                    assert_names(error, culprits, " at ", *() if right else (".index",))  # of the absent it knows not
                    unreadable.append((ledger_id, entry_id))
                else:
                    assert found == right
                with contextlib.suppress(trio.WouldBlock, StorageUncertainError):
                    assert storage.read_nowait(ledger_id, entry_id, 1, 1) == right
            whole = expected.read(ledger_id, 0, 1, 1 << 20)
            with contextlib.suppress(StorageUncertainError):
                found = storage.read(ledger_id, 0, 1, 1 << 20)
                assert found == whole[: len(found)]
                assert bool(found) == bool(whole)
        return unreadable


def assert_names(error: StorageError, culprits: Sequence[str], *more: str) -> None:
    """The error names one of these, and says all of those."""
    assert any(path in str(error) for path in culprits), error
    assert all(each in str(error) for each in more), error


def _of(damage: Damage) -> list[tuple[int, int]]:
    return [(damage.ledger_id, at) for at in _range(damage)]


def _range(damage: object) -> range:
    return range(damage.first_entry_id, damage.last_entry_id + 1)  # type: ignore[attr-defined]


def assert_indexes_are_whole(storage: FilesStorage, disk: MemoryDisk) -> None:
    """Each indexed file that isn't damaged has an index of which every byte is accounted for."""
    for file in storage._contents.files():
        if file.is_indexed and not file.is_damaged:
            assert index_is_whole(bytes(disk.content(file.index_path)), file.number), file.index_path


def index_is_whole(data: bytes, number: int) -> bool:
    """Whether these bytes are an intact index of the file of this number, as far as anybody still reads it."""
    header = unpack_index_header(data[:HEADER_BYTES])
    if header is None or header.number != number:
        return False
    directory = unpack_directory(header, data[HEADER_BYTES : HEADER_BYTES + header.sections * SECTION_BYTES])
    if directory is None:
        return False
    for section in directory:
        page = data[section.page_offset : section.page_offset + section.batches * BATCH_BYTES]
        if section.ledger_id in DROPPED:
            continue
        if len(page) != section.batches * BATCH_BYTES or crc32c_of(page) != section.page_checksum:
            return False
    return True


def make_small_storage(*, elsewhere: bool, seed: int = 7) -> SmallStorage:
    """An entry log, full journal files (adopted, or with the journal elsewhere still to be flushed), a current one, and
    whatever belongs to them. Only below `small_files`."""
    options = small_options(elsewhere=elsewhere)
    made = SmallStorage(MemoryDisk(seed), options, MemoryStorage())
    storage = made.open(made.disk)
    for part in PARTS:
        for mutations in commits(part):
            storage.commit(mutations)
            made.acknowledged.commit(mutations)
        if part is PARTS[1]:
            storage.compact(is_major=True)
    made.note(storage)
    storage.close()
    return made
