"""The machine of a ledger's reader: which bookie to ask for what, and what may be handed out (D1-D3, R7).

Nothing past the bound is handed out: the last entry of a closed ledger, else the highest last add confirmed known.
With E > Qw a bookie has the batches of Qw rotations side by side. So E / Qw bookies are asked, each for what it has of all
of its rotations, and the batches are handed out in the order of the ids.

Invariants:

- Each delivery begins where the last one ended: no gap, no duplicate, in order (D3).
- A batch is handed out only if its code, its stamp and its stride are right, and nothing of it past the bound (D2, R7).
- The last add confirmed that is known never sinks, and a ledger that was seen closed stays closed.
- A last add confirmed counts only with a record that has the term of its stamp (R11). Of a batch, only what has the
  batch's stamp in the record is used: a takeover may have ended its term inside it.
- From DONE on nothing is asked for or handed out.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence

from replog.errors import (
    ArchiveUnreadableError,
    EntryNotFoundError,
    EntryUnreadableError,
    LedgerNotFoundError,
    LedgerTrimmedError,
    ReplogError,
)
from replog.protocol.batch import ENTRY_ID_MAX, Batch
from replog.protocol.digest import Digest
from replog.protocol.effects import Delivered, Effect, Failed, ReadMetadata, SendRead, SendReadLastAddConfirmed
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.protocol.proofs import claimed, is_qualified, proven, read_claim
from replog.protocol.stages import Transitions, after, from_each

ReadOrder = Callable[[Sequence[int], tuple[str, ...]], list[int]]  # a write set, and the ensemble that it is of


class _Stage(enum.Enum):
    READING = enum.auto()
    REFRESHING = enum.auto()  # and the ledger's record is being read again
    DONE = enum.auto()  # failed


TRANSITIONS: Transitions[_Stage] = {
    (_Stage.READING, "nobody has the entry"): _Stage.REFRESHING,
    (_Stage.READING, "a later term was heard of"): _Stage.REFRESHING,
    (_Stage.READING, "a fragment is not listed"): _Stage.REFRESHING,
    **from_each((_Stage.READING, _Stage.REFRESHING), "metadata read", _Stage.READING),
    **from_each((_Stage.READING, _Stage.REFRESHING), "failed", _Stage.DONE),
}


class _Rotation:
    """The reading of the entries of one write set."""

    __slots__ = (
        "asked_entry_id",
        "doubted",
        "error",
        "guests",
        "held",
        "is_guest",
        "next_entry_id",
        "order",
        "preferred",
        "refreshed",
        "waiting",
    )

    def __init__(self, next_entry_id: int) -> None:
        self.next_entry_id = next_entry_id  # the first that no held batch has
        self.held: deque[Batch] = deque()
        self.asked_entry_id: int | None = None
        self.guests: list[_Rotation] = []  # whose batches the answer should bring as well
        self.is_guest = False  # of another one that has asked
        self.preferred: int | None = None  # the index that answered last: reading on there is sequential for its disk
        self.order: list[int] = []  # indices still to ask
        self.waiting = 0  # indices asked and not answered, as a bit mask
        self.doubted = 0  # indices that answered with doubt
        self.refreshed = False  # whether the metadata was reread for this entry
        self.error: ReplogError | None = None  # nobody gives this entry: raised when all before it were handed out


class LedgerReading:
    """One scan of one ledger, from `first_entry_id` on. `read_order` puts the indices of a write set of an ensemble in an order.
    Nothing past `last_wanted` is asked for."""

    def __init__(self, metadata: LedgerMetadata, digest: Digest, first_entry_id: int, read_order: ReadOrder) -> None:
        self.metadata = metadata
        self.next_entry_id = first_entry_id
        self.last_wanted = ENTRY_ID_MAX
        self._digest = digest
        self._read_order = read_order
        # All fragments but the last are wholly confirmed: their successors begin behind a last add confirmed (C2).
        self._confirmed = metadata.last_fragment.first_entry_id - 1
        self._last_term = metadata.last_fragment.term
        self._ahead = (0, -1)  # a stamp that the record lacks, and the highest last add confirmed with it
        self._sought = (0, -1)  # what the record was read again for
        self._takes_guests = True  # while an answer has room for batches of all rotations of its bookie
        self._stage = _Stage.READING
        self._complaints: dict[str, str] = {}  # by bookie: what it said instead of an answer
        self._effects: list[Effect] = []
        stride = metadata.quorum.stride
        self._rotations = [_Rotation(first_entry_id) for _ in range(stride)]
        for offset in range(stride):
            self._rotations[(first_entry_id + offset) % stride].next_entry_id = first_entry_id + offset

    # -- what the shell asks ------------------------------------------------------------------------------------

    @property
    def last_readable(self) -> int:
        """The last entry that may be handed out as far as is known (R7)."""
        if self.metadata.state is LedgerState.CLOSED and self.metadata.last_entry_id is not None:
            return self.metadata.last_entry_id
        return self._confirmed

    @property
    def is_at_end(self) -> bool:
        """True if the ledger is closed and everything was handed out."""
        return self.metadata.state is LedgerState.CLOSED and self.next_entry_id > self.last_readable

    def waiting_for(self) -> list[int]:
        """The entries that bookies were asked for and have not given."""
        return [each.asked_entry_id for each in self._rotations if each.asked_entry_id is not None]

    def take_effects(self) -> list[Effect]:
        """Returns the effects to perform, in their order, and forgets them."""
        effects, self._effects = self._effects, []
        return effects

    # -- what may be read -----------------------------------------------------------------------------------------

    def poll_last_add_confirmed(self) -> None:
        """Asks the bookies of the last fragment how far the ledger is confirmed, and each for its share of the next
        entries."""
        for index, bookie_id in enumerate(self.metadata.last_fragment.ensemble):
            entry_id = self._next_at(index)
            is_listed = self.metadata.is_listed(entry_id)
            # Of an entry whose fragment is not known yet, no batch is taken.
            stamp = self.metadata.fragment_of(entry_id).term if is_listed else self._last_term
            self._effects.append(SendReadLastAddConfirmed(index, bookie_id, self._confirmed, entry_id, stamp))

    def _next_at(self, index: int) -> int:
        """The first entry that no held batch has and that this index stores (W1)."""
        quorum = self.metadata.quorum
        wanted = [each.next_entry_id for each in self._rotations]
        return min(each for each in wanted if index in quorum.write_set(each))

    def last_add_confirmed_heard(self, last_add_confirmed: int) -> None:
        """This entry is confirmed, and the record has its term: a proof or a verified batch's header says so (D1, R11)."""
        self._confirmed = max(self._confirmed, last_add_confirmed)

    def told(self, last_add_confirmed: int) -> None:
        """This entry of an unbounded ledger is confirmed, says a client that may know a later term than the record has: that is
        read again first (R11)."""
        if last_add_confirmed > self.last_readable and self._stage is _Stage.READING:
            self._ahead = (0, last_add_confirmed)
            self._move("a later term was heard of")
            self._effects.append(ReadMetadata(self.metadata.ledger_id, self.next_entry_id))

    def writer_heard(self, stamp: int, last_add_confirmed: int) -> None:
        """The writer of this term says that this entry is confirmed. If the record lacks that term, it is read again first."""
        if is_qualified(stamp, self.metadata):
            self.last_add_confirmed_heard(last_add_confirmed)
        elif self._stage is not _Stage.DONE and last_add_confirmed > self.last_readable:
            self._ahead = max(self._ahead, (stamp, last_add_confirmed))
            # Where the record is from an old back-up, it lacks that term however often it is read.
            if self._stage is _Stage.READING and (stamp, last_add_confirmed) > self._sought:
                self._sought = (stamp, last_add_confirmed)
                self._move("a later term was heard of")
                self._effects.append(ReadMetadata(self.metadata.ledger_id, self.next_entry_id))

    def proven(self, proof: bytes) -> int:
        """The last add confirmed that a bookie's answer proves, or -1 if it claims nothing new. Raises
        `RemoteProtocolError`: then it is not an answer (R11)."""
        # Checking a code costs more than reading a number: only a claim of something new is checked.
        if claimed(proof) <= self._confirmed:
            return -1
        confirmed = proven(proof, self._digest, self.metadata)
        if confirmed < 0:
            claim = read_claim(proof)
            self.writer_heard(claim.stamp, claim.last_add_confirmed)
        return confirmed

    def last_add_confirmed_answered(self, last_add_confirmed: int, batches: Sequence[Batch]) -> None:
        """A bookie's answer: how far it proved the ledger to be confirmed, and the batches that it brought along. Of these only
        what comes next is taken, by the same rules as from a read; a read of it that is under way is needed no more."""
        self.last_add_confirmed_heard(last_add_confirmed)
        is_any_good, lack_others = False, False
        for batch in batches:
            rotation = self._rotations[batch.first_entry_id % len(self._rotations)]
            if self._stage is not _Stage.DONE and self._accept(rotation, batch, rotation.next_entry_id):
                is_any_good = True
                # The read under way is needed no more; its guests, too, must not wait for its answer.
                if rotation.asked_entry_id is not None:
                    rotation.asked_entry_id, rotation.waiting = None, 0
                    lack_others |= self._dismiss_guests(rotation)
        if is_any_good:
            self._deliver()
        if lack_others:
            self.read_on()

    def metadata_read(self, metadata: LedgerMetadata) -> None:
        """The ledger's record, reread."""
        if self._stage is not _Stage.DONE:
            self._move("metadata read")
        # Closed is final, so an open record is older. But a repair may move a closed ledger's copies.
        if metadata.state is LedgerState.CLOSED or not self._is_older(metadata):
            self._adopt(metadata)
        if self.next_entry_id < self.metadata.trim_to:
            self._fail(LedgerTrimmedError(self.metadata.ledger_id, self.next_entry_id, self.metadata.trim_to))
            return
        for rotation in self._rotations:
            if rotation.asked_entry_id is not None and not rotation.waiting and not rotation.order:
                rotation.refreshed = True
                self._ask(rotation, rotation.asked_entry_id)
        if self.metadata.chunks:
            self.read_on()  # forgotten entries are asked for again

    def _is_older(self, metadata: LedgerMetadata) -> bool:
        """True if this record was written before the one that is known: some metastores may answer with an old one."""
        known = self.metadata
        return known.state is LedgerState.CLOSED or (metadata.term, metadata.last_fragment.first_entry_id) < (
            known.term,
            known.last_fragment.first_entry_id,
        )

    def _adopt(self, metadata: LedgerMetadata) -> None:
        assert metadata.ledger_id == self.metadata.ledger_id, "a record of the ledger that is read"
        self.metadata = metadata
        self._last_term = metadata.last_fragment.term
        self.last_add_confirmed_heard(metadata.last_fragment.first_entry_id - 1)
        if metadata.chunks:
            self._forget_unlisted()
        stamp, confirmed = self._ahead
        if is_qualified(stamp, metadata):
            self._ahead = (0, -1)
            self.last_add_confirmed_heard(confirmed)
        # A takeover may have ended a term inside a batch that is held: what lies behind that has another stamp now.
        for rotation in self._rotations:
            if rotation.held and (end := metadata.end_of_stamp(rotation.held[-1].stamp)) < rotation.next_entry_id:
                while rotation.held and rotation.held[-1].first_entry_id > end:
                    rotation.held.pop()
                self._go_on_behind(rotation, end)

    def _forget_unlisted(self) -> None:
        """Waits for nothing, and holds nothing, whose fragment this record has in a chunk that is not loaded: it was read for an
        earlier entry, or for none. `read_on` has the chunk loaded first (M4)."""
        listed = self.metadata.listed_through(self.next_entry_id)
        for rotation in self._rotations:
            if rotation.asked_entry_id is not None and rotation.asked_entry_id > listed:
                rotation.asked_entry_id, rotation.waiting, rotation.order = None, 0, []
                rotation.error = None
                self._dismiss_guests(rotation)
            if listed < self.next_entry_id:
                rotation.held.clear()
                self._go_on_behind(rotation, self.next_entry_id - 1)

    def metadata_missing(self) -> None:
        """The record is gone: another client deleted the ledger."""
        self._fail(LedgerNotFoundError(self.metadata.ledger_id, "it was deleted while it was being read"))

    # -- reading --------------------------------------------------------------------------------------------------

    def read_on(self) -> None:
        """Asks for the next entries, if they may be read and were not asked for yet. Call it again after a delivery."""
        if self._stage is _Stage.DONE:
            return
        if self.next_entry_id < self.metadata.trim_to:
            self._fail(LedgerTrimmedError(self.metadata.ledger_id, self.next_entry_id, self.metadata.trim_to))
            return
        last = min(self.last_readable, self.last_wanted)
        if self.metadata.chunks and (listed := self.metadata.listed_through(self.next_entry_id)) < last:
            last = listed
            if listed < self.next_entry_id and self._stage is _Stage.READING:
                self._move("a fragment is not listed")
                self._effects.append(ReadMetadata(self.metadata.ledger_id, self.next_entry_id))
        lacking = [
            each
            for each in self._rotations
            if not (each.held or each.is_guest) and each.asked_entry_id is None and each.next_entry_id <= last
        ]
        if len(lacking) > 1:
            # An answer goes on from the entry that it was asked for: the lowest one brings most.
            lacking.sort(key=lambda rotation: rotation.next_entry_id)
        for rotation in lacking:
            if not rotation.is_guest:
                self._ask(rotation, rotation.next_entry_id, lacking if self._takes_guests else ())

    def _ask(self, rotation: _Rotation, entry_id: int, lacking: Sequence[_Rotation] = ()) -> None:
        """Asks for this entry. Rotations that lack a batch, too, and whose next entry the bookie also stores, become
        guests."""
        if rotation.asked_entry_id != entry_id:
            rotation.asked_entry_id = entry_id
            rotation.refreshed = False
        rotation.doubted, rotation.error = 0, None
        fragment = self.metadata.fragment_of(entry_id)
        rotation.order = self._read_order(self.metadata.quorum.write_set(entry_id), fragment.ensemble)
        if len(lacking) > 1:
            rotation.order.sort(key=lambda index: len(self._guests(index, entry_id, lacking)), reverse=True)
        if rotation.preferred in rotation.order:
            # Reading on at the bookie that answered last is sequential for its disk.
            rotation.order.remove(rotation.preferred)
            rotation.order.insert(0, rotation.preferred)
        if self.metadata.gaps:
            lacks = self.metadata.lacking(entry_id)
            # Bookies that may lack the entry are asked last (W7). The sort is stable: otherwise the order stays.
            rotation.order.sort(key=lambda index: index in lacks)
        if fragment.archive:
            del rotation.order[1:]  # the archive answers, whichever index is asked
        if len(lacking) > 1:
            rotation.guests = self._guests(rotation.order[0], entry_id, lacking)
            for guest in rotation.guests:
                guest.is_guest = True
        self._ask_next(rotation)

    def _guests(self, index: int, entry_id: int, lacking: Sequence[_Rotation]) -> list[_Rotation]:
        """The rotations without a request whose next entry this index stores in the same fragment as this entry."""
        quorum, fragment = self.metadata.quorum, self.metadata.fragment_of(entry_id)
        return [
            each
            for each in lacking
            if each.asked_entry_id is None
            and not each.is_guest
            and quorum.stores(index, each.next_entry_id)
            and self.metadata.fragment_of(each.next_entry_id) is fragment
        ]

    def _dismiss_guests(self, host: _Rotation) -> bool:
        """From now on they are asked for themselves. Returns whether one still lacks a batch."""
        guests, host.guests = host.guests, []
        assert host not in guests, "nobody is a guest of its own"
        for guest in guests:
            guest.is_guest = False
        return any(not guest.held for guest in guests)

    def _ask_next(self, rotation: _Rotation) -> None:
        assert rotation.asked_entry_id is not None, "a rotation that asks knows what for"
        assert rotation.order, "somebody is left to ask"
        index = rotation.order.pop(0)
        rotation.waiting |= 1 << index
        entry_id = rotation.asked_entry_id
        fragment = self.metadata.fragment_of(entry_id)
        self._effects.append(SendRead(index, fragment.ensemble[index], entry_id, fragment.term, fragment.archive))

    def read_slow(self, entry_id: int) -> None:
        """The answer is late: ask the next bookie as well (D2). Guests ask for themselves from now on."""
        rotation = self._rotations[entry_id % len(self._rotations)]
        if rotation.asked_entry_id == entry_id and rotation.order:
            self._ask_next(rotation)
            if self._dismiss_guests(rotation):
                self.read_on()

    def read_found(self, index: int, entry_id: int, batches: Sequence[Batch]) -> None:
        """This index gave these batches, the first of which should hold the entry."""
        rotation = self._rotations[entry_id % len(self._rotations)]
        if rotation.asked_entry_id != entry_id or self._stage is _Stage.DONE:
            return
        if not batches or not self._accept(rotation, batches[0], entry_id):
            self.read_unknown(index, entry_id)
            return
        assert rotation.next_entry_id > entry_id, "what was found is not asked for again"
        rotation.preferred = index
        stride = len(self._rotations)
        for batch in batches[1:]:
            other = self._rotations[batch.first_entry_id % stride]
            # A gap, damage, or not yet confirmed: asked for when its turn comes.
            if (other is rotation or other.asked_entry_id is None) and self._accept(other, batch, other.next_entry_id):
                other.preferred = index
        rotation.asked_entry_id, rotation.waiting = None, 0
        if not self._takes_guests:
            brought = {batch.first_entry_id % stride for batch in batches}
            self._takes_guests = len(brought) >= self.metadata.quorum.write
        is_short = bool(rotation.guests) and self._dismiss_guests(rotation)
        self._deliver()
        if is_short:
            self._takes_guests = False  # they ask for themselves, side by side
            self.read_on()

    def _accept(self, rotation: _Rotation, batch: Batch, entry_id: int) -> bool:
        good = (
            batch.ledger_id == self.metadata.ledger_id
            and (not self.metadata.chunks or self.metadata.is_listed(entry_id))
            and batch.stamp == self.metadata.fragment_of(entry_id).term
            and batch.stride == len(self._rotations)
            and batch.holds(entry_id)
            and entry_id <= self.last_readable
            and batch.verify(self._digest)
        )
        if good:
            assert entry_id == rotation.next_entry_id, "batches are taken in order (D3)"
            self.last_add_confirmed_heard(batch.last_add_confirmed)
            rotation.held.append(batch)
            rotation.error = None
            rotation.next_entry_id = batch.last_entry_id + batch.stride
            if (
                batch.stamp != self._last_term
                and (end := self.metadata.end_of_stamp(batch.stamp)) < batch.last_entry_id
            ):
                self._go_on_behind(rotation, end)
        return good

    def read_absent(self, index: int, entry_id: int) -> None:
        """This index has no such entry: so another one must."""
        self._unanswered(index, entry_id, doubt=False)

    def read_unknown(self, index: int, entry_id: int, complaint: str = "") -> None:
        """This index is silent, unreachable, refuses, or its copy is damaged (D2); `complaint` is what it said itself."""
        self._unanswered(index, entry_id, doubt=True, complaint=complaint)

    def _unanswered(self, index: int, entry_id: int, doubt: bool, complaint: str = "") -> None:
        rotation = self._rotations[entry_id % len(self._rotations)]
        if rotation.asked_entry_id != entry_id or self._stage is _Stage.DONE:
            return
        assert entry_id == rotation.next_entry_id, "one entry of a rotation is asked for at a time"
        rotation.waiting &= ~(1 << index)
        rotation.doubted |= doubt << index
        if complaint:
            fragment = self.metadata.fragment_of(entry_id)
            assert index < len(fragment.ensemble), "only members of the ensemble are asked"
            self._complaints[fragment.archive or fragment.ensemble[index]] = complaint
        if index == rotation.preferred:
            rotation.preferred = None
        if rotation.order:
            self._ask_next(rotation)
        elif not rotation.waiting:
            self._exhausted(rotation, entry_id)
        if self._dismiss_guests(rotation):
            self.read_on()

    def _exhausted(self, rotation: _Rotation, entry_id: int) -> None:
        assert not rotation.order, "everybody was asked"
        assert not rotation.waiting, "everybody who was asked has answered"
        # The entry may have moved to a fragment that this reader does not know yet.
        if not rotation.refreshed:
            if self._stage is _Stage.READING:
                self._move("nobody has the entry")
                self._effects.append(ReadMetadata(self.metadata.ledger_id, self.next_entry_id))
            return
        rotation.error = self._unreadable(rotation, entry_id)
        self._deliver()

    def _unreadable(self, rotation: _Rotation, entry_id: int) -> ReplogError:
        ledger_id, fragment = self.metadata.ledger_id, self.metadata.fragment_of(entry_id)
        ensemble = fragment.ensemble
        if fragment.archive:
            problem = (
                f"it is archived as {fragment.archive}, and what is there was not written with this ledger's password"
            )
            return ArchiveUnreadableError(ledger_id, entry_id, self._complaints.pop(fragment.archive, problem))
        asked = ", ".join(ensemble[index] for index in self.metadata.quorum.write_set(entry_id))
        if not rotation.doubted:
            problem = (
                f"confirmed, but none of {asked} has it: data was lost, unless a bookie's log names a file that can be put back. "
                "An audit names all that is (replog audit)"
            )
            return EntryNotFoundError(ledger_id, entry_id, problem)
        doubted = ", ".join(ensemble[index] for index in range(len(ensemble)) if rotation.doubted >> index & 1)
        problem = f"no good copy at {asked}; {doubted} could not tell: retry when they are back (D2)"
        said = [(each, self._complaints[each]) for each in ensemble if each in self._complaints]
        problem += "".join(f"; {bookie_id}: {words}" for bookie_id, words in said)
        return EntryUnreadableError(ledger_id, entry_id, problem)

    # -- handing out ----------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """Hands out every id that is held without a gap and within the bound. Fails at an entry that nobody gives."""
        while self.next_entry_id <= self.last_readable:
            rotation = self._rotations[self.next_entry_id % len(self._rotations)]
            if not rotation.held:
                if rotation.error is not None:
                    self._fail(rotation.error)
                return
            holders = tuple([rotation.held[0] for rotation in self._rotations if rotation.held])
            # A delivery has entries of one stamp: a batch may reach beyond the end of its term.
            stamp = rotation.held[0].stamp
            end = ENTRY_ID_MAX if stamp == self._last_term else self.metadata.end_of_stamp(stamp)
            last = min(self.last_readable, end, *map(self._held_through, self._rotations))
            assert self.next_entry_id <= last <= self.last_readable, "deliveries go forward, to the bound (D3, R7)"
            self._effects.append(Delivered(self.next_entry_id, last, holders))
            self.next_entry_id = last + 1
            for rotation in self._rotations:
                while rotation.held and (
                    rotation.held[0].last_entry_id <= last
                    or (rotation.held[0].stamp != self._last_term and self._is_used_up(rotation, last))
                ):
                    rotation.held.popleft()
                if rotation.held and rotation.held[0].last_entry_id > last == self.last_readable:
                    self._set_aside(rotation, last)

    def _held_through(self, rotation: _Rotation) -> int:
        """The id before the first one of this rotation that its first held batch lacks."""
        if not rotation.held:
            return rotation.next_entry_id - 1
        return rotation.held[0].last_entry_id + len(self._rotations) - 1

    def _set_aside(self, rotation: _Rotation, last: int) -> None:
        """A batch reaches past the bound: the rest of it is asked for again when the bound has moved."""
        self._go_on_behind(rotation, last)
        rotation.held.clear()

    def _go_on_behind(self, rotation: _Rotation, last: int) -> None:
        rotation.next_entry_id = last + 1 + (self._rotations.index(rotation) - last - 1) % len(self._rotations)
        assert rotation.next_entry_id > last, "what was handed out is not asked for again"

    def _is_used_up(self, rotation: _Rotation, last: int) -> bool:
        """True if no entry of the first held batch behind this one has the batch's stamp."""
        assert rotation.held, "there is a first one"
        return self.metadata.end_of_stamp(rotation.held[0].stamp) <= last

    def _fail(self, error: ReplogError) -> None:
        if self._stage is not _Stage.DONE:
            self._move("failed")
            self._effects.append(Failed(error))

    def _move(self, event: str) -> None:
        self._stage = after(TRANSITIONS, self._stage, event)
