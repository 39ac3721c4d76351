"""Garbage collection of deleted ledgers (B6).

The order is the safety: first a snapshot of what is here, then the list of what exists. A ledger's metadata is written
before its first entry can arrive, so what is here and not in the later list was deleted. Any error of the listing ends
the pass, and each candidate is looked up once more before it is dropped.
"""

from __future__ import annotations

from replog.abc import Metastore
from replog.bookie.server import BookieServer
from replog.errors import KeyNotFoundError
from replog.metadata import ledger_key_path, next_ledger_ids


async def collect_garbage(bookie: BookieServer, metastore: Metastore) -> list[int]:
    """One pass. Returns the ledgers that were dropped. Raises `MetastoreError` or `StorageError`: then nothing that
    exists was dropped. If cancelled, some of the garbage may be left."""
    here = await bookie.call(bookie.storage.ledger_ids)
    dropped = []
    for ledger_id in await _missing(here, metastore):
        if await _is_absent(ledger_id, metastore):
            await bookie.drop(ledger_id)
            dropped.append(ledger_id)
    return dropped


async def _missing(here: list[int], metastore: Metastore) -> list[int]:
    """Those of these ids (ascending) that the metastore does not list, read a range at a time."""
    missing: list[int] = []
    listed: list[int] = []
    for ledger_id in here:
        while not listed or listed[-1] < ledger_id:
            listed = await next_ledger_ids(metastore, listed[-1] if listed else ledger_id - 1)
            if not listed:
                return missing + [each for each in here if each >= ledger_id]
        if ledger_id not in listed:
            missing.append(ledger_id)
    return missing


async def _is_absent(ledger_id: int, metastore: Metastore) -> bool:
    try:
        await metastore.get(ledger_key_path(ledger_id))
    except KeyNotFoundError:
        return True
    return False
