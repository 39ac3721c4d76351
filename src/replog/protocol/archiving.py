"""The machine that archives one fragment of a ledger: copies its entries into objects, then has the record say so.

It takes the entries as a reader gets them, checked with the ledger's password, and puts them into objects of one copy, whose name
is its own. An object counts once the store has given it back as it was written. When all are there, one compare-and-set names the
copy in the fragment. Until then nobody reads the archive, and nobody drops anything; after it the bookies drop their copies by
themselves (F5, B6a).

It may be killed anywhere: its objects are then a copy that no record names, which is collected after a day (F6). Another run
makes a copy of its own, so that nobody relies upon objects that are about to be collected.

Invariants:

- The fragment's range is fixed, and it has entries (F2). The ledger is closed, or unbounded.
- The objects have all entries of the fragment, each in the object whose name says so.
- The record names the copy only once every object of it was read back.
- Only the fragment's archive changes. A fragment that has one, or another range or term, stays as it is (F4).
- One object is being stored at a time, while entries of the next one are gathered: memory is bounded.
- From DONE on, every call changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs

from replog.errors import ReplogError
from replog.protocol.archived import BATCHES_MAX, OBJECT_BYTES_MAX
from replog.protocol.batch import Batch
from replog.protocol.effects import Failed, Finished, PutObject, ReadEntries
from replog.protocol.fragment_copies import FixedFragment, all_fixed_fragments, fixed_fragments
from replog.protocol.machine import LedgerMachine
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.protocol.stages import Transitions, after, from_each


class _Stage(enum.Enum):
    NEW = enum.auto()
    COPYING = enum.auto()  # entries are read, and objects stored
    WRITING = enum.auto()
    DONE = enum.auto()


TRANSITIONS: Transitions[_Stage] = {
    (_Stage.NEW, "started"): _Stage.COPYING,
    (_Stage.COPYING, "all stored"): _Stage.WRITING,
    (_Stage.WRITING, "written"): _Stage.DONE,
    (_Stage.WRITING, "overtaken"): _Stage.DONE,
    **from_each((each for each in _Stage if each is not _Stage.DONE), "failed", _Stage.DONE),
}


def archivable(metadata: LedgerMetadata) -> list[FixedFragment]:
    """The listed fragments that may be archived: of a closed ledger all, of an unbounded one all but the last."""
    if metadata.state is not LedgerState.CLOSED and not metadata.is_unbounded:
        return []
    return fixed_fragments(metadata)


class LedgerArchiving(LedgerMachine):
    """Archives this fragment. `copy` is a name that no other run has."""

    def __init__(
        self, metadata: LedgerMetadata, version: int, nonce: str, fragment: FixedFragment, archive_id: str, copy: str
    ) -> None:
        assert fragment in archivable(metadata), (
            "only a fragment whose range is fixed, and that has entries, is archived (F2)"
        )
        super().__init__(metadata, version, nonce, fragment.first_entry_id)
        self.archived_bytes = 0  # of batches
        self.is_overtaken = False  # another client changed the fragment: look again
        self._stage = _Stage.NEW
        self.fragment = fragment
        self._archive = f"{archive_id}/{copy}"
        self._batches: dict[int, Batch] = {}  # of the next object, by their first entries
        self._gathered_bytes = 0
        self._object_first = self._next = fragment.first_entry_id  # of that object, and the next entry to read
        self._is_reading = False
        self._storing = 0

    @property
    def is_done(self) -> bool:
        """True if the machine finished or failed."""
        return self._stage is _Stage.DONE

    def start(self) -> None:
        """Reads the first entries."""
        self._move("started")
        self._go_on()

    def entries_read(self, first_entry_id: int, last_entry_id: int, batches: Sequence[Batch]) -> None:
        """These entries, which the batches hold between them; each was checked with the ledger's code."""
        if self._stage is not _Stage.COPYING:
            return
        assert first_entry_id == self._next, "entries are read in order (D3)"
        assert last_entry_id <= self.fragment.last_entry_id, "nothing behind the fragment is read"
        self._is_reading = False
        self._next = last_entry_id + 1
        for batch in batches:
            if batch.first_entry_id not in self._batches:
                self._batches[batch.first_entry_id] = batch
                self._gathered_bytes += len(batch.data)
        self._go_on()

    def object_stored(self) -> None:
        """The object is durable, and the store has given it back as it was written."""
        if self._stage is _Stage.COPYING:
            assert self._storing == 1, "one object is being stored at a time"
            self._storing -= 1
            self._go_on()

    def _go_on(self) -> None:
        is_all = self._next > self.fragment.last_entry_id
        # A gathering of several batches, where entries stripe: they come together.
        is_full = self._gathered_bytes >= OBJECT_BYTES_MAX or len(self._batches) > BATCHES_MAX // 2
        if (is_full or is_all) and self._batches and not self._storing:
            self._store()
            is_full = False
        if is_all and not self._batches and not self._storing:
            self._move("all stored")
            self._propose(self._changed(self.metadata))
        elif not (is_all or is_full or self._is_reading):
            self._is_reading = True
            self.effects.append(ReadEntries(self._next, self.fragment.last_entry_id))

    def _store(self) -> None:
        last = self._next - 1
        assert self._object_first <= last, "an object has entries"
        batches = tuple(self._batches.values())
        self.archived_bytes += self._gathered_bytes
        self._storing += 1
        self.effects.append(PutObject(self._object_first, last, batches))
        self._object_first = self._next
        # A batch that has more is in the next object, too: whoever wants an entry reads one object.
        is_all = self._next > self.fragment.last_entry_id
        self._batches = {} if is_all else {each.first_entry_id: each for each in batches if each.last_entry_id > last}
        self._gathered_bytes = sum(len(each.data) for each in self._batches.values())

    # -- the record -------------------------------------------------------------------------------------------------

    def _changed(self, metadata: LedgerMetadata) -> LedgerMetadata:
        first = self.fragment.first_entry_id
        fragments = tuple(
            attrs.evolve(each, archive=self._archive) if each.first_entry_id == first else each
            for each in metadata.fragments
        )
        return attrs.evolve(metadata, fragments=fragments)

    def _lost(self, metadata: LedgerMetadata, proposed: LedgerMetadata) -> None:
        ours = self.fragment
        now = [each for each in all_fixed_fragments(metadata) if each.first_entry_id == ours.first_entry_id]
        if any(each.archive == self._archive for each in now):
            # It was written, and then another client changed something else.
            self._settle()
        elif [(each.last_entry_id, each.term, each.archive) for each in now] == [(ours.last_entry_id, ours.term, "")]:
            self._propose(self._changed(metadata))
        else:
            self.is_overtaken = True
            self._move("overtaken")
            self.effects.append(Finished(self.metadata, self.version))

    def _settle(self) -> None:
        self._move("written")
        self.effects.append(Finished(self.metadata, self.version))

    def _fail(self, error: ReplogError) -> None:
        self._move("failed")
        self._batches = {}
        self.effects.append(Failed(error))

    def _move(self, event: str) -> None:
        self._stage = after(TRANSITIONS, self._stage, event)
