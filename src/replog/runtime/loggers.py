"""Loggers whose handlers never run in a thread of replog's own.

A handler is the program's code, and holds a lock while it works. One that appends to replog waits for replog's thread;
and if that thread logged something itself, it would wait for the handler's lock. So messages of replog's own threads go
to another thread, which does nothing else. There a handler may call replog, and what it raises harms nothing of
replog's.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from replog.runtime.own_threads import is_own_thread

_JOIN_S = 1.0  # the last handlers may wait for the thread that closes replog
_RECORDS_MAX = 10_000  # that wait for a handler that hangs, or is slower than replog has news; later ones are left out

Record = tuple[logging.Logger, logging.LogRecord]


class _Handover:
    """A thread that calls handlers, while something of replog's runs in threads of its own."""

    def __init__(self) -> None:
        self._records: SimpleQueue[Record | None] = SimpleQueue()
        # A handler that hangs must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name="replog logging", daemon=True)
        self._thread.start()

    def put(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        if self._records.qsize() < _RECORDS_MAX:
            self._records.put((logger, record))

    def end(self) -> None:
        self._records.put(None)
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        for logger, record in iter(self._records.get, None):
            try:
                logger.callHandlers(record)
            except Exception:
                # As handlers do with what they can't handle.
                if logging.raiseExceptions and sys.stderr is not None:
                    traceback.print_exc()


_handovers: list[_Handover] = []  # one for each run in a thread of its own; the last one takes all


@contextmanager
def handing_over() -> Iterator[None]:
    """While the context lasts, messages of replog's own threads go to another thread."""
    handover = _Handover()
    _handovers.append(handover)
    try:
        yield
    finally:
        _handovers.remove(handover)
        handover.end()


class _OutOfOwnThreads(logging.Filter):
    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def filter(self, record: logging.LogRecord) -> bool:
        handovers = _handovers[-1:] if is_own_thread() else []
        for handover in handovers:
            handover.put(self._logger, record)
        return not handovers


def logger(name: str) -> logging.Logger:
    """The logger of this name, which is one of replog's."""
    found = logging.getLogger(name)
    if not any(isinstance(each, _OutOfOwnThreads) for each in found.filters):
        found.addFilter(_OutOfOwnThreads(found))
    return found
