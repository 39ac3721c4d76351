"""Where the entries of ledgers must be: at their ack quorums always, and after the calm on their whole write sets."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replog.protocol.batch import Batch
    from tests.simulator.invariants import LedgerTruth, Oracle


def holders(oracle: Oracle, truth: LedgerTruth, entry_id: int) -> list[int]:
    """The indices of an entry's write set whose bookies have it, or had it until their disks forgot it."""
    fragment = truth.record.fragment_of(entry_id)
    found = []
    for index in truth.record.quorum.write_set(entry_id):
        name, identity = fragment.ensemble[index], (fragment.term, entry_id)
        disk = oracle.bookies[name].disk.get(truth.ledger_id)
        if (disk is not None and identity in disk.held) or oracle.forgotten.has(name, truth.ledger_id, identity):
            found.append(index)
    return found


def check_ack_quorum(oracle: Oracle, truth: LedgerTruth, entry_id: int, rule: str) -> None:
    """So many copies as its ack quorum has."""
    copies, needed = len(holders(oracle, truth, entry_id)), truth.record.quorum.ack
    if copies < needed:
        fragment = truth.record.fragment_of(entry_id)
        oracle.fail(rule, f"entry {truth.ledger_id}/{entry_id} has {copies} copies in {fragment}, {needed} needed")


class Sendings:
    """What each writer, and each attempt to recover, sent to whom before it closed the ledger, and what it was told failed."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], set[int]] = defaultdict(set)  # entry ids, by nonce and bookie
        self._failed: dict[tuple[str, str], set[int]] = defaultdict(set)
        self.starts: dict[str, int] = {}  # where each attempt to recover began to write back

    def sent(self, nonce: str, bookie_id: str, batch: Batch) -> None:
        """An add is on its way."""
        self._sent[nonce, bookie_id].update(batch.entry_ids)
        self._failed[nonce, bookie_id].difference_update(batch.entry_ids)

    def failed(self, nonce: str, bookie_id: str, batch: Batch) -> None:
        """The sender was told, in time, that an add failed, or that there will be no answer."""
        self._failed[nonce, bookie_id].update(batch.entry_ids)

    def is_known_to_lack(self, nonce: str, bookie_id: str, entry_id: int) -> bool:
        """Whether who closed the ledger knew that this bookie may lack the entry."""
        key = nonce, bookie_id
        return entry_id not in self._sent[key] or entry_id in self._failed[key]


def check_write_quorums(oracle: Oracle, truth: LedgerTruth) -> None:
    """After the calm every entry of a closed ledger is on its whole write set, but for what its metadata says (W7), and for
    what was on its way when the ledger was closed, or what only a writer knew that somebody else deposed."""
    record, last = truth.record, truth.last_entry_id
    if truth.deleted or last is None:
        return
    closer = record.token.rpartition(".")[0]
    for entry_id in range(max(0, oracle.sendings.starts.get(closer, -1) + 1), last + 1):
        has = holders(oracle, truth, entry_id)
        lacking = [index for index in record.quorum.write_set(entry_id) if index not in has]
        for index in lacking:
            name = record.fragment_of(entry_id).ensemble[index]
            if index in record.lacking(entry_id):
                oracle.world.count("a gap says that a bookie lacks an entry")
            elif oracle.sendings.is_known_to_lack(closer, name, entry_id):
                oracle.fail("W7", f"{name} lacks entry {truth.ledger_id}/{entry_id}, and no gap says so: {record.gaps}")
            else:
                oracle.world.count("an add was on its way when its ledger was closed")
