"""The record of a ledger in the metastore: its head, as one value. A change makes a new one, and becomes true by a CAS (M1).

A record has, from the first entry on, chunks, whose fragments are elsewhere (M4), then the last fragments. A client that needs an
earlier fragment loads the chunk that has it: then the fragments of that chunk stand among the others, in the place of the chunk.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Mapping

import attrs

from replog.protocol import chunks as index
from replog.protocol.batch import ENTRY_ID_MAX
from replog.protocol.chunks import Chunk, ChunkContents
from replog.protocol.closed_contents import Contents
from replog.protocol.digest import Digest, DigestType, ledger_key, ledger_key_check
from replog.protocol.fragments import WRITER_TERM, Fragment
from replog.protocol.gaps import Gap, merged
from replog.protocol.quorum import Quorum

NO_ENTRY = -1  # the last entry of an empty ledger, and the last add confirmed before the first (R8)


class LedgerState(enum.Enum):
    """OPEN: has a writer. IN_RECOVERY: a client looks for its end. CLOSED: its last entry is permanently fixed."""

    OPEN = "open"
    IN_RECOVERY = "in recovery"
    CLOSED = "closed"


class Durability(enum.Enum):
    """With how many copies of each entry a close, roll or takeover ends: an ack quorum, or all, as bookies say (W8)."""

    ACK_QUORUM = "ack-quorum"
    WRITE_QUORUM = "write-quorum"


@attrs.frozen
class LedgerMetadata:
    """One ledger's record. Immutable.

    Its entries are on the bookies of `fragments`, each with its `first_entry_id` and its `ensemble`. `last_entry_id` is -1 if
    the ledger is closed and empty, and None if it is not closed. `custom` are texts that its creator gave.

    `token` names the attempt that wrote this version, so that a lost answer can be resolved (M1). `gaps` are
    the entries that members of its ensembles are known to lack (W7). `contents` is what it holds, once it is closed.

    `creation` is random and never changes: it tells this ledger from another creation of the same id (M5). `revision` counts the
    changes of the record but for claims, which have a term: a lower one than was seen comes from a metastore that went back (M5,
    W9).

    An unbounded ledger has a new term at each takeover (T2): `term` is the last one that a client claimed, and `owner` the nonce
    of that client's attempt; `open_term` is the last one that was opened for writing. Its fragments begin at `trim_to`, the first
    entry that was not trimmed. Of a bounded ledger these fields keep their defaults.

    `full_before` is known of a ledger with `Durability.WRITE_QUORUM` only: all entries below it were found at their
    full write quorum, so no client asks for them again before a close, roll or takeover ends (W8).

    `fragments` are the last ones, and those that were loaded; `chunks` have the others (M4). `gaps` are those of `fragments`."""

    ledger_id: int
    quorum: Quorum
    digest_type: DigestType
    key_check: str
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    term: int = WRITER_TERM
    last_entry_id: int | None = None
    token: str = ""
    created_at_ms: int = 0
    custom: Mapping[str, str] = attrs.field(factory=dict)
    gaps: tuple[Gap, ...] = ()
    is_unbounded: bool = False
    owner: str = ""
    open_term: int = WRITER_TERM
    trim_to: int = 0
    contents: Contents | None = None
    durability: Durability = Durability.ACK_QUORUM
    full_before: int = 0
    chunks: tuple[Chunk, ...] = ()
    creation: str = ""
    revision: int = 1
    # Those that the record named when it was read, and that this value has loaded, changed or dropped.
    unnamed: tuple[Chunk, ...] = attrs.field(default=(), eq=False, repr=False)

    def key(self, password: bytes) -> bytes:
        """The key that bookies compare, of the ledger with this password (B7, M5)."""
        return ledger_key(self.ledger_id, password, self.creation)

    @property
    def stored_key(self) -> bytes:
        """The form of that key that bookies store (B7)."""
        return bytes.fromhex(self.key_check)

    def is_opened_by(self, password: bytes) -> bool:
        """True if this is the ledger's password. An empty one is a password that everybody knows."""
        return ledger_key_check(self.key(password)) == self.key_check

    def digest(self, password: bytes) -> Digest:
        """Returns the object that computes the ledger's codes with this password (W3)."""
        return Digest(self.digest_type, self.ledger_id, password, self.creation)

    @property
    def last_fragment(self) -> Fragment:
        """The fragment that is written to."""
        return self.fragments[-1]

    def fragment_of(self, entry_id: int) -> Fragment:
        """The fragment that this entry belongs to. It must be listed."""
        last = self.fragments[-1]
        if last.first_entry_id <= entry_id:
            return last
        assert self.is_listed(entry_id), "the chunk of this entry was not loaded (M4)"
        for fragment in reversed(self.fragments):
            if fragment.first_entry_id <= entry_id:
                return fragment
        return self.fragments[0]

    def is_listed(self, entry_id: int) -> bool:
        """True if the fragment of this entry is in `fragments`, and not in a chunk."""
        return not (self.chunks and any(chunk.holds(entry_id) for chunk in self.chunks))

    def listed_through(self, entry_id: int) -> int:
        """The last entry up to which all fragments from this entry's on are listed."""
        ahead = [chunk.first_entry_id for chunk in self.chunks if chunk.last_entry_id >= entry_id]
        return min(ahead, default=ENTRY_ID_MAX + 1) - 1

    def is_owned_by(self, claim: LedgerMetadata) -> bool:
        """True if the term of this record is the one that was claimed with `claim`, by the same attempt."""
        return self.term == claim.term and self.owner == claim.owner

    def end_of_stamp(self, stamp: int) -> int:
        """The last entry that can have this stamp: the one before the first fragment of a later term; or the one before the chunk
        that has that fragment, and was not loaded."""
        if stamp >= self.last_fragment.term:
            return ENTRY_ID_MAX
        end = next(each.first_entry_id - 1 for each in self.fragments if each.term > stamp)
        ahead = [chunk.first_entry_id - 1 for chunk in self.chunks if chunk.last_term > stamp]
        return min(end, *ahead) if ahead else end

    def claimed(self, nonce: str) -> LedgerMetadata:
        """The same in recovery, under the next term (T2). All that recover a bounded ledger share that term, so it has no
        owner."""
        assert self.state is not LedgerState.CLOSED, "nobody claims a closed ledger"
        owner = nonce if self.is_unbounded else ""
        return attrs.evolve(self, state=LedgerState.IN_RECOVERY, term=self.term + 1, owner=owner)

    def trimmed(self, before: int) -> LedgerMetadata:
        """The same without the fragments that lie wholly before this entry, whose own must be listed. The last fragment always
        stays."""
        if before <= self.trim_to:
            return self
        assert self.is_listed(before), "the chunk of this entry was not loaded (M4)"
        behind = [each for each in self.fragments if each.first_entry_id > before]
        fragments = self.fragments[-1 - len(behind) :]  # the one that holds the entry, and all behind it
        first = fragments[0].first_entry_id
        gaps = [gap for gap in self.gaps if gap.last_entry_id is None or gap.last_entry_id >= first]
        assert fragments[-1] == self.last_fragment, "the last fragment always stays"
        kept = tuple(chunk for chunk in self.chunks if chunk.first_entry_id > first)
        dropped = tuple(chunk for chunk in self.chunks if chunk.first_entry_id < first)
        unnamed = (*self.unnamed, *dropped)
        return attrs.evolve(self, fragments=fragments, trim_to=first, chunks=kept, unnamed=unnamed).with_gaps(gaps)

    def loaded(self, found: Mapping[Chunk, ChunkContents]) -> LedgerMetadata:
        """The same with the contents of these chunks in their places (M4)."""
        left = [each for each in self.chunks if each not in found]
        assert len(left) + len(found) == len(self.chunks), "only what the record names is loaded"
        chunks = itertools.chain(left, *(each.chunks for each in found.values()))
        fragments = itertools.chain(self.fragments, *(each.fragments for each in found.values()))
        items = index.in_order(chunks, fragments)
        all_gaps = itertools.chain(self.gaps, *(each.gaps for each in found.values()))
        gaps = sorted(all_gaps, key=lambda gap: (gap.first_entry_id, gap.index))
        return attrs.evolve(
            self,
            chunks=tuple(each for each in items if isinstance(each, Chunk)),
            fragments=tuple(each for each in items if isinstance(each, Fragment)),
            gaps=tuple(gaps),
            unnamed=(*self.unnamed, *found),
        )

    def packed(self, version: int) -> LedgerMetadata:
        """The same as it may be written upon this version of the record: chunks before the last fragments, new ones with their
        contents (M4)."""
        if index.is_packed(self.chunks, self.fragments):
            return self
        chunks, fragments, gaps = index.packed(self.chunks, self.fragments, self.gaps, version)
        return attrs.evolve(self, chunks=chunks, fragments=fragments, gaps=gaps)

    def settled(self) -> LedgerMetadata:
        """The same once it is written: nothing more is to be written or deleted for it."""
        if not (self.unnamed or any(chunk.contents is not None for chunk in self.chunks)):
            return self
        return attrs.evolve(self, chunks=tuple(chunk.bare() for chunk in self.chunks), unnamed=())

    def with_fragment(self, fragment: Fragment) -> LedgerMetadata:
        """The same with this fragment at the end; it replaces one that starts at the same entry (C2)."""
        # Nothing is confirmed in a fragment that starts at the same entry: the new one takes its place (C2).
        kept = self.fragments[:-1] if self.last_fragment.first_entry_id == fragment.first_entry_id else self.fragments
        # Not an assert: a fragment out of order would hide entries from every reader, even with `python -O`.
        if kept and kept[-1].first_entry_id >= fragment.first_entry_id:
            raise AssertionError(f"ledger {self.ledger_id}: a fragment at {fragment.first_entry_id} behind {kept[-1]}")
        return attrs.evolve(self, fragments=(*kept, fragment))

    def full_to(self, before: int) -> LedgerMetadata:
        """The same, where all entries below this one are known to be at their full write quorum (W8)."""
        return attrs.evolve(self, full_before=max(before, self.full_before))

    def with_gaps(self, gaps: Iterable[Gap]) -> LedgerMetadata:
        """The same with these gaps instead of its own."""
        return attrs.evolve(self, gaps=merged(gaps, self.fragments))

    @property
    def ended_gaps(self) -> tuple[Gap, ...]:
        """The gaps that have ended."""
        return tuple(gap for gap in self.gaps if gap.last_entry_id is not None)

    def lacking(self, entry_id: int) -> frozenset[int]:
        """The indices whose bookies may lack this entry, though they should store it (W7)."""
        return frozenset(gap.index for gap in self.gaps if gap.holds(entry_id))

    def closed_at(self, last_entry_id: int, contents: Contents | None = None) -> LedgerMetadata:
        """The same, closed; a last fragment that would hold no entry is dropped, the first one never. Gaps end there. Without
        `contents` only their number is known."""
        # Readers take the last fragment for the one that holds the last entry.
        kept = [fragment for fragment in self.fragments[1:] if fragment.first_entry_id <= last_entry_id]
        fragments = (self.fragments[0], *kept)
        ended = [gap.until(last_entry_id) for gap in self.gaps if gap.first_entry_id <= last_entry_id]
        gaps = merged(ended, fragments)
        assert last_entry_id >= NO_ENTRY, "a ledger ends at an entry, or is empty (R8)"
        contents = contents or Contents.of(last_entry_id + 1, None, None, None)
        assert contents.entries == last_entry_id + 1, "entries are dense from 0 on (R8)"
        return attrs.evolve(
            self,
            fragments=fragments,
            gaps=gaps,
            state=LedgerState.CLOSED,
            last_entry_id=last_entry_id,
            # Lengths and times of an unbounded ledger begin again with each writer: what one of them knows is not the whole.
            contents=None if self.is_unbounded else contents,
        )
