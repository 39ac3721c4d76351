"""What shells have in common: performing a machine's effects.

Effects that only send are done at once, in the caller's frame; those that must wait for the metastore or for bookies
queue up for one background task, which does them one after the other and drives the machine on with the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

import trio

from replog.abc import PlacementPolicy
from replog.client.connections import Connections
from replog.client.ledger_records import LedgerRecords
from replog.client.membership import Membership
from replog.errors import MetastoreError
from replog.protocol.effects import ChooseReplacements, Effect, ReadMetadata, WriteMetadata
from replog.protocol.recovery import LedgerRecovery
from replog.protocol.writing import LedgerWriting
from replog.runtime.chance import current_chance
from replog.runtime.turns import Turns

WaitingEffect = ChooseReplacements | WriteMetadata | ReadMetadata


class ClientContext:
    """What every shell of one client needs: records, bookies, placement, chance."""

    def __init__(
        self, records: LedgerRecords, membership: Membership, connections: Connections, placement: PlacementPolicy
    ) -> None:
        self.records = records
        self.membership = membership
        self.connections = connections
        self.placement = placement
        self.chance = current_chance()
        self.turns = Turns()

    async def perform(self, effect: WaitingEffect, machine: LedgerWriting | LedgerRecovery) -> None:
        """Does an effect that has to wait, and tells the machine the answer."""
        if isinstance(effect, ChooseReplacements):
            machine.replacements_chosen(await self._choose(effect))
        else:
            await self.records.perform(effect, machine)

    async def is_anybody_there(self, excluded: Collection[str]) -> bool:
        """Whether a bookie that takes new entries, other than these, can be connected to. One that is silent is waited for
        only as long as there may be somebody else."""
        try:
            usable = await self.membership.usable_lately(excluded)
        except MetastoreError:
            return False
        await self.connections.connect_most(usable, self.connections.patience_s)
        return any(self.connections.channel(bookie_id) is not None for bookie_id in usable)

    async def _choose(self, effect: ChooseReplacements) -> dict[int, str]:
        """Bookies that can really be connected to; the failed ones themselves if they are back and nobody else is there."""
        ensemble = effect.metadata.last_fragment.ensemble
        excluded = set(effect.excluded)
        chosen: dict[int, str] = {}
        missing = list(effect.failed)
        while missing:
            try:
                usable = await self.membership.usable(excluded)
            except MetastoreError:
                break  # no news from the metastore: without a CAS there is no new ensemble anyway (C3)
            proposed = self.placement.replace_bookies(effect.metadata, missing, usable, self.chance.random)
            back = [index for index in missing if index not in proposed and ensemble[index] in usable]
            proposed.update((index, ensemble[index]) for index in back)
            if not proposed:
                break
            with trio.move_on_after(self.connections.patience_s):  # nothing is confirmed until this is done (C1)
                await self.connections.connect_all(proposed.values())
            for index, bookie_id in proposed.items():
                if self.connections.channel(bookie_id) is None:
                    self.membership.shun(bookie_id)
                else:
                    chosen[index] = bookie_id
            excluded.update(proposed.values())
            missing = [index for index in missing if index not in chosen]
        return chosen


class EffectLoop:
    """Performs a machine's effects until there are none. Called again from a frame below, by an answer that came at once,
    it leaves what follows from that answer to the loop that runs already."""

    def __init__(self, take_effects: Callable[[], list[Effect]], perform: Callable[[Effect], None]) -> None:
        self._take_effects = take_effects
        self._perform = perform
        self._running = False

    def __call__(self) -> None:
        if self._running:
            return
        self._running = True
        try:
            while effects := self._take_effects():
                for effect in effects:
                    self._perform(effect)
        finally:
            self._running = False


class WaitingEffects:
    """The effects of one machine that have to wait, and the task that does them in order."""

    def __init__(
        self, context: ClientContext, machine: LedgerWriting | LedgerRecovery, drive: Callable[[], None]
    ) -> None:
        self._context = context
        self._machine = machine
        self._drive = drive
        self._queue: deque[WaitingEffect] = deque()
        self._arrived = trio.Event()

    def put(self, effect: WaitingEffect) -> None:
        """Queues an effect."""
        self._queue.append(effect)
        self._arrived.set()

    async def run(self) -> None:
        """Does the effects until cancelled."""
        while True:
            while self._queue:
                await self._context.perform(self._queue.popleft(), self._machine)
                self._drive()
            self._arrived = trio.Event()
            await self._arrived.wait()
