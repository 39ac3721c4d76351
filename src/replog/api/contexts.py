"""The parts that clients, and bookies that repair, need to talk with bookies: made from options and plugins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from replog.abc import Metastore
from replog.api.reaching import opened_transports
from replog.client.archive_reading import ArchiveReader
from replog.client.archives import Archives
from replog.client.connections import Connections
from replog.client.entry_writer import Completion
from replog.client.ledger_effects import ClientContext
from replog.client.ledger_records import LedgerRecords
from replog.client.ledgers import Ledgers
from replog.client.membership import Membership
from replog.client.placing import Placing
from replog.config.client import ClientTuning
from replog.protocol.digest import Digest
from replog.registry import Registry
from replog.runtime.entropy import current_entropy
from replog.runtime.nursery import open_service_nursery

if TYPE_CHECKING:
    from replog.bookie.serving import ServedBookie


@asynccontextmanager
async def client_context(
    metastore: Metastore, plugins: Registry, options: ClientTuning, placement: str, nursery: trio.Nursery
) -> AsyncIterator[ClientContext]:
    """Records, bookies and placement of one client. Leaving the context closes the connections."""
    # Only those with options are opened now; the others are opened, with
    # defaults, for the first bookie that needs them.
    open_transport = opened_transports(plugins, options.transports)
    authenticator = plugins.open_authenticator(options.authentication)
    membership = Membership(metastore, options)
    connections = Connections(membership, open_transport, options, nursery, authenticator)
    policy = plugins.open_placement(placement)
    placing = Placing(policy, membership, current_entropy().random, plugins.observe, options.zone)
    context = ClientContext(LedgerRecords(metastore, options.metastore_timeout_s), membership, connections, placing)
    context.observe_batches = plugins.batch_observer
    context.archive_reader = ArchiveReader(Archives(context.records, plugins.open_archive), nursery)
    try:
        yield context
    finally:
        # Shielded, since leaving by cancellation must close connections, too; with a
        # deadline, since a peer may not answer.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + options.connect_timeout_s):
            await connections.aclose()


@asynccontextmanager
async def opened_ledgers(
    metastore: Metastore, plugins: Registry, options: ClientTuning, placement: str, bookies: Sequence[ServedBookie]
) -> AsyncIterator[tuple[Ledgers, trio.Nursery]]:
    """The ledgers of one client, and the nursery of its tasks. `bookies` are those that it embeds."""
    async with (
        open_service_nursery() as nursery,
        client_context(metastore, plugins, options, placement, nursery) as made,
    ):
        ledgers = Ledgers(made, options, plugins.observe, nursery, _completion)

        def ask_for_collection() -> None:
            for bookie in bookies:
                bookie.ask_for_collection()

        # Embedded bookies can free a deleted ledger's space at once; remote ones wait for their next collection (B6).
        ledgers.deleted = ask_for_collection
        yield ledgers, nursery


def _completion(key: bytes, digest: Digest, context: ClientContext, options: ClientTuning) -> Completion:
    # Imported here: only ledgers whose copies are guaranteed (W8) need it, before their writer's context is entered.
    from replog.repair.completion import LedgerCompletion

    return LedgerCompletion(key, digest, context, options)
