"""Reading batches back from journal files, each checked against damage."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from replog.backends.files.disk import Disk, read_all
from replog.backends.files.index import Location
from replog.backends.files.pool import JournalFile
from replog.backends.files.record import RECORD_HEADER_BYTES, payload_checksum
from replog.errors import RemoteProtocolError, StorageUncertainError
from replog.protocol.batch import Batch, decode

_COALESCE_BYTES_MAX = 32 << 10  # larger batches are read one by one: a call costs less than copying them
_ELSEWHERE = "Read it from another bookie, and re-replicate this one"


def fetch_one(disk: Disk, file: JournalFile, location: Location, *, wait: bool) -> Batch:
    """The batch at this place. Raises `StorageUncertainError`; without waiting, `trio.WouldBlock`."""
    _, offset, size, checksum = location
    try:
        data = (disk.pread if wait else disk.pread_cached)(file.fd, size, offset)
        if len(data) == size and payload_checksum(data) == checksum:
            return decode(data)
    except (OSError, RemoteProtocolError):
        pass  # below it is done again, with care
    return _checked(file, location, _read_bytes(disk, file, size, offset, wait), wait)


def fetch(disk: Disk, files: dict[int, JournalFile], locations: Sequence[Location], *, wait: bool) -> list[Batch]:
    """The batches at these places, up to the first one that is damaged or, without waiting, isn't in memory.

    If that is the very first: `StorageUncertainError`, or `trio.WouldBlock`."""
    batches: list[Batch] = []
    while len(batches) < len(locations):
        at = len(batches)
        stop = _adjacent_end(locations, at)
        try:
            batches += _fetch_run(disk, files[locations[at].number], locations[at:stop], wait)
        except (trio.WouldBlock, StorageUncertainError):
            if not batches:
                raise
            break
        if len(batches) < stop:
            break
    return batches


def _adjacent_end(locations: Sequence[Location], at: int) -> int:
    """How far the batches from here on stand one after the other, so that one read gets them all."""
    stop = at + 1
    while stop < len(locations):
        before, after = locations[stop - 1], locations[stop]
        if before.size > _COALESCE_BYTES_MAX or after.size > _COALESCE_BYTES_MAX or after.number != before.number:
            break
        if after.offset != before.offset + before.size + RECORD_HEADER_BYTES:
            break
        stop += 1
    return stop


def _fetch_run(disk: Disk, file: JournalFile, run: Sequence[Location], wait: bool) -> list[Batch]:
    """At least one batch, or an error."""
    start = run[0].offset
    size = run[-1].offset + run[-1].size - start
    data = _read_bytes(disk, file, size, start, wait)
    batches: list[Batch] = []
    for location in run:
        at = location.offset - start
        try:
            batches.append(_checked(file, location, data[at : at + location.size] if len(run) > 1 else data, wait))
        except (trio.WouldBlock, StorageUncertainError):
            if not batches:
                raise
            break
    return batches


def _checked(file: JournalFile, location: Location, data: bytes, wait: bool) -> Batch:
    if len(data) == location.size and payload_checksum(data) == location.checksum:
        try:
            return decode(data)
        except RemoteProtocolError as error:
            raise _uncertain(file, location) from error
    if len(data) < location.size and not wait:
        raise trio.WouldBlock
    raise _uncertain(file, location)


def _read_bytes(disk: Disk, file: JournalFile, size: int, start: int, wait: bool) -> bytes:
    try:
        return read_all(disk, file.fd, size, start) if wait else disk.pread_cached(file.fd, size, start)
    except OSError as error:
        if not wait:  # not in memory, or a file system that cannot tell: `read` will say what is wrong, if anything is
            raise trio.WouldBlock from error
        raise StorageUncertainError(f"could not read {file.path} at {start}: {error}", _ELSEWHERE) from error


def _uncertain(file: JournalFile, location: Location) -> StorageUncertainError:
    return StorageUncertainError(
        f"{file.path} is damaged at {location.offset}: a batch of {location.size} bytes doesn't match its checksum",
        _ELSEWHERE,
    )
