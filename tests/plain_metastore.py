"""The least that a metastore may be: a map with CAS, of which all else is made by the defaults of the seam.

Its versions begin anew when a key is created anew, as those of ZooKeeper do, unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from replog.abc import Metastore, Versioned, check_key, check_value
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreUnavailableError,
    VersionConflictError,
)
from replog.testing import Fault, FaultyMetastore

_DEADLINE_S = 1000.0  # of a call


class PlainMap:
    """What all clients of one store share. `watch` is told of each change of a key: who, before, after."""

    def __init__(self, *, versions_repeat: bool = True) -> None:
        self.versions_repeat = versions_repeat
        self.last_version = 0
        self.values: dict[str, Versioned] = {}
        self.watch: Callable[[object, Versioned | None, Versioned | None], None] = lambda who, before, after: None

    def next_version(self, key: str) -> int:
        self.last_version += 1
        if not self.versions_repeat:
            return self.last_version
        return self.values[key].version + 1 if key in self.values else 0

    def change(self, who: object, key: str, value: bytes | None) -> int:
        version = self.next_version(key)
        before = self.values.pop(key, None)
        after = None if value is None else Versioned(value, version)
        if after is not None:
            self.values[key] = after
        self.watch(who, before, after)
        return version


class PlainMetastore(Metastore):
    """A client. Every call takes `delay_s`, half of it before anything happens, and waits until `going_on` is set."""

    def __init__(self, shared: PlainMap, lease_s: float = 10.0, delay_s: float = 0.0) -> None:
        self.shared = shared
        self.lease_s = lease_s
        self.delay_s = delay_s
        self.going_on = trio.Event()
        self.going_on.set()

    async def create(self, key: str, value: bytes) -> int:
        check_value(key, value)
        await self._request(key)
        if key in self.shared.values:
            raise KeyExistsError(key, "it exists")
        version = self.shared.change(self, key, value)
        await self._answer()
        return version

    async def get(self, key: str) -> Versioned:
        await self._request(key)
        found = self._existing(key)
        await self._answer()
        return found

    async def put(self, key: str, value: bytes, expected: int) -> int:
        check_value(key, value)
        await self._request(key)
        self._check_version(key, expected)
        version = self.shared.change(self, key, value)
        await self._answer()
        return version

    async def delete(self, key: str, expected: int | None = None) -> None:
        await self._request(key)
        self._check_version(key, expected)
        self.shared.change(self, key, None)
        await self._answer()

    async def children(self, key: str) -> list[str]:
        await self._request(key)
        prefix = f"{key}/"
        words = {each[len(prefix) :].split("/")[0] for each in self.shared.values if each.startswith(prefix)}
        await self._answer()
        return sorted(words)

    async def _request(self, key: str) -> None:
        check_key(key)
        await trio.lowlevel.checkpoint()
        await trio.sleep(self.delay_s / 2)
        with trio.move_on_after(_DEADLINE_S) as deadline:
            await self.going_on.wait()
        if deadline.cancelled_caught:
            raise MetastoreUnavailableError(f"key {key!r}: no answer within {_DEADLINE_S} s; nothing was written")

    async def _answer(self) -> None:
        if self.delay_s:
            await trio.sleep(self.delay_s / 2)

    def _existing(self, key: str) -> Versioned:
        if key not in self.shared.values:
            raise KeyNotFoundError(key, "it does not exist")
        return self.shared.values[key]

    def _check_version(self, key: str, expected: int | None) -> None:
        found = self._existing(key).version
        if expected is not None and found != expected:
            raise VersionConflictError(key, expected, found)


class FaultyPlainMetastore(FaultyMetastore):
    """As `FaultyMetastore`, but what is announced and elected meets the faults too: it is made of the calls of a map."""

    announce = Metastore.announce
    announced = Metastore.announced
    elect = Metastore.elect
    values = Metastore.values

    def __init__(
        self, inner: Metastore, choose: Callable[[str, str], Fault | None] | None = None, *, delay_s: float = 0.0
    ) -> None:
        super().__init__(inner, choose, delay_s=delay_s)
        self.lease_s = inner.lease_s
