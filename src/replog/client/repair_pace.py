"""How fast a repair copies: so many bytes a second, and only so many on their way to one bookie, so that appends come first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import trio
import trio.lowlevel

from replog.protocol.effects import SendCopy

_BURST_S = 1 / 64


class Pace:
    """Copies no more than so many bytes a second, over all that uses it."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    def groups(self, copies: Sequence[SendCopy]) -> Iterator[list[SendCopy]]:
        """These copies in groups that may be sent at once: a 64th of a second's, or a larger one alone."""
        group: list[SendCopy] = []
        group_bytes = 0
        for copy in copies:
            group_bytes += len(copy.batch.data)
            if group and group_bytes > self._bytes_per_s * _BURST_S:
                yield group
                group, group_bytes = [], len(copy.batch.data)
            group.append(copy)
        if group:
            yield group

    async def spend(self, size_bytes: int) -> None:
        """Returns when so many bytes may be copied."""
        now_s = trio.current_time()
        start_s = max(now_s, self._free_at_s)
        # Taken before the wait: fillings that copy at the same time queue up behind one another.
        self._free_at_s = start_s + size_bytes / self._bytes_per_s
        await trio.sleep(start_s - now_s)


class Room:
    """Room for copies on their way to one bookie. One that is larger than all of it goes alone.

    An append that arrives behind such copies waits until they are durable."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._waiting = trio.lowlevel.ParkingLot()

    async def take(self, size_bytes: int) -> None:
        """Returns when there is room for so many bytes: they must be given back."""
        while self._used_bytes and self._used_bytes + size_bytes > self._bytes_max:
            await self._waiting.park()
        self._used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """So many bytes have arrived, or were lost."""
        self._used_bytes -= size_bytes
        self._waiting.unpark_all()
