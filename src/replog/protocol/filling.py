"""The machine that fills one fragment of a ledger: copies batches to the bookies that should have them (rules F1-F6, W7).

Each round asks the members of the fragment, and the bookies that will replace some of them, for their holdings, and
copies the entries that one holds and another should hold. When a round finds nothing more to copy, one compare-and-set
names the replacements that hold everything, and removes the gaps that are filled. A bookie that cannot be asked may
hold the only copies: unless it was declared lost, no replacement that lacks an entry is named before it has answered.

Copies that carry a code which can be checked are checked. Under a keyed code whose key is unknown, the copies of all holders are
compared: those that differ are reported, and none of them is copied (F3).

An archived fragment is filled from its archive, which is asked like a bookie that has all of it. Only when every index holds all
it should, one compare-and-set names the bookies, and the archive no more.

A filler may be killed at any moment: what it stored is right wherever it stays, and the next one goes on from there (F6).

Invariants:

- The fragment's range is fixed, and no batch is copied that reaches into the last fragment of a ledger that is not
  CLOSED, if it has that fragment's stamp (F2). With an earlier one nobody asks for it there: a takeover ended its term
  inside the batch.
- Every copy carries the record's term (F2).
- The record names a replacement only if it said, after all was stored, that it holds all it should, or all that anybody
  has (F3).
- Only indices of the one fragment change (F4), and no bookie ever has two of them (C2).
- A fragment keeps its archive until each bookie of its ensemble said, after all was stored, that it holds all it should.
- A replacement is named upon the version of the record at which it said what it holds, or it is asked again (F5).
- One entry is read at a time, and none while more than `COPYING_BYTES_MAX` are being stored: memory is bounded.
- Bookies are asked again only when every copy that was sent is answered.
- From DONE on, every call changes nothing.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Collection, Mapping, Sequence

import attrs

from replog.errors import RemoteProtocolError, ReplogError
from replog.protocol.batch import Batch, check_damage
from replog.protocol.digest import Digest, DigestType
from replog.protocol.effects import AskHolding, Failed, Finished, SendCopy, SendCopyRead
from replog.protocol.fragment_copies import Copies, FixedFragment, Sent, ToCopy, all_fixed_fragments
from replog.protocol.fragments import Fragment
from replog.protocol.machine import LedgerMachine
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.protocol.stages import Transitions, after, from_each

ROUNDS_MAX = 5  # of asking and copying
COPYING_BYTES_MAX = 3 << 19  # of batches that are being stored while more is read: one large batch, and some


class _Stage(enum.Enum):
    NEW = enum.auto()
    ASKING = enum.auto()  # bookies are asked what they hold
    COPYING = enum.auto()  # batches are read, and stored elsewhere
    WRITING = enum.auto()
    DONE = enum.auto()


TRANSITIONS: Transitions[_Stage] = {
    (_Stage.NEW, "started"): _Stage.ASKING,
    (_Stage.ASKING, "something to copy"): _Stage.COPYING,
    (_Stage.COPYING, "all copied"): _Stage.ASKING,
    (_Stage.ASKING, "record to be changed"): _Stage.WRITING,
    (_Stage.ASKING, "nothing to change"): _Stage.DONE,
    (_Stage.WRITING, "written"): _Stage.DONE,
    (_Stage.WRITING, "record changed"): _Stage.ASKING,
    **from_each((_Stage.COPYING, _Stage.WRITING), "overtaken", _Stage.DONE),
    **from_each((each for each in _Stage if each is not _Stage.DONE), "failed", _Stage.DONE),
}


@attrs.frozen
class Lack:
    """The entries of a fragment that the bookie at this index still lacks. No bookie that was asked has a copy of those
    in `nowhere`."""

    index: int
    bookie_id: str
    entries: tuple[tuple[int, int], ...]
    nowhere: tuple[tuple[int, int], ...]


@attrs.define
class Filled:
    """The result of a filling. `differing` are entries of which two copies differ, `unverified` the batches that had
    only one copy and a code that the filler cannot check (F3)."""

    copied_batches: int = 0
    copied_bytes: int = 0
    unverified: int = 0
    differing: list[tuple[int, int]] = attrs.field(factory=list)
    lacking: list[Lack] = attrs.field(factory=list)
    replaced: dict[int, str] = attrs.field(factory=dict)
    refusals: dict[str, str] = attrs.field(
        factory=dict
    )  # by bookie: why it took no copy, or did not tell what it holds
    unread: dict[str, str] = attrs.field(factory=dict)  # by bookie: why it gave no copy, although it may have one
    rounds: int = 0  # of asking
    is_overtaken: bool = False  # another client changed the record: look again


class LedgerFilling(LedgerMachine):
    """Fills the fragment at this place. `replacements` are other bookies by index, from outside or from another place of the
    fragment; `lost` bookies are never asked (B8a). `digest` checks a keyed code, if the filler knows the password. The archive
    of an archived fragment is asked as if its name were a bookie's."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        nonce: str,
        place: int,
        *,
        replacements: Mapping[int, str] | None = None,
        lost: Collection[str] = (),
        digest: Digest | None = None,
    ) -> None:
        fragment = _fixed(metadata, place)
        super().__init__(metadata, version, nonce, fragment.first_entry_id)
        self.result = Filled()
        self._stage = _Stage.NEW
        self._digest = digest
        self._fragment = fragment
        new = dict(replacements or {})
        self._ensemble = tuple(new.get(index, each) for index, each in enumerate(self._fragment.ensemble))
        assert len(set(self._ensemble)) == len(self._ensemble), "no bookie has two places (C2)"
        archive = (fragment.archive,) if fragment.archive else ()
        asked = dict.fromkeys((*archive, *self._fragment.ensemble, *self._ensemble))
        self._bookies = [bookie_id for bookie_id in asked if bookie_id not in lost]
        self._members = [bookie_id for bookie_id in self._fragment.ensemble if bookie_id not in lost]
        self._copies = Copies(self.quorum, self._fragment)
        self._copied_before = -1  # batches, when this round began
        self._awaited: set[str] = set()  # bookies that were asked, in ASKING; in COPYING those of the read under way
        self._todo = ToCopy()
        self._found: dict[str, Sequence[Batch]] = {}  # by bookie, of the read under way
        self._storing = Sent()
        self._whole: frozenset[int] = frozenset()  # the indices that lack nothing

    @property
    def is_done(self) -> bool:
        """True if the machine finished or failed."""
        return self._stage is _Stage.DONE

    @property
    def archive(self) -> str:
        """The archive that the fragment is filled from, as it is asked; "" if bookies fill each other."""
        return self._fragment.archive

    # -- asking ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Asks the bookies for their holdings."""
        self._move("started")
        self._ask()

    def _ask(self) -> None:
        assert self._stage is _Stage.ASKING, "bookies are asked in ASKING only"
        fragment = self._fragment
        self.result.rounds += 1
        self._awaited = set(self._bookies)
        self.effects += [
            AskHolding(each, fragment.term, fragment.first_entry_id, fragment.last_entry_id) for each in self._bookies
        ]
        if not self._bookies:
            self._plan()

    def holding_told(self, bookie_id: str, ranges: Sequence[tuple[int, int, int]]) -> None:
        """This bookie holds these entries: first, last, stride."""
        if self._stage is _Stage.ASKING and bookie_id in self._awaited:
            self._copies.told(bookie_id, ranges)
            self._heard(bookie_id)

    def holding_unknown(self, bookie_id: str, problem: str) -> None:
        """This bookie cannot be asked, or cannot tell: it is not asked again."""
        if self._stage is _Stage.ASKING and bookie_id in self._awaited:
            self._copies.silent(bookie_id)
            self._bookies.remove(bookie_id)
            self.result.refusals[bookie_id] = problem
            self._heard(bookie_id)

    def _heard(self, bookie_id: str) -> None:
        self._awaited.discard(bookie_id)
        if not self._awaited:
            self._plan()

    def _plan(self) -> None:
        """Copies what one holds and another should have. A round in which nothing was copied is the last one."""
        assert self._stage is _Stage.ASKING, "a round is planned from what bookies say"
        self._todo = ToCopy()
        for index, bookie_id in enumerate(self._ensemble):
            if self._copies.is_heard(bookie_id) and bookie_id not in self.result.refusals:
                self._todo.put(bookie_id, self._copies.held_anywhere(self._copies.missing(index, bookie_id)))
        has_copied = self.result.copied_batches > self._copied_before
        # Bounded, because a bookie may say that it stored a copy, and never hold it.
        if self._todo and has_copied and self.result.rounds < ROUNDS_MAX:
            self._copied_before = self.result.copied_batches
            self._move("something to copy")
            self._read_next()
        else:
            self._end()

    # -- copying --------------------------------------------------------------------------------------------------

    def _read_next(self) -> None:
        """Reads the first entry that a bookie lacks, from one holder, or from all if their copies must be compared.
        Earlier copies may still be on their way, within a bound."""
        assert self._stage is _Stage.COPYING, "copies are read in COPYING only"
        if self._awaited or self._storing.size_bytes > COPYING_BYTES_MAX:
            return
        while self._todo:
            entry_id = self._todo.first()
            sources = self._copies.holders(entry_id)
            if sources:
                self._read(entry_id, sources)
                return
            self._todo.skip(entry_id, entry_id)
        # What is on its way would be taken for missing.
        if not self._storing:
            self._move("all copied")
            self._ask()

    def _read(self, entry_id: int, sources: Sequence[str]) -> None:
        self._found = {}
        # Another fragment begins with another holder: reads are spread.
        start = (self.metadata.ledger_id + self._fragment.place) % len(sources)
        chosen = sources[start : start + 1] if self._can_verify else sources
        assert chosen, "somebody holds the entry"
        self._awaited = set(chosen)
        self.effects += [SendCopyRead(bookie_id, entry_id, self._fragment.term) for bookie_id in chosen]

    @property
    def _can_verify(self) -> bool:
        return self._digest is not None or self.metadata.digest_type is DigestType.CRC32C

    def copies_found(self, bookie_id: str, entry_id: int, batches: Sequence[Batch]) -> None:
        """This bookie has the entry, in the first of these batches."""
        if self._stage is not _Stage.COPYING or bookie_id not in self._awaited:
            return
        fits = (_is_valid(batch, self.metadata, self._fragment, self._digest) for batch in batches)
        valid = [batch for batch, _ in zip(batches, itertools.takewhile(bool, fits), strict=False)]
        if valid and valid[0].holds(entry_id):
            self._found[bookie_id] = valid
            self._answered(bookie_id)
        else:
            self.copies_unreadable(bookie_id, entry_id)

    def copies_unreadable(self, bookie_id: str, entry_id: int, problem: str = "") -> None:
        """This bookie has no intact copy of the entry; with a `problem`, it refused or did not answer. In this round it counts as
        one that lacks the entry."""
        if self._stage is _Stage.COPYING and bookie_id in self._awaited:
            if problem:
                self.result.unread.setdefault(bookie_id, problem)
            self._copies.lacks(bookie_id, entry_id)
            self._answered(bookie_id)

    def _answered(self, bookie_id: str) -> None:
        self._awaited.discard(bookie_id)
        if self._awaited:
            return
        if not self._found:
            self._read_next()
        elif self._can_verify:
            assert len(self._found) == 1, "one holder is asked for what can be verified"
            self._store(next(iter(self._found.values())))
        else:
            self._compare()

    def _compare(self) -> None:
        """Of copies that cannot be verified only those are stored that all holders have in the same bytes (F3)."""
        agreed: list[Batch] = []
        for found in zip(*self._found.values(), strict=False):
            # What follows the first batch may be held by others, too, that were not asked.
            is_heard = not agreed or set(self._copies.holders(found[0].first_entry_id)) <= self._found.keys()
            if not is_heard or any(batch != found[0] for batch in found):
                break
            agreed.append(found[0])
        if agreed:
            self.result.unverified += len(agreed) if len(self._found) == 1 else 0
            self._store(agreed)
            return
        firsts = [batches[0] for batches in self._found.values()]
        first = min(batch.first_entry_id for batch in firsts)
        last = max(batch.last_entry_id for batch in firsts)
        assert first <= last, "a batch has entries"
        if (first, last) not in self.result.differing:
            self.result.differing.append((first, last))
        self._todo.skip(first, last)
        self._read_next()

    def _store(self, batches: Sequence[Batch]) -> None:
        """Stores these copies, and reads on."""
        assert not self._awaited, "what was read is stored once every holder that was asked has answered"
        self._found = {}
        for batch in batches:
            # None, if those that lacked it have refused an earlier one since it was asked for.
            takers = self._todo.take(batch)
            if takers:
                self._storing.put(batch, takers)
                self.effects += [SendCopy(bookie_id, batch, self.metadata.term) for bookie_id in takers]
        self._read_next()

    def copy_stored(self, bookie_id: str, batch: Batch) -> None:
        """The copy is durable there."""
        if self._is_storing(bookie_id, batch):
            self.result.copied_batches += 1
            self.result.copied_bytes += len(batch.data)
            self._answered_copy(bookie_id, batch)

    def copy_refused(self, bookie_id: str, batch: Batch, problem: str) -> None:
        """The bookie did not take the copy, or did not answer: it gets no more, and may still be read from."""
        if self._is_storing(bookie_id, batch):
            self.result.refusals.setdefault(bookie_id, problem)
            self._todo.give_up(bookie_id)
            self._answered_copy(bookie_id, batch)

    def copy_fenced(self, bookie_id: str, batch: Batch) -> None:
        """The bookie knows a higher term than the record had: another client recovers or deleted the ledger (T1, F4)."""
        if self._is_storing(bookie_id, batch):
            self._finish("overtaken")

    def _is_storing(self, bookie_id: str, batch: Batch) -> bool:
        return self._stage is _Stage.COPYING and self._storing.is_awaited(bookie_id, batch)

    def _answered_copy(self, bookie_id: str, batch: Batch) -> None:
        self._storing.answered(bookie_id, batch)
        self._read_next()

    # -- the end --------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Reports the entries still missing, and changes the record where that is right (F1)."""
        assert self._stage is _Stage.ASKING, "the end is decided by what bookies say"
        copies, former = self._copies, self._fragment.ensemble
        complete, whole = set[int](), set[int]()
        all_heard = all(copies.is_heard(bookie_id) for bookie_id in self._members)
        for index, bookie_id in enumerate(self._ensemble):
            missing = copies.missing(index, bookie_id)
            nowhere = copies.held_nowhere(missing)
            if missing:
                self.result.lacking.append(Lack(index, bookie_id, tuple(missing), tuple(nowhere)))
            if copies.is_heard(bookie_id) and not missing:
                whole.add(index)
            # A bookie may have more than it says: one that is not lost gives its place only to one that lacks nothing.
            is_all_there_is = all_heard and len(nowhere) == len(missing) and former[index] not in self._members
            if copies.is_heard(bookie_id) and (not missing or is_all_there_is):
                complete.add(index)
        wanted = {index: self._ensemble[index] for index in complete if self._ensemble[index] != former[index]}
        self.result.replaced = _without_doubles(former, wanted)
        self._whole = frozenset(whole - (wanted.keys() - self.result.replaced.keys()))
        changed = self._changed(self.metadata)
        if changed == self.metadata:
            self._finish("nothing to change")
        else:
            self._move("record to be changed")
            self._propose(changed)

    def _changed(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """The record with the replacements of this fragment, and without the gaps that are filled (F4, W7)."""
        fragment = self._fragment
        if fragment.archive and len(self._whole) < self.quorum.ensemble:
            return metadata
        ensemble = tuple(self.result.replaced.get(index, each) for index, each in enumerate(fragment.ensemble))
        fragments = tuple(
            attrs.evolve(each, ensemble=ensemble, archive="")
            if each.first_entry_id == fragment.first_entry_id
            else each
            for each in metadata.fragments
        )
        assert len(fragments) == len(metadata.fragments), "only indices of one fragment change (F4)"
        gaps = tuple(
            gap
            for gap in metadata.gaps
            if gap.index not in self._whole
            or not fragment.first_entry_id <= gap.first_entry_id <= fragment.last_entry_id
        )
        return attrs.evolve(metadata, fragments=fragments, gaps=gaps)

    def _lost(self, metadata: LedgerMetadata, proposed: LedgerMetadata) -> None:
        first = self._fragment.first_entry_id
        ours, former = _at(metadata, first), self._fragment.ensemble
        wanted = tuple(self.result.replaced.get(index, each) for index, each in enumerate(former))
        if ours is None or ours.ensemble not in (wanted, former) or ours.archive not in ("", self._fragment.archive):
            self._finish("overtaken")
        elif self._changed(metadata) == metadata:
            # It was written, and then another client changed something else.
            self._settle()
        elif (self.result.replaced or self._fragment.archive) and ours.ensemble == former:
            # The change may be by a bookie that drops entries outside its fragments: its answer is no longer true (F5).
            self._ask_again()
        else:
            self._propose(self._changed(metadata))

    def _ask_again(self) -> None:
        """Nothing that was said counts any more."""
        if self.result.rounds >= ROUNDS_MAX:
            self._finish("overtaken")
            return
        self._move("record changed")
        self.result.lacking, self.result.replaced = [], {}
        self._copied_before = -1
        self._ask()

    def _settle(self) -> None:
        self._finish("written")

    def _finish(self, how: str) -> None:
        self._move(how)
        if how == "overtaken":
            self.result.is_overtaken = True
            self.result.replaced = {}
        assert self._stage is _Stage.DONE, "nothing follows"
        self.effects.append(Finished(self.metadata, self.version))

    def _fail(self, error: ReplogError) -> None:
        self._move("failed")
        self.result.replaced = {}
        self.effects.append(Failed(error))

    def _move(self, event: str) -> None:
        self._stage = after(TRANSITIONS, self._stage, event)


def _without_doubles(ensemble: Sequence[str], replaced: Mapping[int, str]) -> dict[int, str]:
    """Of these replacements those after which no bookie has two places: of bookies that change places, all do or none (C2)."""
    kept = dict(replaced)
    while True:
        staying = {each for index, each in enumerate(ensemble) if index not in kept}
        doubled = [index for index, bookie_id in kept.items() if bookie_id in staying]
        if not doubled:
            return kept
        for index in doubled:
            del kept[index]


def _fixed(metadata: LedgerMetadata, place: int) -> FixedFragment:
    found = [each for each in all_fixed_fragments(metadata) if each.place == place]
    assert found, "only a fragment whose range is fixed, and that has entries, is filled (F2)"
    return found[0]


def _at(metadata: LedgerMetadata, first_entry_id: int) -> Fragment | None:
    for fragment in metadata.fragments:
        if fragment.first_entry_id == first_entry_id:
            return fragment
    return None


def _is_valid(batch: Batch, metadata: LedgerMetadata, fragment: FixedFragment, digest: Digest | None) -> bool:
    """True if this can be a batch of the fragment, and nothing shows that it is damaged."""
    fits = batch.ledger_id == metadata.ledger_id and batch.stamp == fragment.term
    fits = fits and batch.stride == metadata.quorum.stride and batch.digest_type is metadata.digest_type
    # A recovery may have been told that a member of the last ensemble lacks what lies there, under the stamp of that (R4).
    is_open = metadata.state is not LedgerState.CLOSED and batch.stamp == metadata.last_fragment.term
    if not fits or (is_open and batch.last_entry_id >= metadata.last_fragment.first_entry_id):
        return False
    if digest is not None:
        return batch.verify(digest)
    try:
        check_damage(batch)
    except RemoteProtocolError:
        return False
    return True
