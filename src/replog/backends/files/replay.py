"""Reading the journal at the start: the index, where writing goes on, and telling a torn tail from damage (B3).

A power loss may keep any part of the last group, which nobody was told of: such a *torn tail* ends the replay. All
groups before it were durable. So an invalid place is *damage* if anything proves that the group there was durable: an
intact record header with a higher sequence, a later file, or the catalog, which knows a group that was.
Replaying changes nothing on the disk, and the same records twice give the same result.
"""

from __future__ import annotations

from collections.abc import Sequence

from replog.backends.disk import Disk
from replog.backends.files.catalog import Catalog
from replog.backends.files.index import Index
from replog.backends.files.log_file import JournalFile
from replog.backends.files.record import (
    MAGIC,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    FileRange,
    RecordType,
    unpack_checkpoint,
    unpack_drop,
    unpack_marks,
    unpack_record_header,
)
from replog.backends.files.scanning import RECOVER, Group, Window, damaged, found_batch, head_of, read_group
from replog.errors import StorageDamagedError


class Replay:
    """One reading of all files, ascending by number. Raises `StorageDamagedError`, `StorageIdentityError`."""

    def __init__(
        self, disk: Disk, files: Sequence[JournalFile], open_files_max: int, index: Index, catalog: Catalog | None
    ) -> None:
        self._disk = disk
        self._files = files
        self._open_files_max = open_files_max
        self._catalog = catalog  # None in version 1: then the files before the first gap begin with number 1
        self._checkpoint: tuple[JournalFile, list[FileRange]] | None = None
        self._first_number = catalog.first_journal if catalog else 1
        self.index = index
        self.sequence = catalog.sequence if catalog else 0  # of the last group
        self.tail = files[0]  # where writing goes on
        self.last_group_start = PAGE_BYTES  # in the tail; the end is the tail's position
        self.unused: list[JournalFile] = []  # after the tail: prepared, never used
        self.dead: list[JournalFile] = []  # a checkpoint of version 1 says that nobody needs them

    def run(self) -> None:
        """Reads everything."""
        for at, file in enumerate(self._files):
            before = self._files[at - 1] if at else None
            if not self._joins(before, file):
                self.unused = list(self._files[at:])
                break
            if before is not None and at > self._open_files_max:
                self._disk.close(before.fd)
                before.fd = -1
            self.tail = file
            self._replay_file(file)
        self._check_tail()
        self._check_files()
        if self._catalog is not None and self.sequence < self._catalog.durable_sequence:
            raise damaged(
                self.tail,
                self.tail.position,
                f"group {self.sequence + 1} is unreadable{self._or_there()}, "
                f"though the catalog knows group {self._catalog.durable_sequence}",
            )

    def _or_there(self) -> str:
        """Where the group behind the tail may stand too."""
        return f", there or at {PAGE_BYTES} in {self.unused[0].path}" if self.unused else ""

    # -- the files' order -----------------------------------------------------------------------------------------

    def _joins(self, before: JournalFile | None, file: JournalFile) -> bool:
        """Whether this file holds what comes next. If not, the tail is before it."""
        header = head_of(Window(self._disk, file), file)
        head = header.sequence if header else None
        follows = file.number == (before.number + 1 if before else self._first_number)
        if not follows:
            # In version 1 what was between may be recycled; a file behind a recycled one is never empty.
            if self._catalog is not None or head is None or head <= self.sequence:
                raise damaged(file, PAGE_BYTES, "its first record is unreadable, or files before it are missing")
            self.sequence = head - 1
            return True
        if head is not None and head > self.sequence + 1:
            place = before or file
            raise damaged(place, place.position, f"group {self.sequence + 1} is unreadable, and {file.path} follows")
        return before is None or head == self.sequence + 1

    def _check_tail(self) -> None:
        """Damage, not a torn tail, if anything behind it is of a later group than the one that is missing there."""
        for file in (self.tail, *self.unused):
            found = self._find_later(file, self.sequence + 1)
            if found < 0:
                continue
            place = self.tail if file is self.tail or found == PAGE_BYTES else file
            there = self._or_there() if file in self.unused[1:] else ""
            raise damaged(
                place,
                place.position,
                f"group {self.sequence + 1} is unreadable{there}, and a later one stands at {found} in {file.path}",
            )

    def _find_later(self, file: JournalFile, sequence: int) -> int:
        window = Window(self._disk, file)
        offset = file.position
        while window.seek(offset, RECORD_HEADER_BYTES) >= 0:
            data = window.data
            at = data.find(MAGIC)
            while at >= 0:
                header = unpack_record_header(data, at, file.seed)
                if header is not None and header.sequence > sequence:
                    return offset + at
                at = data.find(MAGIC, at + 1)
            offset += len(data) - RECORD_HEADER_BYTES + 1
            window = Window(self._disk, file)
        return -1

    def _check_files(self) -> None:
        """Every file that should be there is, and ends where it should."""
        present = {file.number: file for file in self._files}
        expected: set[int] = set()
        start = self._first_number
        if self._checkpoint is not None:
            keeper, ranges = self._checkpoint
            for each in ranges:
                self._check_range(present, each, keeper)
                expected.update(range(each.first_number, each.last_number + 1))
            start = keeper.number + 1
            self.dead = [file for file in self._files if file.number <= keeper.number and file.number not in expected]
        for number in range(start, self._files[-1].number + 1):
            if number not in present:
                raise self._missing(number)

    def _check_range(self, present: dict[int, JournalFile], each: FileRange, keeper: JournalFile) -> None:
        for number in range(each.first_number, each.last_number + 1):
            if number not in present:
                raise self._missing(number)
        first, last = present[each.first_number], present[each.last_number]
        if first.first_sequence != each.first_sequence:
            raise damaged(first, PAGE_BYTES, f"it begins with group {first.first_sequence}, not {each.first_sequence}")
        if last.last_sequence < each.last_sequence or (last is not keeper and last.last_sequence > each.last_sequence):
            raise damaged(last, last.position, f"it ends with group {last.last_sequence}, not {each.last_sequence}")

    def _missing(self, number: int) -> StorageDamagedError:
        near = next((file for file in self._files if file.number > number), self._files[-1])
        return StorageDamagedError(f"journal file {number} is missing beside {near.path}", RECOVER)

    # -- one file -------------------------------------------------------------------------------------------------

    def _replay_file(self, file: JournalFile) -> None:
        window = Window(self._disk, file)
        while True:
            group = read_group(window, file, file.position, file.epoch, self.sequence + 1)
            if group is None:
                return
            self._apply(file, group)
            self.last_group_start = file.position
            file.position = group.end
            file.epoch = group.epoch
            file.first_sequence = file.first_sequence or group.sequence
            file.last_sequence = self.sequence = group.sequence

    def _apply(self, file: JournalFile, group: Group) -> None:
        index = self.index
        for record_type, content, location in group.records:
            if record_type == RecordType.BATCH:
                assert not isinstance(content, bytes)
                index.put_batch(*found_batch(content, location))
                continue
            assert isinstance(content, bytes)
            if record_type == RecordType.MARKS:
                index.put_marks(*unpack_marks(content))
            elif record_type == RecordType.DROP:
                index.drop(unpack_drop(content))
            elif record_type == RecordType.CHECKPOINT:
                ranges, deleted = unpack_checkpoint(content)
                index.drop_ranges(deleted)
                if self._catalog is None:  # else it is one of before the upgrade, and the catalog knows better
                    self._checkpoint = (file, ranges)
