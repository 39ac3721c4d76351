"""The files that hold batches: journal files, which are the log, and entry logs, which compaction and flushing write."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from replog.backends.files.record import PAGE_BYTES, checksum_seed

if TYPE_CHECKING:
    from replog.backends.files.index import Section


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
        self.is_indexed = False  # a durable index file stands beside it
        self.is_retired = False  # no longer part of the storage
        self.is_damaged = False  # it has unreadable batches: compaction leaves it alone

    @property
    def index_path(self) -> str:
        """The path of the index beside it."""
        return index_path(self.path)


class EntryLogFile(LogFile):
    """A file whose batches stand in the order of their ledgers. Complete since it has its name."""

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
        self.is_pristine = False  # nobody else wrote records of this epoch here, wholly or in part
        self.allocated = allocated
        self.is_outrun = False  # the writer is faster than the zeros: it allocates what it needs
        self.began_s = 0.0  # when it became the current one
        self.first_sequence = 0
        self.last_sequence = 0
        self.filling = threading.Lock()


Place = tuple[LogFile, int, int, int]
"""Where the bytes of a batch stand: the file, where the batch begins in it, its size and checksum."""


def index_path(path: str) -> str:
    """The path of the index of the log file at this path."""
    return path.rpartition(".")[0] + ".index"
