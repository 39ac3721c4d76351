"""`connect`, `embed`, `serve_bookie`: the only place that wires plugins to shells."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from replog.abc import Metastore
from replog.api.bookies import BookieConfig, close_metastore, embedded_bookies, serve_bookie, served_bookie
from replog.api.client import Client
from replog.api.contexts import opened_ledgers
from replog.api.repairs import repair, repairing_client
from replog.bookie.embedding import bookie_directories, embedded_options, embedded_quorum
from replog.bookie.serving import ServedBookie
from replog.client.audit_report import AuditReport
from replog.config import BookieOptions, ClientOptions, check_types
from replog.protocol.quorum import Quorum
from replog.registry import Registry
from replog.repair.service import RepairTimes
from replog.runtime.event_loop import check_event_loop

__all__ = ["BookieConfig", "Client", "connect", "embed", "serve_bookie", "serve_repairs", "served_bookie"]


async def serve_repairs(
    client: Client,
    *,
    away_after_s: float = 600.0,
    interval_s: float = 600.0,
    reported: Callable[[AuditReport], None] = lambda _report: None,
) -> None:
    """Audits and repairs until cancelled, together with all others that do in this metastore: `nursery.start_soon(...)`.

    A bookie that is away is replaced after `away_after_s`, one that is declared lost at once. `reported` is called with the
    report of each audit, of this service's share of the ledgers. While the metastore fails, it waits."""
    await repair(client, RepairTimes(away_after_s, interval_s), reported)


# -- ways to a client -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def connect(
    metastore: str | Metastore,
    *,
    options: ClientOptions | None = None,
    quorum: Quorum | None = None,
    placement: str = "random",
    registry: Registry | None = None,
) -> AsyncIterator[Client]:
    """A client of the bookies that announce themselves in a metastore: `connect("lmdb:/var/lib/app/metadata")`.

    A metastore that is given as an object stays open. Raises `ConfigError` for invalid arguments; an unreachable server shows
    at the first call. Leaving the context cancels what is still open: leave writers first."""
    check_event_loop("connect")
    check_types("connect", options=(options, ClientOptions), quorum=(quorum, Quorum), registry=(registry, Registry))
    plugins = registry or Registry()
    opened = metastore if isinstance(metastore, Metastore) else plugins.open_metastore(metastore)
    try:
        async with _client(opened, plugins, options or ClientOptions(), quorum or Quorum(), placement, ()) as client:
            yield client
    finally:
        if opened is not metastore:
            await close_metastore(opened)


@asynccontextmanager
async def embed(
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    bookies: int | None = None,
    storage: str | None = None,
    metastore: str | Metastore | None = None,
    options: ClientOptions | None = None,
    bookie_options: BookieOptions | None = None,
    quorum: Quorum | None = None,
    placement: str = "random",
    registry: Registry | None = None,
) -> AsyncIterator[Client]:
    """A client with bookies of its own in this process: a crash-proof log in a directory, or one bookie in each of several.

    `storage` is the scheme of the bookies' storage, maybe with options: "files?journal_file_bytes=16MiB"; without it,
    `bookie_options` say it, whose default is "files". Metadata is durable beside the first bookie, unless `metastore` says
    otherwise. A directory whose storage is damaged or fails is left out if the other bookies are enough for the quorum (C7):
    observers, the log and `statistics()` say so. Raises `StorageInUseError` if another process has the directory open,
    `StorageIdentityError`, `StorageDamagedError` or `StorageFailedError` for the state of a directory, `ConfigError`."""
    check_event_loop("embed")
    check_types("embed", options=(options, ClientOptions), bookie_options=(bookie_options, BookieOptions))
    check_types("embed", quorum=(quorum, Quorum), registry=(registry, Registry))
    plugins = registry or Registry()
    directories = bookie_directories(directory, bookies)
    settings = embedded_options(storage, bookie_options)
    client_quorum = quorum or embedded_quorum(len(directories))
    client_options = options or ClientOptions()
    async with (
        embedded_bookies(directories, settings, client_quorum, metastore, plugins) as (opened, served, left_out),
        _client(opened, plugins, client_options, client_quorum, placement, served) as client,
        repairing_client(client, settings),
    ):
        client.left_out = left_out
        yield client


@asynccontextmanager
async def _client(
    metastore: Metastore,
    plugins: Registry,
    options: ClientOptions,
    quorum: Quorum,
    placement: str,
    bookies: Sequence[ServedBookie],
) -> AsyncIterator[Client]:
    async with opened_ledgers(metastore, plugins, options, placement, bookies) as (ledgers, nursery):
        client = Client(ledgers, quorum, nursery, bookies, plugins)
        try:
            yield client
        finally:
            client._leave()
