"""Metastores by URL, for a while."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from replog.abc import Metastore
from replog.metastores.zookeeper.metastore import ZooKeeperMetastore
from replog.metastores.zookeeper.options import ZooKeeperOptions, parse_place
from replog.registry import Registry
from replog.testing import TcpProxy
from tests.failures.processes import until


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Metastore]:
    """The metastore at this URL; closed on leaving."""
    metastore = Registry().open_metastore(url)
    try:
        yield metastore
    finally:
        await metastore.aclose()


async def kazoo_threads_end() -> None:
    """Wait until no thread of kazoo is left in this process: one that has told of its end may still be on its way out."""
    await until(
        lambda: all(each.name != "replog-zookeeper" for each in threading.enumerate()), 10, "kazoo's threads end"
    )


@asynccontextmanager
async def all_opened(*urls: str) -> AsyncIterator[list[Metastore]]:
    """The metastores at these URLs, each a client of its own."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(url)) for url in urls]


@asynccontextmanager
async def connected_through(proxy: TcpProxy, chroot: str, *, lease_s: float) -> AsyncIterator[ZooKeeperMetastore]:
    """The metastore behind the proxy, connected; it has the key "ready"."""
    options = ZooKeeperOptions(lease_s=lease_s, timeout_s=5)
    store = ZooKeeperMetastore(parse_place(f"{proxy.address}{chroot}"), options)
    try:
        await store.create("ready", b"")
        yield store
    finally:
        await store.aclose()
