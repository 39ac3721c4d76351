"""Performing the effects of a ledger's machine, for its writer, its recovery and its readers.

Effects that only send are performed at once, in the caller's frame. Effects that wait for the metastore or for bookies
are queued for one background task, which performs them one after the other and reports the answers to the machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

import trio

from replog.client.archive_reading import ArchiveReader
from replog.client.connections import Connections
from replog.client.ledger_records import LedgerRecords
from replog.client.membership import Membership
from replog.client.placing import Placing
from replog.errors import MetastoreError
from replog.hookspecs import BatchConfirmed
from replog.protocol.effects import ChooseReplacements, Effect, ReadMetadata, WriteMetadata
from replog.protocol.model import LedgerMetadata
from replog.protocol.recovery import LedgerRecovery
from replog.protocol.writing import LedgerWriting
from replog.runtime.entropy import current_entropy
from replog.runtime.event_loop import CallSoon

WaitingEffect = ChooseReplacements | WriteMetadata | ReadMetadata


class ClientContext:
    """The shared parts of a client's writers, recoveries and readers: records, bookies, placement, clock and entropy."""

    def __init__(
        self, records: LedgerRecords, membership: Membership, connections: Connections, placing: Placing
    ) -> None:
        self.records = records
        self.membership = membership
        self.connections = connections
        self.placing = placing
        self.entropy = current_entropy()
        self.call_soon = CallSoon()
        self.batches_sent = 0  # by all writers, since the client's start
        self.archive_reader: ArchiveReader | None = None  # of a cluster whose records can name archives
        self.observe_batches: Callable[[BatchConfirmed], None] | None = None  # of writers that begin from now on

    async def perform(self, effect: WaitingEffect, machine: LedgerWriting | LedgerRecovery) -> None:
        """Performs an effect that has to wait, and tells the machine the answer."""
        if isinstance(effect, ChooseReplacements):
            machine.replacements_chosen(await self.choose_replacements(effect))
        else:
            await self.records.perform(effect, machine)

    async def delete_archived(self, before: LedgerMetadata, left: LedgerMetadata | None = None) -> None:
        """Deletes the objects of the archived fragments of a record that the one that is left, if any, does not have (L7). What
        cannot be deleted now is collected later."""
        copies = {each.archive for each in before.fragments if each.archive}
        if left is not None:
            copies -= {each.archive for each in left.fragments}
        if copies and self.archive_reader is not None:
            await self.archive_reader.archives.delete_copies(before.ledger_id, sorted(copies))

    async def is_anybody_there(self, excluded: Collection[str]) -> bool:
        """True if a bookie that takes new entries, other than these, can be connected to. Waits for a silent one only for
        `patience_s`."""
        try:
            usable = await self.membership.usable_lately(excluded)
        except MetastoreError:
            return False
        await self.connections.connect_most(usable, self.connections.patience_s)
        return any(self.connections.channel(bookie_id) is not None for bookie_id in usable)

    async def choose_replacements(self, effect: ChooseReplacements) -> dict[int, str]:
        """Bookies to use in place of the failed ones, by index; each is connected. Without another one, a failed bookie
        that is back replaces itself; one that drains takes a place only where no other bookie can (C8)."""
        ensemble = effect.metadata.last_fragment.ensemble
        excluded = set(effect.excluded)
        others: set[str] = set()  # that could have been used
        present: set[str] = set()  # members of the ensemble that failed, or drain, and are there
        chosen: dict[int, str] = {}
        missing = list(effect.failed)
        while missing:
            try:
                usable = await self.membership.usable(excluded)
            except MetastoreError:
                # A new ensemble needs a CAS, so without the metastore there is none (C3).
                break
            others |= set(usable)
            there = {*usable, *(draining := self.membership.draining)}
            present |= {ensemble[index] for index in missing if ensemble[index] in there}
            proposed = await self.placing.replacements(effect.metadata, missing, usable)
            back = [index for index in missing if index not in proposed and ensemble[index] in there]
            proposed.update((index, ensemble[index]) for index in back)
            left = [index for index in missing if index not in proposed]
            if left and draining:
                proposed.update(await self.placing.replacements(effect.metadata, left, draining))
            if not proposed:
                break
            with trio.move_on_after(
                self.connections.patience_s
            ):  # in some quorums nothing is confirmed until this is done (C1, C9)
                await self.connections.connect_all(proposed.values())
            for index, bookie_id in proposed.items():
                if self.connections.channel(bookie_id) is None:
                    self.membership.shun(bookie_id)
                else:
                    chosen[index] = bookie_id
            # Those that were chosen, too: an ensemble names a bookie only once (C2).
            excluded.update(proposed.values())
            missing = [index for index in missing if index not in chosen]
        if not await self.placing.accepted(effect.metadata, chosen, effect.failed, others):
            await self.connections.connect_most(present, self.connections.patience_s)
            stay = [index for index in effect.failed if ensemble[index] in present]
            return {index: ensemble[index] for index in stay if self.connections.channel(ensemble[index]) is not None}
        return chosen


class EffectLoop:
    """Performs a machine's effects until there are none.

    An answer may come before `send` returns, and call the loop again from a frame below. That call returns at once: the loop that
    runs already performs what follows from the answer."""

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
    """The queue of one machine's effects that have to wait, and the task that performs them in order."""

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
        """Performs the effects until cancelled."""
        while True:
            while self._queue:
                await self._context.perform(self._queue.popleft(), self._machine)
                self._drive()
            self._arrived = trio.Event()
            await self._arrived.wait()
