"""Garbage collection of deleted ledgers (B6).

The order is the safety: first a snapshot of the ledgers here, then the list of existing ones. A ledger's metadata is
written before its first entry can arrive, so a ledger that is here and not in the later list was deleted. Any error of
the listing ends the pass before anything is dropped, and each candidate is looked up once more just before it is. A
metastore that was emptied or went back would make garbage of everything: the guard compares it before the pass, and
again right before each drop (B6a).

Cost of a pass: one listing for each key right above ledgers that are here, however many ledgers there are elsewhere.
Where only a few are below such a key, the listing, of up to 10 000 others, costs more than looking each of them up.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from replog.abc import Metastore
from replog.bookie.server import BookieServer
from replog.errors import KeyNotFoundError
from replog.records.paths import ledger_key_path, ledger_word, ledgers_by_leaf
from replog.runtime.nursery import for_each

UNLISTED_MAX = 8  # below one key: so many are looked up instead of listed
_LOOKUPS = 8  # at a time
DROPS_MAX = 25  # ledgers that are looked up, and then dropped behind one look at the metastore
_COMPARED = 1000  # before others get their turn


async def collect_garbage(bookie: BookieServer, metastore: Metastore) -> list[int]:
    """One pass. Returns the ledgers that were dropped, ascending. Raises `MetastoreDoubtedError` if the metastore went back,
    `MetastoreError` or `StorageError`: then nothing that exists was dropped. If cancelled, some of the garbage may be left."""
    # The snapshot comes first (B6): a ledger that is created after the listing must not be taken for garbage.
    here = await bookie.call(bookie.storage.ledger_ids)
    if not here:
        return []
    await bookie.guard.raise_counter()
    candidates = await _candidates(here, metastore)
    dropped: list[int] = []
    for start in range(0, len(candidates), DROPS_MAX):
        dropped += await drop_absent(candidates[start : start + DROPS_MAX], bookie, metastore)
    return dropped


async def _candidates(here: list[int], metastore: Metastore) -> list[int]:
    """The ids among these (ascending) that the metastore does not list, or was not asked to list."""
    found: list[int] = []
    for leaf, ids in ledgers_by_leaf(here):
        # An error here ends the pass: an incomplete listing would make garbage of the missing ledgers.
        listed = frozenset(await metastore.children(leaf) if len(ids) > UNLISTED_MAX else ())
        for start in range(0, len(ids), _COMPARED):
            found += [each for each in ids[start : start + _COMPARED] if ledger_word(each) not in listed]
            await trio.lowlevel.checkpoint()
    return found


async def drop_absent(ledger_ids: Sequence[int], bookie: BookieServer, metastore: Metastore) -> list[int]:
    """Drops those of these ledgers, stored here when this was called, that the metastore then says do not exist. Returns what it
    dropped, in order. Raises `MetastoreDoubtedError`, `MetastoreError`, `StorageError`."""
    absent: set[int] = set()

    async def look_up(ledger_id: int) -> None:
        try:
            await metastore.get(ledger_key_path(ledger_id))
        except KeyNotFoundError:
            absent.add(ledger_id)

    await for_each(look_up, ledger_ids, _LOOKUPS)
    if absent:
        # Behind the look-ups: so they were answered by a metastore that knows what the bookie knows (B6a).
        await bookie.guard.check()
    dropped = [ledger_id for ledger_id in ledger_ids if ledger_id in absent]
    await for_each(bookie.drop, dropped, _LOOKUPS)
    return dropped
