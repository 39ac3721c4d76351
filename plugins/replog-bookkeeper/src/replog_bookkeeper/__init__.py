"""A client of Apache BookKeeper, both ways: it reads what Java's programs wrote, and they read what it writes.

    async with replog_bookkeeper.connect("zk+hierarchical://zk1;zk2/ledgers") as client:
        async with client.open_ledger(1234, password=b"...") as ledger:
            async for entry in ledger:
                ...

For asyncio there is `replog_bookkeeper.aio`, for any thread `replog_bookkeeper.blocking`. `replog_bookkeeper.serving` has a
bookie that Java's clients use.
"""

from __future__ import annotations

from replog_bookkeeper.bookies import Bookie
from replog_bookkeeper.client import Client, connect
from replog_bookkeeper.digests import LedgerDigest
from replog_bookkeeper.errors import NotInBookKeeperError
from replog_bookkeeper.layouts import Layout
from replog_bookkeeper.metadata import LedgerRecord

__all__ = ["Bookie", "Client", "Layout", "LedgerDigest", "LedgerRecord", "NotInBookKeeperError", "connect"]
