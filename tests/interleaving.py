"""Two operations on one metastore, the second of which runs whole amid the first: before each of its calls in turn.

So a race of two is looked for at each place where it may be, and not only where somebody thought of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from replog.abc import Metastore
from tests.kit import Cluster

CALLS_MAX = 200  # of one operation


class Between(Metastore):
    """Passes calls on to `inner`. Once `meanwhile` is set, it is awaited before the call of this number."""

    def __init__(self, inner: Metastore, number: int) -> None:
        self.lease_s = inner.lease_s
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.has_run = False
        self._inner = inner
        self._left = number

    async def _turn(self) -> None:
        if self.meanwhile is None:
            return
        if not self._left:
            meanwhile, self.meanwhile = self.meanwhile, None
            self.has_run = True
            await meanwhile()
        self._left -= 1

    async def create(self, key: str, value: bytes) -> int:
        await self._turn()
        return await self._inner.create(key, value)

    async def get(self, key: str) -> Any:
        await self._turn()
        return await self._inner.get(key)

    async def put(self, key: str, value: bytes, expected: int) -> int:
        await self._turn()
        return await self._inner.put(key, value, expected)

    async def delete(self, key: str, expected: int | None = None) -> None:
        await self._turn()
        await self._inner.delete(key, expected)

    async def children(self, key: str) -> list[str]:
        await self._turn()
        return await self._inner.children(key)

    async def values(self, key: str) -> Any:
        await self._turn()
        return await self._inner.values(key)

    async def announced(self, key: str) -> dict[str, bytes]:
        await self._turn()
        return await self._inner.announced(key)

    async def wait_changed(self, key: str, version: int | None) -> None:
        await self._inner.wait_changed(key, version)

    async def wait_children_changed(self, key: str, known: Any) -> None:
        await self._inner.wait_children_changed(key, known)

    def announce(self, key: str, value: bytes) -> Any:
        return self._inner.announce(key, value)

    def elect(self, key: str, candidate: bytes) -> Any:
        return self._inner.elect(key, candidate)

    async def aclose(self) -> None:
        pass


async def each_place(race: Callable[[Callable[[Cluster], Between]], Awaitable[Between]]) -> None:
    """Runs the race once for each call of its first operation. The race makes a `Between` by what it is given, runs its first
    operation with that, judges what came of both, and returns it."""
    for number in range(CALLS_MAX):
        found = await race(lambda world, number=number: Between(world.metastore, number))  # type: ignore[misc]
        if not found.has_run:
            assert number, "the first operation has no call"
            return
    raise AssertionError(f"more than {CALLS_MAX} calls")
