"""Fixtures: parts of a server that all tests share, and servers of a test's own."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests find `etcd_servers`, wherever pytest was started

from etcd_servers import Etcd, StartStore, Store, start_etcd


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """A server that all tests share, and none ends."""
    (server,) = start_etcd(tmp_path_factory.mktemp("etcd"))
    yield server
    server.kill()


@pytest.fixture
def store(etcd_server: Etcd) -> Store:
    """A part of the shared server."""
    return Store([etcd_server], f"test/{random.getrandbits(64):016x}")


@pytest.fixture
def start_store(tmp_path: Path) -> Iterator[StartStore]:
    """Starts servers of the test's own: so many, with these options of etcd's."""
    started: list[Etcd] = []

    def start(size: int = 1, *options: str, scheme: str = "http") -> Store:
        servers = start_etcd(tmp_path / f"cluster-{len(started)}", size, *options, scheme=scheme)
        started.extend(servers)
        return Store(servers, "own")

    yield start
    for each in started:
        each.kill()


@pytest.fixture(scope="module")
def cluster_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Etcd]]:
    servers = start_etcd(tmp_path_factory.mktemp("cluster"), 3)
    yield servers
    for each in servers:
        each.kill()


@pytest.fixture
def cluster(cluster_servers: list[Etcd]) -> Store:
    """Three servers, which a test may end if it starts them again."""
    return Store(cluster_servers, f"test/{random.getrandbits(64):016x}")
