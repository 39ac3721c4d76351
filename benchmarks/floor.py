"""The least that batched, replicated, durable appends take in Python: what replog's figures are compared with.

A writer cuts the entries that wait into frames and sends each to three bookies: forked processes, which check it, write it
into a file that need not grow, sync, and answer. Two frames are under way at a time; two answers confirm one. No metadata,
fencing, recovery, reading while writing, nor any care for what fails: an upper bound.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import struct
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from crc32c import crc32c

from benchmarks.figures import Figures, Meter, clock, percentiles
from benchmarks.raw import zero_filled

_BOOKIES, _ACK_QUORUM = 3, 2
_FILE_BYTES = 256 << 20
_PAGE_BYTES = 4096
_FRAME_BYTES_MAX = 1 << 20
_FRAMES_UNDER_WAY_MAX = 2
_FRAMES_BEHIND_MAX = 64  # that the slowest bookie may lack
_HEADER = struct.Struct("<QQII")  # size, first entry, count, CRC32C of what follows
_ANSWER = b"a"
_SCANNED_FRAMES, _SCANNED_ENTRIES = 500, 2000

bytes(16 << 20)  # once so much was freed, glibc reuses memory for frames, and does not fault it in anew for each


def _pack(first_entry: int, entries: list[bytes]) -> bytes:
    body = b"".join((array("I", map(len, entries)), *entries))
    return _HEADER.pack(_HEADER.size + len(body), first_entry, len(entries), crc32c(body)) + body


def _unpack(frame: bytes) -> list[bytes]:
    _, _, count, checksum = _HEADER.unpack_from(frame)
    start = _HEADER.size + 4 * count
    if crc32c(memoryview(frame)[_HEADER.size :]) != checksum:
        raise ValueError("a frame does not match its checksum")
    lengths = memoryview(frame)[_HEADER.size : start].cast("I")
    return [frame[begin:end] for begin, end in itertools.pairwise(itertools.accumulate(lengths, initial=start))]


# -- bookies --------------------------------------------------------------------------------------------------------


def _serve(connection: socket.socket, path: Path) -> None:
    """A bookie: one frame, one write, one sync, one answer, until the writer hangs up."""
    fd, offset = os.open(path, os.O_WRONLY), 0
    header = bytearray(_HEADER.size)
    while _fill(connection, memoryview(header)):
        size, _, _, checksum = _HEADER.unpack(header)
        body = bytearray(size - _HEADER.size)
        if not _fill(connection, memoryview(body)) or crc32c(body) != checksum:
            raise ValueError("a frame came damaged or not wholly")
        if offset + size > _FILE_BYTES:
            offset = 0
        os.pwritev(fd, (header, body), offset)
        os.fdatasync(fd)
        offset += size
        connection.sendall(_ANSWER)


def _fill(connection: socket.socket, buffer: memoryview) -> bool:
    while buffer:
        received = connection.recv_into(buffer)
        if not received:
            return False
        buffer = buffer[received:]
    return True


def _fork_bookie(path: Path) -> tuple[int, socket.socket]:
    """Its process id, and the connection to it."""
    ours, theirs = socket.socketpair()
    process_id = os.fork()
    if process_id:
        theirs.close()
        return process_id, ours
    status = 1
    try:
        ours.close()
        _serve(theirs, path)
        status = 0
    finally:
        os._exit(status)


# -- the writer -------------------------------------------------------------------------------------------------------


class _Writer:
    def __init__(self, connections: list[socket.socket]) -> None:
        self.appended = self.confirmed = 0
        self._connections = connections
        self._pending: list[bytes] = []
        self._frame_ends: list[int] = []  # of each frame sent: how many entries it and those before hold
        self._answers = [0] * len(connections)

    def append(self, entry: bytes) -> None:
        self._pending.append(entry)
        self.appended += 1

    def extend(self, entries: list[bytes]) -> None:
        self._pending += entries
        self.appended += len(entries)

    def send(self) -> None:
        while self._pending and self._may_send():
            count = max(1, _FRAME_BYTES_MAX // len(self._pending[0]))
            entries, self._pending = self._pending[:count], self._pending[count:]
            first_entry = self._frame_ends[-1] if self._frame_ends else 0
            frame = _pack(first_entry, entries)
            self._frame_ends.append(first_entry + len(entries))
            for connection in self._connections:
                connection.sendall(frame)

    def _may_send(self) -> bool:
        sent = len(self._frame_ends)
        confirmed = sorted(self._answers)[-_ACK_QUORUM]
        return sent - confirmed < _FRAMES_UNDER_WAY_MAX and sent - min(self._answers) < _FRAMES_BEHIND_MAX

    def take_answers(self) -> None:
        """Waits for answers, and sends what may be sent after them."""
        for ready in select.select(self._connections, (), ())[0]:
            answers = ready.recv(4096)
            if not answers:
                raise ConnectionError("a bookie has ended")
            self._answers[self._connections.index(ready)] += len(answers)
        frames = sorted(self._answers)[-_ACK_QUORUM]
        self.confirmed = self._frame_ends[frames - 1] if frames else 0
        self.send()

    def finish(self) -> None:
        self.send()
        while self._pending or min(self._answers) < len(self._frame_ends):
            self.take_answers()


def _load(writer: _Writer, seconds: float, entry_bytes: int, in_flight: int, entries_per_call: int) -> None:
    entries = [os.urandom(entry_bytes) for _ in range(1000)]
    supply, deadline = itertools.cycle(entries), clock() + seconds
    while not writer.appended or clock() < deadline:
        if entries_per_call > 1:
            writer.extend(entries[:entries_per_call])
        else:
            for entry in itertools.islice(supply, 256):
                writer.append(entry)
        writer.send()
        if writer.appended - writer.confirmed >= in_flight:
            while writer.appended - writer.confirmed > in_flight // 2:
                writer.take_answers()
    writer.finish()


def _one_by_one(writer: _Writer, seconds: float, entry_bytes: int) -> list[float]:
    entry, deadline = os.urandom(entry_bytes), clock() + seconds
    durations: list[float] = []
    while not durations or clock() < deadline:
        started = clock()
        writer.append(entry)
        writer.send()
        while writer.confirmed < writer.appended:
            writer.take_answers()
        durations.append(clock() - started)
    writer.finish()
    return durations


def _append(directory: Path, seconds: float, entry_bytes: int, in_flight: int, entries_per_call: int = 1) -> Figures:
    paths = [zero_filled(directory / f"floor-{number}", _FILE_BYTES) for number in range(_BOOKIES)]
    bookies = [_fork_bookie(path) for path in paths]
    try:
        writer, meter = _Writer([connection for _, connection in bookies]), Meter()
        if in_flight > 1:
            _load(writer, seconds, entry_bytes, in_flight, entries_per_call)
            figures = meter.figures(writer.appended)
        else:
            durations = _one_by_one(writer, seconds, entry_bytes)
            figures = meter.figures(writer.appended) | percentiles(durations)
    finally:
        for _, connection in bookies:
            connection.close()
        ended = [os.wait4(process_id, 0) for process_id, _ in bookies]
    if any(status for _, status, _ in ended):
        raise RuntimeError("a bookie of the floor failed")
    bookies_cpu_s = sum(usage.ru_utime + usage.ru_stime for _, _, usage in ended)
    figures["total_cpu_us"] += bookies_cpu_s / writer.appended * 1e6
    return figures


# -- scanning -------------------------------------------------------------------------------------------------------


def _scan(directory: Path, seconds: float, entry_bytes: int) -> Figures:
    path = zero_filled(directory / "floor-0", _FILE_BYTES)
    entries = [os.urandom(entry_bytes) for _ in range(_SCANNED_ENTRIES)]
    frames = [_pack(number * len(entries), entries) for number in range(_SCANNED_FRAMES)]
    with path.open("r+b", buffering=0) as file:
        written = sum(file.write(frame) for frame in frames)
        del frames
        scanned, meter, deadline = 0, Meter(), clock() + seconds
        while not scanned or clock() < deadline:
            scanned += sum(map(len, _frames(file.fileno(), written)))
    return meter.figures(scanned)


def _frames(fd: int, written: int) -> Iterator[list[bytes]]:
    offset = 0
    while offset < written:
        size = _HEADER.unpack(os.pread(fd, _HEADER.size, offset))[0]
        yield _unpack(os.pread(fd, size, offset))
        offset += size


def _append_here(directory: Path, seconds: float, entry_bytes: int) -> Figures:
    """No bookie at all: frames are written and synced in the caller's thread."""
    fd = os.open(zero_filled(directory / "floor-0", _FILE_BYTES), os.O_WRONLY)
    entry, offset, deadline = os.urandom(entry_bytes), 0, clock() + seconds
    durations: list[float] = []
    try:
        while not durations or clock() < deadline:
            started = clock()
            frame = _pack(len(durations), [entry])
            os.pwritev(fd, (frame, bytes(-len(frame) % _PAGE_BYTES)), offset)
            os.fdatasync(fd)
            durations.append(clock() - started)
            offset = (offset + len(frame) + _PAGE_BYTES) % (_FILE_BYTES // 2) & -_PAGE_BYTES
    finally:
        os.close(fd)
    return percentiles(durations)


CASES: dict[str, Callable[[Path, float], Figures]] = {
    "local-append-1": partial(_append_here, entry_bytes=1024),
    "append-1": partial(_append, entry_bytes=1024, in_flight=1),
    "append-1000-1k": partial(_append, entry_bytes=1024, in_flight=1000),
    "append-1000-100": partial(_append, entry_bytes=100, in_flight=1000),
    "extend-10000-100": partial(_append, entry_bytes=100, in_flight=10_000, entries_per_call=1000),
    "append-200-64k": partial(_append, entry_bytes=65536, in_flight=200),
    "scan-100": partial(_scan, entry_bytes=100),
}
