"""Recognises a metastore that was emptied, went back, or is another cluster's, so that nothing is dropped on its word (B6a).

A bookie keeps two things that only grow, in its storage and in the metastore: a counter in its own cookie, which it raises by
CAS, and the next ledger id. A metastore that knows less than the bookie has gone back. Then the bookie *doubts* it: it drops
nothing, takes no new ledgers, recovers none, and says so, until the metastore is right again or an operator confirms it.

- The counter is raised in the cookie first and kept in the storage after that: a cookie that is ahead is no alarm.
- The counter is raised within seconds after a ledger began here: a metastore that lacks the ledger's record, because it went
  back, then lacks that, too, even if its next ledger id is the same.
- A bookie that holds no ledger has nothing to lose: it joins any metastore.
- `check` is called before anything is dropped, and once more right before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn, Protocol, TypeVar

import attrs
import trio

from replog.abc import Metastore, Reply, Sighting, Storage
from replog.bookie.mode import Mode
from replog.bookie.newcomers import Newcomers
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreDoubtedError,
    MetastoreUncertainError,
    StorageFullError,
    StorageIdentityError,
)
from replog.protocol.bookie import OrderedRequest
from replog.records.bookies import Cookie, change_cookie, cookie_key, decode_cookie, encode_cookie
from replog.records.editing import AGAIN_S
from replog.records.ids import raise_next_ledger_id, read_next_ledger_id
from replog.records.paths import (
    LEDGER_KEY_SHAPES,
    LEDGERS_KEY,
    LEDGERS_VALUE,
    LONG_LEDGER_ID_MIN,
    LONG_LEDGERS_KEY,
)
from replog.runtime.entropy import current_entropy
from replog.runtime.loggers import logger

_log = logger("replog.bookie")

_IDS_AHEAD_MAX = 1 << 16  # that may be given out while the metastore does not answer

T = TypeVar("T")


class _Call(Protocol):
    def __call__(self, function: Callable[[], T]) -> Awaitable[T]: ...


class MetastoreGuard:
    """A bookie's knowledge of its metastore. `call` calls the storage, `take` takes a request of a `newcomer`."""

    def __init__(
        self, storage: Storage, call: _Call, mode: Mode, take: Callable[[OrderedRequest, Reply], None]
    ) -> None:
        self.newcomers = Newcomers(self, take)
        self.problem = ""  # why the bookie doubts its metastore; "" while it does not
        self.times_doubted = 0  # since the start
        self._storage = storage
        self._call = call
        self._mode = mode
        self._metastore: Metastore | None = None
        self._seen = Sighting()
        self._highest_held = -1  # at least the highest id of a ledger that is stored here
        self._has_begun = False  # a ledger here, since the counter was last raised
        self._raising = trio.Lock()

    @property
    def ledgers_below(self) -> int:
        """All ledgers that this bookie ever held have lower ids: what the metastore had given out when it was last read (M5)."""
        return max(self._seen.next_ledger_id, self._highest_held + 1)

    def knows_revisions(self, ledger_id: int) -> bool:
        """True if the known revision of this ledger's record still counts (M5)."""
        return ledger_id >= self._seen.revisions_from_ledger_id

    # -- the start ----------------------------------------------------------------------------------------------------

    async def begin(self, metastore: Metastore, *, after_restore: bool = False) -> Cookie:
        """Looks at the metastore for the first time, and raises the counter. Returns the bookie's cookie.

        A bookie without ledgers is made known. One that the metastore has never heard of is refused if it has ledgers: it may be
        another cluster's. One whose metastore went back begins in doubt. With `after_restore`, an operator says that the
        metastore is right as it is. Raises `StorageIdentityError`, `MetastoreError`, `StorageError`."""
        self._metastore = metastore
        cookie = await self._cookie()
        if cookie is not None and cookie.is_lost:
            return cookie  # it will not serve (B8a)
        self._seen = await self._call(self._storage.sighting)
        await self._look_what_is_held()
        if after_restore:
            await self.confirm()
        elif cookie is None and self._highest_held >= 0:
            raise StorageIdentityError(
                f"bookie {self._storage.bookie_id} has ledgers, but the metastore has never heard of it",
                "Either the metastore was lost, or this directory belongs to another one: bring the two that belong "
                "together. Nothing was touched. If the metastore was restored from a back-up, and nothing newer is left: "
                "start the bookie with --after-restore",
            )
        elif not self._seen.times_raised:
            await self._make_root()
        try:
            return await self.raise_counter()
        except MetastoreDoubtedError:
            found = await self._cookie()
            return Cookie() if found is None else found

    async def _look_what_is_held(self) -> None:
        held = await self._call(self._storage.ledger_ids)
        self._highest_held = max(held[-1:], default=-1)

    async def _cookie(self) -> Cookie | None:
        assert self._metastore is not None, "a guard has a metastore once the bookie serves"
        key = cookie_key(self._storage.bookie_id)
        try:
            return decode_cookie(key, (await self._metastore.get(key)).value)
        except KeyNotFoundError:
            return None

    async def _join(self, cookie: Cookie | None) -> Cookie:
        """Takes any metastore for the bookie's own, since it holds no ledger: nothing can be lost. Returns its cookie there."""
        assert self._metastore is not None, "a guard has a metastore once the bookie serves"
        known = self._seen
        if cookie is None or cookie.token != known.token or cookie.times_raised < known.times_raised:
            await self._make_root()
            # It may have been made again. Ledgers dropped here still refuse entries under their old ids (L5).
            await raise_next_ledger_id(self._metastore, known.next_ledger_id)
        if cookie is None:
            # The creation may have succeeded already, or an operator has declared the bookie lost meanwhile.
            await _create(self._metastore, cookie_key(self._storage.bookie_id), encode_cookie(Cookie()))
            cookie = await self._cookie() or Cookie()
        next_ledger_id = max(known.next_ledger_id, await read_next_ledger_id(self._metastore))
        self._seen = Sighting(cookie.token, cookie.times_raised, next_ledger_id)
        self._trust()
        return cookie

    async def _make_root(self) -> None:
        assert self._metastore is not None, "a guard has a metastore once the bookie serves"
        for key in LEDGER_KEY_SHAPES:
            await _create(self._metastore, key, LEDGERS_VALUE)

    # -- whether it is right -------------------------------------------------------------------------------------------

    async def check(self) -> Cookie:
        """Compares the metastore with what the bookie has seen of it. Returns the bookie's cookie. Raises `MetastoreDoubtedError`
        if it went back: then nothing may be dropped; `MetastoreError`."""
        assert self._metastore is not None, "a guard has a metastore once the bookie serves"
        cookie = await self._cookie()
        if self._highest_held < 0:
            return await self._join(cookie)
        if cookie is None:
            self._doubt("it has no cookie of this bookie: it was emptied, or is another cluster's")
        if self._seen.token and cookie.token != self._seen.token:
            self._doubt("its cookie of this bookie is not the one that this bookie wrote: it is another cluster's")
        if cookie.times_raised < self._seen.times_raised:
            seen = self._seen.times_raised
            self._doubt(f"its cookie of this bookie was raised {cookie.times_raised} times, and had been {seen} times")
        next_ledger_id = await read_next_ledger_id(self._metastore)
        if next_ledger_id < self._seen.next_ledger_id:
            self._doubt(f"its next ledger id is {next_ledger_id}, and had been {self._seen.next_ledger_id}")
        if next_ledger_id <= self._highest_held:
            self._doubt(f"its next ledger id is {next_ledger_id}, and this bookie holds ledger {self._highest_held}")
        root = LEDGERS_KEY if self._highest_held < LONG_LEDGER_ID_MIN else LONG_LEDGERS_KEY
        try:
            await self._metastore.get(root)
        except KeyNotFoundError:
            self._doubt(f"its key {root!r} is gone, above all ledgers")
        self._seen = attrs.evolve(self._seen, next_ledger_id=next_ledger_id)
        self._trust()
        return cookie

    def _doubt(self, problem: str) -> NoReturn:
        if problem != self.problem:
            self.times_doubted += not self.problem
            self.problem = problem
            _log.error(
                "bookie %s doubts its metastore: %s. It drops nothing, and takes no new ledgers: put the right metastore "
                "back, or see the how-to 'After a metastore was restored'",
                self._storage.bookie_id,
                problem,
                extra={"bookie": self._storage.bookie_id},
            )
            self._mode.turn(metastore_problem=problem)
        raise MetastoreDoubtedError(f"bookie {self._storage.bookie_id} doubts its metastore: {problem} (B6a)")

    def _trust(self) -> None:
        if self.problem:
            self.problem = ""
            _log.warning("bookie %s no longer doubts its metastore", self._storage.bookie_id)
            self._mode.turn(metastore_problem="")

    async def raise_counter(self) -> Cookie:
        """Checks, then raises the counter, and keeps the sighting. Returns the bookie's cookie. Raises
        `MetastoreDoubtedError`, `MetastoreError`, `StorageFailedError`: then the counter may be raised or not."""
        assert self._metastore is not None, "a guard has a metastore once the bookie serves"
        async with self._raising:
            known = await self.check()
            times = max(known.times_raised, self._seen.times_raised) + 1
            token = known.token or current_entropy().token()

            def raised(cookie: Cookie) -> Cookie:
                # Not the metastore that was checked any more: a counter that is raised in the wrong one is lost.
                if cookie.times_raised < known.times_raised:
                    self._doubt(
                        f"its cookie of this bookie was raised {cookie.times_raised} times, not {known.times_raised}"
                    )
                return attrs.evolve(cookie, token=token, times_raised=max(times, cookie.times_raised))

            self._has_begun = False
            try:
                cookie = await change_cookie(self._metastore, self._storage.bookie_id, raised)
            except BaseException:
                self._has_begun = True
                raise
            self._seen = seen = attrs.evolve(self._seen, token=token, times_raised=cookie.times_raised)
            # Dropping deleted ledgers makes space. Until the next time, a bookie that is killed knows only the last counter.
            with suppress(StorageFullError):
                await self._call(lambda: self._storage.keep_sighting(seen))
            return cookie

    async def look(self) -> Cookie:
        """Checks the metastore, and raises the counter if a ledger has begun here since it was last raised."""
        return await (self.raise_counter() if self._has_begun else self.check())

    async def confirm(self) -> None:
        """An operator says that the metastore is right as it is: from now on it is compared with what it says today. Its next
        ledger id is raised above all ids that this bookie has ever seen (M5). Raises `MetastoreError`, `StorageError`: then it
        may be confirmed or not; confirming again is harmless."""
        assert self._metastore is not None, "a guard has a metastore once the bookie serves"
        await self._look_what_is_held()
        next_ledger_id = await raise_next_ledger_id(self._metastore, self.ledgers_below)
        await self._make_root()
        await _create(self._metastore, cookie_key(self._storage.bookie_id), encode_cookie(Cookie()))
        # Records that are older than the known revisions are right from now on.
        self._seen = Sighting(next_ledger_id=next_ledger_id, revisions_from_ledger_id=next_ledger_id)
        await self.raise_counter()
        _log.warning("bookie %s: an operator confirmed its metastore as it is", self._storage.bookie_id)

    # -- ledgers that begin --------------------------------------------------------------------------------------------

    def may_begin(self, ledger_id: int) -> bool:
        """True if the metastore is known to have given this id out, so that the ledger may begin here. False: call `read_ids`
        first."""
        if self._metastore is None:
            return True
        if ledger_id >= self.ledgers_below:
            return False
        self._has_begun = True
        self._highest_held = max(self._highest_held, ledger_id)
        return True

    def is_plausible(self, ledger_id: int) -> bool:
        """True if the metastore may well have given this id out since it was last read."""
        return ledger_id < self.ledgers_below + _IDS_AHEAD_MAX

    async def read_ids(self) -> None:
        """Reads the next ledger id again. Raises `MetastoreDoubtedError` if it is lower than before, `MetastoreError`."""
        assert self._metastore is not None, "a guard has a metastore once the bookie serves"
        next_ledger_id = await read_next_ledger_id(self._metastore)
        if next_ledger_id < self._seen.next_ledger_id:
            await self.check()
        self._seen = attrs.evolve(self._seen, next_ledger_id=max(next_ledger_id, self._seen.next_ledger_id))


async def _create(metastore: Metastore, key: str, value: bytes) -> None:
    """Creates a key, or leaves the one that is there. Raises `MetastoreError`."""
    for is_last in (False, False, True):
        try:
            await metastore.create(key, value)
        except KeyExistsError:
            return
        except MetastoreUncertainError:
            if is_last:
                raise
            await trio.sleep(AGAIN_S)
        else:
            return
