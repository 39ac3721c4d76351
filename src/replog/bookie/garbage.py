"""Garbage collection of deleted ledgers (B6).

The order is the safety: first a snapshot of what is here, then the list of what exists. A ledger's metadata is written
before its first entry can arrive, so what is here and not in the later list was deleted. Any error of the listing ends
the pass before anything is dropped, and each candidate is looked up once more just before it is.

What a pass costs: one listing for each key right above ledgers that are here, however many ledgers there are elsewhere.
Where only a few are below such a key, the listing, of up to 10 000 others, costs more than looking each of them up.
"""

from __future__ import annotations

import trio

from replog.abc import Metastore
from replog.bookie.server import BookieServer
from replog.errors import KeyNotFoundError
from replog.records.paths import ledger_key_path, ledger_word, ledgers_by_leaf
from replog.runtime.nursery import for_each

UNLISTED_MAX = 8  # below one key: so many are looked up instead of listed
_LOOKUPS = 8  # at a time
_COMPARED = 1000  # before others get their turn


async def collect_garbage(bookie: BookieServer, metastore: Metastore) -> list[int]:
    """One pass. Returns the ledgers that were dropped, ascending. Raises `MetastoreError` or `StorageError`: then nothing that
    exists was dropped. If cancelled, some of the garbage may be left."""
    # The snapshot comes first (B6): a ledger that is created after the listing must not be taken for garbage.
    here = await bookie.call(bookie.storage.ledger_ids)
    dropped: list[int] = []

    async def look_up(ledger_id: int) -> None:
        if await drop_if_absent(ledger_id, bookie, metastore):
            dropped.append(ledger_id)

    await for_each(look_up, await _candidates(here, metastore), _LOOKUPS)
    return sorted(dropped)


async def _candidates(here: list[int], metastore: Metastore) -> list[int]:
    """Those of these ids (ascending) that the metastore does not list, or was not asked to list."""
    found: list[int] = []
    for leaf, ids in ledgers_by_leaf(here):
        # An error here ends the pass: a listing that is not complete would make garbage of what it lacks.
        listed = frozenset(await metastore.children(leaf) if len(ids) > UNLISTED_MAX else ())
        for start in range(0, len(ids), _COMPARED):
            found += [each for each in ids[start : start + _COMPARED] if ledger_word(each) not in listed]
            await trio.lowlevel.checkpoint()
    return found


async def drop_if_absent(ledger_id: int, bookie: BookieServer, metastore: Metastore) -> bool:
    """Drops a ledger that was stored here when this was called, if the metastore then says that it does not exist. Returns
    whether it dropped it. Raises `MetastoreError`, `StorageError`."""
    try:
        await metastore.get(ledger_key_path(ledger_id))
    except KeyNotFoundError:
        await bookie.drop(ledger_id)
        return True
    return False
