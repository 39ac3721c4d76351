"""A metastore in a real ZooKeeper: the exam, and what is its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from replog.abc import Metastore
from replog.registry import Registry
from replog.testing import check_metastore

pytestmark = pytest.mark.needs_zookeeper


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Metastore]:
    store = Registry().open_metastore(url)
    try:
        yield store
    finally:
        await store.aclose()


async def test_it_passes_the_exam(zookeeper_url: str) -> None:
    await check_metastore(lambda: opened(zookeeper_url))
