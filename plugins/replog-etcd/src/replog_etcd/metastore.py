"""The metastore: replog's map with CAS on etcd's transactions. Each change is one comparison and one key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from replog.abc import Metastore, ValuesPage, Versioned, check_key, check_value
from replog.errors import KeyExistsError, KeyNotFoundError, VersionConflictError
from replog_etcd.elections import Elections
from replog_etcd.gateway import Gateway
from replog_etcd.leases import Leases
from replog_etcd.listing import Listing, list_below
from replog_etcd.options import EtcdOptions, Target
from replog_etcd.records import Layout, Message, revision_of
from replog_etcd.watches import Watches

_ABSENT = "it does not exist"
_DEFAULTS = EtcdOptions()


class EtcdMetastore(Metastore):
    """One client of one cluster, which connects at its first call. For one trio run.

    Every request has `request_timeout_s`; a change that was sent and not answered raises `MetastoreUncertainError`, a
    cancelled one has an unknown outcome. In a child after a fork every call raises `MetastoreError`: open a new one there.
    """

    def __init__(self, target: Target, options: EtcdOptions = _DEFAULTS) -> None:
        self.lease_s = options.lease_s
        self._gateway = Gateway(target, options)
        self._layout = Layout(target.prefix)
        self._watches = Watches(self._gateway, self._layout, options)
        self._held = Leases(self._gateway, self._layout, options.lease_s)
        self._elections = Elections(self._gateway, self._layout, self._held, self._watches, options.lease_s)

    async def create(self, key: str, value: bytes) -> int:
        """Creates the key and returns its version. Raises `KeyExistsError`, `MetastoreUncertainError`."""
        check_key(key)
        check_value(key, value)
        answer = await self._change(key, [self._layout.is_absent(key)], self._layout.put(key, value))
        if not answer.get("succeeded"):
            raise KeyExistsError(key, "it exists already: nothing was written")
        return revision_of(answer)

    async def get(self, key: str) -> Versioned:
        """Raises `KeyNotFoundError` only if the key does not exist."""
        check_key(key)
        answer = await self._gateway.call("/v3/kv/range", {"key": self._layout.encode(key)}, what=f"key {key!r}")
        found = answer.get("kvs", ())
        if not found:
            raise KeyNotFoundError(key, _ABSENT)
        record = self._layout.record(found[0])
        return Versioned(record.value, record.version)

    async def put(self, key: str, value: bytes, expected: int) -> int:
        """Replaces the value and returns the new version.

        Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""
        check_key(key)
        check_value(key, value)
        answer = await self._change(key, self._as_expected(key, expected), self._layout.put(key, value))
        self._check_succeeded(key, expected, answer)
        return revision_of(answer)

    async def delete(self, key: str, expected: int | None = None) -> None:
        """Deletes the key. Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""
        check_key(key)
        answer = await self._change(key, self._as_expected(key, expected), self._layout.delete(key))
        self._check_succeeded(key, expected, answer)

    async def children(self, key: str) -> list[str]:
        """The words that follow the key in existing keys, sorted. The number of requests grows with the words."""
        check_key(key)
        return list((await list_below(self._gateway, self._layout, key)).words)

    async def values(self, key: str) -> dict[str, Versioned]:
        """The values right below this key, by their last words: one request for few keys, several for many."""
        check_key(key)
        return _values_of(await list_below(self._gateway, self._layout, key, with_values=True))

    async def values_page(self, key: str, first: str, count_max: int) -> ValuesPage:
        """The values right below this key from this last word on."""
        check_key(key)
        listing = await list_below(
            self._gateway, self._layout, key, with_values=True, first=first, values_max=count_max + 1
        )
        found = _values_of(listing)
        words = list(found)
        return ValuesPage(
            {word: found[word] for word in words[:count_max]}, words[count_max] if len(words) > count_max else None
        )

    async def wait_changed(self, key: str, version: int | None) -> None:
        """Returns soon after the key has another version (None: after it exists)."""
        check_key(key)
        await self._watches.wait_changed(key, version)

    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        """Returns soon after the children differ from these. May return early."""
        check_key(key)
        await self._watches.wait_children_changed(key, known)

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        """Keeps the key in existence while the context is open and this process lives; after its death it vanishes within
        `lease_s`, or some two seconds if that is less. Raises `KeyExistsError`."""
        check_key(key)
        check_value(key, value)
        async with self._held.hold(key, value):
            yield

    async def announced(self, key: str) -> dict[str, bytes]:
        """The announced values right below this key, by their last words."""
        check_key(key)
        listing = await list_below(self._gateway, self._layout, key, with_values=True)
        return {word: found.value for word, found in listing.words.items() if found is not None and found.lease_id}

    @asynccontextmanager
    async def elect(self, key: str, candidate: bytes) -> AsyncIterator[None]:
        """Waits until nobody else is elected there, and is while the context is open; who came first is elected first."""
        check_key(key)
        check_value(key, candidate)
        async with self._elections.elect(key, candidate):
            yield

    async def aclose(self) -> None:
        """Ends connections; calls and waits under way end with `trio.ClosedResourceError`. Idempotent."""
        self._gateway.close()
        await trio.lowlevel.cancel_shielded_checkpoint()

    # -- changing -------------------------------------------------------------------------------------------------

    def _as_expected(self, key: str, expected: int | None) -> list[Message]:
        """Comparisons. That the key is there is asked for by itself: etcd takes one that is not for one of version 0."""
        present = [self._layout.is_present(key)]
        return present if expected is None else [*present, self._layout.has_version(key, expected)]

    async def _change(self, key: str, comparisons: list[Message], operation: Message) -> dict[str, Any]:
        message = {"compare": comparisons, "success": [operation], "failure": [self._layout.look(key)]}
        return await self._gateway.call("/v3/kv/txn", message, what=f"key {key!r}", is_change=True)

    def _check_succeeded(self, key: str, expected: int | None, answer: Mapping[str, Any]) -> None:
        if answer.get("succeeded"):
            return
        found = self._layout.looked(answer)
        if found is None or expected is None:
            raise KeyNotFoundError(key, _ABSENT)
        raise VersionConflictError(key, expected, found.version)


def _values_of(listing: Listing) -> dict[str, Versioned]:
    return {word: Versioned(found.value, found.version) for word, found in listing.words.items() if found is not None}
