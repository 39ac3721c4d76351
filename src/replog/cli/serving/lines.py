"""Lines to a file descriptor, written by a thread of its own, so that logging never waits for a reader.

A terminal that was stopped, or an unread pipe, must not stop a bookie. Waiting lines are bounded in bytes; further
lines are lost, and the next line that finds room says how many.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque

_WAITING_BYTES_MAX = 1 << 20
_CLOSE_TIMEOUT_S = 2.0


class LineHandler(logging.Handler):
    """Writes each record as a line, in order. `close` waits a little for lines that are not written yet."""

    def __init__(self, descriptor: int, waiting_bytes_max: int = _WAITING_BYTES_MAX) -> None:
        super().__init__()
        self.lost = 0
        self._descriptor = descriptor
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record. Never waits for a reader."""
        try:
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
        except (TypeError, ValueError):
            # The arguments do not fit the text: logging says where.
            self.handleError(record)
            return
        # Held for a moment only: the writing thread never writes while it holds it.
        with self._changed:
            if self._waiting_bytes + len(line) > self._waiting_bytes_max:
                self.lost += 1
                return
            # Counted until a line finds room again, so that the gap is noted exactly where it is.
            lost, self.lost = self.lost, 0
            if lost:
                told = logging.LogRecord(
                    __name__, logging.WARNING, __file__, 0, "%d lines before this one were lost", (lost,), None
                )
                self._put(self.format(told).encode() + b"\n")
            self._put(line)
            if self._thread is None:
                self._is_closing = False
                # Started with the first line, so that a process that was forked before has none to lose. A daemon: a
                # stopped terminal must not keep the process from ending.
                self._thread = threading.Thread(target=self._run, name="replog log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _put(self, line: bytes) -> None:
        self._waiting.append(line)
        self._waiting_bytes += len(line)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closing)
                if not self._waiting:
                    return
                # It stays in the queue until it is written: its bytes count, and `close` waits for it.
                line = self._waiting[0]
            # Without the lock, since this may wait for a reader as long as it likes.
            self._write(line)
            with self._changed:
                self._waiting.popleft()
                self._waiting_bytes -= len(line)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except OSError:  # the output is not read, so a warning would not be either
                return

    def close(self) -> None:
        """End the thread once all lines are written, or after two seconds."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._is_closing = True
            self._changed.notify_all()
        if thread is not None:
            thread.join(_CLOSE_TIMEOUT_S)
        super().close()
