"""The report of an audit: copies that are missing, damaged, different or misplaced, entry by entry (F1, F3)."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class MissingCopies:
    """The entries that one bookie of a fragment should hold and does not, as pairs of first and last entry.

    `state` is "missing", "damaged" (some of it is stored and cannot be read, `damaged` says what), "lost" (declared so), "away"
    (not announced), "refused" (it answered that it does not tell; `problem` has its words) or "silent" (it did not answer;
    `problem` says how). Of the entries in `nowhere` no bookie that was asked has an intact copy. `is_recorded` is True if the
    ledger's record says that the bookie may lack some of them (W7), `is_in_doubt` if its storage lost something (B8)."""

    index: int
    bookie_id: str
    state: str
    entries: tuple[tuple[int, int], ...]
    nowhere: tuple[tuple[int, int], ...]
    problem: str = ""
    is_recorded: bool = False
    is_in_doubt: bool = False
    damaged: tuple[tuple[int, int], ...] = ()


@attrs.frozen
class DamagedCopies:
    """Copies that a bookie stores and cannot read, as a scrub or a read found: pairs of first and last entry. A repair replaces
    them by copies of other bookies."""

    ledger_id: int
    bookie_id: str
    entries: tuple[tuple[int, int], ...]


@attrs.frozen
class UnderReplicatedFragment:
    """A fragment of a ledger that lacks copies. `copies_left` is the lowest number of copies that one of its entries has.

    The entries of each range in `missing` have the distance `stride`: 1, or E where E > Qw (W1). `hindrances` are the words of
    bookies that took or gave no copies of it, or did not tell what they hold, when this client tried to fill it."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    copies_left: int
    missing: tuple[MissingCopies, ...]
    stride: int = 1
    hindrances: tuple[str, ...] = ()

    @property
    def without_copies(self) -> tuple[EntriesWithoutCopies, ...]:
        """The entries that no bookie has which was asked, as ranges, ascending."""
        ranges = {span for each in self.missing for span in each.nowhere}
        found = []
        for first, last in sorted(ranges):
            members = [each for each in self.missing if (first, last) in each.nowhere]
            awaited = tuple(sorted(each.bookie_id for each in members if each.state in ("away", "silent", "refused")))
            refusing = tuple(sorted(each.bookie_id for each in members if each.state == "refused"))
            found.append(EntriesWithoutCopies(self.ledger_id, first, last, self.stride, awaited, refusing))
        return tuple(found)


@attrs.frozen
class EntriesWithoutCopies:
    """Entries of which no bookie that was asked has an intact copy: every `stride`-th from the first to the last, both included.

    `awaited` bookies should have copies, and are away or did not tell. If there are none, the entries are gone. Of the awaited
    `refusing` ones answered, and refused to tell: they hold another creation of the ledger, or this client may not ask."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    stride: int
    awaited: tuple[str, ...]
    refusing: tuple[str, ...] = ()

    @property
    def is_gone(self) -> bool:
        """True if no bookie is left that may have a copy."""
        return not self.awaited


@attrs.frozen
class DifferingCopies:
    """Entries of which bookies have different copies. Without the ledger's password the right one is unknown, so a
    repair copies neither (F3)."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int


@attrs.frozen
class MisplacedFragment:
    """A fragment whose bookies do not meet the wishes of this client's placement policy; `shortfall` says which, in words."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    shortfall: str


@attrs.frozen
class IdleMembers:
    """Bookies that a fragment names and that store none of its entries: its ledger was closed without entries, or the fragment
    has fewer than its ensemble has bookies. Nothing is missing; a repair names others instead of those that are lost or drain
    (`leaving`), so that no record names a bookie that is gone. Others are merely `away`."""

    ledger_id: int
    first_entry_id: int
    leaving: tuple[str, ...]
    away: tuple[str, ...] = ()


@attrs.frozen
class AuditReport:
    """The results of an audit. `open_ledgers` were not closed: the audit covered all their fragments but the last.
    `draining` has the number of fragments on each bookie that is to be left. `misplaced` fragments are where the
    placement policy does not want them. `unchanged` ledgers had lacked nothing before, and cannot lack anything now:
    their bookies were not asked again. `differing` copies were found by the repairs of this client: an audit by itself
    reads no entries. `idle` members of fragments are lost, drain, or are away, and store nothing."""

    ledgers: int = 0
    fragments: int = 0
    open_ledgers: int = 0
    lacking: tuple[UnderReplicatedFragment, ...] = ()
    draining: Mapping[str, int] = attrs.field(factory=dict)
    misplaced: tuple[MisplacedFragment, ...] = ()
    unchanged: int = attrs.field(default=0, eq=False)
    differing: tuple[DifferingCopies, ...] = ()
    idle: tuple[IdleMembers, ...] = ()

    @property
    def under_replicated(self) -> int:
        """How many fragments lack a copy of some entry."""
        return len(self.lacking)

    @property
    def without_copies(self) -> tuple[EntriesWithoutCopies, ...]:
        """The entries that no bookie has which was asked: gone, or only on bookies that did not answer."""
        return tuple(each for fragment in self.lacking for each in fragment.without_copies)

    @property
    def damaged(self) -> tuple[DamagedCopies, ...]:
        """The copies that are damaged. Their fragments are in `lacking`, too."""
        return tuple(
            DamagedCopies(fragment.ledger_id, each.bookie_id, each.damaged)
            for fragment in self.lacking
            for each in fragment.missing
            if each.damaged
        )
