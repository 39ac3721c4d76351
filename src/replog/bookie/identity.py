"""A bookie's identity, and the ledgers it may vouch for: settled with the metastore before it serves (B4, B8, B8a).

A bookie that was declared lost never serves again: recoveries have counted on that. A storage that is in doubt learns here
which ledgers existed before it was opened: those below the next ledger id, since ids only grow.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from replog.abc import Metastore
from replog.bookie.server import BookieServer
from replog.errors import MetastoreDoubtedError, MetastoreError, StorageError, StorageIdentityError
from replog.hookspecs import Event, StorageInDoubt
from replog.records.bookies import Cookie
from replog.records.ids import read_next_ledger_id
from replog.runtime.loggers import logger

_log = logger("replog.bookie")

_AGAIN_S = 1.0


async def check_cookie(server: BookieServer, metastore: Metastore, *, after_restore: bool = False) -> Cookie:
    """The bookie's cookie. Refuses a bookie that was declared lost, and one whose ledgers another cluster's metastore, or a new
    one, knows nothing of. A metastore that went back is doubted (B6a).

    Raises `StorageIdentityError`, `MetastoreError`, `StorageError`."""
    cookie = await server.guard.begin(metastore, after_restore=after_restore)
    if cookie.is_lost:
        raise StorageIdentityError(
            f"bookie {server.bookie_id} was declared lost: it never serves again under this identity (B8a)",
            "Its ledgers were, or will be, recovered without it. Start a new bookie in an empty directory; this one was not "
            "touched",
        )
    return cookie


async def settle_doubt(server: BookieServer, metastore: Metastore, observe: Callable[[Event], None]) -> None:
    """Bounds what the storage is in doubt about to the ledgers that existed before it was opened, and tells observers.
    Raises `MetastoreError`, `StorageError`."""
    # A metastore that went back would bound it too low (B6a).
    if server.storage.doubt().is_unbounded and not server.guard.problem:
        # Ledgers from this id on did not exist when the storage was opened: it vouches for those.
        next_ledger_id = await read_next_ledger_id(metastore)
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
            await server.guard.check()
            await settle_doubt(server, metastore, observe)
        except MetastoreDoubtedError:
            pass  # the guard has reported it, and looks again
        except (MetastoreError, StorageError) as error:
            _log.warning("bookie %s: its doubt could not be bounded yet: %s", server.bookie_id, error)
        await trio.sleep(_AGAIN_S)
