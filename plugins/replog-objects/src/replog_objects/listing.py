"""Listing the keys below a key, and removing old tombstones.

A listing shows tombstones by their size. A word is a child if its object is no tombstone, or if something below it is none:
where a listing shows only that there is something below, that is looked at, a thousand objects at a time.

Removal. A tombstone goes when it is older than `tombstone_s` by the store's time of it, in a listing that has met it, if the
store deletes under a condition: only the object with the tombstone's ETag, which never repeats. So whatever happens meanwhile,
and however late the removal arrives, a key that was created again keeps its object. Where the store ignores the condition,
which a look at an object made for that shows, tombstones stay. A removal that fails is left to the next listing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from functools import partial

import trio

from replog_objects.calls import Calls, Outcome, for_all
from replog_objects.layout import TOMBSTONE_BYTES, DamagedError, place_of, word_of
from replog_objects.options import ObjectsOptions, Target
from replog_objects.requests import Conflict, Listed, Listing, RequestFailed, Requests, Tag

_REMOVED_MAX = 64  # in one listing, so that none takes much longer than another
_PROBES = "probe"


class Listings:
    """Listings by one client."""

    def __init__(self, calls: Calls, target: Target, options: ObjectsOptions) -> None:
        self._calls = calls
        self._target = target
        self._options = options
        self._can_remove: bool | None = None  # unknown

    async def words(self, key: str) -> list[str]:
        """The children of a key, sorted. Raises `MetastoreError`."""
        listing = await self._list(key)
        live = {each.name for each in listing.objects if each.size_bytes != TOMBSTONE_BYTES}
        doubtful = [f"{each}=" for each in listing.prefixes if f"{each}=" not in live]
        live.update(
            name for name, is_live in zip(doubtful, await for_all(self._has_live, doubtful), strict=True) if is_live
        )
        return sorted(word_of(each) for each in live)

    async def keys_with_values(self, key: str) -> list[str]:
        """The words of the keys right below this one, sorted. Raises `MetastoreError`."""
        listing = await self._list(key)
        return sorted(word_of(each.name) for each in listing.objects if each.size_bytes != TOMBSTONE_BYTES)

    async def _list(self, key: str) -> Listing:
        listing = await self._calls.read(f"what is below {key!r}", partial(_right_below, place=place_of(key)))
        await self._remove_old(listing.objects)
        return listing

    async def _has_live(self, name: str) -> bool:
        """Whether there is a key below the one whose object has this name."""
        is_live, tombstones = await self._calls.read(f"what is below {name!r}", partial(_first_live, place=name[:-1]))
        await self._remove_old(tombstones)
        return is_live

    # -- removal ---------------------------------------------------------------------------------------------------

    async def _remove_old(self, objects: Sequence[Listed]) -> None:
        before_s = time.time() - self._options.tombstone_s
        old = [each for each in objects if each.size_bytes == TOMBSTONE_BYTES and each.modified_at_s < before_s]
        if not old or self._can_remove is False:
            return
        # Another time will do as well: a listing must not fail because of what it need not do.
        with trio.move_on_after(self._options.timeout_s / 2):
            try:
                if self._can_remove is None:
                    self._can_remove = await self._probe()
                if self._can_remove:
                    await for_all(self._remove, old[:_REMOVED_MAX])
            except (RequestFailed, Conflict):
                self._can_remove = None

    async def _remove(self, tombstone: Listed) -> None:
        try:
            await self._calls.attempt(lambda requests: requests.delete(tombstone.name, tombstone.tag), Outcome())
        except RequestFailed:
            self._can_remove = None  # perhaps they may not: the next listing looks again

    async def _probe(self) -> bool:
        """True if this store keeps the condition of a deletion: one with a wrong ETag leaves the object, and one with its own
        removes it."""
        name = f"{_PROBES}/{secrets.token_hex(16)}"
        outcome = Outcome()
        tag = await self._calls.attempt(lambda requests: requests.put(name, name.encode(), None), outcome)
        wrong = Tag('"00000000000000000000000000000000"', None)
        await self._calls.attempt(lambda requests: requests.delete(name, wrong), outcome)
        if await self._calls.attempt(lambda requests: requests.get(name), outcome) is None:
            return False
        return await self._calls.attempt(lambda requests: requests.delete(name, tag), outcome)


def _right_below(requests: Requests, place: str) -> Listing:
    """The objects right below a place, which are all keys'. Raises `DamagedError` otherwise: then it is listed again, since
    versitygw shows the file that is about to replace an object, for a moment, under a name of its own."""
    listing = requests.right_below(place)
    for name in (*(each.name for each in listing.objects), *(f"{each}=" for each in listing.prefixes)):
        try:
            word_of(name)
        except DamagedError as error:
            raise DamagedError(f"{error}: another program has put {name!r} there. Delete it") from None
    return listing


def _first_live(requests: Requests, place: str) -> tuple[bool, list[Listed]]:
    """Whether there is an object below that is no tombstone, and the first tombstones."""
    tombstones: list[Listed] = []
    for page in requests.below(place):
        if any(each.size_bytes != TOMBSTONE_BYTES for each in page):
            return True, tombstones
        tombstones += page[: _REMOVED_MAX - len(tombstones)]
    return False, tombstones
