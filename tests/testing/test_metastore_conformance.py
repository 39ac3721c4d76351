"""The conformance suite of metastores finds out those that cheat."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing

from replog.abc import Metastore, ValuesPage, Versioned, check_value
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreCorruptError,
    MetastoreError,
    MetastoreUnavailableError,
    VersionConflictError,
)
from replog.metastores.memory import MemoryMetastore
from replog.testing import Fault, FaultyMetastore, check_metastore, check_metastore_leases, check_metastore_outage
from tests.plain_metastore import PlainMap, PlainMetastore


class IgnoresTheExpectedVersion(MemoryMetastore):
    async def put(self, key: str, value: bytes, expected: int) -> int:
        return await super().put(key, value, (await self.get(key)).version)


class ComparesAndSetsInTwoSteps(MemoryMetastore):
    async def put(self, key: str, value: bytes, expected: int) -> int:
        check_value(key, value)
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


class ComparesValues(MemoryMetastore):
    """A CAS by value: what was changed and changed back passes for unchanged."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._values_by_version: dict[tuple[str, int], bytes] = _histories.setdefault(name, {})

    async def create(self, key: str, value: bytes) -> int:
        version = await super().create(key, value)
        self._values_by_version[key, version] = value
        return version

    async def put(self, key: str, value: bytes, expected: int) -> int:
        found = await self.get(key)
        if self._values_by_version.get((key, expected)) != found.value:
            raise VersionConflictError(key, expected)
        version = self._store.put(key, value, self._store.get(key).version)
        self._values_by_version[key, version] = value
        return version


_histories: dict[str, dict[tuple[str, int], bytes]] = {}


class CreatesInTwoSteps(MemoryMetastore):
    async def create(self, key: str, value: bytes) -> int:
        check_value(key, value)
        with suppress(KeyNotFoundError):
            await self.get(key)
            raise KeyExistsError(key, "it exists")
        await trio.lowlevel.checkpoint()
        if key in self._store._values:
            return self._store.put(key, value, self._store.get(key).version)
        return self._store.create(key, value)


class DeletesInTwoSteps(MemoryMetastore):
    async def delete(self, key: str, expected: int | None = None) -> None:
        found = await self.get(key)
        if expected is not None and found.version != expected:
            raise VersionConflictError(key, expected, found.version)
        await trio.lowlevel.checkpoint()
        self._store.delete(key, None)


class DeletesWhatIsBelow(MemoryMetastore):
    async def delete(self, key: str, expected: int | None = None) -> None:
        await super().delete(key, expected)
        for each in [each for each in self._store._values if each.startswith(f"{key}/")]:
            self._store.delete(each, None)


class ReadsLag(MemoryMetastore):
    """The first read of a key after a change by another client is of the value before."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._last: dict[str, Versioned] = {}

    async def get(self, key: str) -> Versioned:
        try:
            found = await super().get(key)
        except KeyNotFoundError:
            self._last.pop(key, None)
            raise
        before = self._last.get(key, found)
        self._last[key] = found
        return before


class ChildrenLag(MemoryMetastore):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._last: dict[str, list[str]] = {}

    async def children(self, key: str) -> list[str]:
        found = await super().children(key)
        before = self._last.get(key, found)
        self._last[key] = found
        return before


class KeysAreLetterCaseBlind(MemoryMetastore):
    async def create(self, key: str, value: bytes) -> int:
        return await super().create(key.lower(), value)

    async def get(self, key: str) -> Versioned:
        return await super().get(key.lower())


class KeysAreNormalized(MemoryMetastore):
    async def create(self, key: str, value: bytes) -> int:
        return await super().create(unicodedata.normalize("NFC", key), value)


class ChildrenBySqlLike(MemoryMetastore):
    """`LIKE 'key/%'` without an escape: "_" is any letter."""

    async def children(self, key: str) -> list[str]:
        alike = [each for each in self._store._below if len(each) == len(key) and "_" in key]
        alike = [each for each in alike if all(a in ("_", b) for a, b in zip(key, each, strict=True))]
        words = {word for each in [key, *alike] for word in self._store.children(each)}
        await trio.lowlevel.checkpoint()
        return sorted(words)


class ChildrenBySlice(MemoryMetastore):
    """Whatever begins with the same letters, and what follows the slash that need not be one."""

    async def children(self, key: str) -> list[str]:
        await trio.lowlevel.checkpoint()
        rests = [each[len(key) + 1 :] for each in self._store._values if each.startswith(key)]
        return sorted({rest.split("/")[0] for rest in rests if rest})


class ChildrenInPages(MemoryMetastore):
    async def children(self, key: str) -> list[str]:
        return (await super().children(key))[:100]


class ValuesInPages(MemoryMetastore):
    async def values(self, key: str) -> dict[str, Versioned]:
        return dict(list((await super().values(key)).items())[:100])


class ValuesLeaveOutTheEmpty(MemoryMetastore):
    async def values(self, key: str) -> dict[str, Versioned]:
        return {word: found for word, found in (await super().values(key)).items() if found.value}


class ValuesFromBelow(MemoryMetastore):
    async def values(self, key: str) -> dict[str, Versioned]:
        await trio.lowlevel.checkpoint()
        return {each[len(key) + 1 :]: v for each, v in self._store._values.items() if each.startswith(f"{key}/")}


class ValuesWithOldVersions(MemoryMetastore):
    async def values(self, key: str) -> dict[str, Versioned]:
        return {word: Versioned(each.value, each.version - 1) for word, each in (await super().values(key)).items()}


class PagesFromTheBeginning(MemoryMetastore):
    async def values_page(self, key: str, first: str, count_max: int) -> ValuesPage:
        return await super().values_page(key, "", count_max)


class PagesBehindTheFirst(MemoryMetastore):
    async def values_page(self, key: str, first: str, count_max: int) -> ValuesPage:
        return await super().values_page(key, f"{first}!" if first else "", count_max)


class PagesTooLarge(MemoryMetastore):
    async def values_page(self, key: str, first: str, count_max: int) -> ValuesPage:
        return await super().values_page(key, first, count_max + 1)


class PagesEndEarly(MemoryMetastore):
    async def values_page(self, key: str, first: str, count_max: int) -> ValuesPage:
        return ValuesPage((await super().values_page(key, first, count_max)).values, None)


class TruncatesOnCreation(MemoryMetastore):
    async def create(self, key: str, value: bytes) -> int:
        return await super().create(key, value[:65536])


class TruncatesOnReplacement(MemoryMetastore):
    async def put(self, key: str, value: bytes, expected: int) -> int:
        return await super().put(key, value[:65536], expected)


class TakesEmptyForMissing(MemoryMetastore):
    async def get(self, key: str) -> Versioned:
        found = await super().get(key)
        if not found.value:
            raise KeyNotFoundError(key, "nothing there")
        return found


class CreatesOverTheEmpty(MemoryMetastore):
    async def create(self, key: str, value: bytes) -> int:
        found = self._store._values.get(key)
        if found is not None and not found.value:
            return await self.put(key, value, found.version)
        return await super().create(key, value)


class TakesAnyKey(MemoryMetastore):
    async def get(self, key: str) -> Versioned:
        await trio.lowlevel.checkpoint()
        return self._store.get(key)


class DropsTheConnectionOnTooMuch(MemoryMetastore):
    """As ZooKeeper does, were the size not looked at before."""

    is_broken = False

    async def put(self, key: str, value: bytes, expected: int) -> int:
        if len(value) > 1_000_000:
            self.is_broken = True
            raise MetastoreError("connection lost")
        return await super().put(key, value, expected)

    async def get(self, key: str) -> Versioned:
        if self.is_broken:
            raise KeyNotFoundError(key, "it is not there, nor anything")
        return await super().get(key)


class LosesWhatAClosedClientWrote(MemoryMetastore):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._mine: set[str] = set()

    async def create(self, key: str, value: bytes) -> int:
        version = await super().create(key, value)
        self._mine.add(key)
        return version

    async def aclose(self) -> None:
        for key in self._mine & set(self._store._values):
            self._store.delete(key, None)
        await super().aclose()


class WaitsOnlyForWhatComes(MemoryMetastore):
    """What changed between the look and the wait is missed."""

    async def wait_changed(self, key: str, version: int | None) -> None:
        await super().wait_changed(key, self._store.version(key))


class WaitsOnlyForChildrenThatCome(MemoryMetastore):
    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        await super().wait_children_changed(key, self._store.children(key))


class LooksLateWhenItWaits(MemoryMetastore):
    """Looks, and watches a moment later: what happens in between is missed."""

    async def wait_changed(self, key: str, version: int | None) -> None:
        if self._store.version(key) == version:
            await trio.sleep(0.0005)
            await super().wait_changed(key, self._store.version(key))


class SleepsOverDeletions(MemoryMetastore):
    async def wait_changed(self, key: str, version: int | None) -> None:
        while (found := self._store.version(key)) in (version, None):
            await super().wait_changed(key, found)


class SleepsOverDeletedChildren(MemoryMetastore):
    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        while len(found := self._store.children(key)) <= len(known):
            await super().wait_children_changed(key, found)


class SleepsOverWhatIsDeep(MemoryMetastore):
    """A watch on the key itself and the keys right below it, no more."""

    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        def direct() -> list[str]:
            return [word for word in self._store.children(key) if f"{key}/{word}" in self._store._values]

        before = direct()
        while direct() == before and before == list(known):
            await super().wait_children_changed(key, self._store.children(key))


class WakesOneOfMany(MemoryMetastore):
    _busy: set[str]

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._busy = set()

    async def wait_changed(self, key: str, version: int | None) -> None:
        if key in self._busy:
            await trio.sleep_forever()
        self._busy.add(key)
        await super().wait_changed(key, version)
        self._busy.discard(key)


class WaitsAreBusy(MemoryMetastore):
    async def wait_changed(self, key: str, version: int | None) -> None:
        await trio.lowlevel.checkpoint()


class DiesOfACancellation(MemoryMetastore):
    async def get(self, key: str) -> Versioned:
        try:
            await trio.sleep(0.0001)
            return await super().get(key)
        except trio.Cancelled:
            self._closed = True
            raise


class MixesUpAnswersAfterACancellation(MemoryMetastore):
    """Answers come in the order of the calls, and one that nobody waits for is taken for the next one's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._unread: list[Versioned] = []

    async def get(self, key: str) -> Versioned:
        found = await super().get(key)
        try:
            await trio.sleep(0.0001)
        except trio.Cancelled:
            self._unread.append(found)
            raise
        return self._unread.pop() if self._unread else found


class CancellationDisturbsTheOther(MemoryMetastore):
    async def children(self, key: str) -> list[str]:
        try:
            await trio.sleep(0.0001)
        except trio.Cancelled:
            for each in [each for each in self._store._values if each.startswith(f"{key}/")]:
                self._store.put(each, b"0", self._store.get(each).version)
            raise
        return await super().children(key)


class AnnouncesOver(MemoryMetastore):
    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        with suppress(KeyNotFoundError):
            await self.delete(key)
        async with super().announce(key, value):
            yield


class AnnouncesInTwoSteps(MemoryMetastore):
    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        with suppress(KeyNotFoundError):
            await self.get(key)
            raise KeyExistsError(key, "announced")
        await trio.lowlevel.checkpoint()
        with suppress(KeyNotFoundError):
            self._store.delete(key, None)
        version = self._store.create(key, value, is_announced=True)
        try:
            yield
        finally:
            with suppress(KeyNotFoundError, VersionConflictError):
                self._store.delete(key, version)


class AnnouncesUntilCancelled(MemoryMetastore):
    """The farewell is cut short by the cancellation that made it necessary."""

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        version = self._store.create(key, value, is_announced=True)
        try:
            yield
        finally:
            with suppress(KeyNotFoundError):
                await self.delete(key, version)


class AnnouncesPlainKeys(MemoryMetastore):
    async def announced(self, key: str) -> dict[str, bytes]:
        return {word: found.value for word, found in (await self.values(key)).items()}


class AnnouncesWhatLiesDeeper(MemoryMetastore):
    async def announced(self, key: str) -> dict[str, bytes]:
        await trio.lowlevel.checkpoint()
        keys = [each for each in self._store._announced if each.startswith(f"{key}/")]
        return {each[len(key) + 1 :].split("/")[0]: self._store.get(each).value for each in sorted(keys)}


class AnnouncedAreOnlyOnesOwn(MemoryMetastore):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._mine: set[str] = set()

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        async with super().announce(key, value):
            self._mine.add(key)
            yield

    async def announced(self, key: str) -> dict[str, bytes]:
        return {word: v for word, v in (await super().announced(key)).items() if f"{key}/{word}" in self._mine}


class ElectsWhoeverComes(MemoryMetastore):
    @asynccontextmanager
    async def elect(self, key: str, candidate: bytes) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        yield


class ElectsOneOfEachClient(MemoryMetastore):
    """The lock is the client's, not the candidate's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._leads: dict[str, int] = {}

    @asynccontextmanager
    async def elect(self, key: str, candidate: bytes) -> AsyncIterator[None]:
        self._leads[key] = self._leads.get(key, 0) + 1
        if self._leads[key] > 1:
            yield
        else:
            async with super().elect(key, candidate):
                yield
        self._leads[key] -= 1


class ElectsOneForAllKeys(MemoryMetastore):
    @asynccontextmanager
    async def elect(self, key: str, candidate: bytes) -> AsyncIterator[None]:
        async with super().elect(f"{key.rpartition('/')[0]}/the-one", candidate):
            yield


class StaysElectedAfterAnError(MemoryMetastore):
    @asynccontextmanager
    async def elect(self, key: str, candidate: bytes) -> AsyncIterator[None]:
        while key in self._store._values:
            await self.wait_changed(key, self._store.version(key))
        version = self._store.create(key, candidate)
        yield
        await self.delete(key, version)


class _Queues(MemoryMetastore):
    """An election by a queue below the key, as in ZooKeeper; who is first leads."""

    leaves_shielded = True

    @asynccontextmanager
    async def elect(self, key: str, candidate: bytes) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        mine = f"n{self._store._last_version:020}"
        version = self._store.create(f"{key}/{mine}", candidate)
        try:
            while (queue := self._store.children(key))[0] != mine:
                await super().wait_children_changed(key, queue)
            yield
        finally:
            if self.leaves_shielded:
                self._store.delete(f"{key}/{mine}", version)
            else:
                await self.delete(f"{key}/{mine}", version)


class CancelledCandidatesStay(_Queues):
    leaves_shielded = False


class WaitsForThePlaceAhead(_Queues):
    """Watches only who stands right ahead, and leads when that is gone, wherever in the queue it stood."""

    @asynccontextmanager
    async def elect(self, key: str, candidate: bytes) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        mine = f"n{self._store._last_version:020}"
        version = self._store.create(f"{key}/{mine}", candidate)
        try:
            ahead = [word for word in self._store.children(key) if word < mine]
            if ahead:
                await self.wait_changed(f"{key}/{ahead[-1]}", self._store.version(f"{key}/{ahead[-1]}"))
            yield
        finally:
            self._store.delete(f"{key}/{mine}", version)


class LeavesItsElectionsBehind(MemoryMetastore):
    @asynccontextmanager
    async def elect(self, key: str, candidate: bytes) -> AsyncIterator[None]:
        with suppress(KeyExistsError):
            await self.create(f"{key}/queue", b"")
        async with super().elect(key, candidate):
            yield


SEES = "a get sees every change"
CHILDREN = "children are"
TAKEN = "announcing what somebody else announces raises KeyExistsError"

CHEATS = [
    (IgnoresTheExpectedVersion, "put that expects another version raises VersionConflictError"),
    (ComparesAndSetsInTwoSteps, "of puts that expect one version one succeeds"),
    (ComparesValues, "put that expects another version raises VersionConflictError"),
    (CreatesOver, "creating a key that exists raises KeyExistsError"),
    (CreatesInTwoSteps, "of several who create a key one succeeds"),
    (CreatesOverTheEmpty, "a key with a value of 0 bytes exists"),
    (VersionsRepeat, "versions of one key never repeat"),
    (SameVersionForTheSameValue, "a put of the same value gives a new version"),
    (DeletesAnyVersion, "a delete with another version than expected raises VersionConflictError"),
    (DeletesInTwoSteps, "of puts and deletes that expect one version one succeeds"),
    (DeletesTheMissing, "a key that does not exist raises KeyNotFoundError"),
    (DeletesWhatIsBelow, "no child|takes nothing below it along|is a word as long as it has children"),
    (ReadsLag, SEES),
    (ChildrenLag, "children are as fresh as a get"),
    (CachesReads, SEES),
    (ChildrenUnsorted, CHILDREN),
    (ChildrenOnlyDirect, "a key may have both a value and children"),
    (ChildrenBySqlLike, "what begins with the same letters, or is like it"),
    (ChildrenBySlice, "a key may have both a value and children"),
    (ChildrenInPages, "children are all of them"),
    (ValuesInPages, "values are all of them"),
    (ValuesLeaveOutTheEmpty, "values are those of the keys right below"),
    (ValuesFromBelow, "values are those of the keys right below"),
    (ValuesWithOldVersions, "values are those of the keys right below"),
    (PagesFromTheBeginning, "the next page begins behind this one"),
    (PagesBehindTheFirst, "pages have the values right below a key, each once"),
    (PagesTooLarge, "a page has 1 values at most"),
    (PagesEndEarly, "pages have the values right below a key, each once"),
    (KeysAreLetterCaseBlind, "two keys are one only if they are equal|keys are apart"),
    (KeysAreNormalized, "keys are apart: Key.*Error, for which there was no reason"),
    (ErrorsWithoutTheKey, "raises KeyNotFoundError, which has the key"),
    (ValuesAsText, "any 768 bytes come back"),
    (TruncatesOnCreation, "any 524288 bytes come back"),
    (TruncatesOnReplacement, "any 524288 bytes come back"),
    (TakesEmptyForMissing, "values of all kinds: KeyNotFoundError, for which there was no reason"),
    (TakesAnyKey, "limits: KeyNotFoundError, for which there was no reason: key ''"),
    (DropsTheConnectionOnTooMuch, "limits: KeyNotFoundError, for which there was no reason"),
    (LosesWhatAClosedClientWrote, "what a closed client wrote stays"),
    (WaitsForEver, "wait_changed"),
    (WaitsForChildrenForEver, "wait_children_changed"),
    (WaitsOnlyForWhatComes, "wait_changed.* returns at once"),
    (WaitsOnlyForChildrenThatCome, "wait_children_changed returns at once"),
    (LooksLateWhenItWaits, "wait_changed misses no change"),
    (SleepsOverDeletions, "wait_changed returns soon after the key was deleted"),
    (SleepsOverDeletedChildren, "wait_children_changed returns at once if a child was deleted"),
    (SleepsOverWhatIsDeep, "wait_children_changed returns soon after a child was created"),
    (WakesOneOfMany, "wait_changed returns soon after the version is another"),
    (WaitsAreBusy, "wait_changed waits"),
    (DiesOfACancellation, "a client stays usable after a call was cancelled|each call gets its own"),
    (MixesUpAnswersAfterACancellation, "each call gets its own answer"),
    (CancellationDisturbsTheOther, "a client stays usable after a call was cancelled"),
    (AnnouncesForEver, "what is announced|announced is"),
    (AnnouncesInAGroup, "in no group|came in a group"),
    (AnnouncesOver, TAKEN),
    (AnnouncesInTwoSteps, "of several who announce a key one succeeds"),
    (AnnouncesUntilCancelled, "vanishes soon after its context was cancelled"),
    (AnnouncesPlainKeys, "what nobody announces is not announced"),
    (AnnouncesWhatLiesDeeper, "announced is what is announced right below"),
    (AnnouncedAreOnlyOnesOwn, "what is announced is seen by others"),
    (ElectsWhoeverComes, "one is elected at a time"),
    (ElectsOneOfEachClient, "one is elected at a time"),
    (ElectsOneForAllKeys, "two keys have nothing to do with one another"),
    (StaysElectedAfterAnError, "another is elected soon after the context of elect ended in an error"),
    (CancelledCandidatesStay, "is not a child"),
    (WaitsForThePlaceAhead, "nobody is elected as long as somebody else is"),
    (LeavesItsElectionsBehind, "is not a child"),
]


async def examine(cheat: type[MemoryMetastore]) -> None:
    name = f"conformance of {cheat.__name__}"

    @asynccontextmanager
    async def client() -> AsyncIterator[Metastore]:
        metastore = cheat(name)
        yield metastore
        await metastore.aclose()

    try:
        await check_metastore(client)
    finally:
        MemoryMetastore.discard(name)


@pytest.mark.parametrize(("cheat", "promise"), CHEATS, ids=lambda each: getattr(each, "__name__", ""))
async def test_metastore_fails_for_its_broken_promise(
    cheat: type[MemoryMetastore], promise: str, autojump_clock: trio.testing.MockClock
) -> None:
    with pytest.raises(AssertionError, match=rf"(?s)the contract is broken: .*({promise})"):
        await examine(cheat)


class ForgetsParentsLate(MemoryMetastore):
    """Names words for a short while below which nothing is left, as a store does that removes parents later."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._gone: dict[str, float] = _gone.setdefault(name, {})

    async def delete(self, key: str, expected: int | None = None) -> None:
        await super().delete(key, expected)
        self._gone[key.rpartition("/")[0]] = trio.current_time() + 0.01

    async def children(self, key: str) -> list[str]:
        words = set(await super().children(key))
        now_s = trio.current_time()
        for parent, until_s in self._gone.items():
            above, _, word = parent.rpartition("/")
            if above == key and now_s < until_s:
                words.add(word)
        return sorted(words)

    wait_children_changed = Metastore.wait_children_changed


_gone: dict[str, dict[str, float]] = {}


@pytest.mark.parametrize("honest", [_Queues, ForgetsParentsLate], ids=lambda each: each.__name__)
async def test_allowed_behaviour_passes(honest: type[MemoryMetastore], autojump_clock: trio.testing.MockClock) -> None:
    await examine(honest)


async def test_minimal_metastore_passes() -> None:
    """Five methods, and versions that begin anew: all else is made of them."""
    shared = PlainMap()

    @asynccontextmanager
    async def client() -> AsyncIterator[Metastore]:
        yield PlainMetastore(shared)

    await check_metastore(client)
    assert shared.values == {}


# -- outages ------------------------------------------------------------------------------------------------------


async def examine_outage(away: type[FaultyMetastore]) -> None:
    @asynccontextmanager
    async def client() -> AsyncIterator[Metastore]:
        yield away(MemoryMetastore(), lambda _operation, _key: Fault.UNAVAILABLE)

    await check_metastore_outage(client)


class CallsItDamage(FaultyMetastore):
    async def get(self, key: str) -> Versioned:
        try:
            return await super().get(key)
        except MetastoreUnavailableError as error:
            raise MetastoreCorruptError(str(error)) from error


class HangsWhileAway(FaultyMetastore):
    async def put(self, key: str, value: bytes, expected: int) -> int:
        await trio.sleep_forever()
        raise AssertionError


class SaysThatItIsNotThere(FaultyMetastore):
    async def delete(self, key: str, expected: int | None = None) -> None:
        await trio.lowlevel.checkpoint()
        raise KeyNotFoundError(key, "it may be, or not")


async def test_metastore_reporting_its_outage_passes() -> None:
    await examine_outage(FaultyMetastore)


@pytest.mark.parametrize("cheat", [CallsItDamage, HangsWhileAway, SaysThatItIsNotThere], ids=lambda each: each.__name__)
async def test_metastore_hiding_its_outage_fails(
    cheat: type[FaultyMetastore], autojump_clock: trio.testing.MockClock
) -> None:
    with pytest.raises(AssertionError, match="the contract is broken"):
        await examine_outage(cheat)


# -- processes ----------------------------------------------------------------------------------------------------


@pytest.mark.crash
async def test_lmdb_notices_dead_and_stopped_processes(tmp_path: Path) -> None:
    await check_metastore_leases(f"lmdb:{tmp_path}/store?lease_s=2", 2.0)  # less may keep a good process waiting


@pytest.mark.crash
async def test_a_store_of_one_process_can_not_tell_of_others() -> None:
    with pytest.raises(AssertionError, match="a process that lives stays announced"):
        await check_metastore_leases("memory:leases", 0.2)
