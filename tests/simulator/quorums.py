"""Where the entries of ledgers must be: at their ack quorums always, and after the calm on their whole write sets."""

from __future__ import annotations

from tests.simulator.facts import Facts, LedgerTruth


def holders(facts: Facts, truth: LedgerTruth, entry_id: int) -> list[int]:
    """The indices of an entry's write set whose bookies have it, or had it until their disks forgot it."""
    fragment = truth.record.fragment_of(entry_id)
    found = []
    for index in truth.record.quorum.write_set(entry_id):
        name, identity = fragment.ensemble[index], (fragment.term, entry_id)
        disk = facts.disks[name].get(truth.ledger_id)
        if (disk is not None and identity in disk.held) or facts.forgotten.has(name, truth.ledger_id, identity):
            found.append(index)
    return found


def check_ack_quorum(facts: Facts, truth: LedgerTruth, entry_id: int, rule: str) -> None:
    """So many copies as its ack quorum has."""
    copies, needed = len(holders(facts, truth, entry_id)), truth.record.quorum.ack
    if copies < needed:
        fragment = truth.record.fragment_of(entry_id)
        facts.fail(rule, f"entry {truth.ledger_id}/{entry_id} has {copies} copies in {fragment}, {needed} needed")


def check_confirmed(facts: Facts, truth: LedgerTruth, first: int) -> None:
    """Every confirmed entry from `first` on is at its ack quorum (I2)."""
    if not truth.deleted:
        for entry_id in range(max(first, truth.record.trim_to), truth.confirmed + 1):
            check_ack_quorum(facts, truth, entry_id, "I2")


def check_write_quorums(facts: Facts, truth: LedgerTruth) -> None:
    """After the calm every entry of a closed ledger is on its whole write set, but for what its metadata says (W7), and for
    what was on its way when the ledger was closed, or what only a writer knew that somebody else deposed."""
    record, last = truth.record, truth.last_entry_id
    if truth.deleted or last is None:
        return
    closer = record.token.rpartition(".")[0]
    for entry_id in range(max(record.trim_to, facts.sendings.starts.get(closer, -1) + 1), last + 1):
        has = holders(facts, truth, entry_id)
        lacking = [index for index in record.quorum.write_set(entry_id) if index not in has]
        for index in lacking:
            name = record.fragment_of(entry_id).ensemble[index]
            if index in record.lacking(entry_id):
                facts.world.count("a gap says that a bookie lacks an entry")
            elif facts.sendings.is_known_to_lack(closer, name, entry_id):
                facts.fail("W7", f"{name} lacks entry {truth.ledger_id}/{entry_id}, and no gap says so: {record.gaps}")
            else:
                facts.world.count("an add was on its way when its ledger was closed")
