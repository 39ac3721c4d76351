"""Leases for stores without leases: a holder writes the value of its key again and again, which changes its version.

Rules: no two clocks are compared. An observer takes an announcement for gone when its version has not changed for a
lease by the observer's *own* clock, since it *first* saw that version. So a new observer takes longer to notice, and a
holder without observers is never declared gone. A stored value begins with a token of its announcement: by that token,
a holder recognizes its own value after a lost answer (M1), and an observer distinguishes two announcements even if
versions began again in between. A gone holder is replaced without deleting its key first: so versions go on, and a late
beat of the old holder conflicts.

Guarantee: while every beat is answered within three eighths of a lease, no holder is taken for gone, and a key has one
holder. No guarantee beyond that: a holder that was paused or cut off for longer is taken for gone although it lives.
Until its next beat, two holders believe that they have the key; then the old one notices, and waits for the key again,
without notice to its program. In a store whose versions begin again with each creation, a late beat may meet the
version it expects, and take the key from its new holder. So leases are advice, never safety (M3).
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
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
from replog.runtime.keys import Versioned
from replog.runtime.nursery import open_service_nursery

_BEATS_PER_LEASE = 4
_FAREWELL_S = 2.0
_ATTEMPTS = 4  # to claim a key that others change at the same time
_SEEN_MAX = 10_000  # announcements remembered; of more, those not looked at for longest are taken for gone later

_MARK = b"replog lease 1 "
_TOKEN_BYTES = 16  # as text


class _Store(Protocol):
    """The part of a metastore that leases are made of."""

    async def create(self, key: str, value: bytes) -> int: ...
    async def get(self, key: str) -> Versioned: ...
    async def put(self, key: str, value: bytes, expected: int) -> int: ...
    async def delete(self, key: str, expected: int | None = None) -> None: ...
    async def values(self, key: str) -> dict[str, Versioned]: ...


@attrs.frozen
class _Stored:
    """The stored value of an announced key: a mark and a token, a line feed, the value."""

    token: bytes
    value: bytes

    def encode(self) -> bytes:
        return b"%b%b\n%b" % (_MARK, self.token, self.value)

    @staticmethod
    def decode(stored: bytes) -> _Stored | None:
        """None if this was not announced, but put."""
        end = len(_MARK) + _TOKEN_BYTES
        if not stored.startswith(_MARK) or stored[end : end + 1] != b"\n":
            return None
        return _Stored(stored[len(_MARK) : end], stored[end + 1 :])


@attrs.frozen
class _Seen:
    """An observer's last version of a key, and the time since then."""

    token: bytes
    version: int
    since_s: float


@attrs.define
class _Held:
    """An announced key. `version` is None while the stored version is unknown."""

    key: str
    stored: _Stored
    version: int | None = None
    beaten_at_s: float = -float("inf")


class Leases:
    """One client's knowledge of which holders live."""

    def __init__(self, store: _Store, lease_s: float) -> None:
        self._store = store
        self._lease_s = lease_s
        self._seen: OrderedDict[str, _Seen] = OrderedDict()  # those looked at lately last

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        """Keeps the key while the context is open. Raises `KeyExistsError` while a holder seems to be alive, or if it
        is a plain key; `MetastoreError`: then it is not announced, or not renewed and gone after the lease.

        A cancellation waits for the store's answers, and withdraws the announcement."""
        await trio.lowlevel.checkpoint_if_cancelled()
        held = _Held(key, _Stored(secrets.token_hex(_TOKEN_BYTES // 2).encode(), value))
        # Every call has its deadline; below, the announcement is withdrawn where its outcome is known.
        with trio.CancelScope(shield=True):
            try:
                await self._claim(held)
            except MetastoreUncertainError:
                await self._give_up(held)
                raise
        try:
            async with open_service_nursery() as nursery:
                nursery.start_soon(self._beat, held)
                yield
        finally:  # no beat is under way any more
            await self._give_up(held)

    async def announced(self, key: str) -> dict[str, bytes]:
        """The values announced right below the key by holders that are not known to be gone."""
        prefix = f"{key}/"
        found = {
            word: (each, stored)
            for word, each in (await self._store.values(key)).items()
            if (stored := _Stored.decode(each.value)) is not None
        }
        for known in [each for each in self._seen if each.startswith(prefix)]:
            word = known[len(prefix) :]
            if "/" not in word and word not in found:
                del self._seen[known]
        return {
            word: stored.value
            for word, (each, stored) in found.items()
            if not self._is_gone(f"{prefix}{word}", each.version, stored)
        }

    def _is_gone(self, key: str, version: int, stored: _Stored) -> bool:
        now_s = trio.current_time()
        seen = self._seen.pop(key, None)
        if seen is None or (seen.token, seen.version) != (stored.token, version):
            seen = _Seen(stored.token, version, now_s)
        self._seen[key] = seen
        while len(self._seen) > _SEEN_MAX:
            self._seen.popitem(last=False)
        return now_s - seen.since_s >= self._lease_s

    async def _claim(self, held: _Held) -> None:
        """Makes the key this holder's, if it is free, or its holder is gone, or it is its own already: an answer that was
        lost is resolved by looking again. Raises `KeyExistsError`, `MetastoreError`."""
        uncertain: MetastoreUncertainError | None = None
        for _ in range(_ATTEMPTS):
            try:
                held.version = await self._try_to_claim(held)
            except (KeyNotFoundError, VersionConflictError):
                continue  # it changed since it was looked at
            except MetastoreUncertainError as error:
                uncertain = error
            except KeyExistsError:
                raise
            except MetastoreError as error:
                if uncertain is not None:
                    raise uncertain from error
                raise
            else:
                held.beaten_at_s = trio.current_time()
                # What was seen of the holder before says nothing about this one.
                self._seen.pop(held.key, None)
                return
        raise uncertain or KeyExistsError(held.key, "others claim it all the time: nothing was written; try again")

    async def _try_to_claim(self, held: _Held) -> int:
        try:
            found = await self._store.get(held.key)
        except KeyNotFoundError:
            try:
                return await self._store.create(held.key, held.stored.encode())
            except KeyExistsError as error:  # just now: by whom, the next look tells
                raise KeyNotFoundError(held.key, "it was not there") from error
        stored = _Stored.decode(found.value)
        if stored is None:
            raise KeyExistsError(held.key, "it has a value that was not announced: nothing was written")
        # A value with its own token: an earlier attempt succeeded, and its answer was lost (M1).
        if stored.token != held.stored.token and not self._is_gone(held.key, found.version, stored):
            raise KeyExistsError(held.key, "another client announces it: nothing was written")
        return await self._store.put(held.key, held.stored.encode(), found.version)

    async def _beat(self, held: _Held) -> None:
        while True:
            await trio.sleep(self._lease_s / _BEATS_PER_LEASE)
            # If a cancellation cut this short, it would be unknown which keys must be deleted. But a store that does not answer
            # must not keep a process from leaving: what it was told last is looked at once more then, or ends with the lease.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._lease_s / 2):
                await self._beat_once(held)

    async def _beat_once(self, held: _Held) -> None:
        """Puts the value again; if it is not known to be there any more, looks first, and claims it again if it is free."""
        if trio.current_time() - held.beaten_at_s >= self._lease_s:
            # Others had time to replace it, leave, and have versions start again.
            held.version = None
        with suppress(MetastoreError):  # it beats again soon
            if held.version is not None:
                # Until the answer is there, the stored version is unknown: a cancelled or failed put may have been done.
                expected, held.version = held.version, None
                with suppress(KeyNotFoundError, VersionConflictError, MetastoreUncertainError):
                    held.version = await self._store.put(held.key, held.stored.encode(), expected)
                    held.beaten_at_s = trio.current_time()
                    return
            await self._claim(held)

    async def _give_up(self, held: _Held) -> None:
        farewell = trio.CancelScope(shield=True, deadline=trio.current_time() + _FAREWELL_S)
        with farewell, suppress(MetastoreError):  # the rest is gone after the lease
            for _ in range(_ATTEMPTS):
                if held.version is None:
                    found = await self._store.get(held.key)
                    stored = _Stored.decode(found.value)
                    if stored is None or stored.token != held.stored.token:
                        return
                    held.version = found.version
                expected, held.version = held.version, None
                with suppress(VersionConflictError, MetastoreUncertainError):
                    await self._store.delete(held.key, expected)
                    return
