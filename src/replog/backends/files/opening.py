"""Opening a storage: who the directory belongs to, which files there are, and making durable what was read."""

from __future__ import annotations

import threading

import attrs

from replog.backends.files.directory import (
    JOURNAL,
    clear_half_made,
    identity_of,
    journal_number,
    new_bookie_id,
    read_bookie_id,
    write_format,
)
from replog.backends.files.disk import Disk, named_errors, read_all, write_all
from replog.backends.files.options import FilesOptions
from replog.backends.files.pool import SPARE_PREFIX, FilePool, JournalFile
from replog.backends.files.record import FORMAT, PAGE_BYTES, unpack_file_header
from replog.backends.files.replay import Replay
from replog.errors import StorageDamagedError, StorageIdentityError

_RECOVER = "Recover this bookie's copies from the others, into a new directory"
_PIECE_BYTES = 4 << 20


@attrs.define
class Opened:
    """What stands in a directory: the replayed journal, and the names of the files to use again."""

    bookie_id: str
    identity: bytes
    journal_directory: str
    replay: Replay
    live: dict[int, JournalFile]
    spares: list[str]


def open_directory(disk: Disk, path: str, options: FilesOptions) -> Opened:
    """Reads the storage in a directory that is locked, or makes one. On an error nothing stays open."""
    bookie_id = _identify(disk, path, options)
    journal = f"{path}/{JOURNAL}"
    identity = identity_of(bookie_id)
    files, spares = _find_files(disk, journal, bookie_id, options)
    if not files:
        raise StorageDamagedError(f"{journal} has no journal file", _RECOVER)
    try:
        replay = Replay(disk, files, options.open_files_max)
        replay.run()
        with named_errors(f"settle {journal}"):
            for file in (replay.tail, *replay.unused[:1]):
                if file.fd < 0:
                    file.fd = disk.open(file.path)
            _settle(disk, replay)
            disk.sync_directory(journal)
            disk.sync_directory(path)
    except BaseException:
        close_files(disk, files)
        raise
    gone = {file.number for file in (*replay.dead, *replay.unused)}
    live = {file.number: file for file in files if file.number not in gone}
    return Opened(bookie_id, identity, journal, replay, live, spares)


def close_files(disk: Disk, files: list[JournalFile]) -> None:
    """Closes those that are open."""
    for file in files:
        if file.fd >= 0:
            disk.close(file.fd)
            file.fd = -1


def _identify(disk: Disk, path: str, options: FilesOptions) -> str:
    """The directory's identity. Makes the storage if there is none: its journal first, the format file last."""
    bookie_id = read_bookie_id(disk, path, options.expected_bookie_id)
    if bookie_id is not None:
        return bookie_id
    with named_errors(f"make a storage in {path}"):
        clear_half_made(disk, path)
        bookie_id = new_bookie_id(disk, options.expected_bookie_id, path)
        journal = f"{path}/{JOURNAL}"
        disk.make_directory(journal)
        disk.sync_directory(path)
        pool = FilePool(disk, journal, identity_of(bookie_id), options, threading.Condition())
        disk.close(pool.make(1).fd)
        write_format(disk, path, bookie_id)
    return bookie_id


def _find_files(
    disk: Disk, directory: str, bookie_id: str, options: FilesOptions
) -> tuple[list[JournalFile], list[str]]:
    """The journal files, ascending, and the names of the spare ones. Removes what a crash left half made."""
    files: list[JournalFile] = []
    spares: list[str] = []
    with named_errors(f"read {directory}"):
        try:
            names = disk.names(directory)
        except FileNotFoundError:
            return [], []
        for name in names:
            path = f"{directory}/{name}"
            number = journal_number(name)
            if number is not None:
                files.append(_read_file_header(disk, number, path, bookie_id))
            elif name.startswith(SPARE_PREFIX) and len(spares) < options.spare_files and _fits(disk, path, options):
                spares.append(name)
            elif name.startswith(SPARE_PREFIX) or name.endswith(".tmp"):
                disk.unlink(path)
    files.sort(key=lambda file: file.number)
    return files, spares


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
        raise StorageDamagedError(f"{path} is damaged at 0: its header is unreadable", _RECOVER)
    if header.format != FORMAT or header.identity != identity_of(bookie_id):
        raise StorageIdentityError(
            f"{path} is a journal of format {header.format} of bookie-{header.identity.hex()}, "
            f"expected format {FORMAT} of {bookie_id}",
            "Nothing was touched: put the right file there",
        )
    if header.number != number:
        raise StorageDamagedError(f"{path} is damaged at 0: it is journal file {header.number}, misnamed", _RECOVER)
    return JournalFile(number, path, -1, header.identity, header.epoch, size & -PAGE_BYTES)


def _settle(disk: Disk, replay: Replay) -> None:
    """Makes durable what was read. A process that was killed, or whose sync failed, may have left the last group in
    the page cache only, where it looks as if it were on the disk: so it is written again, and synced."""
    tail = replay.tail
    start = replay.last_group_start if tail.last_sequence else tail.position
    while start < tail.position:
        piece = read_all(disk, tail.fd, min(_PIECE_BYTES, tail.position - start), start)
        if not piece:
            raise StorageDamagedError(f"{tail.path} is damaged at {start}: it ended while it was read", _RECOVER)
        write_all(disk, tail.fd, (piece,), start)
        start += len(piece)
    disk.fdatasync(tail.fd)
