"""The promises of a metastore, kept over connections: by members in one trio run, and by members in processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from replog.abc import Metastore
from replog.registry import Registry
from replog.testing import check_metastore, check_metastore_leases, check_metastore_outage
from tests.failures.quorum_rounds import Campaign
from tests.lanes.seeds import some
from tests.metastores.quorum.members import members_of

_LEASE_S = 3.0


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Metastore]:
    metastore = Registry().open_metastore(url)
    try:
        yield metastore
    finally:
        await metastore.aclose()


@pytest.mark.parametrize("transport", some(["tcp", "memory"], few=1))
async def test_remote_clients(tmp_path: Path, transport: str) -> None:
    async with members_of(tmp_path, transport) as members:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        await check_metastore(members.client)


async def test_client_beside_a_member(tmp_path: Path) -> None:
    async with members_of(tmp_path) as members:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)

        @asynccontextmanager
        async def client() -> AsyncIterator[Metastore]:
            metastore = members.running[0].metastore(prefix="prod")
            yield metastore
            await metastore.aclose()

        await check_metastore(client)


async def test_nobody_is_there() -> None:
    await check_metastore_outage(lambda: opened("quorum:memory:nobody,127.0.0.1:1/prod?timeout_s=0.3"))


async def test_members_in_processes_notice_dead_clients(tmp_path: Path) -> None:
    made = Campaign(tmp_path, 3, 1)
    url = made.members.url.replace("timeout_s=3", f"timeout_s=10&lease_s={_LEASE_S}")
    async with made.running():
        await check_metastore_leases(url, _LEASE_S)
