"""A bookie's work for its storage beside serving: collects garbage, makes space, compacts, scrubs, and looks for damage.

Runs that a caller requests happen in the bookie's own tasks, one run of a kind at a time. If the caller is cancelled,
the run continues to its end, and the next one waits for it. Scheduled runs take their turn in the same way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

import attrs
import trio

from replog.abc import Damage, Metastore
from replog.bookie.garbage import collect_garbage
from replog.bookie.hints import DeletionHints
from replog.bookie.releasing import LEDGERS_AT_A_PASS, Releasing
from replog.bookie.server import BookieServer
from replog.errors import MetastoreError, StorageError
from replog.hookspecs import DamageFound, Event

T = TypeVar("T")

_COLLECTION_PAUSE_S = 0.2  # between passes, however often one is asked for
_MAKE_SPACE_PAUSE_S = 30.0  # between attempts to make space, while it is needed; after new garbage:
_MAKE_SPACE_PAUSE_MIN_S = 1.0
_DAMAGE_LOOK_S = 10.0  # how often the storage is asked for damage
_REPORTED_AT_ONCE_MAX = 100  # damaged batches, before others get their turn


class _Run(Generic[T]):
    """A run that a caller asked for, and how it ended: one of the lists has one element, or none if the bookie was left."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.results: list[T] = []
        self.errors: list[MetastoreError | StorageError] = []


@attrs.define
class _Counts:
    """The counts since the bookie was started."""

    collections: int = 0
    collection_failures: int = 0
    collected_at_s: float = -1.0  # the end of the last pass, by trio's clock
    collection_s: float = -1.0  # how long it took
    compaction_failures: int = 0
    attempts_to_make_space: int = 0
    damage_reports: int = 0
    forced: dict[str, int] = attrs.field(
        factory=lambda: dict.fromkeys(("forced_garbage_collections", "forced_compactions", "forced_scrubs"), 0)
    )


class Maintenance:
    """The maintenance of one bookie. Runs in this nursery once it is started, until that is cancelled."""

    def __init__(
        self, server: BookieServer, metastore: Metastore, observe: Callable[[Event], None], nursery: trio.Nursery
    ) -> None:
        self.is_left = False
        self._server = server
        self._metastore = metastore
        self._observe = observe
        self._nursery = nursery
        self._collecting, self._compacting, self._scrubbing = trio.Lock(), trio.Lock(), trio.Lock()
        self._asked = trio.Event()
        self._dropped = trio.Event()  # ledgers, since space was last made
        self._damage: dict[tuple[int, int, int, int], Damage] = {}  # by its identities, as last seen
        self._looking = trio.Lock()
        self._counts = _Counts()
        self._releasing = Releasing(server, metastore)
        self.hints = DeletionHints(server, metastore, self._collecting, self._releasing, lambda: self._dropped.set())

    def start(self) -> None:
        """Starts the scheduled work."""
        self._nursery.start_soon(self._collect_when_due)
        self._nursery.start_soon(self.hints.run)
        self._nursery.start_soon(self._make_space)
        self._nursery.start_soon(self._watch_damage)

    # -- on demand --------------------------------------------------------------------------------------------------

    async def collect_garbage(self) -> list[int]:
        """Deletes garbage now, and returns the ids of the dropped ledgers (`ServedBookie.collect_garbage`)."""
        return await self._force("forced_garbage_collections", partial(self._collect, None))

    async def confirm_metastore(self) -> None:
        """Confirms that the metastore is right as it is (`ServedBookie.confirm_metastore`)."""
        async with self._collecting:
            await self._server.guard.confirm()
            self._server.look_at_doubt(forgets_revisions=True)

    async def compact(self, *, is_major: bool = False) -> None:
        """Compacts the storage now (`ServedBookie.compact`)."""
        await self._force("forced_compactions", partial(self._compact, is_major=is_major))

    async def scrub(self) -> Sequence[Damage]:
        """Scrubs the storage now, and returns the damage (`ServedBookie.scrub`)."""
        return await self._force("forced_scrubs", self._scrub)

    def ask_for_collection(self) -> None:
        """Collects garbage soon, rather than at the next interval."""
        self._asked.set()

    async def _force(self, what: str, function: Callable[[], Awaitable[T]]) -> T:
        if self.is_left:
            raise self._closed()
        self._counts.forced[what] += 1
        run: _Run[T] = _Run()
        # In the bookie's nursery: if the caller is cancelled, a compaction that has begun still ends properly.
        self._nursery.start_soon(self._perform, run, function)
        await run.ended.wait()
        for error in run.errors:
            raise error
        for result in run.results:
            return result
        raise self._closed()

    async def _perform(self, run: _Run[T], function: Callable[[], Awaitable[T]]) -> None:
        try:
            run.results.append(await function())
        except (MetastoreError, StorageError) as error:
            run.errors.append(error)
        finally:
            run.ended.set()

    def _closed(self) -> trio.ClosedResourceError:
        return trio.ClosedResourceError(f"bookie {self._server.bookie_id} was left before it finished this")

    # -- the work ---------------------------------------------------------------------------------------------------

    async def _collect(self, released_of_max: int | None = LEDGERS_AT_A_PASS) -> list[int]:
        async with self._collecting:
            started_s = trio.current_time()
            try:
                dropped = await collect_garbage(self._server, self._metastore)
                await self._releasing.run(released_of_max)
            except (MetastoreError, StorageError):
                # Nothing that exists was dropped.
                self._counts.collection_failures += 1
                raise
            self._counts.collections += 1
            if dropped:
                self._dropped.set()
            self._counts.collected_at_s = trio.current_time()
            self._counts.collection_s = self._counts.collected_at_s - started_s
            return dropped

    async def _compact(self, *, is_major: bool) -> None:
        async with self._compacting:
            try:
                await self._server.call(partial(self._server.storage.compact, is_major=is_major), is_long=True)
            except StorageError:
                self._counts.compaction_failures += 1
                raise

    async def _scrub(self) -> Sequence[Damage]:
        async with self._scrubbing:
            # One after the other: two scrubs would read everything twice, and find the same.
            await self._server.call(self._server.storage.scrub, is_long=True)
        return await self._look_for_damage()

    async def _look_for_damage(self) -> Sequence[Damage]:
        """Reports damage that was not there at the last look."""
        async with self._looking:
            found = await self._server.call(self._server.storage.damage)
            known, self._damage = self._damage, {_identities(each): each for each in found}
            for number, (key, each) in enumerate(self._damage.items(), 1):
                if key not in known:
                    self._counts.damage_reports += 1
                    self._observe(_found(self._server.bookie_id, each))
                if number % _REPORTED_AT_ONCE_MAX == 0:
                    await (
                        trio.lowlevel.cancel_shielded_checkpoint()
                    )  # shielded: damage that is not reported now never would be
            return tuple(found)

    # -- by the clock -----------------------------------------------------------------------------------------------

    async def _collect_when_due(self) -> None:
        """Collects garbage at every interval, and when asked. A pass that fails is repeated at the next interval."""
        while True:
            with trio.move_on_after(self._server.options.garbage_collection_interval_s):
                await self._asked.wait()
            self._asked = trio.Event()
            # It is counted, and the storage reports its own failures.
            with suppress(MetastoreError, StorageError):
                await self._collect()
            await trio.sleep(_COLLECTION_PAUSE_S)

    async def _make_space(self) -> None:
        """While there is too little space: drops deleted ledgers, then gives back their space (B5)."""
        while True:
            await self._server.mode.read_only_turned(was=False)
            if self._server.failure is not None:
                return
            self._counts.attempts_to_make_space += 1
            # Failures are counted, and reported if they stop the storage. There may be something to compact even so.
            with suppress(MetastoreError, StorageError):
                await self._collect()
            self._dropped = trio.Event()
            with suppress(StorageError):
                await self._compact(is_major=True)
                await self._server.space_was_made()
            # At least this long, however much garbage comes: compaction and its reads must not take the whole disk.
            await trio.sleep(_MAKE_SPACE_PAUSE_MIN_S)
            with trio.move_on_after(_MAKE_SPACE_PAUSE_S - _MAKE_SPACE_PAUSE_MIN_S):
                await self._is_worth_while()

    async def _is_worth_while(self) -> None:
        """Returns when there is new garbage, or there was space meanwhile: then the next want of it is another one."""
        async with trio.open_nursery() as nursery:

            async def come_back() -> None:
                await self._server.mode.read_only_turned(was=True)
                # Otherwise it was only presumed that there is space.
                if self._server.space.free_bytes is not None:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(come_back)
            await self._dropped.wait()
            nursery.cancel_scope.cancel()

    async def _watch_damage(self) -> None:
        while self._server.failure is None:
            # An error that stops the storage was reported; after another one the bookie looks again.
            with suppress(StorageError):
                await self._look_for_damage()
            await trio.sleep(_DAMAGE_LOOK_S)

    def statistics(self) -> dict[str, float]:
        """Counters and gauges."""
        found: dict[str, float] = {
            "garbage_collections": self._counts.collections,
            "garbage_collection_failures": self._counts.collection_failures,
            "released_ranges": self._releasing.released,
            "ledgers_collected": self._server.traffic.dropped_ledgers,
            "deletion_hints": self.hints.heard,
            "compaction_failures": self._counts.compaction_failures,
            "attempts_to_make_space": self._counts.attempts_to_make_space,
            "damaged_batches": len(self._damage),
            "damage_reports": self._counts.damage_reports,
            **self._counts.forced,
        }
        if self._counts.collections:
            found["last_garbage_collection_s"] = self._counts.collection_s
            found["since_garbage_collection_s"] = trio.current_time() - self._counts.collected_at_s
        return found


def _identities(damage: Damage) -> tuple[int, int, int, int]:
    return damage.ledger_id, damage.stamp, damage.first_entry_id, damage.last_entry_id


def _found(bookie_id: str, damage: Damage) -> DamageFound:
    return DamageFound(
        bookie_id,
        damage.ledger_id,
        damage.stamp,
        damage.first_entry_id,
        damage.last_entry_id,
        damage.description,
    )
