"""What tests of the ZooKeeper metastore share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from replog.testing import TcpProxy, serve_proxy
from tests.servers.zookeeper import ZooKeeper


@pytest.fixture
async def proxy(zookeeper: ZooKeeper) -> AsyncIterator[TcpProxy]:
    """Between a client and the server that all tests share."""
    async with serve_proxy(zookeeper.address) as proxy:
        yield proxy
