"""Opening a storage: who the directory belongs to, which files there are, and making durable what was read."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from replog.backends.disk import Disk, named_errors, read_all, write_all
from replog.backends.files.catalog import FORMAT as CATALOG_FORMAT
from replog.backends.files.catalog import NAME as CATALOG
from replog.backends.files.catalog import Catalog, unpack_catalog
from replog.backends.files.directory import (
    JOURNAL,
    LOGS,
    MAKING_FILE,
    VERSION,
    Format,
    check_journal_cookie,
    entry_log_name,
    identity_of,
    journal_name,
    journal_number,
    read_format,
)
from replog.backends.files.index import Index
from replog.backends.files.log_file import EntryLogFile, JournalFile, LogFile
from replog.backends.files.making import make_storage
from replog.backends.files.options import FilesOptions
from replog.backends.files.pool import SPARE_PREFIX
from replog.backends.files.record import FORMAT, PAGE_BYTES, unpack_file_header
from replog.backends.files.repair import sections_of
from replog.backends.files.replay import Replay
from replog.backends.files.scanning import RECOVER
from replog.errors import ConfigError, StorageDamagedError, StorageIdentityError

_PIECE_BYTES = 4 << 20


@attrs.define
class Opened:
    """What stands in a directory: the index, the replayed journal, and the files to use again or to remove."""

    format: Format
    identity: bytes
    journal_directory: str
    catalog: Catalog | None  # None in version 1
    replay: Replay
    journals: dict[int, JournalFile]
    entry_logs: dict[int, EntryLogFile]
    dead: list[JournalFile]
    spares: list[str]

    @property
    def ready(self) -> JournalFile | None:
        """The next file, if it was prepared and not written yet."""
        return self.replay.unused[0] if self.replay.unused else None


def open_directory(disk: Disk, path: str, options: FilesOptions, lock: Callable[[str], None]) -> Opened:
    """Reads the storage in a directory that is locked, or makes one; locks that of a journal elsewhere before anything in it
    is changed. On an error nothing stays open."""
    found = read_format(disk, path, options.expected_bookie_id)
    if found is None:
        found = Format(VERSION, make_storage(disk, path, options), bool(options.journal_dir))
    journal = _journal_directory(disk, path, options, found)
    if found.is_journal_elsewhere:
        lock(journal)
    with named_errors(f"sync {path}"):
        # First: what is read here decides what is removed, and a process that was killed may not have synced it.
        disk.sync_directory(path)
    identity = identity_of(found.bookie_id)
    catalog = _read_catalog(disk, path, identity) if found.version >= VERSION else None
    index = Index()
    adopted: dict[int, JournalFile] = {}
    entry_logs: dict[int, EntryLogFile] = {}
    if catalog is not None:
        adopted, entry_logs = _load(disk, path, journal, identity, catalog, index)
    first_number = catalog.first_journal if catalog else 1
    dead, files, spares, litter = _find_journals(disk, journal, found.bookie_id, options, adopted, first_number)
    if not files:
        raise StorageDamagedError(f"{journal} has no journal file", RECOVER)
    try:
        replay = Replay(disk, files, options.open_files_max, index, catalog)
        replay.run()
        with named_errors(f"settle {journal}"):
            for file in (replay.tail, *replay.unused[:1]):
                if file.fd < 0:
                    file.fd = disk.open(file.path)
            _settle(disk, replay)
            disk.sync_directory(journal)
        with named_errors(f"clear {path}"):  # last: whoever put a wrong catalog here can still put the right one back
            for name in (*litter, *(_unfinished(disk, path, catalog) if catalog else ())):
                disk.unlink(name)
    except BaseException:
        close_files(disk, [*files, *adopted.values(), *entry_logs.values()])
        raise
    gone = {file.number for file in (*replay.dead, *replay.unused)}
    journals = {**adopted, **{file.number: file for file in files if file.number not in gone}}
    dead = [*dead, *replay.dead, *replay.unused[1:]]
    return Opened(found, identity, journal, catalog, replay, journals, entry_logs, dead, spares)


def close_files(disk: Disk, files: list[LogFile] | list[JournalFile]) -> None:
    """Closes those that are open."""
    for file in files:
        if file.fd >= 0:
            disk.close(file.fd)
            file.fd = -1


def _journal_directory(disk: Disk, path: str, options: FilesOptions, found: Format) -> str:
    if found.is_journal_elsewhere != bool(options.journal_dir):
        where = "in another directory: name it with" if found.is_journal_elsewhere else "in it: open it without"
        raise ConfigError(f"the journal of the storage in {path} is {where} journal_dir")
    if not found.is_journal_elsewhere:
        return f"{path}/{JOURNAL}"
    check_journal_cookie(disk, options.journal_dir, found.bookie_id)
    with named_errors(f"read {path}"):
        if MAKING_FILE in disk.names(path):
            disk.unlink(f"{path}/{MAKING_FILE}")
    return options.journal_dir


def _read_catalog(disk: Disk, path: str, identity: bytes) -> Catalog:
    with named_errors(f"read {path}/{CATALOG}"):
        try:
            fd = disk.open(f"{path}/{CATALOG}")
        except FileNotFoundError as error:
            raise StorageDamagedError(f"{path}/{CATALOG} is missing", RECOVER) from error
        try:
            catalog = unpack_catalog(read_all(disk, fd, disk.size(fd), 0))
        finally:
            disk.close(fd)
    if catalog is None:
        raise StorageDamagedError(f"{path}/{CATALOG} is damaged: it doesn't match its checksum", RECOVER)
    if catalog.format != CATALOG_FORMAT or catalog.identity != identity:
        raise StorageIdentityError(
            f"{path}/{CATALOG} is a catalog of format {catalog.format} of bookie-{catalog.identity.hex()}, expected format "
            f"{CATALOG_FORMAT} of bookie-{identity.hex()}",
            "Nothing was touched: put the right file there",
        )
    return catalog


def _unfinished(disk: Disk, path: str, catalog: Catalog) -> list[str]:
    """Entry logs, and parts of them, that the catalog has not, and a catalog that was not finished."""
    logs = f"{path}/{LOGS}"
    kept = {entry_log_name(file.number) for file in catalog.files if not file.is_journal}
    kept |= {name.removesuffix(".log") + ".index" for name in kept}
    disk.make_directory(logs)  # a copy of the storage may lack it while it is empty
    half = [f"{path}/{name}" for name in disk.names(path) if name == f"{CATALOG}.tmp"]
    return half + [f"{logs}/{name}" for name in disk.names(logs) if name not in kept]


def _load(
    disk: Disk, path: str, journal: str, identity: bytes, catalog: Catalog, index: Index
) -> tuple[dict[int, JournalFile], dict[int, EntryLogFile]]:
    """The files that the catalog has, and into the index what the catalog and the files' own indexes say."""
    index.drop_ranges(catalog.deleted)
    for ledger_id, marks in catalog.ledgers:
        ledger = index.ledger(ledger_id)
        if ledger is not None:
            ledger.raise_marks(marks)
    journals: dict[int, JournalFile] = {}
    entry_logs: dict[int, EntryLogFile] = {}
    for each in catalog.files:
        file: LogFile
        if each.is_journal:
            file = journals[each.number] = JournalFile(
                each.number, f"{journal}/{journal_name(each.number)}", -1, identity, 0, 0
            )
        else:
            file = entry_logs[each.number] = EntryLogFile(
                each.number, f"{path}/{LOGS}/{entry_log_name(each.number)}", -1
            )
        file.age = each.age
        file.position = each.end_bytes
        with named_errors(f"read the index of {file.path}"):
            size = _size_of(disk, file)
            for section in sections_of(disk, file, identity):
                index.put_section(section)
        if isinstance(file, JournalFile):
            file.allocated = size & -PAGE_BYTES
    return journals, entry_logs


def _size_of(disk: Disk, file: LogFile) -> int:
    try:
        fd = disk.open(file.path)
    except FileNotFoundError as error:
        raise StorageDamagedError(f"{file.path} is missing, though the catalog has it", RECOVER) from error
    try:
        return disk.size(fd)
    finally:
        disk.close(fd)


def _find_journals(
    disk: Disk,
    directory: str,
    bookie_id: str,
    options: FilesOptions,
    adopted: dict[int, JournalFile],
    first_number: int,
) -> tuple[list[JournalFile], list[JournalFile], list[str], list[str]]:
    """Of the journal files that are not adopted those that nobody needs, and those to replay, ascending; the names of the
    spare ones; and the paths of what a crash left half made, of indexes that no catalog has, of spare files beyond need."""
    dead: list[JournalFile] = []
    files: list[JournalFile] = []
    spares: list[str] = []
    litter: list[str] = []
    with named_errors(f"read {directory}"):
        try:
            names = disk.names(directory)
        except FileNotFoundError:
            return [], [], [], []
        for name in names:
            path = f"{directory}/{name}"
            number = journal_number(name)
            if number is not None:
                if number in adopted:
                    continue
                if number >= first_number:
                    files.append(_read_file_header(disk, number, path, bookie_id))
                else:
                    dead.append(JournalFile(number, path, -1, identity_of(bookie_id), 0, options.capacity_bytes))
            elif name.startswith(SPARE_PREFIX) and len(spares) < options.spare_files and _fits(disk, path, options):
                spares.append(name)
            elif (
                name.startswith(SPARE_PREFIX)
                or name.endswith(".tmp")
                or (name.endswith(".index") and journal_number(name.removesuffix(".index") + ".journal") not in adopted)
            ):
                litter.append(path)
    files.sort(key=lambda file: file.number)
    return dead, files, spares, litter


def _fits(disk: Disk, path: str, options: FilesOptions) -> bool:
    fd = disk.open(path)
    try:
        return PAGE_BYTES <= disk.size(fd) <= options.capacity_bytes
    finally:
        disk.close(fd)


def _read_file_header(disk: Disk, number: int, path: str, bookie_id: str) -> JournalFile:
    fd = disk.open(path)
    try:
        header = unpack_file_header(read_all(disk, fd, PAGE_BYTES, 0))
        size = disk.size(fd)
    finally:
        disk.close(fd)
    if header is None:
        raise StorageDamagedError(f"{path} is damaged at 0: its header is unreadable", RECOVER)
    if header.format != FORMAT or header.identity != identity_of(bookie_id):
        raise StorageIdentityError(
            f"{path} is a journal of format {header.format} of bookie-{header.identity.hex()}, "
            f"expected format {FORMAT} of {bookie_id}",
            "Nothing was touched: put the right file there",
        )
    if header.number != number:
        raise StorageDamagedError(f"{path} is damaged at 0: it is journal file {header.number}, misnamed", RECOVER)
    return JournalFile(number, path, -1, header.identity, header.epoch, size & -PAGE_BYTES)


def _settle(disk: Disk, replay: Replay) -> None:
    """Makes durable what was read. A process that was killed, or whose sync failed, may have left the last group in
    the page cache only, where it looks as if it were on the disk: so it is written again, and synced."""
    tail = replay.tail
    start = replay.last_group_start if tail.last_sequence else tail.position
    while start < tail.position:
        piece = read_all(disk, tail.fd, min(_PIECE_BYTES, tail.position - start), start)
        if not piece:
            raise StorageDamagedError(f"{tail.path} is damaged at {start}: it ended while it was read", RECOVER)
        write_all(disk, tail.fd, (piece,), start)
        start += len(piece)
    disk.fdatasync(tail.fd)
