"""The record of a ledger always names somebody who has a copy, as long as anybody has one that it ever named (F1, F5, B8a).

Looked at whenever a record is about to change, and whenever a bookie is about to drop entries: so an absent bookie that is taken
for a lost one, a silent one that is taken for an empty one, or entries that are dropped before that is proven, show at once, even
if nobody comes to read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from replog.abc import DropEntries
from replog.errors import MetastoreCorruptError
from replog.protocol.fragment_copies import FixedFragment, fixed_fragments
from replog.protocol.model import LedgerMetadata
from replog.records.ledgers import decode_ledger
from replog.records.paths import LEDGERS_KEY
from replog.testing.simulating.processes import BookieHost
from tests.simulator.shells.world import JudgedWorld


class LastCopies:
    """The oracle of one run. `stored` gives a ledger's record as it is now."""

    def __init__(
        self, world: JudgedWorld, bookies: Mapping[str, BookieHost], stored: Callable[[int], LedgerMetadata | None]
    ) -> None:
        self._world = world
        self._bookies = bookies
        self._stored = stored

    def changing(self, key: str, value: bytes) -> None:
        """This value is about to replace a key's."""
        if not key.startswith(f"{LEDGERS_KEY}/"):
            return
        try:
            after = decode_ledger(key, value)
        except MetastoreCorruptError:
            return  # another key below that one
        before = self._stored(after.ledger_id)
        if before is None or before.creation != after.creation:
            return
        known = {(each.first_entry_id, each.term): each for each in fixed_fragments(before)}
        for fragment in fixed_fragments(after):
            old = known.get((fragment.first_entry_id, fragment.term))
            if old is not None and old.ensemble != fragment.ensemble:
                self._judge(before, old, after, fragment)

    def _judge(self, before: LedgerMetadata, old: FixedFragment, after: LedgerMetadata, new: FixedFragment) -> None:
        for entry_id in range(new.first_entry_id, min(old.last_entry_id, new.last_entry_id) + 1):
            named = [each.ensemble[index] for each in (old, new) for index in before.quorum.write_set(entry_id)]
            had, have = named[: before.quorum.write], named[before.quorum.write :]
            holders = {each for each in {*had, *have} if self._holds(each, after.ledger_id, entry_id, new.term)}
            if holders & {*had} and not holders & {*have}:
                what = f"entry {entry_id} of ledger {after.ledger_id}"
                self._world.violated("F1", f"the record stops naming all that have {what}: {had} to {have}")
            elif holders:
                self._world.count("entry that the changed record names")

    def dropping(self, bookie: BookieHost, mutation: DropEntries) -> None:
        """This bookie is about to drop these entries."""
        metadata = self._stored(mutation.ledger_id)
        if metadata is None:
            return
        bookie_id = bookie.disk.content.bookie_id
        for fragment in fixed_fragments(metadata):
            first = max(fragment.first_entry_id, mutation.first_entry_id)
            last = min(fragment.last_entry_id, mutation.last_entry_id)
            if fragment.term != mutation.stamp or first > last:
                continue
            for entry_id in range(first, last + 1):
                if (entry_id - mutation.first_entry_id) % mutation.stride:
                    continue
                named = {fragment.ensemble[index] for index in metadata.quorum.write_set(entry_id)}
                if bookie_id in named and bookie.disk.stores(mutation.ledger_id, entry_id, mutation.stamp):
                    what = f"entry {entry_id} of ledger {mutation.ledger_id}"
                    self._world.violated("F5", f"{bookie_id} drops {what}, for which the record names it")
                self._world.count("entry dropped that others have")

    def _holds(self, bookie_id: str, ledger_id: int, entry_id: int, stamp: int) -> bool:
        host = next((each for each in self._bookies.values() if each.disk.content.bookie_id == bookie_id), None)
        return host is not None and not host.is_gone and host.disk.stores(ledger_id, entry_id, stamp)
