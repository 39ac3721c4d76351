"""Electing the client that leads a log (M3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from replog.client.ledgers import Ledgers
from replog.records.paths import log_key_path

_ELECTIONS_KEY = "elections"


@asynccontextmanager
async def elected(name: str, ledgers: Ledgers) -> AsyncIterator[None]:
    """Waits until no other client leads the log, and leads it while the context is open. Leading is only advice (M3): the
    takeover that follows keeps the log safe."""
    key = f"{_ELECTIONS_KEY}/{log_key_path(name).partition('/')[2]}"
    async with ledgers.records.metastore.elect(key, ledgers.entropy.token(8).encode()):
        yield
