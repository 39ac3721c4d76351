"""How far a stream is behind a log, for the query's progress.

Closed segments that a query has not read yet are counted once, and kept: a progress costs only the entries appended
since the last one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import aclosing

import attrs

from replog.protocol.model import LogMetadata, Position
from replog.spark.extents import Extent, Survey

_NS_PER_S = 1_000_000_000


@attrs.frozen
class Lag:
    """The entries behind a position: their number, the bytes of their values, and how many seconds ago the first one
    was sent, by its writer's clock. 0 if there are none."""

    entries: int = 0
    size_bytes: int = 0
    seconds: float = 0.0

    def as_offset(self) -> dict[str, int | float]:
        """As the progress has it."""
        return {"entries": self.entries, "bytes": self.size_bytes, "seconds": round(self.seconds, 3)}

    @classmethod
    def of_all(cls, lags: Iterable[Lag]) -> Lag:
        """Of several logs: the sums, and the time of the one that is furthest behind."""
        found = list(lags)
        seconds = max((each.seconds for each in found), default=0.0)
        return cls(sum(each.entries for each in found), sum(each.size_bytes for each in found), seconds)


class Backlog:
    """Counts what one log has behind a position that only grows."""

    def __init__(self) -> None:
        self._closed: dict[int, tuple[Extent, int]] = {}  # whole segments, without a gap, and their bytes
        self._entries = 0
        self._size_bytes = 0

    async def behind(self, survey: Survey, head: LogMetadata, start: Position, now_ns: int) -> tuple[Lag, Position]:
        """The readable part behind this position, and the position to read on after it. Raises the errors of
        `Survey.extents`."""
        self._forget(start)
        before = await self._before_closed(survey, head, start)
        last = next(reversed(self._closed), None)
        begin = start if last is None else Position(last + 1, 0)
        after = await self._measured(survey, head, begin, None)
        end = after[-1][0].after if after else begin
        for extent, size_bytes in after:
            if extent.is_closed and extent.first == 0:
                self._keep(extent, size_bytes)
        # What was kept of these is counted with the rest that is kept.
        loose = [each for each in after if each[0].segment not in self._closed]
        entries = self._entries + sum(extent.count for extent, _ in [*before, *loose])
        if not entries:
            return Lag(), end
        size_bytes = self._size_bytes + sum(size_bytes for _, size_bytes in [*before, *loose])
        first = next(extent for extent, _ in itertools.chain(before, self._closed.values(), loose) if extent.count)
        async with survey.ruler(first) as ruler:
            sent_ns = await ruler.sent_ns(first.first)
        return Lag(entries, size_bytes, max(0, now_ns - sent_ns) / _NS_PER_S), end

    def _keep(self, extent: Extent, size_bytes: int) -> None:
        self._closed[extent.segment] = extent, size_bytes
        self._entries += extent.count
        self._size_bytes += size_bytes

    def _forget(self, start: Position) -> None:
        """All that was read: each segment before the position, and the one that it lies in."""
        for number in list(self._closed):
            if number > start.segment or (number == start.segment and start.entry == 0):
                break
            extent, size_bytes = self._closed.pop(number)
            self._entries -= extent.count
            self._size_bytes -= size_bytes

    async def _before_closed(self, survey: Survey, head: LogMetadata, start: Position) -> list[tuple[Extent, int]]:
        """The entries before the segments that are kept."""
        first = next(iter(self._closed), None)
        return [] if first is None or start >= Position(first, 0) else await self._measured(survey, head, start, first)

    async def _measured(
        self, survey: Survey, head: LogMetadata, start: Position, stop: int | None
    ) -> list[tuple[Extent, int]]:
        """The extents from this position on, before the segment `stop` if there is one, each with its bytes."""
        found = []
        async with aclosing(survey.extents(start, head)) as extents:
            async for extent in extents:
                if stop is not None and extent.segment >= stop:
                    break
                found.append(extent)
        sizes = {each.segment: size for each, size in await survey.measured([each for each in found if each.count])}
        return [(each, sizes[each.segment].size_bytes if each.count else 0) for each in found]
