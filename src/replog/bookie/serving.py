"""A bookie in this process: opens its storage, proves its identity, announces itself, serves, and collects garbage."""

from __future__ import annotations

import math
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
_LOOK_S = 1.0  # how often a read-only bookie looks whether it still is
_TRY_AGAIN_S = 5.0  # after so long without space it is offered entries again, to find out
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
    async with (
        server.running(),
        transport.listen(storage.bookie_id, server) as address,
        open_service_nursery() as nursery,
    ):
        await nursery.start(bookie.announce, BookieAddress(transport_scheme, address))
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

    async def announce(
        self, address: BookieAddress, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Announces the bookie, and whether it takes new entries (B5), until cancelled. Raises `MetastoreError` if it can't
        be announced at first; later it is announced again as soon as that works."""
        key = f"{BOOKIES_KEY}/{self.server.bookie_id}"
        is_announced = False
        while True:
            read_only = self.server.is_read_only
            self.server.failed = trio.Event()
            try:
                async with self._metastore.announce(key, encode_address(attrs.evolve(address, read_only=read_only))):
                    if not is_announced:
                        task_status.started()
                    is_announced = True
                    await self._until_it_differs(read_only)
            except MetastoreError:
                if not is_announced:
                    raise
                await trio.sleep(_LOOK_S)

    async def _until_it_differs(self, read_only: bool) -> None:
        """Until the bookie became read-only; or takes entries again, or has been read-only for so long that it might."""
        if not read_only:
            await self.server.failed.wait()
            return
        with trio.move_on_after(_TRY_AGAIN_S if self.server.failure is None else math.inf):
            while self.server.is_read_only:  # noqa: ASYNC110 - only while something is wrong
                await trio.sleep(_LOOK_S)
            return
        self.server.presume_space()

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
