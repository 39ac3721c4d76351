"""The counter of ledger ids in the metastore: a decimal number above every id that was given out (M2, M5)."""

from __future__ import annotations

from replog.abc import Metastore
from replog.errors import KeyNotFoundError
from replog.records.editing import edit
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

    async def read() -> tuple[int, int | None]:
        try:
            found = await metastore.get(NEXT_LEDGER_ID_KEY)
        except KeyNotFoundError:
            return 0, None
        return decode_next_ledger_id(found.value), found.version

    async def raised(known: int) -> int | None:
        return above if known < above else None

    async def write(raised: int, version: int | None) -> None:
        if version is None:
            await metastore.create(NEXT_LEDGER_ID_KEY, b"%d" % raised)
        else:
            await metastore.put(NEXT_LEDGER_ID_KEY, b"%d" % raised, version)

    return await edit(read, raised, write)
