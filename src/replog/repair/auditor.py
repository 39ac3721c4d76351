"""Audits: which copies of which entries are missing, as bookies themselves say it (F3, W7, B8).

Nothing is guessed from dead bookies: each member of each fixed fragment is asked for its holdings. A bookie that is
lost or away, or does not tell, counts as one without copies. Fragments that may still be written to are not looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence

import attrs
import trio

from replog.abc import Versioned
from replog.client.administration import RemoteBookie, remote_bookies
from replog.client.ledger_effects import ClientContext
from replog.config.client import ClientTuning
from replog.errors import BookieError, BookieRefusedError, LedgerNotFoundError, MetastoreError
from replog.protocol.entry_ranges import EntryRanges
from replog.protocol.fragment_copies import Copies, FixedFragment, empty_fragment, fixed_fragments
from replog.protocol.messages import Status
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.records.ledgers import ledger_id_pages
from replog.repair.audit_notes import AuditNotes, BookieState
from replog.repair.audit_report import (
    AuditReport,
    IdleMembers,
    MisplacedFragment,
    MissingCopies,
    UnderReplicatedFragment,
)
from replog.repair.bookie_questions import BookieQuestions
from replog.repair.progress import ProgressTracker
from replog.runtime.nursery import for_each
from replog.runtime.resting import Rests

_TRIES_MAX = 3  # of one ledger whose record changes each time while its bookies are asked


@attrs.define
class Bookies:
    """The bookies at the beginning of an audit. Bookies in `away` are known, not announced, and not declared lost."""

    announced: frozenset[str]
    lost: frozenset[str]
    draining: frozenset[str]
    away: frozenset[str] = frozenset()

    def idle(self, ledger_id: int, fragment: FixedFragment) -> list[IdleMembers]:
        """The idle members of a fragment without missing copies: absent bookies that store nothing of it."""
        has_entries = fragment.first_entry_id <= fragment.last_entry_id
        # Fragments with entries are counted for each bookie that drains: copies may have to be moved off it.
        gone = self.lost if has_entries else self.lost | self.draining
        leaving = tuple(each for each in fragment.ensemble if each in gone)
        away = tuple(each for each in fragment.ensemble if each in self.away)
        return [IdleMembers(ledger_id, fragment.first_entry_id, leaving, away)] if leaving or away else []


def every_ledger(_ledger_id: int) -> bool:
    """The share of one that repairs alone."""
    return True


class Auditor:
    """Audits the ledgers of one client's cluster."""

    def __init__(self, context: ClientContext, options: ClientTuning) -> None:
        self._context = context
        self._timeout_s = options.read_timeout_s
        self._ledgers_at_once = options.audit_ledgers_at_once
        self.notes = AuditNotes()
        self.questions = BookieQuestions(context.connections, options.read_timeout_s)

    async def bookies(self) -> Bookies:
        """Which bookies there are now. Raises `MetastoreError`."""
        membership = self._context.membership
        announced = await membership.announced()
        lost: set[str] = set()
        away: set[str] = set()
        for bookie_id in await membership.known_ids():
            if bookie_id not in announced:
                cookie = await membership.cookie(bookie_id)
                (lost if cookie is not None and cookie.is_lost else away).add(bookie_id)
        draining = frozenset(bookie_id for bookie_id, address in announced.items() if address.is_draining)
        return Bookies(frozenset(announced), frozenset(lost), draining, frozenset(away))

    async def audit(self, progress: ProgressTracker, has: Callable[[int], bool] = every_ledger) -> AuditReport:
        """Looks at every ledger that `has` is true of. Raises `MetastoreError`."""
        bookies = await self.bookies()
        found = _Findings(bookies, self.notes.begin(await self._states(bookies)))
        # Counting lists all ids once more.
        progress.begin("audit", await self._count(has) if progress.is_watched else 0)

        rests = Rests(lambda: self._context.batches_sent)

        async def look(stored: tuple[int, Versioned]) -> None:
            began_s = trio.current_time()
            with contextlib.suppress(LedgerNotFoundError):  # it was deleted meanwhile
                await self._look(*stored, found)
            progress.under_replicated = len(found.lacking)
            progress.step()
            await rests.after(began_s)

        seen: list[int] = []
        async with contextlib.aclosing(self._context.records.pages()) as pages:
            async for page in pages:
                own = [(ledger_id, record) for ledger_id, record in page if has(ledger_id)]
                await for_each(look, own, self._ledgers_at_once)
                seen += (ledger_id for ledger_id, _ in own)
        self.notes.keep(seen)
        return found.report()

    async def _count(self, has: Callable[[int], bool]) -> int:
        count = 0
        async with contextlib.aclosing(ledger_id_pages(self._context.records.metastore)) as pages:
            async for page in pages:
                count += sum(map(has, page))
        return count

    async def _states(self, bookies: Bookies) -> dict[str, BookieState | None]:
        """The state that each announced bookie reports; None if it reports none."""
        states: dict[str, BookieState | None] = dict.fromkeys(bookies.announced)

        async def ask(bookie: RemoteBookie) -> None:
            with contextlib.suppress(BookieError, MetastoreError):
                states[bookie.bookie_id] = BookieState.of(await bookie.statistics(timeout_s=self._timeout_s))

        found = await remote_bookies(self._context.membership, self._context.connections)
        async with trio.open_nursery() as nursery:
            for each in found:
                nursery.start_soon(ask, each)
        return states

    async def _look(self, ledger_id: int, record: Versioned, found: _Findings) -> None:
        """Audits one ledger by the record that a page had. Raises `LedgerNotFoundError` if it was deleted before it was found to
        lack anything, or since."""
        metadata, version = await self._context.records.get(ledger_id, record)
        looked = await self._look_at(metadata, version, found)
        for tries_left in reversed(range(_TRIES_MAX)):
            if not looked.lacking:
                break
            # What is trimmed, deleted or moved leaves its bookies while they are asked. It is lacking only if the record
            # still names them for it, as of a reading after they answered.
            metadata, later_version = await self._context.records.get(ledger_id)
            if later_version == version:
                break
            if tries_left:
                version = later_version
                looked = await self._look_at(metadata, version, found)
            else:
                named = {attrs.evolve(each, place=0) for each in fixed_fragments(metadata)}
                looked.lacking = [each for each in looked.lacking if attrs.evolve(each[0], place=0) in named]
        if not looked.lacking:
            # Even if that was known: it is so of this round's states, too.
            self.notes.note(ledger_id, looked.version, found.round_number)
        found.add(looked)

    async def _look_at(self, metadata: LedgerMetadata, version: int, found: _Findings) -> _Looked:
        fragments = fixed_fragments(metadata)
        members = {bookie_id for fragment in fragments for bookie_id in fragment.ensemble}
        is_new = not self.notes.is_full(metadata.ledger_id, version, members)
        looked = _Looked(metadata, version, fragments, is_new)
        empty = empty_fragment(metadata)
        if empty is not None:
            looked.idle += found.bookies.idle(metadata.ledger_id, empty)
        for fragment in fragments:
            # Even where nothing has changed: no bookie is asked, and what the placement
            # policy wants may be another thing by now.
            shortfall = await self._context.placing.shortfall(metadata.quorum, fragment.ensemble)
            if shortfall:
                span = fragment.first_entry_id, fragment.last_entry_id
                looked.misplaced.append(MisplacedFragment(metadata.ledger_id, *span, shortfall))
            lacking = await self.fragment(metadata, fragment, found.bookies) if is_new else None
            if lacking is not None:
                looked.lacking.append((fragment, lacking))
            else:
                looked.idle += found.bookies.idle(metadata.ledger_id, fragment)
        return looked

    async def fragment(
        self, metadata: LedgerMetadata, fragment: FixedFragment, bookies: Bookies
    ) -> UnderReplicatedFragment | None:
        """The missing copies of one fragment; None if there are none."""
        copies = Copies(metadata.quorum, fragment)
        states: dict[str, tuple[str, str]] = {}  # by bookie: state, problem
        damaged: dict[str, tuple[tuple[int, int], ...]] = {}
        in_doubt = set()

        there = [each for each in fragment.ensemble if each in bookies.announced]
        for bookie_id in fragment.ensemble:
            if bookie_id not in bookies.announced:
                states[bookie_id] = "lost" if bookie_id in bookies.lost else "away", ""
        for bookie_id, holding in (await self.questions.holdings(there, metadata, fragment)).items():
            if isinstance(holding, BookieError):
                states[bookie_id] = "refused" if isinstance(holding, BookieRefusedError) else "silent", str(holding)
                continue
            copies.told(bookie_id, holding.ranges)
            damaged[bookie_id] = holding.damaged
            if holding.denial is not Status.NO_ENTRY:
                in_doubt.add(bookie_id)
        return _lacking(metadata, copies, states, in_doubt, damaged)


def _lacking(
    metadata: LedgerMetadata,
    copies: Copies,
    states: Mapping[str, tuple[str, str]],
    in_doubt: Collection[str],
    damaged: Mapping[str, Collection[tuple[int, int]]],
) -> UnderReplicatedFragment | None:
    found, fragment = [], copies.fragment
    all_missing: list[EntryRanges] = []
    for index, bookie_id in enumerate(fragment.ensemble):
        missing = copies.missing(index, bookie_id)
        if missing:
            all_missing.append(missing)
            torn = _damaged_of(missing, damaged.get(bookie_id, ()))
            state, problem = states.get(bookie_id, ("damaged" if torn else "missing", ""))
            is_recorded = any(
                gap.index == index
                and any(
                    gap.holds(first) or gap.holds(last) or first <= gap.first_entry_id <= last
                    for first, last in missing
                )
                for gap in metadata.gaps
            )
            nowhere = tuple(copies.held_nowhere(missing))
            found.append(
                MissingCopies(
                    index, bookie_id, state, tuple(missing), nowhere, problem, is_recorded, bookie_id in in_doubt, torn
                )
            )
    if not found:
        return None
    left = metadata.quorum.write - _most_missing(all_missing)
    return UnderReplicatedFragment(
        metadata.ledger_id,
        fragment.first_entry_id,
        fragment.last_entry_id,
        left,
        tuple(found),
        metadata.quorum.stride,
    )


def _damaged_of(missing: EntryRanges, damaged: Collection[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The damaged ones among the missing entries: a bookie may report more, of entries that it should not hold, or
    holds again."""
    found = EntryRanges(missing.stride)
    for first, last in missing:
        for start, end in damaged:
            # The part within the damage, of this rotation.
            low = first + max(0, -(-(start - first) // missing.stride)) * missing.stride
            high = last - max(0, -(-(last - end) // missing.stride)) * missing.stride
            if low <= high:
                found.add(low, high)
    return tuple(found)


def _most_missing(all_missing: Sequence[EntryRanges]) -> int:
    """How many bookies lack the entry that most bookies lack. It is where a range begins."""
    firsts = {first for missing in all_missing for first, _ in missing}
    return max(sum(missing.holds(first) for missing in all_missing) for first in firsts)


@attrs.define
class _Looked:
    """The result of one look at a ledger, by the record of this version. `is_new` is False if its bookies need not be
    asked."""

    metadata: LedgerMetadata
    version: int
    fragments: list[FixedFragment]
    is_new: bool
    lacking: list[tuple[FixedFragment, UnderReplicatedFragment]] = attrs.field(factory=list)
    misplaced: list[MisplacedFragment] = attrs.field(factory=list)
    idle: list[IdleMembers] = attrs.field(factory=list)


class _Findings:
    """The results of an audit so far."""

    def __init__(self, bookies: Bookies, round_number: int) -> None:
        self.bookies = bookies
        self.round_number = round_number
        self.ledgers = self.fragments = self.open_ledgers = self.unchanged = 0
        self.lacking: list[UnderReplicatedFragment] = []
        self._draining: dict[str, int] = {}
        self._misplaced: list[MisplacedFragment] = []
        self._idle: list[IdleMembers] = []

    def add(self, looked: _Looked) -> None:
        """This is what a ledger is like."""
        self.ledgers += 1
        self.open_ledgers += looked.metadata.state is not LedgerState.CLOSED
        self.unchanged += not looked.is_new
        self.fragments += len(looked.fragments)
        self.lacking += [lacking for _, lacking in looked.lacking]
        self._misplaced += looked.misplaced
        self._idle += looked.idle
        for fragment in looked.fragments:
            for bookie_id in self.bookies.draining.intersection(fragment.ensemble):
                self._draining[bookie_id] = self._draining.get(bookie_id, 0) + 1

    def report(self) -> AuditReport:
        """All of it, in order."""
        lacking = sorted(self.lacking, key=lambda each: (each.ledger_id, each.first_entry_id))
        misplaced = sorted(self._misplaced, key=lambda each: (each.ledger_id, each.first_entry_id))
        return AuditReport(
            self.ledgers,
            self.fragments,
            self.open_ledgers,
            tuple(lacking),
            dict(sorted(self._draining.items())),
            tuple(misplaced),
            self.unchanged,
            idle=tuple(sorted(self._idle, key=lambda each: (each.ledger_id, each.first_entry_id))),
        )
