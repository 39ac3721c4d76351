"""What clients, and bookies that repair, need to talk with bookies: made from options and plugins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from replog.abc import Metastore, Transport
from replog.bookie.serving import ServedBookie
from replog.client.connections import Connections
from replog.client.driving import ClientContext
from replog.client.ledger_records import LedgerRecords
from replog.client.ledgers import Ledgers
from replog.client.membership import Membership
from replog.client.placing import Placing
from replog.config import BackendURL, ClientOptions
from replog.registry import Registry
from replog.runtime.chance import current_chance
from replog.runtime.nursery import open_service_nursery


@asynccontextmanager
async def client_context(
    metastore: Metastore, plugins: Registry, options: ClientOptions, placement: str, nursery: trio.Nursery
) -> AsyncIterator[ClientContext]:
    """Records, bookies and placement of one client. Leaving the context closes the connections."""
    # Only those with options are opened now; the others are opened, with
    # defaults, for the first bookie that needs them.
    transports = {url.scheme: plugins.open_transport(url) for url in map(BackendURL.parse, options.transports)}

    def open_transport(scheme: str) -> Transport:
        return transports[scheme] if scheme in transports else plugins.open_transport(scheme)

    authenticator = plugins.open_authenticator(options.authentication)
    membership = Membership(metastore, options)
    connections = Connections(membership, open_transport, options, nursery, authenticator)
    policy = plugins.open_placement(placement)
    placing = Placing(policy, membership, current_chance().random, plugins.observe, options.zone)
    context = ClientContext(LedgerRecords(metastore, options.metastore_timeout_s), membership, connections, placing)
    context.observe_batches = plugins.batch_observer
    try:
        yield context
    finally:
        # Shielded, since leaving by cancellation must close connections, too; with a
        # deadline, since a peer may not answer.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + options.connect_timeout_s):
            await connections.aclose()


@asynccontextmanager
async def opened_ledgers(
    metastore: Metastore, plugins: Registry, options: ClientOptions, placement: str, bookies: Sequence[ServedBookie]
) -> AsyncIterator[tuple[Ledgers, trio.Nursery]]:
    """The ledgers of one client, and the nursery of its tasks. `bookies` are those that it embeds."""
    async with (
        open_service_nursery() as nursery,
        client_context(metastore, plugins, options, placement, nursery) as made,
    ):
        ledgers = Ledgers(made, options, plugins.observe, nursery)

        def ask_for_collection() -> None:
            for bookie in bookies:
                bookie.ask_for_collection()

        # Embedded bookies can free a deleted ledger's space at once; remote ones wait for their next collection (B6).
        ledgers.deleted = ask_for_collection
        yield ledgers, nursery
