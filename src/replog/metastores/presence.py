"""Which processes of this machine are alive: a file of seats, each locked by the process that sits on it.

Rules: a process is *gone* when the kernel has released its lock, so death is seen at once and after a reboot every
process is gone; it is *silent* when it is not gone but has not beaten its heart for its lease (it hangs, or is
stopped). Nothing is synced: presence is advice, never safety (M3). The locks are POSIX record locks. They belong to a
process, not to a descriptor: they don't pass to a fork, and **closing any descriptor of the file gives all of them
up**. So this file is opened once per process, and a process never tries a lock on a seat of its own.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time

import attrs

_SEATS_MAX = 1 << 16
_SEAT = struct.Struct("<QQQ8x")  # incarnation, lease in ns, last heartbeat in ns of the machine's monotonic clock


@attrs.frozen
class Seat:
    """A number, which is reused, and an incarnation, which is not."""

    number: int
    incarnation: int


class Presence:
    """The file of seats of one directory. All methods are quick, thread-safe, and may raise OSError."""

    def __init__(self, path: str, lease_s: float) -> None:
        self._lease_ns = int(lease_s * 1e9)
        self._lock = threading.Lock()
        self._mine: Seat | None = None
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @property
    def beat_interval_s(self) -> float | None:
        """How often `beat` must be called; None while this process has no seat."""
        return None if self._mine is None else self._lease_ns / 4e9

    def sit_down(self) -> Seat:
        """This process's seat; takes one if it has none."""
        with self._lock:
            if self._mine is None:
                number = self._lock_a_free_seat()
                # The incarnation is random: a seat's next owner must not inherit what the last one announced.
                self._mine = Seat(number, int.from_bytes(os.urandom(7), "little"))
                self._write(self._mine)
            return self._mine

    def beat(self) -> None:
        """Writes that this process is alive, and takes its lock again if it was lost.

        Closing any descriptor of this file in this process, as a backup does, releases the lock: until the next beat, other
        processes see this one as gone. If another process has taken the seat meanwhile, this process has no seat any more,
        and its announcements are gone."""
        with self._lock:
            if self._mine is None:
                return
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._mine.number)
            except (BlockingIOError, PermissionError):
                self._mine = None
                return
            self._write(self._mine)

    def is_there(self, seat: Seat) -> bool:
        """Whether the process on this seat is neither gone nor silent."""
        with self._lock:
            if seat == self._mine:
                return True
            return self._is_held(seat) and not self._is_silent(seat)

    def is_gone(self, seat: Seat) -> bool:
        """Whether the process is dead, or has left its seat."""
        with self._lock:
            return seat != self._mine and not self._is_held(seat)

    def close(self) -> None:
        """Leaves the seat. Idempotent."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file, self._mine = -1, None

    def _lock_a_free_seat(self) -> int:
        for number in range(_SEATS_MAX):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            except (BlockingIOError, PermissionError):
                # POSIX allows either for "somebody else has it".
                continue
            return number
        raise OSError(f"all {_SEATS_MAX} seats are taken")

    def _write(self, seat: Seat) -> None:
        beat = _SEAT.pack(seat.incarnation, self._lease_ns, time.monotonic_ns())
        os.pwrite(self._file, beat, seat.number * _SEAT.size)

    def _read(self, seat: Seat) -> tuple[int, int, int]:
        found = os.pread(self._file, _SEAT.size, seat.number * _SEAT.size)
        # Behind the end of the file there was never a seat: no incarnation is 0.
        return _SEAT.unpack(found) if len(found) == _SEAT.size else (0, 0, 0)

    def _is_held(self, seat: Seat) -> bool:
        if self._mine is not None and self._mine.number == seat.number:
            return False  # it was another incarnation's, before this process sat down there
        # Asked before the lock: the seat's later owner holds it, too, and is another process.
        if self._read(seat)[0] != seat.incarnation:
            return False
        try:
            # The only way to find the holder of a record lock is to try it. Shared, so that two processes that ask
            # don't see each other.
            fcntl.lockf(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, seat.number)
        except (BlockingIOError, PermissionError):
            return True
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, seat.number)
        return False

    def _is_silent(self, seat: Seat) -> bool:
        _, lease_ns, beaten_at = self._read(seat)
        return time.monotonic_ns() - beaten_at > lease_ns
