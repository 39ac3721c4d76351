"""The counter of ledger ids in the metastore: a decimal number above every id that was given out (M2, M5)."""

from __future__ import annotations

import trio

from replog.abc import Metastore
from replog.errors import KeyExistsError, KeyNotFoundError, MetastoreUncertainError, VersionConflictError
from replog.records.bookies import AGAIN_S
from replog.records.paths import NEXT_LEDGER_ID_KEY, decode_next_ledger_id


async def read_next_ledger_id(metastore: Metastore) -> int:
    """The next ledger id; 0 if there never was a ledger. Raises `MetastoreError`."""
    try:
        return decode_next_ledger_id((await metastore.get(NEXT_LEDGER_ID_KEY)).value)
    except KeyNotFoundError:
        return 0


async def raise_next_ledger_id(metastore: Metastore, above: int) -> int:
    """Makes the next ledger id at least this, and returns what it is then. It never sinks. Raises `MetastoreError`: then it may
    be raised; raising it again is harmless."""
    while True:
        try:
            found = await metastore.get(NEXT_LEDGER_ID_KEY)
        except KeyNotFoundError:
            if not above:
                return 0
            try:
                await metastore.create(NEXT_LEDGER_ID_KEY, b"%d" % above)
            except KeyExistsError:
                continue
            except MetastoreUncertainError:
                await trio.sleep(AGAIN_S)
                continue
            return above
        known = decode_next_ledger_id(found.value)
        if known >= above:
            return known
        try:
            await metastore.put(NEXT_LEDGER_ID_KEY, b"%d" % above, found.version)
        except VersionConflictError:
            continue  # somebody else raised it
        except MetastoreUncertainError:
            await trio.sleep(AGAIN_S)  # and it is read again (M1)
            continue
        return above
