"""Which bookies there are, as the metastore announces them, and which of them failed lately.

Membership is about liveness only: safety rests on fencing and CAS (M3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

import trio

from replog.abc import Metastore
from replog.client.known_bookies import KnownBookies
from replog.config.client import ClientTuning
from replog.errors import (
    BookieUnreachableError,
    KeyNotFoundError,
    MetastoreCorruptError,
    MetastoreDoubtedError,
    MetastoreError,
    ReplogError,
    StorageFailedError,
    StorageFullError,
)
from replog.records.bookies import (
    BOOKIES_KEY,
    COOKIES_KEY,
    READ_ONLY_BOOKIES_KEY,
    BookieAddress,
    Cookie,
    cookie_key,
    decode_address,
    decode_cookie,
)
from replog.runtime.entropy import current_entropy
from replog.runtime.loggers import logger

_log = logger("replog.client")

# At which bookies drain, while there are writers; less often where a lease is long, since looks may cost money.
_LOOK_S = 5.0
_LOOK_EVERY_S = 1.0  # at the announcements, for all ledgers together that are created, or miss a bookie
_FORGIVEN_AFTER = 4  # times its last quarantine without a failure, and a bookie begins with the shortest one again
_JITTER = 0.2  # of each quarantine, at most: so that not all end at the same moment


class Quarantine:
    """For how long each bookie that failed is left alone: `shortest_s` at first, doubled with each further failure, up to
    `longest_s`. The caller gives the time."""

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._held: dict[str, tuple[float, float]] = {}  # until when, and for how long, in seconds
        self._random = current_entropy().random

    def failed(self, bookie_id: str, now_s: float) -> None:
        """The bookie failed. While it is in quarantine, another failure counts as the same one."""
        until_s, held_s = self._held.get(bookie_id, (now_s, 0.0))
        if now_s < until_s:
            return
        is_forgiven = now_s >= until_s + _FORGIVEN_AFTER * held_s
        held_s = self._shortest_s if is_forgiven else min(2 * held_s, self._longest_s)
        self._held[bookie_id] = (now_s + held_s * (1 - _JITTER * self._random.random()), held_s)

    def succeeded(self, bookie_id: str) -> None:
        """The bookie works: its next failure counts as the first."""
        self._held.pop(bookie_id, None)

    def holds(self, bookie_id: str, now_s: float) -> bool:
        """True while the bookie is to be left alone."""
        until_s, _ = self._held.get(bookie_id, (now_s, 0.0))
        return now_s < until_s


def _refusal_of(address: BookieAddress) -> Callable[[str], ReplogError]:
    if address.has_failed:
        return StorageFailedError
    return MetastoreDoubtedError if address.doubts_metastore else StorageFullError


class Membership:
    """The bookies that a client may use. A bookie that failed is left alone for a while, longer each time."""

    def __init__(self, metastore: Metastore, options: ClientTuning) -> None:
        self.read_only: list[str] = []  # bookies that take no new entries, as of the last `usable`
        self.refusals: dict[str, ReplogError] = {}  # by bookie: why it is read-only, as it announced
        self.announced_ids: frozenset[str] = frozenset()  # of the bookies that were announced at the last look
        self.refusing: set[str] = set()  # bookies whose last answer was a refusal
        self.ledgers_below = 0  # above all ids that the bookies had held that were announced at the last look (M5)
        self.seen_ids: set[str] = set()  # of all bookies that were ever seen announced
        self.draining: list[str] = []  # bookies to be left that take entries all the same, as of the last `usable`
        self.known = KnownBookies()
        self._metastore = metastore
        self._quarantine = Quarantine(options.bookie_retry_after_s, options.bookie_retry_after_max_s)
        self._unreadable: dict[str, bytes] = {}  # announcements that were warned of
        self._looking = trio.Lock()
        self._looked_at = -_LOOK_EVERY_S
        self._found_lately: dict[str, BookieAddress] = {}

    async def usable(self, excluded: Collection[str] = ()) -> list[str]:
        """Bookies that take new entries, are not draining, did not fail lately, and are not excluded; sorted. Raises
        `MetastoreError`."""
        announced = await self.announced()
        return self._usable_of(announced, excluded)

    async def usable_lately(self, excluded: Collection[str] = ()) -> list[str]:
        """The usable bookies, up to a second old: so that many writers can look often, and the metastore is read once
        for all."""
        # Held during the read: who comes meanwhile gets its answer, and does not ask again.
        async with self._looking:
            if trio.current_time() >= self._looked_at + _LOOK_EVERY_S:
                self._found_lately = await self.announced()
                self._looked_at = trio.current_time()
        return self._usable_of(self._found_lately, excluded)

    def _usable_of(self, announced: dict[str, BookieAddress], excluded: Collection[str]) -> list[str]:
        now = trio.current_time()
        self.read_only = [bookie_id for bookie_id, address in announced.items() if address.read_only]
        found = [
            bookie_id
            for bookie_id, address in announced.items()
            if not address.read_only and bookie_id not in excluded and not self._quarantine.holds(bookie_id, now)
        ]
        self.draining = [bookie_id for bookie_id in found if announced[bookie_id].is_draining]
        return [bookie_id for bookie_id in found if not announced[bookie_id].is_draining]

    async def announced(self) -> dict[str, BookieAddress]:
        """All announced bookies, sorted by id. Raises `MetastoreError`.

        A bookie whose announcement is damaged is left out, with a warning, and does not keep the client from using the others."""
        found: dict[str, BookieAddress] = {}
        for bookie_id, (key, value) in sorted((await self._announcements()).items()):
            try:
                found[bookie_id] = decode_address(key, value)
            except MetastoreCorruptError as error:
                # Once for each value: a client reads the announcements again and again.
                if self._unreadable.get(bookie_id) != value:
                    self._unreadable[bookie_id] = value
                    _log.warning("bookie %s is not used: %s", bookie_id, error, extra={"bookie": bookie_id})
        self.refusals = {
            bookie_id: _refusal_of(address)(address.problem) for bookie_id, address in found.items() if address.problem
        }
        self.ledgers_below = max((address.ledgers_below for address in found.values()), default=0)
        self.known.announced(found)
        return found

    async def draining_ids(self) -> set[str]:
        """The bookies that are to be left. One read, of a place where few bookies are. Raises `MetastoreError`."""
        found = set()
        for bookie_id, value in (await self._metastore.announced(READ_ONLY_BOOKIES_KEY)).items():
            with suppress(MetastoreCorruptError):  # `announced` warns of it
                if decode_address(f"{READ_ONLY_BOOKIES_KEY}/{bookie_id}", value).is_draining:
                    found.add(bookie_id)
        return found

    async def _announcements(self, wanted: str | None = None) -> dict[str, tuple[str, bytes]]:
        """Key and value of each announcement, by bookie. A bookie that is announced both as writable and as read-only is about to
        change, and counts as read-only. `wanted` is a bookie that the caller needs.

        The two keys are read one after the other. A bookie that becomes writable meanwhile is found under either. One that
        becomes read-only could be missed under both, so the second key is read again if an expected bookie is missing."""
        read_only = await self._metastore.announced(READ_ONLY_BOOKIES_KEY)
        writable = await self._metastore.announced(BOOKIES_KEY)
        expected = self.announced_ids if wanted is None else frozenset((wanted,))
        if not expected <= writable.keys() | read_only.keys():
            read_only = {**read_only, **await self._metastore.announced(READ_ONLY_BOOKIES_KEY)}
        self.announced_ids = frozenset(writable) | frozenset(read_only)
        self.seen_ids |= self.announced_ids
        found = {bookie_id: (f"{BOOKIES_KEY}/{bookie_id}", value) for bookie_id, value in writable.items()}
        for bookie_id, value in read_only.items():
            found[bookie_id] = (f"{READ_ONLY_BOOKIES_KEY}/{bookie_id}", value)
        return found

    async def known_ids(self) -> list[str]:
        """The ids of all bookies that have a cookie in the metastore, present or away; sorted. Raises `MetastoreError`."""
        return sorted(await self._metastore.children(COOKIES_KEY))

    async def cookie(self, bookie_id: str) -> Cookie | None:
        """The cookie of a bookie; None if there is none, or it is damaged. Raises `MetastoreError`."""
        key, cookie = cookie_key(bookie_id), None
        try:
            cookie = decode_cookie(key, (await self._metastore.get(key)).value)
        except KeyNotFoundError:
            pass
        except MetastoreCorruptError as error:
            _log.warning("bookie %s is not used: %s", bookie_id, error, extra={"bookie": bookie_id})
        self.known.cookie_read(bookie_id, cookie, trio.current_time())
        return cookie

    def shun(self, bookie_id: str) -> None:
        """A bookie failed: `usable` leaves it out for a while."""
        self._quarantine.failed(bookie_id, trio.current_time())

    def try_again(self, *bookie_ids: str) -> None:
        """Bookies that failed may work again: `usable` has those that are announced."""
        for bookie_id in bookie_ids:
            self._quarantine.succeeded(bookie_id)

    async def address(self, bookie_id: str) -> BookieAddress:
        """The address that a bookie announces. Raises `BookieUnreachableError` if it does not, `MetastoreError`."""
        announced = await self._announcements(bookie_id)
        if bookie_id not in announced:
            raise BookieUnreachableError(bookie_id, "it is not announced in the metastore: it is down, or elsewhere")
        return decode_address(*announced[bookie_id])


async def watch_draining(
    membership: Membership, lease_s: float, leave: Callable[[Collection[str]], None], is_needed: Callable[[], bool]
) -> None:
    """Calls `leave` with the bookies that drain, every half of the metastore's lease while it is needed, until cancelled.

    If the metastore fails, it looks again later: until then writers stay where they are."""
    while True:
        await trio.sleep(max(_LOOK_S, lease_s / 2))
        if not is_needed():
            continue
        try:
            found = await membership.draining_ids()
        except MetastoreError:
            continue
        if found:
            leave(found)
