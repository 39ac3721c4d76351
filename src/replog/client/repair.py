"""Repairs: fills what an audit found lacking, most endangered fragments first (F1-F6).

Any number of repairs may run at once, and each may be killed at any moment: what one has copied the next one finds. A bookie that
is merely away is not replaced, unless the caller says so; one that was declared lost is, at once (B8a).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Sequence

import attrs
import trio

from replog.client.auditing import (
    Auditor,
    AuditReport,
    Bookies,
    UnderReplicatedFragment,
    every_ledger,
)
from replog.client.driving import ClientContext
from replog.client.holdings import digest_of
from replog.config import ClientOptions
from replog.errors import BookieError, LedgerNotFoundError, ReplogError
from replog.protocol.copies import FixedFragment, fixed_fragments
from replog.protocol.effects import (
    AskHolding,
    ChooseReplacements,
    Effect,
    Failed,
    ReadMetadata,
    SendCopy,
    SendCopyRead,
    WriteMetadata,
)
from replog.protocol.filling import Filled, LedgerFilling
from replog.protocol.fragments import Fragment
from replog.protocol.messages import Status
from replog.protocol.model import LedgerMetadata
from replog.records.ledgers import ledger_id_pages
from replog.runtime.nursery import for_each

_log = logging.getLogger("replog.client")

FRAGMENTS_AT_ONCE = 8
_TRIES_MAX = 4  # of one fragment whose record somebody else changes


class Pace:
    """Copies no more than so many bytes a second, over all that uses it."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def spend(self, size_bytes: int) -> None:
        """Returns when so many bytes may be copied."""
        now_s = trio.current_time()
        start_s = max(now_s, self._free_at_s)
        self._free_at_s = start_s + size_bytes / self._bytes_per_s
        await trio.sleep(start_s - now_s)


class Repairer:
    """Repairs the ledgers of one client's cluster."""

    def __init__(self, context: ClientContext, options: ClientOptions) -> None:
        self._context = context
        self._auditor = Auditor(context, options.read_timeout_s)
        self._pace = Pace(options.repair_bytes_per_s)

    async def audit(self, has: Callable[[int], bool] = every_ledger) -> AuditReport:
        """Looks at every ledger that `has` is true of. Raises `MetastoreError`."""
        return await self._auditor.audit(has)

    async def bookies(self) -> Bookies:
        """Which bookies there are now. Raises `MetastoreError`."""
        return await self._auditor.bookies()

    async def undeclared(self, lost: Sequence[str]) -> list[str]:
        """Those of these bookies that are not declared lost yet. Raises `MetastoreError`."""
        declared = (await self._auditor.bookies()).lost if lost else ()
        return [bookie_id for bookie_id in lost if bookie_id not in declared]

    async def repair(self, replace: Collection[str] = (), has: Callable[[int], bool] = every_ledger) -> AuditReport:
        """Fills what is lacking, and returns the audit after it. `replace` are bookies to replace besides those declared lost.
        Raises `MetastoreError`; what was filled by then stays."""
        before = await self.audit(has)
        if not before.lacking and not before.draining:
            return before
        await self.fill(before, replace, has)
        return await self.audit(has)

    async def fill(
        self, before: AuditReport, replace: Collection[str] = (), has: Callable[[int], bool] = every_ledger
    ) -> None:
        """Fills what this audit found lacking, and leaves bookies that drain. Raises `MetastoreError`."""
        bookies = await self._auditor.bookies()

        async def fill_one(lacking: UnderReplicatedFragment) -> None:
            with contextlib.suppress(LedgerNotFoundError):  # it was deleted meanwhile
                await self._fill(lacking, bookies, replace)

        # Who has the fewest copies left is the next to be gone.
        order = sorted(before.lacking, key=lambda each: (each.copies_left, each.ledger_id, each.first_entry_id))
        await for_each(fill_one, order, FRAGMENTS_AT_ONCE)
        if before.draining:
            # Last: nothing is lost yet of what is on bookies that are to be left (C8).
            await self._move_off(bookies, replace, has)

    async def _move_off(self, bookies: Bookies, replace: Collection[str], has: Callable[[int], bool]) -> None:
        """Replaces the bookies that drain in all fragments whose range is fixed (F2), where there is somebody else."""

        async def move(ledger_id: int) -> None:
            with contextlib.suppress(LedgerNotFoundError):  # it was deleted meanwhile
                metadata, _ = await self._context.records.get(ledger_id)
                for fragment in fixed_fragments(metadata):
                    if bookies.draining.intersection(fragment.ensemble):
                        await self._fill_at(ledger_id, fragment.first_entry_id, bookies, replace)

        async with contextlib.aclosing(ledger_id_pages(self._context.records.metastore)) as pages:
            async for page in pages:
                await for_each(move, filter(has, page), FRAGMENTS_AT_ONCE)

    async def _fill(self, lacking: UnderReplicatedFragment, bookies: Bookies, replace: Collection[str]) -> None:
        await self._fill_at(lacking.ledger_id, lacking.first_entry_id, bookies, replace)

    async def _fill_at(self, ledger_id: int, first_entry_id: int, bookies: Bookies, replace: Collection[str]) -> None:
        for _ in range(_TRIES_MAX):
            metadata, version = await self._context.records.get(ledger_id)
            fragment = _fragment_at(metadata, first_entry_id)
            if fragment is None:
                return
            replacements = await self._replacements(metadata, fragment, bookies, replace)
            machine = LedgerFilling(
                metadata,
                version,
                self._context.chance.token(),
                fragment.place,
                replacements=replacements,
                lost=bookies.lost,
                digest=digest_of(metadata),
            )
            filled = await self._run(machine)
            for bookie_id, problem in filled.refusals.items():
                _log.info("repair of ledger %d: bookie %s: %s", ledger_id, bookie_id, problem)
            if not filled.is_overtaken:
                return

    async def _replacements(
        self, metadata: LedgerMetadata, fragment: FixedFragment, bookies: Bookies, replace: Collection[str]
    ) -> dict[int, str]:
        """A bookie for each index of the fragment whose bookie is gone or drains, as far as there are any."""
        gone = {*bookies.lost, *bookies.draining, *(each for each in replace if each not in bookies.announced)}
        failed = [index for index, bookie_id in enumerate(fragment.ensemble) if bookie_id in gone]
        if not failed:
            return {}
        # The placement sees the last fragment of what it is given.
        alone = attrs.evolve(metadata, fragments=(Fragment(0, fragment.ensemble, fragment.term),))
        effect = ChooseReplacements(alone, tuple(failed), frozenset(fragment.ensemble))
        chosen = await self._context.choose_replacements(effect)
        unwanted = {*fragment.ensemble, *bookies.draining}
        return {index: bookie_id for index, bookie_id in chosen.items() if bookie_id not in unwanted}

    async def _run(self, machine: LedgerFilling) -> Filled:
        """Performs the machine's effects. Raises what it failed with."""
        machine.start()
        failure: ReplogError | None = None
        while effects := machine.take_effects():
            failure = next((effect.error for effect in effects if isinstance(effect, Failed)), failure)
            # All of them are to be answered before the machine has others, so they are performed together.
            async with trio.open_nursery() as nursery:
                for effect in effects:
                    nursery.start_soon(self._perform, effect, machine)
        if failure is not None:
            raise failure
        return machine.result

    async def _perform(self, effect: Effect, machine: LedgerFilling) -> None:
        if isinstance(effect, AskHolding):
            await self._ask_holding(effect, machine)
        elif isinstance(effect, SendCopyRead):
            await self._read(effect, machine)
        elif isinstance(effect, SendCopy):
            await self._store(effect, machine)
        elif isinstance(effect, WriteMetadata | ReadMetadata):
            await self._context.records.perform(effect, machine)

    async def _ask_holding(self, effect: AskHolding, machine: LedgerFilling) -> None:
        fragment = FixedFragment(0, effect.first_entry_id, effect.last_entry_id, (), effect.stamp)
        try:
            holding = await self._auditor.questions.holding(effect.bookie_id, machine.metadata, fragment)
        except BookieError as error:
            machine.holding_unknown(effect.bookie_id, str(error))
        else:
            machine.holding_told(effect.bookie_id, holding.ranges)

    async def _read(self, effect: SendCopyRead, machine: LedgerFilling) -> None:
        metadata = machine.metadata
        try:
            batches = await self._auditor.questions.copies(effect.bookie_id, metadata, effect.entry_id, effect.stamp)
        except BookieError:
            batches = ()
        if batches:
            machine.copies_found(effect.bookie_id, effect.entry_id, batches)
        else:
            machine.copies_unreadable(effect.bookie_id, effect.entry_id)

    async def _store(self, effect: SendCopy, machine: LedgerFilling) -> None:
        await self._pace.spend(len(effect.batch.data))
        try:
            answer = await self._auditor.questions.store(effect.bookie_id, machine.metadata, effect.batch, effect.term)
        except BookieError as error:
            machine.copy_refused(effect.bookie_id, effect.batch, str(error))
        else:
            if answer.status is Status.FENCED:
                machine.copy_fenced(effect.bookie_id, effect.batch)
            else:
                machine.copy_stored(effect.bookie_id, effect.batch)


def _fragment_at(metadata: LedgerMetadata, first_entry_id: int) -> FixedFragment | None:
    for fragment in fixed_fragments(metadata):
        if fragment.first_entry_id == first_entry_id:
            return fragment
    return None
