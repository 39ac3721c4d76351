"""Repairs: fills what an audit found lacking, most endangered fragments first (F1-F6).

Any number of repairs may run at once, and each may be killed at any moment: what one has copied the next one finds. A bookie that
is merely away is not replaced, unless the caller says so; one that was declared lost is, at once (B8a).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import attrs
import trio

from replog.client.ledger_effects import ClientContext
from replog.client.ledger_records import LedgerRecords
from replog.client.metastore_trust import check_metastore
from replog.client.unbounded import change_record
from replog.config.client import ClientTuning
from replog.errors import KeyNotFoundError, LedgerNotFoundError, MetastoreError
from replog.hookspecs import AuditEnded, Event, FragmentRepaired
from replog.protocol.filling import Filled, LedgerFilling
from replog.protocol.fragment_copies import FixedFragment, empty_fragment, fixed_fragments
from replog.protocol.model import LedgerMetadata
from replog.records.paths import PAUSED_KEY, PAUSED_VALUE
from replog.repair.audit_report import AuditReport, DifferingCopies, IdleMembers, UnderReplicatedFragment
from replog.repair.auditor import Auditor, Bookies, every_ledger
from replog.repair.bookie_questions import digest_of
from replog.repair.drains import DrainStatus, drain, drain_status
from replog.repair.filler import FragmentFiller, fragment_at
from replog.repair.hindrances import Hindrances
from replog.repair.progress import ProgressTracker, RepairCounts, ReportProgress
from replog.repair.relocation import Relocation
from replog.runtime.loggers import logger
from replog.runtime.nursery import for_each

_log = logger("replog.client")
_LOOK_S = 2.0  # whether repairs are paused
_TRIES_MAX = 4  # of one fragment whose record another client changes
Choice = Callable[[LedgerMetadata, FixedFragment], Awaitable[dict[int, str]]]  # which bookies of a fragment to replace


class RepairPause:
    """Pauses all repairs of a cluster by a key in the metastore, which repairs look at before each fragment.

    A pause is advice, like everything that repairs agree upon: fillings under way when it begins are finished."""

    def __init__(self, records: LedgerRecords) -> None:
        self._records = records
        self._is_on = False
        self._looked_at_s = -math.inf

    async def is_on(self) -> bool:
        """True if repairs are paused, as of a few seconds ago at most. If the state cannot be read, the last one counts."""
        now_s = trio.current_time()
        if now_s >= self._looked_at_s + _LOOK_S:
            self._looked_at_s = now_s
            try:
                await self._records.metastore.get(PAUSED_KEY)
                self._is_on = True
            except KeyNotFoundError:
                self._is_on = False
            except MetastoreError:
                pass  # the next look tells; a repair that stopped here would leave copies missing
        return self._is_on

    async def begin(self) -> None:
        """Pauses repairs. Pausing again is harmless. Raises `MetastoreError`."""
        await self._records.create_key(PAUSED_KEY, PAUSED_VALUE)
        self._looked_at_s = -math.inf

    async def end(self) -> None:
        """Lets repairs go on. Raises `MetastoreError`."""
        await self._records.delete_key(PAUSED_KEY)
        self._looked_at_s = -math.inf


class Repairer:
    """Repairs the ledgers of one client's cluster."""

    def __init__(self, context: ClientContext, options: ClientTuning, observe: Callable[[Event], None]) -> None:
        self.counts = RepairCounts()
        self.pause = RepairPause(context.records)
        self.relocation = Relocation(context)
        self._context = context
        self._options = options
        self._observe = observe
        self._auditor = Auditor(context, options)
        self.notes = self._auditor.notes
        self._hindrances = Hindrances(context, self._auditor, self.relocation)
        self.filler = FragmentFiller(context, self._auditor.questions, options, self.counts)
        # By ledger and first entry of a fragment: entries of which two copies differ, as the last filling of it found (F3).
        self._differing: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._refusals: dict[tuple[int, int], tuple[str, ...]] = {}  # words of bookies, as the last filling heard them

    async def audit(
        self, has: Callable[[int], bool] = every_ledger, report: ReportProgress | None = None
    ) -> AuditReport:
        """Looks at every ledger that `has` is true of. Raises `MetastoreError`."""
        return await self._audit(has, ProgressTracker(self.counts, report))

    async def _audit(self, has: Callable[[int], bool], progress: ProgressTracker) -> AuditReport:
        began_at_s = trio.current_time()
        found = await self._auditor.audit(progress, has)
        lacking = tuple(self._with_hindrances(each) for each in found.lacking)
        found = attrs.evolve(found, differing=self._still_differing(found, has), lacking=lacking)
        took_s = trio.current_time() - began_at_s
        self._observe(AuditEnded(found.ledgers, found.fragments, found.under_replicated, len(found.misplaced), took_s))
        return found

    def _with_hindrances(self, lacking: UnderReplicatedFragment) -> UnderReplicatedFragment:
        return attrs.evolve(lacking, hindrances=self._refusals.get((lacking.ledger_id, lacking.first_entry_id), ()))

    def _still_differing(self, found: AuditReport, has: Callable[[int], bool]) -> tuple[DifferingCopies, ...]:
        """Of the copies that differed those of fragments that still lack copies: the others were deleted, or made up for."""
        lacking = {(each.ledger_id, each.first_entry_id) for each in found.lacking}
        for place in [each for each in self._differing if has(each[0]) and each not in lacking]:
            del self._differing[place]
        return tuple(
            DifferingCopies(place[0], first, last)
            for place, spans in sorted(self._differing.items())
            if place in lacking
            for first, last in spans
        )

    async def bookies(self) -> Bookies:
        """Which bookies there are now. Raises `MetastoreError`."""
        return await self._auditor.bookies()

    async def drain(self, bookie_id: str) -> DrainStatus:
        """Marks a bookie as draining; as `drain_status` does. Raises `AdministrationError`, `MetastoreError`."""
        return await self._hindrances.explained(await drain(bookie_id, self._context.records, self._context.membership))

    async def drain_status(self, bookie_id: str) -> DrainStatus:
        """The ledgers that still name a bookie, and the reasons. Raises `AdministrationError`, `MetastoreError`."""
        status = await drain_status(bookie_id, self._context.records, self._context.membership)
        return await self._hindrances.explained(status)

    async def undeclared(self, lost: Sequence[str]) -> list[str]:
        """The bookies among these that are not declared lost yet. Raises `MetastoreError`."""
        declared = (await self._auditor.bookies()).lost if lost else ()
        return [bookie_id for bookie_id in lost if bookie_id not in declared]

    async def repair(
        self,
        replace: Collection[str] = (),
        has: Callable[[int], bool] = every_ledger,
        report: ReportProgress | None = None,
    ) -> AuditReport:
        """Fills missing copies, and returns the audit after it. `replace` are bookies to replace besides those declared
        lost. Raises `MetastoreError`; copies made by then stay."""
        progress = ProgressTracker(self.counts, report)
        await self.sweep(has)
        before = await self._audit(has, progress)
        if not (before.lacking or before.draining or before.misplaced or before.idle):
            return before
        await self.fill(before, replace, has, progress)
        return await self._audit(has, progress)

    async def sweep(self, has: Callable[[int], bool] = every_ledger) -> None:
        """Deletes the index chunks, of ledgers that `has` is true of, that no record names (M4). Raises `MetastoreDoubtedError`,
        `MetastoreError`."""
        await check_metastore(self._context.records, self._context.membership)
        await self._context.records.delete_unnamed_chunks(has)

    async def fill(
        self,
        before: AuditReport,
        replace: Collection[str] = (),
        has: Callable[[int], bool] = every_ledger,
        progress: ProgressTracker | None = None,
    ) -> None:
        """Fills the missing copies of this audit, leaves draining bookies, and moves misplaced fragments. While repairs
        are paused, it begins nothing. Raises `MetastoreError`."""
        bookies = await self._auditor.bookies()
        tracker = progress or ProgressTracker(self.counts)

        async def replacements(metadata: LedgerMetadata, fragment: FixedFragment) -> dict[int, str]:
            return await self.relocation.without(metadata, fragment, bookies, replace)

        # Who has the fewest copies left is the next to be gone.
        order = sorted(before.lacking, key=lambda each: (each.copies_left, each.ledger_id, each.first_entry_id))
        places = [(each.ledger_id, each.first_entry_id) for each in order]
        await self.fill_all("copy", places, replacements, bookies, tracker)
        if before.draining:
            # Last: copies on draining bookies are not lost yet (C8). From the records as they are now: fragments just
            # filled have left these bookies already.
            places = await self._places_on(bookies.draining, has)
            await self.fill_all("move", places, replacements, bookies, tracker)
        places = [(each.ledger_id, each.first_entry_id) for each in before.misplaced]
        await self.fill_all("move", places, self.relocation.in_place, bookies, tracker)

        async def leave(each: IdleMembers) -> None:
            with contextlib.suppress(LedgerNotFoundError):  # it was deleted meanwhile
                if not await self.pause.is_on():
                    await self._fill_at(each.ledger_id, each.first_entry_id, replacements, bookies)
                    await self._leave_empty(each.ledger_id, replacements)

        await for_each(leave, before.idle, self._options.repair_fragments_at_once)

    async def fill_all(
        self,
        stage: str,
        places: Sequence[tuple[int, int]],
        choose: Choice,
        bookies: Bookies,
        progress: ProgressTracker,
    ) -> int:
        """Fills these fragments, each named by its ledger and first entry, in this order, a few at a time; returns how many had
        a bookie replaced. Raises `MetastoreError`."""
        if not places:
            return 0
        replaced = 0

        async def fill(place: tuple[int, int]) -> None:
            nonlocal replaced
            with contextlib.suppress(LedgerNotFoundError):  # it was deleted meanwhile
                is_replaced = not await self.pause.is_on() and await self._fill_at(*place, choose, bookies)
                replaced += is_replaced
            self.counts.fragments_left -= 1
            progress.under_replicated -= stage == "copy"
            progress.step()

        progress.begin(stage, len(places), len(places) if stage == "copy" else 0)
        self.counts.fragments_left = len(places)
        try:
            await for_each(fill, places, self._options.repair_fragments_at_once)
        finally:
            self.counts.fragments_left = 0
        return replaced

    async def _places_on(self, bookie_ids: Collection[str], has: Callable[[int], bool]) -> list[tuple[int, int]]:
        """The fragments whose range is fixed (F2) on these bookies, by ledger and first entry."""
        found: list[tuple[int, int]] = []

        def look(metadata: LedgerMetadata) -> None:
            found.extend(
                (metadata.ledger_id, fragment.first_entry_id)
                for fragment in fixed_fragments(metadata)
                if not set(bookie_ids).isdisjoint(fragment.ensemble)
            )

        await self._context.records.each(look, has)
        return sorted(found)

    async def _leave_empty(self, ledger_id: int, choose: Choice) -> None:
        """Names other bookies in the record of a ledger that was closed without entries, if it was: there is nothing to copy."""
        metadata, _ = await self._context.records.get_head(ledger_id)
        empty = empty_fragment(metadata)
        if empty is not None:
            chosen = await choose(metadata, empty)
            await change_record(ledger_id, self._context, lambda now: _moved(now, empty, chosen))

    async def _fill_at(self, ledger_id: int, first_entry_id: int, choose: Choice, bookies: Bookies) -> bool:
        """Fills one fragment. True if a bookie of it was replaced."""
        began_at_s, copied_bytes = trio.current_time(), 0
        for _ in range(_TRIES_MAX):
            metadata, version = await self._context.records.get_head(ledger_id, at=first_entry_id)
            fragment = fragment_at(metadata, first_entry_id)
            if fragment is None:
                return False
            machine = LedgerFilling(
                metadata,
                version,
                self._context.entropy.token(),
                fragment.place,
                replacements=await choose(metadata, fragment),
                lost=bookies.lost,
                digest=digest_of(metadata),
            )
            filled = await self.filler.run(machine)
            copied_bytes += filled.copied_bytes
            problems = {**filled.unread, **filled.refusals}
            for bookie_id, problem in problems.items():
                _log.info("repair of ledger %d: bookie %s: %s", ledger_id, bookie_id, problem)
            self._refusals.pop((ledger_id, first_entry_id), None)
            if problems:
                self._refusals[ledger_id, first_entry_id] = tuple(problems.values())
            if not filled.is_overtaken:
                if filled.differing:
                    self._differing[ledger_id, first_entry_id] = sorted(filled.differing)
                else:
                    self._differing.pop((ledger_id, first_entry_id), None)
                self._filled(metadata, fragment, filled, copied_bytes, trio.current_time() - began_at_s)
                return bool(filled.replaced)
        return False

    def _filled(
        self, metadata: LedgerMetadata, fragment: FixedFragment, filled: Filled, copied_bytes: int, took_s: float
    ) -> None:
        if not copied_bytes and not filled.replaced:
            return
        self.counts.repaired_fragments += 1
        replaced = {index: (fragment.ensemble[index], new) for index, new in filled.replaced.items()}
        span = fragment.first_entry_id, fragment.last_entry_id
        self._observe(FragmentRepaired(metadata.ledger_id, *span, replaced, copied_bytes, took_s, filled.unverified))


def _moved(metadata: LedgerMetadata, empty: FixedFragment, chosen: Mapping[int, str]) -> LedgerMetadata:
    """The record with these bookies in its empty fragment, unless another client has changed that since they were chosen."""
    if empty_fragment(metadata) != empty:
        return metadata
    ensemble = tuple(chosen.get(index, each) for index, each in enumerate(empty.ensemble))
    last = attrs.evolve(metadata.last_fragment, ensemble=ensemble)
    return attrs.evolve(metadata, fragments=(*metadata.fragments[:-1], last))
