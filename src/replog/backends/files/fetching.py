"""Reading batches back from log files, each checked against damage."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from replog.backends.disk import Disk, read_all
from replog.backends.files.log_file import Location
from replog.backends.files.record import RECORD_HEADER_BYTES, payload_checksum
from replog.errors import RemoteProtocolError, StorageUncertainError
from replog.protocol.batch import Batch, decode

_COALESCE_BYTES_MAX = 32 << 10  # larger batches are read one by one: a call costs less than copying them
_ELSEWHERE = "Read it from another bookie, and re-replicate this one"


class DamagedBatch(StorageUncertainError):
    """The bytes at a place are not those that were written there, or can't be read."""

    def __init__(self, location: Location, reason: str) -> None:
        super().__init__(f"{location.file.path} is damaged at {location.offset}: {reason}", _ELSEWHERE)
        self.location = location


def fetch_one(disk: Disk, location: Location, *, wait: bool) -> Batch:
    """The batch at this place. Raises `DamagedBatch`; without waiting, `trio.WouldBlock`."""
    file, offset, size, checksum = location
    try:
        data = (disk.pread if wait else disk.pread_cached)(file.fd, size, offset)
        if len(data) == size and payload_checksum(data) == checksum:
            return decode(data)
    except (OSError, RemoteProtocolError):
        # The lines below read it again, more carefully, and say what is wrong.
        pass
    return _checked(location, _read_bytes(disk, location, size, wait), wait)


def fetch(disk: Disk, locations: Sequence[Location], *, wait: bool) -> list[Batch]:
    """The batches at these places, up to the first one that is damaged or, without waiting, isn't in memory.

    If that is the very first: `DamagedBatch`, or `trio.WouldBlock`."""
    batches: list[Batch] = []
    while len(batches) < len(locations):
        at = len(batches)
        stop = _adjacent_end(locations, at)
        try:
            batches += _fetch_run(disk, locations[at:stop], wait)
        except (trio.WouldBlock, DamagedBatch):
            if not batches:
                raise
            break
        if len(batches) < stop:
            break
    return batches


def _adjacent_end(locations: Sequence[Location], at: int) -> int:
    """The end of the batches from `at` on that follow one another in the file, so that one read gets them all."""
    stop = at + 1
    while stop < len(locations):
        before, after = locations[stop - 1], locations[stop]
        if before.size > _COALESCE_BYTES_MAX or after.size > _COALESCE_BYTES_MAX or after.file is not before.file:
            break
        if not 0 <= after.offset - (before.offset + before.size) <= RECORD_HEADER_BYTES:
            break
        stop += 1
    return stop


def _fetch_run(disk: Disk, run: Sequence[Location], wait: bool) -> list[Batch]:
    """At least one batch, or an error."""
    start = run[0].offset
    size = run[-1].offset + run[-1].size - start
    data = _read_bytes(disk, run[0], size, wait)
    batches: list[Batch] = []
    for location in run:
        at = location.offset - start
        try:
            batches.append(_checked(location, data[at : at + location.size] if len(run) > 1 else data, wait))
        except (trio.WouldBlock, DamagedBatch):
            if not batches:
                raise
            break
    return batches


def _checked(location: Location, data: bytes, wait: bool) -> Batch:
    if len(data) == location.size and payload_checksum(data) == location.checksum:
        try:
            return decode(data)
        except RemoteProtocolError as error:
            raise _mismatch(location) from error
    if len(data) < location.size and not wait:
        raise trio.WouldBlock
    raise _mismatch(location)


def read_checked(disk: Disk, location: Location) -> bytes:
    """The bytes of the batch at this place, as they are. Raises `DamagedBatch`."""
    data = _read_bytes(disk, location, location.size, True)
    if len(data) != location.size or payload_checksum(data) != location.checksum:
        raise _mismatch(location)
    return data


def _read_bytes(disk: Disk, location: Location, size: int, wait: bool) -> bytes:
    """So many bytes from where the batch begins."""
    file, start = location.file, location.offset
    try:
        return read_all(disk, file.fd, size, start) if wait else disk.pread_cached(file.fd, size, start)
    except OSError as error:
        if not wait:
            # It is not in memory, or the file system cannot say. A later `read` says what is wrong, if anything is.
            raise trio.WouldBlock from error
        raise DamagedBatch(location, f"it cannot be read: {error}") from error


def _mismatch(location: Location) -> DamagedBatch:
    return DamagedBatch(location, f"a batch of {location.size} bytes doesn't match its checksum")
