"""Leases for stores that have none: whoever announces a key puts its value again and again, which changes its version.

Rules: no two clocks are compared. Whoever looks takes a key for gone when its version has stayed the same for the lease
by *their own* clock, since *they* first saw it; so one who just came takes longer to notice, and nobody is declared gone
who was merely never looked at. All of this is advice (M3): a holder that was asleep is taken for gone though it lives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import attrs
import trio

from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog.keys import Versioned
from replog.nursery import open_service_nursery

_BEATS_PER_LEASE = 4
_FAREWELL_S = 2.0


class _Store(Protocol):
    """The part of a metastore that leases are made of."""

    async def create(self, key: str, value: bytes) -> int: ...
    async def get(self, key: str) -> Versioned: ...
    async def put(self, key: str, value: bytes, expected: int) -> int: ...
    async def delete(self, key: str, expected: int | None = None) -> None: ...
    async def values(self, key: str) -> dict[str, Versioned]: ...


@attrs.frozen
class _Seen:
    version: int
    since_s: float


class Leases:
    """What one client of a store knows of who is alive."""

    def __init__(self, store: _Store, lease_s: float) -> None:
        self._store = store
        self._lease_s = lease_s
        self._seen: dict[str, _Seen] = {}

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        """Keeps the key while the context is open. Raises `KeyExistsError` while somebody seems to be alive who has it,
        `MetastoreError`: then it is not announced, or nobody keeps it and it is gone after the lease."""
        with trio.CancelScope(shield=True):  # it has its deadline; who knows that it succeeded takes it back below
            held = _Held(key, value, await self._claim(key, value))
        try:
            async with open_service_nursery() as nursery:
                nursery.start_soon(self._beat, held)
                yield
        finally:  # the last beat has ended: the version is the last one
            await self._give_up(held)

    async def announced(self, key: str) -> dict[str, bytes]:
        """What is announced right below the key by those who are not known to be gone."""
        found = await self._store.values(key)
        prefix = f"{key}/"
        for known in [each for each in self._seen if each.startswith(prefix) and each[len(prefix) :] not in found]:
            del self._seen[known]
        return {word: each.value for word, each in found.items() if not self._is_gone(f"{prefix}{word}", each.version)}

    def _is_gone(self, key: str, version: int) -> bool:
        now_s = trio.current_time()
        seen = self._seen.get(key)
        if seen is None or seen.version != version:
            self._seen[key] = _Seen(version, now_s)
            return False
        return now_s - seen.since_s >= self._lease_s

    async def _claim(self, key: str, value: bytes) -> int:
        try:
            return await self._store.create(key, value)
        except KeyExistsError:
            if not await self._remove_the_dead(key):
                raise
        return await self._store.create(key, value)

    async def _remove_the_dead(self, key: str) -> bool:
        try:
            found = await self._store.get(key)
            if not self._is_gone(key, found.version):
                return False
            await self._store.delete(key, found.version)
        except KeyNotFoundError:
            pass
        except VersionConflictError:
            return False  # it lives after all
        return True

    async def _beat(self, held: _Held) -> None:
        while held.version is not None:
            await trio.sleep(self._lease_s / _BEATS_PER_LEASE)
            with trio.CancelScope(shield=True):  # cut short, nobody would know the version that is to be deleted
                await self._beat_once(held)

    async def _beat_once(self, held: _Held) -> None:
        assert held.version is not None
        try:
            held.version = await self._store.put(held.key, held.value, held.version)
        except KeyNotFoundError:  # it was taken for gone
            with suppress(MetastoreError):
                held.version = await self._store.create(held.key, held.value)
        except (VersionConflictError, MetastoreUncertainError):
            with suppress(MetastoreError):
                found = await self._store.get(held.key)
                held.version = found.version if found.value == held.value else None  # None: somebody else's now
        except MetastoreError:
            return  # it beats again soon

    async def _give_up(self, held: _Held) -> None:
        if held.version is None:
            return
        farewell = trio.CancelScope(shield=True, deadline=trio.current_time() + _FAREWELL_S)
        with farewell, suppress(MetastoreError):  # whatever stays is gone after the lease
            await self._store.delete(held.key, held.version)


@attrs.define
class _Held:
    """A key that is announced; `version` None when somebody else has it."""

    key: str
    value: bytes
    version: int | None
