"""Makes a storage in an empty directory, or in one where a crash ended an earlier attempt, at any point."""

from __future__ import annotations

from replog.backends.directory import FORMAT_FILE, LOCK_FILE, identity_of, make_directories, new_bookie_id
from replog.backends.disk import Disk, named_errors, read_all, write_file_atomically
from replog.backends.durable_mark import make_mark
from replog.backends.files.catalog import NAME as CATALOG
from replog.backends.files.catalog import Catalog, pack_catalog
from replog.backends.files.directory import (
    JOURNAL,
    JOURNAL_COOKIE,
    LOGS,
    journal_number,
    read_journal_cookie,
    read_making,
    write_format,
    write_journal_cookie,
    write_making,
)
from replog.backends.files.options import FilesTuning
from replog.backends.files.record import PAGE_BYTES, unpack_file_header
from replog.backends.files.spares import Spares
from replog.errors import StorageDamagedError, StorageIdentityError

NEW_BYTES = 128 << 10  # what the files of a new storage take, beside its first journal file
_RESTORE = "Nothing was touched: restore the file, or recover this bookie's copies from the others"
_FOREIGN_NAMES_ALLOWED = {"lost+found", LOCK_FILE, f"{JOURNAL_COOKIE}.tmp"}  # of a file system, or of an attempt before


def make_storage(disk: Disk, path: str, options: FilesTuning) -> str:
    """Makes a storage, its format file last; returns its new identity. Raises `StorageError`."""
    journal = options.journal_dir or f"{path}/{JOURNAL}"
    with named_errors(f"make a storage in {path}"):
        if LOGS in disk.names(path) and disk.names(f"{path}/{LOGS}"):
            raise StorageDamagedError(f"{path}/{FORMAT_FILE} is missing, but {path}/{LOGS} holds entry logs", _RESTORE)
        # The identity of an attempt that a crash ended: its journal elsewhere may have the cookie already.
        bookie_id = read_making(disk, path) or new_bookie_id(disk, options.expected_bookie_id, path)
        if options.journal_dir:
            write_making(disk, path, bookie_id)
            _claim(disk, journal, bookie_id)
        else:
            disk.make_directory(journal)
        _clear_journal(disk, path, journal)
        disk.make_directory(f"{path}/{LOGS}")
        disk.sync_directory(path)
        spares = Spares(disk, journal, identity_of(bookie_id), options)
        disk.close(spares.make(1, fill=True).fd)
        catalog = Catalog(identity_of(bookie_id), 1, 1, 0, 0, 1, [], [], [])
        write_file_atomically(disk, path, CATALOG, (pack_catalog(catalog),))
        make_mark(disk, path, identity_of(bookie_id))
        write_format(disk, path, bookie_id, is_journal_elsewhere=bool(options.journal_dir))
    return bookie_id


def _claim(disk: Disk, journal: str, bookie_id: str) -> None:
    """Makes a directory elsewhere this bookie's, if it belongs to no bookie yet."""
    try:
        names = set(disk.names(journal))
    except FileNotFoundError:
        make_directories(disk, journal)
        names = set()
    owner = read_journal_cookie(disk, journal)
    if owner is None and not names - _FOREIGN_NAMES_ALLOWED:
        write_journal_cookie(disk, journal, bookie_id)
    elif owner != bookie_id:
        whose = f"is the journal of {owner}" if owner else f"is not empty: it has {', '.join(sorted(names)[:3])}"
        raise StorageIdentityError(f"{journal} {whose}", "Nothing was touched: name another directory for the journal")


def _clear_journal(disk: Disk, path: str, journal: str) -> None:
    """Removes what a crash left of a storage that was being made. Refuses if its journal holds anything."""
    names = [name for name in disk.names(journal) if name.endswith((".journal", ".tmp"))]
    for name in names:
        fd = disk.open(f"{journal}/{name}")
        try:
            start = read_all(disk, fd, PAGE_BYTES + 64, 0)
        finally:
            disk.close(fd)
        # Anything behind the header page is a record: then this is a storage that has lost its format file.
        if any(start[PAGE_BYTES:]) or (journal_number(name) not in (None, 1) and unpack_file_header(start)):
            raise StorageDamagedError(f"{path}/{FORMAT_FILE} is missing, but {journal}/{name} holds records", _RESTORE)
    for name in names:
        disk.unlink(f"{journal}/{name}")
