"""Making journal files, from spare ones if there are any, and keeping files that are not needed any more as spares."""

from __future__ import annotations

from contextlib import suppress

from replog.backends.disk import ZEROS, Disk, write_all
from replog.backends.files.directory import journal_name
from replog.backends.files.log_file import JournalFile, LogFile
from replog.backends.files.options import FilesTuning
from replog.backends.files.record import PAGE_BYTES, FileHeader, pack_file_header
from replog.runtime.disk_errors import is_full

FIRST_FILL_BYTES = 1 << 20
SPARE_PREFIX = "spare-"
_TEMPORARY = "new.journal.tmp"


class Spares:
    """The spare files of one journal directory. One thread at a time calls its methods."""

    def __init__(self, disk: Disk, directory: str, identity: bytes, options: FilesTuning) -> None:
        self._disk = disk
        self.directory = directory
        self._identity = identity
        self._options = options
        self._names: list[str] = []
        self._next_number = 1  # of a spare's name

    def __len__(self) -> int:
        return len(self._names)

    def start(self, names: list[str]) -> None:
        """Begins with these spare files of before."""
        self._names = names
        self._next_number = 1 + max((int(name[len(SPARE_PREFIX) :].split(".")[0]) for name in names), default=0)

    def add(self, name: str) -> None:
        """A file has this name now, durably."""
        assert name not in self._names, "a spare's number is used once: a rename would replace another file"
        self._names.append(name)
        self._next_number += 1

    def keep_or_remove(self, file: LogFile) -> str | None:
        """Keeps a journal file as a spare if one is wanted, and removes others. The new name, or None. May raise OSError."""
        assert not file.pins, "a read may be under way in it"
        # The index goes first: a log file without its index can be read again, an index without its file is litter.
        if file.is_indexed:
            self._disk.unlink(file.index_path)
            file.is_indexed = False
        # A group larger than a file made a larger file: as a spare it would keep that space permanently.
        is_spare = isinstance(file, JournalFile) and file.allocated <= self._options.capacity_bytes
        if is_spare and len(self._names) < self._options.spare_files:
            name = f"{SPARE_PREFIX}{self._next_number:06}.journal"
            self._disk.rename(file.path, f"{self.directory}/{name}")
            return name
        self._disk.unlink(file.path)
        return None

    def make(self, number: int, *, fill: bool) -> JournalFile:
        """Makes a journal file, from a spare if there is one, and gives it its name when it is durable. May raise OSError.

        A new file has its beginning filled with zeros, or all of it allocated, as far as there is space."""
        disk = self._disk
        epoch = int.from_bytes(disk.random_bytes(8), "little")
        header = pack_file_header(FileHeader(number, epoch, self._identity))
        # The one that was kept last: its pages are the most likely to be in memory still.
        spare = self._names[-1] if self._names else None
        source = f"{self.directory}/{spare or _TEMPORARY}"
        fd = disk.open(source, create=spare is None)
        try:
            write_all(disk, fd, (header,), 0)
            if spare is None and (fill or not self._allocate(fd)):
                write_all(disk, fd, (ZEROS[: self._first_fill_bytes() - PAGE_BYTES],), PAGE_BYTES)
            disk.fdatasync(fd)
            path = f"{self.directory}/{journal_name(number)}"
            # Named when its header is durable: a start takes every file with a journal's name for a part of the journal.
            disk.rename(source, path)
            if spare:
                self._names.pop()  # it is gone, even if the next line fails
            disk.sync_directory(self.directory)
            file = JournalFile(number, path, fd, self._identity, epoch, disk.size(fd) & -PAGE_BYTES)
        except BaseException:
            disk.close(fd)
            if spare is None:
                # The first error says why it could not be made.
                with suppress(OSError):
                    disk.unlink(source)
            raise
        assert file.position <= file.allocated, "its header page is written"
        # Its epoch is random and new: nothing in the file, not even a spare's old records, can be taken for a group.
        file.is_pristine = True
        return file

    def _allocate(self, fd: int) -> bool:
        """Makes a new file as long as it may become. Returns False if there is not enough space."""
        try:
            self._disk.allocate(fd, PAGE_BYTES, self._options.capacity_bytes - PAGE_BYTES)
        except OSError as error:
            if not is_full(error):
                raise
            return False
        return True

    def _first_fill_bytes(self) -> int:
        return min(FIRST_FILL_BYTES, self._options.capacity_bytes)
