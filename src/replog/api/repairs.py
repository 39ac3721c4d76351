"""Repairs that go on by themselves: a program's, and those of bookies with `repair = "auto"`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from replog.abc import Metastore
from replog.api.client import Client
from replog.api.contexts import client_context
from replog.api.opened import OpenClient
from replog.bookie.serving import ServedBookie, figures_beside
from replog.client.ledger_effects import ClientContext
from replog.config import BookieOptions, ClientOptions
from replog.config.bookie import tuned as tuned_bookie
from replog.config.client import tuned
from replog.registry import Registry
from replog.repair.audit_report import AuditReport
from replog.repair.repairer import Repairer
from replog.repair.service import RepairService, RepairTimes
from replog.repair.shares import Shares
from replog.runtime.nursery import open_service_nursery


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


def repair_service(
    context: ClientContext, repairer: Repairer, times: RepairTimes, reported: Callable[..., None] = lambda _report: None
) -> RepairService:
    """A service among all that this metastore knows, with an id of its own."""
    shares = Shares(context.records.metastore, f"repairer-{context.entropy.token(8)}")
    return RepairService(repairer, shares, times, reported)


@asynccontextmanager
async def repairing_bookie(
    bookie: ServedBookie, metastore: Metastore, plugins: Registry, options: BookieOptions, as_client: ClientOptions
) -> AsyncIterator[None]:
    """Repairs beside a bookie while the context is open."""
    tuning = tuned(as_client)
    async with open_service_nursery() as nursery:
        made = client_context(metastore, plugins, tuning, options.repair_placement, nursery)
        async with made as context, open_service_nursery() as working:
            service = repair_service(context, Repairer(context, tuning, plugins.observe), times_of(options))
            figures_beside(bookie).append(service.status.statistics)
            working.start_soon(service.run)
            yield


def times_of(options: BookieOptions) -> RepairTimes:
    """The waits that a bookie's options name."""
    return RepairTimes(options.repair_away_after_s, tuned_bookie(options).repair_interval_s)


async def repair(client: OpenClient, times: RepairTimes, reported: Callable[[AuditReport], None]) -> None:
    """Repairs with this client until cancelled."""
    await repair_service(client.ledgers.context, client.repairer, times, reported).run()


@asynccontextmanager
async def repairing_client(client: OpenClient, options: BookieOptions) -> AsyncIterator[None]:
    """Repairs beside the bookies that a client embeds while the context is open. The first one of them counts the repairs."""
    service = repair_service(client.ledgers.context, client.repairer, times_of(options))
    figures_beside(client.bookies[0]).append(service.status.statistics)
    async with open_service_nursery() as nursery:
        nursery.start_soon(service.run)
        yield
