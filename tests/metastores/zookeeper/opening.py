"""Metastores by URL, for a while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from replog.abc import Metastore
from replog.registry import Registry


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Metastore]:
    """The metastore at this URL; closed on leaving."""
    metastore = Registry().open_metastore(url)
    try:
        yield metastore
    finally:
        await metastore.aclose()


@asynccontextmanager
async def all_opened(*urls: str) -> AsyncIterator[list[Metastore]]:
    """The metastores at these URLs, each a client of its own."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(url)) for url in urls]
