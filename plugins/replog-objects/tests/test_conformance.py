"""The conformance suites of metastores, archives and back-ups, run as they are: over the servers and over obstore's memory."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from s3_server import Bucket

from replog.abc import Metastore
from replog.registry import Registry
from replog.testing import (
    check_archive,
    check_backup_place,
    check_metastore,
    check_metastore_leases,
    check_metastore_outage,
)
from replog_objects.metastore import ObjectsMetastore
from replog_objects.options import ObjectsOptions, Target


@pytest.mark.long(is_sampled=False)
async def test_it_passes_the_conformance_suite_over_s3(bucket: Bucket) -> None:
    @asynccontextmanager
    async def client() -> AsyncIterator[Metastore]:
        async with bucket.client(poll_s=0.05) as metastore:
            yield metastore

    await check_metastore(client)


async def test_it_passes_the_conformance_suite_in_memory() -> None:
    target = Target("memory", secrets.token_hex(8), "prefix")

    @asynccontextmanager
    async def client() -> AsyncIterator[Metastore]:
        metastore = ObjectsMetastore(target, ObjectsOptions(poll_s=0.05))
        try:
            yield metastore
        finally:
            await metastore.aclose()

    await check_metastore(client)


@pytest.mark.slow
async def test_death_of_a_client_is_noticed(bucket: Bucket) -> None:
    await check_metastore_leases(bucket.url(lease_s=1, poll_s=0.1), lease_s=1)


@pytest.mark.slow
async def test_it_tells_an_outage(bucket: Bucket) -> None:
    @asynccontextmanager
    async def client() -> AsyncIterator[Metastore]:
        async with bucket.client("127.0.0.1:9", timeout_s=0.4) as metastore:
            yield metastore

    await check_metastore_outage(client)


@pytest.mark.slow
def test_archive_passes_the_conformance_suite(bucket: Bucket) -> None:
    endpoint = f"http://{bucket.server.address}"
    check_archive(lambda: Registry().open_archive(f"s3://{bucket.name}/archive?endpoint={endpoint}"))


def test_place_for_back_ups_passes_the_conformance_suite(bucket: Bucket) -> None:
    endpoint = f"http://{bucket.server.address}"
    check_backup_place(lambda: Registry().open_backup_place(f"s3://{bucket.name}/backup?endpoint={endpoint}"))


def test_archive_and_back_ups_in_memory_pass() -> None:
    name = secrets.token_hex(8)
    check_archive(lambda: Registry().open_archive(f"memory://{name}/archive"))
    check_backup_place(lambda: Registry().open_backup_place(f"memory://{name}/backup"))
