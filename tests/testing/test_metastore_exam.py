"""The exam of metastores finds out those that cheat."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.lowlevel

from replog.abc import Metastore, Versioned
from replog.errors import KeyNotFoundError, VersionConflictError
from replog.metastores.memory import MemoryMetastore
from replog.testing import check_metastore


class IgnoresTheExpectedVersion(MemoryMetastore):
    async def put(self, key: str, value: bytes, expected: int) -> int:
        return await super().put(key, value, (await self.get(key)).version)


class ComparesAndSetsInTwoSteps(MemoryMetastore):
    async def put(self, key: str, value: bytes, expected: int) -> int:
        found = await self.get(key)
        if found.version != expected:
            raise VersionConflictError(key, expected, found.version)
        await trio.lowlevel.checkpoint()
        return self._store.put(key, value, self._store.get(key).version)


class CreatesOver(MemoryMetastore):
    async def create(self, key: str, value: bytes) -> int:
        try:
            return await self.put(key, value, (await self.get(key)).version)
        except KeyNotFoundError:
            return await super().create(key, value)


class VersionsRepeat(MemoryMetastore):
    async def create(self, key: str, value: bytes) -> int:
        return await super().create(key, value) % 7

    async def get(self, key: str) -> Versioned:
        found = await super().get(key)
        return Versioned(found.value, found.version % 7)

    async def put(self, key: str, value: bytes, expected: int) -> int:
        found = await super().get(key)
        if found.version % 7 != expected:
            raise VersionConflictError(key, expected, found.version % 7)
        return await super().put(key, value, found.version) % 7


class SameVersionForTheSameValue(MemoryMetastore):
    async def put(self, key: str, value: bytes, expected: int) -> int:
        found = await self.get(key)
        if found.value == value and found.version == expected:
            return expected
        return await super().put(key, value, expected)


class DeletesAnyVersion(MemoryMetastore):
    async def delete(self, key: str, expected: int | None = None) -> None:
        await super().delete(key)


class DeletesTheMissing(MemoryMetastore):
    async def delete(self, key: str, expected: int | None = None) -> None:
        with suppress(KeyNotFoundError):
            await super().delete(key, expected)


class ChildrenUnsorted(MemoryMetastore):
    async def children(self, key: str) -> list[str]:
        return (await super().children(key))[::-1]


class ChildrenOnlyDirect(MemoryMetastore):
    async def children(self, key: str) -> list[str]:
        return [word for word in await super().children(key) if f"{key}/{word}" in self._store._values]


class ErrorsWithoutTheKey(MemoryMetastore):
    async def get(self, key: str) -> Versioned:
        try:
            return await super().get(key)
        except KeyNotFoundError as error:
            raise KeyNotFoundError("?", "gone") from error


class ValuesAsText(MemoryMetastore):
    async def get(self, key: str) -> Versioned:
        found = await super().get(key)
        return Versioned(found.value.decode(errors="replace").encode(), found.version)


class AnnouncesForEver(MemoryMetastore):
    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        await self.create(key, value)
        yield


class AnnouncesInAGroup(MemoryMetastore):
    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        async with super().announce(key, value), trio.open_nursery():
            yield


class WaitsForEver(MemoryMetastore):
    async def wait_changed(self, key: str, version: int | None) -> None:
        await trio.sleep_forever()


class WaitsForChildrenForEver(MemoryMetastore):
    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        await trio.sleep_forever()


class CachesReads(MemoryMetastore):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._cache: dict[str, Versioned] = {}

    async def get(self, key: str) -> Versioned:
        if key not in self._cache:
            self._cache[key] = await super().get(key)
        return self._cache[key]


CHEATS = [
    IgnoresTheExpectedVersion,
    ComparesAndSetsInTwoSteps,
    CreatesOver,
    VersionsRepeat,
    SameVersionForTheSameValue,
    DeletesAnyVersion,
    DeletesTheMissing,
    ChildrenUnsorted,
    ChildrenOnlyDirect,
    ErrorsWithoutTheKey,
    ValuesAsText,
    AnnouncesForEver,
    AnnouncesInAGroup,
    WaitsForEver,
    WaitsForChildrenForEver,
    CachesReads,
]


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.__name__)
async def test_a_metastore_that_breaks_a_promise_fails(
    cheat: type[MemoryMetastore], autojump_clock: trio.testing.MockClock
) -> None:
    name = f"exam of {cheat.__name__}"

    @asynccontextmanager
    async def client() -> AsyncIterator[Metastore]:
        metastore = cheat(name)
        yield metastore
        await metastore.aclose()

    try:
        with pytest.raises(AssertionError, match="the contract is broken"):
            await check_metastore(client)
    finally:
        MemoryMetastore.discard(name)
