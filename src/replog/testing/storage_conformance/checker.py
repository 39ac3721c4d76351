"""Checks the answers of a storage whose files were damaged: each must be right, or an error that reports doubt (R4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TypeVar

import attrs
import trio

from replog.abc import UNBOUNDED, Damage, Doubt, Storage, StoredRange
from replog.errors import (
    StorageDamagedError,
    StorageError,
    StorageFullError,
    StorageInUseError,
    StorageUncertainError,
)
from replog.protocol.batch import Batch
from replog.protocol.mutations import PutBatch
from replog.testing.storage_conformance.candidate import Candidate, expect
from replog.testing.storage_conformance.model import Model, Read, read_of, told

Answer = TypeVar("Answer")

_DOUBT_RAISES = (
    "doubt raises StorageUncertainError, and nothing else: exceptions of others never cross the seam bare (R4)"
)
_NEVER_ABSENT = "read: empty only if the entry is proven absent; damage is doubt, never absence (R4)"
_NEVER_WRONG = "read: every batch returned was checked against damage (B3)"
_CLAIMED = "ranges: only what is stored is claimed; a batch that is known to be damaged is left out (F3)"
_MARKS = "marks: damage is doubt; what was committed is never forgotten or changed (R3, R4)"
_REFUSED = (
    "a storage that can't be opened says why: StorageDamagedError, StorageIdentityError or another StorageError (B3)"
)


class Checker:
    """Knows the stored entries, and checks a storage that opens the damaged files."""

    def __init__(self, model: Model, bookie_id: str, file_names: Collection[str]) -> None:
        self._model = model
        self._bookie_id = bookie_id
        self._file_names = file_names
        self._stored = {read_of(batch): batch for batch in model.stored()}
        self._bounded = Doubt()  # what the first opening said after it was bounded
        # Of the storage that is judged: of these ledgers anything may be gone, and it says so (B8)
        self._lost_below = 0

    def open(self, candidate: Candidate) -> Storage | None:
        """Open the storage; return None if it refuses with an error that is allowed."""
        try:
            return candidate.open()
        except (StorageInUseError, StorageFullError) as error:
            raise _broken(f"{_REFUSED}, not that it is in use or full", error) from error
        except StorageDamagedError as error:
            named = any(name in str(error) for name in self._file_names)
            expect(named, "StorageDamagedError: names file and offset (B3)", f"{error}")
            return None
        except StorageError:
            return None
        except Exception as error:
            raise _broken(_REFUSED, error) from error

    def check(self, storage: Storage) -> list[Batch]:
        """Read everything; return the batches that cannot be read."""
        kept = storage.bookie_id
        expect(kept == self._bookie_id, "the identity never changes (B4)", f"{kept}, it was {self._bookie_id}")
        self._lost_below = self._judge_doubt(storage)
        listed = _unless_doubtful(storage.ledger_ids)
        vouched = [ledger_id for ledger_id in self._model.ledger_ids if ledger_id >= self._lost_below]
        expect(
            listed is None or [ledger_id for ledger_id in listed if ledger_id >= self._lost_below] == vouched,
            "ledger_ids: all ledgers of which anything is known; damage is doubt (R4)",
            f"{listed}, not {self._model.ledger_ids}",
        )
        for ledger_id in self._model.known_ledger_ids:
            self._judge_marks(storage, ledger_id)
            if ledger_id >= self._lost_below:
                never = _entries(storage.ranges(ledger_id)) - _entries(self._model.ranges(ledger_id))
                expect(not never, _CLAIMED, f"ledger {ledger_id}: (stamp, entry) {sorted(never)} were never stored")
        doubtful = [read for read in self._model.reads() if self._is_doubtful(storage, read)]
        return [self._stored[read] for read in doubtful if read in self._stored]

    def _judge_doubt(self, storage: Storage) -> int:
        """The ledger id below which the storage reports losses. Checks that the report makes sense."""
        doubt = storage.doubt()
        expect(isinstance(doubt, Doubt), "doubt: a `Doubt`", doubt)
        expect(0 <= doubt.lost_below <= doubt.doubted_below, "doubt: `lost_below <= doubted_below` (B8)", doubt)
        if doubt.doubted_below:
            named = any(name in reason for name in self._file_names for reason in doubt.reasons)
            expect(named, "doubt: `reasons` name files (B8)", doubt)
        return doubt.lost_below

    def check_bounding(self, storage: Storage, *, is_first: bool) -> None:
        """Bound the doubt at the first opening; check that the second opening reports the same (B8)."""
        doubt = storage.doubt()
        if not is_first:
            why = "doubt: kept durably across restarts, as `bound_doubt` has bounded it; what was found once is not found again"
            expect(doubt == self._bounded, f"{why} (B8)", f"{doubt}, it was {self._bounded}")
            return
        highest = max(self._model.known_ledger_ids, default=0) + 1
        storage.bound_doubt(highest)
        wanted = attrs.evolve(
            doubt,
            doubted_below=highest if doubt.doubted_below == UNBOUNDED else doubt.doubted_below,
            lost_below=highest if doubt.lost_below == UNBOUNDED else doubt.lost_below,
        )
        self._bounded = storage.doubt()
        expect(self._bounded == wanted, "bound_doubt: lowers whichever bound is UNBOUNDED, and no other", self._bounded)
        storage.bound_doubt(highest + 1)
        expect(storage.doubt() == wanted, "bound_doubt: lowers only what is UNBOUNDED", storage.doubt())

    def check_settling(self, storage: Storage) -> Doubt | None:
        """Settle the doubt in part; return what the next opening must report, or None if there is nothing to settle."""
        found = storage.doubt()
        if not found.doubted_below or found.is_unbounded:
            return None
        below = found.doubted_below // 2
        storage.settle_doubt(attrs.evolve(found, reasons=(*found.reasons, "more")), found.settled(0))
        why = "settle_doubt: changes nothing if the doubt is not the one that was found"
        expect(storage.doubt() == found, f"{why} (B8)", storage.doubt())
        left = found.settled(below, {below})
        storage.settle_doubt(found, left)
        expect(storage.doubt() == left, "settle_doubt: leaves this doubt (B8)", f"{storage.doubt()}, not {left}")
        return left

    def check_settled(self, candidate: Candidate, left: Doubt) -> None:
        """Check that the next opening reports this doubt."""
        storage = self.open(candidate)
        if storage is not None:
            with closing(storage):
                why = "settle_doubt: kept durably across restarts"
                expect(storage.doubt() == left, f"{why} (B8)", f"{storage.doubt()}, not {left}")

    def check_scrub(self, storage: Storage) -> list[Batch]:
        """Scrub, then read everything: exactly what `damage()` lists cannot be read."""
        _unless_doubtful(storage.scrub)
        doubtful = self.check(storage)
        for batch in doubtful:
            claimed = _entries(storage.ranges(batch.ledger_id))
            is_claimed = any((batch.stamp, entry_id) in claimed for entry_id in batch.entry_ids)
            expect(not is_claimed, _CLAIMED, f"{batch} is in doubt after a scrub, and claimed")
        known = _unless_doubtful(storage.damage) or ()
        for damage in known:
            expect(isinstance(damage, Damage), "damage: a sequence of `Damage`", damage)
            read = (damage.ledger_id, damage.first_entry_id, damage.stamp, 0)
            answer = _unless_doubtful(partial(storage.read, *read))
            why = "damage: reads of them raise StorageUncertainError (R4): what can be read, from any copy, is not damaged"
            expect(answer is None, why, f"{damage}; read: {answer}")
        # The seam's default lists nothing: then there is nothing to compare with.
        if type(storage).damage is not Storage.damage:
            for batch in doubtful:
                # Of what it says it lost, it may know only that it was dropped, before it was stored once more.
                is_lost = batch.ledger_id < self._lost_below
                expect(
                    is_lost or _is_listed(batch, known),
                    "scrub: what it finds is in `damage`",
                    f"{batch} is in doubt; damage() is {known}",
                )
        return doubtful

    def check_mending(self, storage: Storage, doubtful: list[Batch]) -> None:
        """Store again, as a repair does: the batch can be read, and is not listed any more."""
        if not doubtful:
            return
        storage.commit([PutBatch(batch) for batch in doubtful])
        for batch in doubtful:
            found = _unless_doubtful(partial(storage.read, *read_of(batch)))
            claimed = _entries(storage.ranges(batch.ledger_id))
            is_claimed = all((batch.stamp, entry_id) in claimed for entry_id in batch.entry_ids)
            expect(is_claimed, "ranges: what was damaged and is stored again is held again (F3)", (batch, claimed))
            expect(found == [batch], "commit: what was damaged and is stored again can be read again", (batch, found))
            listed = [damage for damage in storage.damage() if _is_of(batch, damage)]
            expect(not listed, "damage: the batches known of, and not yet stored again", listed)

    def _judge_marks(self, storage: Storage, ledger_id: int) -> None:
        try:
            found = storage.marks(ledger_id)  # None is an answer here
        except StorageUncertainError:
            return
        except Exception as error:
            raise _broken(_DOUBT_RAISES, error) from error
        if ledger_id < self._lost_below:
            return
        wanted = self._model.wanted_marks(ledger_id)
        expect(found == wanted, _MARKS, f"marks({ledger_id}) are {found}, not {wanted}")

    def _is_doubtful(self, storage: Storage, read: Read) -> bool:
        """True if the batch cannot be read. Raises `AssertionError` if a read returns something wrong."""
        wanted = self._model.wanted(read) or []
        found = _unless_doubtful(partial(storage.read, *read))
        self._judge_batches(storage, read, wanted, found)
        with suppress(trio.WouldBlock):
            at_once = _unless_doubtful(partial(storage.read_nowait, *read))
            self._judge_batches(storage, read, wanted, at_once)
        return found is None

    def _judge_batches(self, storage: Storage, read: Read, wanted: list[Batch], found: list[Batch] | None) -> None:
        if found is None or found == wanted:
            return
        # It said that it lost something of this ledger: then less may be found, but nothing that was never written.
        if read[0] < self._lost_below:
            expect(
                all(self._model.has_heard_of(batch) for batch in found), _NEVER_WRONG, f"read{read} gives {told(found)}"
            )
            return
        words = f"read{read} gives {told(found)}, not {told(wanted)}"
        expect(bool(found), _NEVER_ABSENT, words)
        expect(found == wanted[: len(found)], _NEVER_WRONG, words)
        # A damaged one may end the answer, if it is in doubt itself.
        missing = wanted[len(found)]
        is_doubtful = _unless_doubtful(partial(storage.read, *read_of(missing))) is None
        expect(is_doubtful, "read: those that start after it, while their bytes fit; only doubt ends it before", words)


def _unless_doubtful(call: Callable[[], Answer]) -> Answer | None:
    """The answer of a call, or None if it reports doubt. Raises `AssertionError` for any other error."""
    try:
        return call()
    except StorageUncertainError:
        return None
    except trio.WouldBlock:
        raise
    except Exception as error:
        raise _broken(_DOUBT_RAISES, error) from error


def _entries(ranges: Sequence[StoredRange]) -> set[tuple[int, int]]:
    """Stamp and id of each entry."""
    return {
        (each.stamp, entry_id)
        for each in ranges
        for entry_id in range(each.first_entry_id, each.last_entry_id + 1, each.stride)
    }


def _is_of(batch: Batch, damage: Damage) -> bool:
    return (
        (damage.ledger_id, damage.stamp) == (batch.ledger_id, batch.stamp)
        and damage.first_entry_id <= batch.first_entry_id
        and batch.last_entry_id <= damage.last_entry_id
    )


def _is_listed(batch: Batch, known: Sequence[Damage]) -> bool:
    """True if all entries of the batch are there, in one batch or in several."""
    listed = [each for each in known if (each.ledger_id, each.stamp) == (batch.ledger_id, batch.stamp)]
    return all(
        any(damage.first_entry_id <= entry_id <= damage.last_entry_id for damage in listed)
        for entry_id in batch.entry_ids
    )


def _broken(sentence: str, error: Exception) -> AssertionError:
    return AssertionError(f"broken contract of Storage: {sentence}\n  found: {type(error).__name__}: {error}")
