"""`connect`, `embed`, `serve_bookie`: the only place that wires plugins to shells."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from replog.abc import Metastore
from replog.api.admin import Admin
from replog.api.bookies import BookieConfig, MetastoreChoice, close_metastore, embedded_bookies, serve_bookie
from replog.api.client import Client
from replog.api.contexts import opened_ledgers
from replog.api.cursors import Cursors
from replog.api.jobs import Jobs
from replog.api.opened import OpenClient
from replog.api.reaching import reached_metastore, with_listener
from replog.api.repairs import repair, repairing_client
from replog.bookie.embedding import bookie_directories, embedded_options, embedded_quorum
from replog.bookie.serving import ServedBookie
from replog.config import BookieOptions, ClientOptions, check_types
from replog.config.client import tuned
from replog.protocol.quorum import Quorum
from replog.registry import Registry
from replog.repair.audit_report import AuditReport
from replog.repair.service import RepairTimes
from replog.runtime.event_loop import check_event_loop

__all__ = ["Admin", "BookieConfig", "Client", "Cursors", "Jobs", "connect", "embed", "serve_bookie", "serve_repairs"]


async def serve_repairs(
    client: Client,
    *,
    away_after_s: float = 600.0,
    interval_s: float = 600.0,
    reported: Callable[[AuditReport], None] = lambda _report: None,
) -> None:
    """Audits and repairs until cancelled, as `replog repair --watch` does: `nursery.start_soon(replog.serve_repairs, client)`.

    A bookie that is away is replaced after `away_after_s`; one that is declared lost, within seconds. An audit begins every
    `interval_s`. `reported` is called with the `AuditReport` of each audit, of this service's share of the ledgers.

    Any number of services may run, in bookies with `repair = "auto"`, too: each works on its share of the ledgers, and takes
    over the shares of those that end. While the metastore fails, a service waits. If cancelled, copies that were made stay."""
    await repair(client._opened, RepairTimes(away_after_s, interval_s), reported)


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

    - `metastore`: a URL, or an open `Metastore`, which stays open.
    - `options`, `quorum`: the options of this client, and the quorum of ledgers and logs that are created without one.
    - `placement`: the policy that chooses bookies: "random", "weighted" by free space, or "zones:?at_least=2".
    - `registry`: the plugins to use; without it, all installed ones.

    Raises `ConfigError` for invalid arguments, `PluginNotFoundError`; an unreachable server shows at the first call. Leaving
    the context, even by cancellation, cancels writers and readers that are still open: leave writers first.

    Bookies are reached by the transports that they announce: by TCP from other processes and machines, and without a network
    in the trio run that serves them. Bookies in other processes must `listen`; `replog bookie` does so by default."""
    check_event_loop("connect")
    check_types("connect", options=(options, ClientOptions), quorum=(quorum, Quorum), registry=(registry, Registry))
    plugins = registry or Registry()
    client_options = options or ClientOptions()
    opened = metastore if isinstance(metastore, Metastore) else reached_metastore(metastore, plugins, client_options)
    try:
        async with _client(opened, plugins, client_options, quorum or Quorum(), placement, ()) as client:
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
    peers: Sequence[str] = (),
    listen: str | None = None,
    advertise: str | None = None,
    options: ClientOptions | None = None,
    bookie_options: BookieOptions | None = None,
    quorum: Quorum | None = None,
    placement: str = "random",
    registry: Registry | None = None,
) -> AsyncIterator[Client]:
    """A client with bookies of its own in this process: a crash-proof log in a directory.

    - `directory`: where the bookies keep their files: one directory with all of them, or a list with one bookie in each.
    - `bookies`: how many are in one directory; by default as many as it has already, or one.
    - `storage`: the scheme of the bookies' storage, maybe with options: "files", "memory", "files?journal_file_bytes=16MiB".
      Without it, `bookie_options` choose; their default is "files".
    - `metastore`: a URL, or an open `Metastore`, which stays open; by default LMDB beside the first bookie.
    - `peers`: the addresses, HOST:PORT, of all processes that keep the metastore together, this one among them: so several
      copies of a program are a cluster, and need no other server. Experimental. `metastore` is None then, or has options only, as
      "quorum:?lease_s=3". Enters once a majority of the peers has come; before that, it logs whom it waits for.
    - `listen`: where other processes reach the bookie, and its peers reach this one: HOST:PORT, or a transport's URL.
      `advertise`: where they must connect, if that is another address.
    - `options`, `bookie_options`: of the client and of the bookies. With `BookieOptions(listen=("unix:PATH",))` other processes
      of the machine can `connect`.
    - `quorum`: of ledgers and logs that are created without one; by default `Quorum()` with peers, or with three bookies or
      more, otherwise all bookies.
    - `placement`, `registry`: as for `connect`.

    Raises `StorageInUseError` if another process has the directory open; `StorageIdentityError`, `StorageDamagedError` or
    `StorageFailedError` for the state of a directory; `ConfigError`: then no ledger was changed. Leaving the context, even by
    cancellation, cancels writers and readers that are still open: leave writers first. Confirmed entries stay in any case.

    A directory whose storage is damaged or fails is left out if the other bookies are enough for the quorum (C7), as two of
    three are by default; no other error is tolerated. `client.left_out` maps these directories to their errors,
    `statistics()["client"]["bookies_left_out"]` counts them, observers get `BookieLeftOut`, and the logger `replog.bookie`
    writes an error."""
    check_event_loop("embed")
    check_types("embed", options=(options, ClientOptions), bookie_options=(bookie_options, BookieOptions))
    check_types("embed", quorum=(quorum, Quorum), registry=(registry, Registry))
    plugins = registry or Registry()
    directories = bookie_directories(directory, bookies)
    settings = with_listener(embedded_options(storage, bookie_options), listen, advertise, plugins)
    client_quorum = quorum or (Quorum() if peers else embedded_quorum(len(directories)))
    client_options = options or ClientOptions()
    choice = MetastoreChoice(metastore, tuple(peers), client_options)
    async with (
        embedded_bookies(directories, settings, client_quorum, choice, plugins) as (opened, served, left_out),
        _client(opened, plugins, client_options, client_quorum, placement, served) as client,
        repairing_client(client._opened, settings),
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
    async with opened_ledgers(metastore, plugins, tuned(options), placement, bookies) as (ledgers, nursery):
        opened = OpenClient(ledgers, quorum, nursery, bookies, plugins)
        try:
            yield Client(opened)
        finally:
            opened.leave()
