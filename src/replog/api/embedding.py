"""`embed`: a client with bookies of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from replog.abc import Metastore
from replog.api.bookies import MetastoreChoice, embedded_bookies
from replog.api.client import Client
from replog.api.connecting import opened_client
from replog.api.reaching import with_listener
from replog.bookie.embedding import bookie_directories, embedded_options, embedded_quorum
from replog.config import BookieOptions, ClientOptions, check_types
from replog.protocol.quorum import Quorum
from replog.registry import Registry
from replog.runtime.event_loop import check_event_loop


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
      copies of a program are a cluster, and need no other server. `metastore` is None then, or has options only, as
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
        opened_client(opened, plugins, client_options, client_quorum, placement, served) as client,
        AsyncExitStack() as repairing,
    ):
        client.left_out = left_out
        if settings.repair != "off" and served:
            # Imported here: few bookies repair.
            from replog.api.repairs import repairing_client

            await repairing.enter_async_context(repairing_client(client._opened, settings))
        yield client
