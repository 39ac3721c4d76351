"""A bookie of replog's in a BookKeeper cluster: opens its storage, proves its identity, registers itself, serves."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from replog.bookie.server import BookieServer
from replog.bookie.serving import open_storage, storage_url
from replog.config import BookieOptions
from replog.config.bookie import BookieTuning, tuned
from replog.hookspecs import StorageFailed
from replog.metastores.zookeeper.options import ZooKeeperOptions
from replog.registry import Registry
from replog.runtime.event_loop import check_event_loop, current_host_loop
from replog.runtime.nursery import open_service_nursery
from replog_bookkeeper.layouts import Target
from replog_bookkeeper.nodes import LedgersRoot
from replog_bookkeeper.records import BookKeeperRecords
from replog_bookkeeper.serving.entries import is_same_entry
from replog_bookkeeper.serving.garbage import Garbage, bound_doubt, keep_doubt_bounded, report_damage
from replog_bookkeeper.serving.listener import Listener
from replog_bookkeeper.serving.registration import Registration

LISTEN = "127.0.0.1:3181"
_CLOSING_S = 10.0


class BookKeeperBookie:
    """A bookie that is served in this process."""

    def __init__(self, server: BookieServer, address: str, garbage: Garbage) -> None:
        self.server = server
        self.address = address  #: HOST:PORT, as it is registered.
        self._garbage = garbage

    @property
    def bookie_id(self) -> str:
        """The identity that its storage proves, under which it is registered."""
        return self.server.bookie_id

    async def collect_garbage(self) -> list[int]:
        """Looks for deleted ledgers now, and returns those that were dropped: they were missing at the last pass, too.

        Raises `MetastoreError` or `StorageError` (retry: yes; nothing that exists was dropped)."""
        return await self._garbage.collect()

    def statistics(self) -> dict[str, float]:
        """Counters and gauges, as of `replog.ServedBookie`."""
        return self.server.statistics()


@asynccontextmanager
async def serve_bookie(
    uri: str,
    directory: str | os.PathLike[str],
    *,
    listen: str = LISTEN,
    advertise: str = "",
    options: BookieOptions | None = None,
    zookeeper: ZooKeeperOptions | None = None,
    registry: Registry | None = None,
    after_restore: bool = False,
) -> AsyncIterator[BookKeeperBookie]:
    """Serves a bookie to clients of BookKeeper, Java's and this package's, while the context is open.

    - `uri`: as Java's `metadataServiceUri`. The cluster must have been begun, by Java's `initnewcluster`.
    - `directory`: of its data; made if there is none. `options`: as of `replog.serve_bookie`, such as the kind of storage.
    - `listen`, `advertise`: HOST:PORT to listen at, and for clients to connect to, if that is another.
    - `zookeeper`: security and deadlines of the metadata; `lease_s` is how long the bookie stays registered if it is killed.
    - `after_restore`: an operator says that the metadata is right as it is, although the bookie has seen a later state of it.

    Raises `ConfigError`, `StorageError`, `StorageIdentityError` if the directory is another cluster's, `MetastoreError`. On
    leaving it is no longer registered, answers what it accepted, and closes its storage."""
    check_event_loop("serve_bookie")
    plugins, chosen, target = registry or Registry(), _chosen_here(options or BookieOptions()), Target.parse(uri)
    storage = await open_storage(plugins, storage_url(chosen.storage, Path(directory)))
    server = BookieServer(storage, chosen, plugins.observe, is_same_entry)
    root = LedgersRoot(target.place, zookeeper or ZooKeeperOptions())
    records = BookKeeperRecords(root, target, (zookeeper or ZooKeeperOptions()).timeout_s)
    try:
        registration = Registration(root, server, str(directory))
        layout = await records.layout()
        await registration.begin(after_restore=after_restore)
        await bound_doubt(server, records)
        garbage = Garbage(server, root, layout, registration)
        async with (
            server.running(),
            Listener(server).listen(listen, advertise) as address,
            open_service_nursery() as nursery,
        ):
            await nursery.start(registration.run, address)
            nursery.start_soon(garbage.run)
            nursery.start_soon(garbage.make_space)
            nursery.start_soon(report_damage, server)
            nursery.start_soon(keep_doubt_bounded, server, records)
            yield BookKeeperBookie(server, address, garbage)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSING_S):
            await root.aclose()
        problem = await server.calls.close(chosen.close_timeout_s)
        if problem is not None:
            plugins.observe(StorageFailed(storage.bookie_id, problem))


def _chosen_here(options: BookieOptions) -> BookieTuning:
    if isinstance(options, BookieTuning):
        return options
    # Not where trio is a guest: its host's event loop never waits for a disk.
    return attrs.evolve(tuned(options), commit_inline_when_idle=current_host_loop() is None)
