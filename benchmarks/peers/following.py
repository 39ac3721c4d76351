"""How long an entry takes from the call of append into a reader's hand, where both are sockets of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable

from benchmarks.figures import Figures, clock, percentiles
from benchmarks.peers.system import NotMeasured

_LAST_S = 30.0  # for the reader to get the last entry, when all are confirmed


def follow(entries: int, append: Callable[[], object], receive: Callable[[], int]) -> Figures:
    """The figures of `Running.tail`. `append` returns when an entry is confirmed; `receive`, called in a thread of its own,
    waits for what comes next and says how many entries it was. It must raise when nothing comes: its socket has a time-out."""
    reader = _Reader(entries, receive)
    thread = threading.Thread(target=reader.run, name="reader")
    thread.start()
    called = []
    try:
        for _ in range(entries):
            called.append(clock())
            append()
    finally:
        thread.join(_LAST_S)
    if reader.error is not None:
        raise NotMeasured(f"the reader failed: {reader.error}") from reader.error
    if len(reader.seen) < entries:
        raise NotMeasured(f"the reader got {len(reader.seen)} of {entries} entries")
    return percentiles([seen - since for seen, since in zip(reader.seen, called, strict=True)])


class _Reader:
    def __init__(self, entries: int, receive: Callable[[], int]) -> None:
        self.seen: list[float] = []
        self.error: Exception | None = None
        self._entries = entries
        self._receive = receive

    def run(self) -> None:
        try:
            while len(self.seen) < self._entries:
                count = self._receive()
                self.seen.extend([clock()] * count)
        except (NotMeasured, OSError) as error:
            self.error = error
