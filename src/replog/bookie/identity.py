"""A bookie's identity, and the ledgers it may vouch for: settled with the metastore before it serves (B4, B8, B8a).

A bookie that was declared lost never serves again: recoveries have counted on that. A storage that is in doubt learns here
which ledgers existed before it was opened: those below the next ledger id, since ids only grow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from replog.abc import Metastore
from replog.bookie.server import BookieServer
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreError,
    MetastoreUncertainError,
    StorageError,
    StorageIdentityError,
)
from replog.hookspecs import Event, StorageInDoubt
from replog.records.bookies import Cookie, cookie_key, decode_cookie, encode_cookie
from replog.records.paths import NEXT_LEDGER_ID_KEY, decode_next_ledger_id

_log = logging.getLogger("replog.bookie")

_AGAIN_S = 1.0


async def check_cookie(server: BookieServer, metastore: Metastore) -> Cookie:
    """The bookie's cookie. Refuses a bookie that was declared lost, and one whose ledgers another cluster's metastore, or a new
    one, knows nothing of: it would collect them all as garbage.

    Raises `StorageIdentityError`, `MetastoreError`, `StorageError`."""
    cookie = await _cookie(server, metastore)
    if cookie.is_lost:
        raise StorageIdentityError(
            f"bookie {server.bookie_id} was declared lost: it never serves again under this identity (B8a)",
            "Its ledgers were, or will be, recovered without it. Start a new bookie in an empty directory; this one was not "
            "touched",
        )
    return cookie


async def _cookie(server: BookieServer, metastore: Metastore) -> Cookie:
    key = cookie_key(server.bookie_id)
    try:
        return decode_cookie(key, (await metastore.get(key)).value)
    except KeyNotFoundError:
        # An empty bookie may be new. One with ledgers would lose them all to its own garbage collection.
        if await server.call(server.storage.ledger_ids):
            raise StorageIdentityError(
                f"bookie {server.bookie_id} has ledgers, but the metastore has never heard of it",
                "Either the metastore was lost, or this directory belongs to another one: bring the two that belong "
                "together. Nothing was touched",
            ) from None
    try:
        await metastore.create(key, encode_cookie(Cookie()))
    # The creation may have succeeded all the same, or somebody has declared the bookie lost meanwhile: the cookie is read.
    except (KeyExistsError, MetastoreUncertainError):
        return decode_cookie(key, (await metastore.get(key)).value)
    return Cookie()


async def settle_doubt(server: BookieServer, metastore: Metastore, observe: Callable[[Event], None]) -> None:
    """Bounds what the storage is in doubt about to the ledgers that existed before it was opened, and tells observers.
    Raises `MetastoreError`, `StorageError`."""
    if server.storage.doubt().is_unbounded:
        # Ledgers from this id on did not exist when the storage was opened: it vouches for those.
        next_ledger_id = await _next_ledger_id(metastore)
        await server.call(lambda: server.storage.bound_doubt(next_ledger_id))
        server.doubt.raised += 1
        server.look_at_doubt()
    doubt = server.storage.doubt()
    # What is left of a doubt that has ended, lost fences, is not news at each start.
    if doubt.doubted_below:
        observe(StorageInDoubt(server.bookie_id, doubt))
        _log.warning(
            "bookie %s is in doubt about ledgers below %d: it takes no plain adds to them, and its denials are weak (%s)",
            server.bookie_id,
            doubt.doubted_below,
            "; ".join(doubt.reasons) or "no reason given",
            extra={"bookie": server.bookie_id},
        )


async def keep_doubt_bounded(server: BookieServer, metastore: Metastore, observe: Callable[[Event], None]) -> None:
    """Settles again whenever the storage comes upon damage that puts every ledger in doubt. Runs until cancelled."""
    while server.failure is None:
        await server.doubt.until_unbounded()
        try:
            await settle_doubt(server, metastore, observe)
        except (MetastoreError, StorageError) as error:
            _log.warning("bookie %s: its doubt could not be bounded yet: %s", server.bookie_id, error)
        await trio.sleep(_AGAIN_S)


async def _next_ledger_id(metastore: Metastore) -> int:
    try:
        return decode_next_ledger_id((await metastore.get(NEXT_LEDGER_ID_KEY)).value)
    except KeyNotFoundError:
        return 0  # no ledger was ever created
