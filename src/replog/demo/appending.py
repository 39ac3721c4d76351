"""How a leader appends: it keeps entries in flight, and tells what is confirmed once it is confirmed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice

import attrs
import trio

from replog.demo.reports import Confirmed
from replog.log.log_writer import LogWriter
from replog.protocol.model import Position

_PUSHED_AT_ONCE = 256


@attrs.frozen
class Quota:
    """How much is appended: so many entries, or so many seconds long, whichever is reached first. None: no bound."""

    entries: int | None = None
    seconds: float | None = None

    def fraction(self, entries: int, elapsed_s: float) -> float | None:
        """How much of it is used up, 1.0 or more if all of it; None if there is no end to it."""
        used = [] if self.entries is None else [entries / self.entries]
        used += [] if self.seconds is None else [elapsed_s / self.seconds]
        return max(used, default=None)


class Appender:
    """Appends lines to a log that has `entries` entries, and tells each advance of what is confirmed.

    Which entry stands where is noted when it is pushed, and told only after `last_add_confirmed` has come there.
    """

    def __init__(
        self, log: LogWriter, lines: Iterator[bytes], entries: int, tell: Callable[[Confirmed], Awaitable[None]]
    ) -> None:
        self.pushed = entries
        self.confirmed = entries
        self._first = entries
        self._log = log
        self._lines = lines
        self._tell = tell
        self._pushed: deque[tuple[Position, int]] = deque()

    async def run(self, quota: Quota) -> None:
        """Appends until the quota is reached, and has all of it confirmed. Raises what the log's writer raises.

        If cancelled, some entries are in flight."""
        started = time.monotonic()
        position = await self._log.append(next(self._lines))
        self.pushed += 1
        await self._confirmed(self.pushed, position)
        while (quota.fraction(self.pushed - self._first, time.monotonic() - started) or 0.0) < 1:
            left = None if quota.entries is None else quota.entries - (self.pushed - self._first)
            await self._push(_PUSHED_AT_ONCE if left is None else min(_PUSHED_AT_ONCE, left))
            await self._tell_what_is_confirmed()
            await trio.lowlevel.checkpoint()  # only here answers come in, so what is told always has some in flight
        await self._log.flush()
        await self._tell_what_is_confirmed()

    async def tell_what_remains(self, in_doubt: int) -> None:
        """The log's writer failed, and so many of its entries have an unknown fate: all others are confirmed."""
        last = self._log.last_add_confirmed
        if last is not None:
            await self._confirmed(self.pushed - in_doubt, last)

    async def _push(self, count: int) -> None:
        log = self._log
        for line in islice(self._lines, count):
            try:
                log.push_nowait(line)
            except trio.WouldBlock:
                await log.push(line)
            self.pushed += 1
        assert log.last_add_pushed is not None
        self._pushed.append((log.last_add_pushed, self.pushed))

    async def _tell_what_is_confirmed(self) -> None:
        last = self._log.last_add_confirmed
        found: tuple[Position, int] | None = None
        while last is not None and self._pushed and self._pushed[0][0] <= last:
            found = self._pushed.popleft()
        if found is not None:
            await self._confirmed(found[1], found[0])

    async def _confirmed(self, entries: int, position: Position) -> None:
        self.confirmed = entries
        await self._tell(Confirmed(entries, position, self.pushed, time.monotonic()))
