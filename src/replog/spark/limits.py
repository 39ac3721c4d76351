"""How far a micro-batch goes: what logs have that was not read, and how a limit is shared among them.

Rules:
- Each log gets the same share of a limit, and what one does not need goes to the others.
- A limit of bytes lets at least one entry through, of the log whose turn it is: none waits without end behind small ones.
- No log is looked through further than a limit can reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import attrs

from replog.protocol.model import LogMetadata, Position
from replog.spark.extents import Extent, Survey
from replog.spark.offsets import Place


def shares(limit: int, wanted: Sequence[int]) -> list[int]:
    """The shares of a limit: each gets as much as it wants, or as much as any other that wants more. The first ones get
    one more if it does not come out even."""
    got = [0] * len(wanted)
    hungry = [place for place, each in enumerate(wanted) if each > 0]
    while limit and hungry:
        # Each round leaves out those that have enough, so that the others share what these did not need.
        share = max(1, limit // len(hungry))
        for place in hungry:
            more = min(share, wanted[place] - got[place], limit)
            got[place] += more
            limit -= more
        hungry = [place for place in hungry if got[place] < wanted[place]]
    return got


@attrs.define
class Unread:
    """The entries of one log from `start` on, as far as they were looked through. With a `goal` there are none behind it."""

    survey: Survey
    head: LogMetadata
    place: Place  # of the offset
    start: Position  # where the log can be read now: behind `place` if something was trimmed away
    goal: Position | None = None
    extents: list[tuple[Extent, int]] = attrs.field(factory=list)  # each with its bytes, or 0 if these do not matter

    @property
    def rows(self) -> int:
        """How many entries were found."""
        return sum(extent.count for extent, _ in self.extents)

    @property
    def size_bytes(self) -> int:
        """How many bytes they have."""
        return sum(size_bytes for _, size_bytes in self.extents)

    async def look(self, rows: int, size_bytes: int | None = None) -> None:
        """Finds so many entries, and so many bytes of them, or all that may be read now. Raises the errors of
        `Survey.extents`."""
        async with aclosing(self.survey.extents(self.start, self.head)) as extents:
            async for extent in extents:
                if self.goal is not None:
                    if extent.segment > self.goal.segment:
                        break
                    extent = extent.before(self.goal)
                is_measured = size_bytes is not None and extent.count > 0
                extent_bytes = (await self.survey.measure(extent)).size_bytes if is_measured else 0
                self.extents.append((extent, extent_bytes))
                rows -= extent.count
                size_bytes = None if size_bytes is None else size_bytes - extent_bytes
                if rows <= 0 and (size_bytes is None or size_bytes <= 0):
                    break

    def after_rows(self, rows: int) -> Position:
        """Where to read on after so many entries, or after all that were found."""
        end = self.start
        for extent, _ in self.extents:
            if extent.count > rows:
                return Position(extent.segment, extent.first + rows)
            rows -= extent.count
            end = extent.after
        return end

    async def after_bytes(self, wanted_bytes: int) -> Position:
        """Where to read on after so many bytes of values, or after all that were found."""
        end = self.start
        for extent, size_bytes in self.extents:
            if size_bytes > wanted_bytes:
                return Position(extent.segment, await _fitting(self.survey, extent, wanted_bytes))
            wanted_bytes -= size_bytes
            end = extent.after
        return end

    async def after_first(self) -> tuple[Position, int]:
        """Where to read on after one entry, and how many bytes that has."""
        first = next(extent for extent, _ in self.extents if extent.count)
        one = attrs.evolve(first, last=first.first, is_closed=first.is_closed and first.count == 1)
        return one.after, (await self.survey.measure(one)).size_bytes


async def ends_within_bytes(logs: Sequence[Unread], limit_bytes: int) -> list[Position]:
    """Where to read on in each log after so many bytes in all, and at least one entry of the first log that has one."""
    ends = []
    given = shares(limit_bytes, [each.size_bytes for each in logs])
    has_entry = False
    for place, log in enumerate(logs):
        end = await log.after_bytes(given[place])
        if not has_entry and log.rows and end <= log.start:
            end, size_bytes = await log.after_first()
            rest = [each.size_bytes for each in logs[place + 1 :]]
            given[place + 1 :] = shares(max(0, limit_bytes - size_bytes), rest)
        has_entry = has_entry or log.rows > 0
        ends.append(end)
    return ends


async def _fitting(survey: Survey, extent: Extent, wanted_bytes: int) -> int:
    """The first entry that exceeds the bytes. Found by halving: about twenty small reads for a million entries."""
    # All before `low` fit, a range through `high` does not.
    low, high = extent.first, extent.last
    async with survey.ruler(extent) as ruler:
        while low < high:
            middle = (low + high) // 2
            if (await ruler.through(middle)).size_bytes <= wanted_bytes:
                low = middle + 1
            else:
                high = middle
    return low
