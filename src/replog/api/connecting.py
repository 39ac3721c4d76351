"""`connect`: a client of bookies elsewhere. What every client needs is imported with it, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from replog.abc import Metastore
from replog.api.client import Client
from replog.api.contexts import opened_ledgers
from replog.api.opened import OpenClient
from replog.api.reaching import close_metastore, reached_metastore
from replog.config import ClientOptions, check_types
from replog.config.client import tuned
from replog.protocol.quorum import Quorum
from replog.registry import Registry
from replog.runtime.event_loop import check_event_loop

if TYPE_CHECKING:
    from replog.bookie.serving import ServedBookie


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
        async with opened_client(opened, plugins, client_options, quorum or Quorum(), placement, ()) as client:
            yield client
    finally:
        if opened is not metastore:
            await close_metastore(opened)


@asynccontextmanager
async def opened_client(
    metastore: Metastore,
    plugins: Registry,
    options: ClientOptions,
    quorum: Quorum,
    placement: str,
    bookies: Sequence[ServedBookie],
) -> AsyncIterator[Client]:
    """A client of this metastore, while the context is open. `bookies` are those that it embeds."""
    async with opened_ledgers(metastore, plugins, tuned(options), placement, bookies) as (ledgers, nursery):
        opened = OpenClient(ledgers, quorum, nursery, bookies, plugins)
        try:
            yield Client(opened)
        finally:
            opened.leave()
