"""A bookie in this process: opens its storage, proves its identity, announces itself, serves, and collects garbage."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from replog.abc import Metastore, Storage, Transport
from replog.bookie.garbage import collect_garbage, known_ledgers
from replog.bookie.server import BookieServer
from replog.config import BackendURL, BookieOptions
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreError,
    MetastoreUncertainError,
    StorageError,
    StorageIdentityError,
)
from replog.hookspecs import Event
from replog.membership import BOOKIES_KEY, BookieAddress, encode_address
from replog.nursery import open_service_nursery
from replog.registry import Registry

COOKIES_KEY = "cookies"
_GARBAGE_PAUSE_S = 0.2  # between passes, however often one is asked for


def storage_url(storage: str, directory: str | os.PathLike[str]) -> BackendURL:
    """The URL of a storage in this directory: `storage` is a scheme, maybe with options."""
    url = BackendURL.parse(storage)
    return attrs.evolve(url, rest=str(Path(directory))) if not url.rest else url


async def check_cookie(storage: Storage, metastore: Metastore) -> None:
    """Refuses a bookie whose ledgers another cluster's metastore, or a new one, knows nothing of (B4): it would collect
    them all as garbage. Raises `StorageIdentityError`, `MetastoreError`."""
    key = f"{COOKIES_KEY}/{storage.bookie_id}"
    try:
        await metastore.get(key)
    except KeyNotFoundError:
        if await known_ledgers(storage):
            raise StorageIdentityError(
                f"bookie {storage.bookie_id} has ledgers, but the metastore has never heard of it",
                "Either the metastore was lost, or this directory belongs to another one: bring the two that belong "
                "together. Nothing was touched",
            ) from None
        try:
            await metastore.create(key, b'{"format": 1}\n')
        except (KeyExistsError, MetastoreUncertainError):
            await metastore.get(key)


@asynccontextmanager
async def serving(
    storage: Storage,
    metastore: Metastore,
    transport_scheme: str,
    transport: Transport,
    options: BookieOptions,
    observe: Callable[[Event], None],
) -> AsyncIterator[ServedBookie]:
    """Serves a storage while the context is open; closing the storage is the caller's business."""
    await check_cookie(storage, metastore)
    server = BookieServer(storage, options, observe)
    bookie = ServedBookie(server, metastore)
    async with server.running(), transport.listen(storage.bookie_id, server) as address:
        announced = encode_address(BookieAddress(transport_scheme, address))
        async with metastore.announce(f"{BOOKIES_KEY}/{storage.bookie_id}", announced), open_service_nursery() as nursery:
            nursery.start_soon(bookie.collect_when_asked)
            yield bookie


class ServedBookie:
    """A bookie that is being served."""

    def __init__(self, server: BookieServer, metastore: Metastore) -> None:
        self.server = server
        self.collections = 0
        self.collection_failures = 0
        self.ledgers_collected = 0
        self._metastore = metastore
        self._asked = trio.Event()

    def ask_for_collection(self) -> None:
        """Collects garbage soon, rather than at the next interval."""
        self._asked.set()

    async def collect_when_asked(self) -> None:
        """Collects garbage at every interval, and when asked. A pass that fails is made again at the next one."""
        while True:
            with trio.move_on_after(self.server.options.garbage_collection_interval_s):
                await self._asked.wait()
            self._asked = trio.Event()
            try:
                self.ledgers_collected += len(await collect_garbage(self.server, self._metastore))
                self.collections += 1
            except (MetastoreError, StorageError):
                self.collection_failures += 1  # nothing was dropped that exists; the storage says itself what ails it
            await trio.sleep(_GARBAGE_PAUSE_S)

    def statistics(self) -> dict[str, float]:
        """Counters and gauges."""
        return {
            **self.server.statistics(),
            "garbage_collections": self.collections,
            "garbage_collection_failures": self.collection_failures,
            "ledgers_collected": self.ledgers_collected,
        }


async def open_storage(registry: Registry, url: BackendURL) -> Storage:
    """Opens a storage in a worker thread. Raises `ConfigError`, `StorageError`. If cancelled, it is closed again."""
    opened: list[Storage] = []
    try:
        await trio.to_thread.run_sync(lambda: opened.append(registry.open_storage(url)))
    except trio.Cancelled:
        for storage in opened:
            storage.close()
        raise
    return opened[0]


async def close_storage(storage: Storage) -> None:
    """Closes a storage in a worker thread, however much it is cancelled."""
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(storage.close)
