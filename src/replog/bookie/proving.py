"""Finds the stored batch that proves a ledger's last add confirmed after a restart (R11)."""

from __future__ import annotations

from replog.abc import Storage
from replog.protocol.batch import Batch
from replog.protocol.bookie import LedgerOnBookie


def read_proof(storage: Storage, ledger: LedgerOnBookie) -> list[Batch]:
    """The batch that carries the last add confirmed of a ledger that lacks its proof, in a list; [] if there is none. May wait
    for a disk. Raises `StorageUncertainError`, `StorageFailedError`."""
    entry_id, stamp = ledger.proof_place
    if ledger.may_have_later_terms:
        # What a later term's writer confirmed includes what those before it did: the highest stamp has the highest.
        places = [(each.stamp, each.last_entry_id) for each in storage.ranges(ledger.ledger_id)]
        stamp, entry_id = max(places, default=(stamp, entry_id))
    return storage.read(ledger.ledger_id, entry_id, stamp, 1)[:1]
