"""The files in a storage's directory, beside those that storages of any kind have (`replog.backends.directory`).

    storage.json    says also whether the journal is inside
    catalog         which log files there are, and from where the journal is replayed: see `catalog`
    journal/        000000000001.journal, ..., with 000000000001.index beside those that are full; spare-*.journal wait
                    for reuse
    logs/           000000000001.log, ... with 000000000001.index: entry logs
    durable-mark    how far the journal was synced: see `replog.backends.durable_mark`
    doubt           what was lost, and what this bookie can't vouch for
    metastore-seen  what the bookie last saw of its metastore: see `replog.backends.sightings`
    reserve         a little space, given up for the catalog when the disk is full
    making.json     the identity of a storage whose journal is elsewhere, while it is being made

A journal elsewhere (`journal_dir`) has the same files in that directory itself, and a cookie, journal.json (B4).
"""

from __future__ import annotations

import attrs

from replog.backends.directory import (
    FORMAT_FILE,
    LOCK_FILE,
    check_expected,
    read_identity,
    unreadable,
    write_identity,
)
from replog.backends.disk import Disk
from replog.backends.durable_mark import OWN_NAMES as MARK_NAMES
from replog.backends.files.catalog import NAME as CATALOG
from replog.backends.sightings import OWN_NAMES as SIGHTING_NAMES
from replog.errors import StorageIdentityError

VERSION = 1
FORMAT_NAME = "replog files storage"
JOURNAL_FORMAT_NAME = "replog files journal"
JOURNAL_COOKIE = "journal.json"
MAKING_FILE = "making.json"
RESERVE_FILE = "reserve"
JOURNAL = "journal"
LOGS = "logs"
INSIDE = "inside"
ELSEWHERE = "elsewhere"
_OWN_FILES = (FORMAT_FILE, MAKING_FILE, CATALOG)
OWN_NAMES = {*_OWN_FILES, *(f"{name}.tmp" for name in _OWN_FILES), RESERVE_FILE, LOCK_FILE, JOURNAL, LOGS}
OWN_NAMES |= {*MARK_NAMES, *SIGHTING_NAMES}


@attrs.frozen
class Format:
    """The contents of a directory's format file."""

    version: int
    bookie_id: str
    is_journal_elsewhere: bool = False


def read_format(disk: Disk, path: str, expected: str) -> Format | None:
    """The contents of the format file, or None if there is no such file. Raises `StorageIdentityError`."""
    content = read_identity(disk, path, FORMAT_FILE, FORMAT_NAME, VERSION)
    if content is None:
        return None
    place = content.get("journal")
    if place not in (INSIDE, ELSEWHERE):
        raise unreadable(f"{path}/{FORMAT_FILE}", f"version {VERSION} with journal {place!r}")
    check_expected(path, content["bookie_id"], expected)
    return Format(VERSION, content["bookie_id"], place == ELSEWHERE)


def read_journal_cookie(disk: Disk, journal: str) -> str | None:
    """Whose journal a directory has, or None if it has no cookie (B4). Raises `StorageIdentityError`."""
    content = read_identity(disk, journal, JOURNAL_COOKIE, JOURNAL_FORMAT_NAME, VERSION)
    return None if content is None else str(content["bookie_id"])


def check_journal_cookie(disk: Disk, journal: str, bookie_id: str) -> None:
    """Refuses a journal directory that is not this bookie's (B4). Raises `StorageIdentityError`."""
    owner = read_journal_cookie(disk, journal)
    if owner != bookie_id:
        raise StorageIdentityError(
            f"{journal} is the journal of {owner or 'nobody'}, expected {bookie_id}",
            "Nothing was touched: name the directory that has this bookie's journal. If that is lost, so are entries that "
            "were acknowledged: recover this bookie's copies from the others",
        )


def read_making(disk: Disk, path: str) -> str | None:
    """The identity of the storage that somebody began to make here, or None. Raises `StorageIdentityError`."""
    content = read_identity(disk, path, MAKING_FILE, FORMAT_NAME, VERSION)
    return None if content is None else str(content["bookie_id"])


def write_format(disk: Disk, path: str, bookie_id: str, *, is_journal_elsewhere: bool) -> None:
    """Declares the directory a storage. Done last. May raise OSError."""
    where = ELSEWHERE if is_journal_elsewhere else INSIDE
    write_identity(disk, path, FORMAT_FILE, format=FORMAT_NAME, version=VERSION, bookie_id=bookie_id, journal=where)


def write_journal_cookie(disk: Disk, journal: str, bookie_id: str) -> None:
    """Says whose journal the directory has. May raise OSError."""
    write_identity(disk, journal, JOURNAL_COOKIE, format=JOURNAL_FORMAT_NAME, version=VERSION, bookie_id=bookie_id)


def write_making(disk: Disk, path: str, bookie_id: str) -> None:
    """Says which storage is being made here, before anything is put elsewhere. May raise OSError."""
    write_identity(disk, path, MAKING_FILE, format=FORMAT_NAME, version=VERSION, bookie_id=bookie_id)


def journal_name(number: int) -> str:
    """The name of a journal file."""
    return f"{number:012}.journal"


def journal_number(name: str) -> int | None:
    """The number of a journal file, or None if the name is not one's."""
    stem = name.removesuffix(".journal")
    return int(stem) if stem != name and stem.isdecimal() and journal_name(int(stem)) == name else None


def number_of_index(name: str) -> int | None:
    """The number of the journal file that an index file's name belongs to, or None."""
    return journal_number(name.removesuffix(".index") + ".journal")


def entry_log_name(number: int) -> str:
    """The name of an entry log."""
    return f"{number:012}.log"


def entry_log_number(name: str) -> int | None:
    """The number of an entry log, or None if the name is not one's."""
    stem = name.removesuffix(".log")
    return int(stem) if stem != name and stem.isdecimal() and entry_log_name(int(stem)) == name else None
