"""The metastore: replog's map with CAS in a bucket. Each change is one conditional put; `changing` has the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from replog.abc import Metastore, Versioned, check_key, check_value
from replog.errors import KeyNotFoundError
from replog_objects.calls import Calls, for_all
from replog_objects.changing import Changes
from replog_objects.listing import Listings
from replog_objects.opening import Opening
from replog_objects.options import ObjectsOptions, Target
from replog_objects.requests import Requests
from replog_objects.waits import Waits

_ABSENT = "it does not exist"
_DEFAULTS = ObjectsOptions()


class ObjectsMetastore(Metastore):
    """One client of one bucket, which connects at its first call. For one trio run; a fork of the process cannot use it.

    Every call has `timeout_s`. A change that was sent and not answered is tried again under the same condition, and settled by
    its nonce; only where that is impossible is its outcome unknown (`MetastoreUncertainError`). A cancelled change has an unknown
    outcome, and may still be done for a third of `timeout_s`.
    """

    def __init__(
        self,
        target: Target,
        options: ObjectsOptions = _DEFAULTS,
        make_requests: Callable[[Target, ObjectsOptions], Requests] = Requests,
    ) -> None:
        self.lease_s = options.lease_s
        self.poll_s = options.poll_s
        self._target = target
        self._calls = Calls(target, options, make_requests)
        self._opening = Opening(self._calls, target)
        self._changes = Changes(self._calls, target)
        self._listings = Listings(self._calls, target, options)
        self._waits = Waits(options.poll_s)

    def __repr__(self) -> str:
        return f"ObjectsMetastore({str(self._target)!r})"

    async def create(self, key: str, value: bytes) -> int:
        """Creates the key and returns its version. Raises `KeyExistsError`, `MetastoreUncertainError`."""
        check_key(key)
        check_value(key, value)
        await self._opening.ensure()
        return await self._changes.create(key, bytes(value))

    async def get(self, key: str) -> Versioned:
        """Raises `KeyNotFoundError` only if the key does not exist."""
        check_key(key)
        await self._opening.ensure()
        found = await self._changes.get(key)
        if found is None or found.stored.value is None:
            raise KeyNotFoundError(key, _ABSENT)
        return Versioned(found.stored.value, found.stored.version)

    async def put(self, key: str, value: bytes, expected: int) -> int:
        """Replaces the value and returns the new version.

        Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""
        check_key(key)
        check_value(key, value)
        await self._opening.ensure()
        return await self._changes.replace(key, bytes(value), expected)

    async def delete(self, key: str, expected: int | None = None) -> None:
        """Deletes the key. Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""
        check_key(key)
        await self._opening.ensure()
        await self._changes.replace(key, None, expected)

    async def children(self, key: str) -> list[str]:
        """The words that follow the key in existing keys, sorted: a request for each thousand objects right below the key, and
        one for each word that is not a key itself."""
        check_key(key)
        await self._opening.ensure()
        return await self._listings.words(key)

    async def values(self, key: str) -> dict[str, Versioned]:
        """The values right below this key, by their last words: a listing, and a read for each."""
        check_key(key)
        await self._opening.ensure()
        return await self._values_of(key, await self._listings.keys_with_values(key))

    async def _values_of(self, key: str, words: Sequence[str]) -> dict[str, Versioned]:
        found = await for_all(self._changes.get, [f"{key}/{word}" for word in words])
        return {
            word: Versioned(each.stored.value, each.stored.version)
            for word, each in zip(words, found, strict=True)
            if each is not None and each.stored.value is not None
        }

    async def wait_changed(self, key: str, version: int | None) -> None:
        """Returns within about `poll_s` after the key has another version (None: after it exists)."""
        check_key(key)
        await self._waits.wait(key, lambda: self._version(key), version)

    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        """Returns within about `poll_s` after the children differ from these."""
        check_key(key)
        await self._waits.wait(f"{key}/", lambda: self.children(key), list(known))

    async def aclose(self) -> None:
        """Calls and waits under way end with `trio.ClosedResourceError` at their next attempt. Idempotent."""
        self._calls.close()
        await trio.lowlevel.cancel_shielded_checkpoint()
