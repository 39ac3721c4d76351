"""The files that hold batches: journal files, which are the log, and entry logs, which compaction and flushing write."""

from __future__ import annotations

import threading
from typing import NamedTuple

from replog.backends.files.index_page import ROW, ROWS_MAX, IndexPage
from replog.backends.files.record import PAGE_BYTES, checksum_seed


class LogFile:
    """A file with batches. The storage's lock guards everything here."""

    __slots__ = (
        "age",
        "batch_bytes",
        "fd",
        "is_damaged",
        "is_indexed",
        "is_retired",
        "last_ledger_id",
        "live_bytes",
        "number",
        "path",
        "pins",
        "position",
        "sections",
        "switches",
    )

    is_journal = False

    def __init__(self, number: int, path: str, fd: int) -> None:
        self.number = number
        self.path = path
        self.fd = fd  # -1 while it is closed
        self.age = number  # of two files with the same batch, that of the higher age counts
        self.position = PAGE_BYTES  # where the next record goes, or the end of the last
        self.pins = 0  # how many reads are under way
        self.sections: set[Section] = set()  # those that are still needed
        self.batch_bytes = 0  # of all batches ever indexed here
        self.live_bytes = 0  # of those that are still needed
        self.switches = 0  # how often a batch is not of the ledger of the one before it
        self.last_ledger_id = -1
        self.is_indexed = False  # there is a durable index file beside it
        self.is_retired = False  # no longer part of the storage
        self.is_damaged = False  # it has unreadable batches: compaction leaves it alone

    @property
    def index_path(self) -> str:
        """The path of the index beside it."""
        return index_path(self.path)


class EntryLogFile(LogFile):
    """A file with batches in the order of their ledgers. It is complete: it gets its name last."""

    __slots__ = ()


class JournalFile(LogFile):
    """A file of the journal. `filling` guards `allocated`."""

    __slots__ = (
        "allocated",
        "began_s",
        "epoch",
        "filling",
        "first_sequence",
        "has_header",
        "is_outrun",
        "is_pristine",
        "last_sequence",
        "seed",
    )

    is_journal = True

    def __init__(
        self,
        number: int,
        path: str,
        fd: int,
        identity: bytes,
        epoch: int,
        allocated: int,
        *,
        has_header: bool = True,
    ) -> None:
        super().__init__(number, path, fd)
        self.has_header = has_header  # else its first page is damaged, or another file's
        self.seed = checksum_seed(number, identity)
        self.epoch = epoch
        self.is_pristine = False  # no other process and no failed write left records of this epoch here
        self.allocated = allocated
        self.is_outrun = False  # the writer is faster than the zeros: it allocates what it needs
        self.began_s = 0.0  # when it became the current one
        self.first_sequence = 0
        self.last_sequence = 0
        self.filling = threading.Lock()


Place = tuple[LogFile, int, int, int]
"""The place of a batch: the file, the offset at which the batch begins, its size and checksum."""


def index_path(path: str) -> str:
    """The path of the index of the log file at this path."""
    return path.rpartition(".")[0] + ".index"


class Location(NamedTuple):
    """A `Place` with names, for reads."""

    file: LogFile
    offset: int
    size: int
    checksum: int


class Section:
    """The batches of one ledger and stamp in one file."""

    __slots__ = (
        "count",
        "data_bytes",
        "dead_bytes",
        "file",
        "first",
        "held",
        "is_touched",
        "last",
        "last_first",
        "ledger_id",
        "page_checksum",
        "page_offset",
        "stamp",
    )

    def __init__(self, file: LogFile, ledger_id: int, stamp: int, first: int, last: int, last_first: int) -> None:
        self.file = file
        self.ledger_id = ledger_id
        self.stamp = stamp
        self.first = first
        self.last = last
        self.last_first = last_first
        self.count = 0
        self.data_bytes = 0
        self.dead_bytes = 0  # of them, of batches that were dropped, about
        # Its page, or the rows of one that is small; None while it has no batch, and while it is only on disk. One attribute,
        # because some look at it without the lock.
        self.held: IndexPage | bytes | None = None
        self.page_offset = 0  # in the index file; 0 while there is none
        self.page_checksum = 0
        self.is_touched = False  # read since the cache last looked

    @property
    def page(self) -> IndexPage | None:
        """The page; None while it is only on disk. That of a small section is another object each time: `put` changes it."""
        held = self.held
        return IndexPage.from_rows(held) if isinstance(held, bytes) else held

    @page.setter
    def page(self, page: IndexPage | None) -> None:
        self.held = page.rows() if page is not None and len(page) <= ROWS_MAX else page

    def put(self, first: int, last: int, stride: int, offset: int, size: int, checksum: int) -> bool:
        """Puts a batch into the page (`IndexPage.put`), before the section's range is widened. The caller counts new
        batches."""
        held = self.held
        assert held is not None or not self.count, "nothing is added to a page that is only on disk"
        if isinstance(held, IndexPage):
            return held.put(first, last, stride, offset, size, checksum)
        if self.count < ROWS_MAX and (not held or first > self.last_first):
            self.held = (held or b"") + ROW.pack(first, last, stride, offset, size, checksum)
            return True
        page = IndexPage.from_rows(held or b"")
        is_new = page.put(first, last, stride, offset, size, checksum)
        self.page = page
        return is_new

    def location(self, page: IndexPage, at: int) -> Location:
        """Where the batch at this position of the section's page is."""
        return Location(self.file, page.offsets[at], page.sizes[at], page.checksums[at])
