"""Fills a metastore with records of ledgers and logs that nobody wrote: empty and closed, so no bookie is asked about them."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from replog.abc import Metastore
from replog.errors import KeyNotFoundError
from replog.protocol.closed_contents import Contents
from replog.protocol.digest import DigestType, ledger_key, ledger_key_check
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState, LogMetadata
from replog.protocol.quorum import Quorum
from replog.records.encoding import encode
from replog.records.paths import NEXT_LEDGER_ID_KEY, ledger_key_path, log_key_path, log_page_key_path

_AT_ONCE = 200
_TOKEN = "0123456789abcdef"
_CREATED_AT_MS = 1_700_000_000_000


def ledger_record(ledger_id: int, log: str = "", contents: Contents | None = None, archive: str = "") -> bytes:
    """As its writer leaves it, on three bookies, with nothing written; or with these contents, in this archive."""
    return encode(
        LedgerMetadata(
            ledger_id,
            Quorum(3, 3, 2),
            DigestType.CRC32C,
            ledger_key_check(ledger_key(ledger_id, b"")),
            (Fragment(0, tuple(f"{number:032x}" for number in range(3)), archive=archive),),
            LedgerState.CLOSED,
            last_entry_id=-1 if contents is None else contents.entries - 1,
            contents=contents,
            token=_TOKEN,
            created_at_ms=_CREATED_AT_MS,
            custom={"log": log} if log else {},
        )
    )


async def create_all(metastore: Metastore, records: Iterable[tuple[str, bytes]]) -> None:
    """Creates these keys, many at a time."""
    remaining = iter(records)

    async def create() -> None:
        for key, value in remaining:
            await metastore.create(key, value)

    async with trio.open_nursery() as nursery:
        for _ in range(_AT_ONCE):
            nursery.start_soon(create)


async def create_ledgers(
    metastore: Metastore, ledger_ids: range, log: str = "", contents: Contents | None = None, archive: str = ""
) -> None:
    """Creates these ledgers, each with these contents, and has clients go on with the id after them."""
    records = ((ledger_key_path(each), ledger_record(each, log, contents, archive)) for each in ledger_ids)
    await create_all(metastore, records)
    following = b"%d" % ledger_ids.stop
    try:
        found = await metastore.get(NEXT_LEDGER_ID_KEY)
    except KeyNotFoundError:
        await metastore.create(NEXT_LEDGER_ID_KEY, following)
    else:
        await metastore.put(NEXT_LEDGER_ID_KEY, following, found.version)


async def create_log(metastore: Metastore, name: str, ledger_ids: range, contents: Contents | None = None) -> None:
    """Creates a log of these ledgers, which exist unless the log's record says that each of them has these contents."""
    known = {} if contents is None else dict.fromkeys(ledger_ids, contents)
    log = LogMetadata(name, created_at_ms=_CREATED_AT_MS).with_ledgers(ledger_ids, _CREATED_AT_MS).with_contents(known)
    pages, head = log.open_from(log.next_segment_number).split()
    await create_all(metastore, ((log_page_key_path(name, page.number), encode(page)) for page in pages))
    await metastore.create(log_key_path(name), encode(head))
