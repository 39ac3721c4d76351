"""Real servers as fixtures. What is missing on this machine skips, by name; in CI it fails."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.servers import processes
from tests.servers import zookeeper as servers
from tests.servers.zookeeper import Ensemble, ZooKeeper

_chroots = itertools.count(1)


def need(missing: str | None) -> None:
    """Skips the test if something is missing: says what, and how to get it. In CI it fails."""
    if missing is None:
        return
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One server for all tests that do it no harm; each uses a chroot of its own (`zookeeper_url`)."""
    need(servers.missing())
    with servers.zookeeper_blocking(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper_chroot(request: pytest.FixtureRequest) -> str:
    """A path that no other test uses: "/tests/7-NAME". Nobody has created it."""
    return f"/tests/{next(_chroots)}-{re.sub(r'[^a-zA-Z0-9_]+', '-', request.node.name)[:60]}"


@pytest.fixture
def zookeeper_url(zookeeper: ZooKeeper, zookeeper_chroot: str) -> str:
    """A metastore's URL for this test alone, on a server that others use, too."""
    return zookeeper.url(zookeeper_chroot)


@pytest.fixture
async def own_zookeeper(tmp_path: Path) -> AsyncIterator[ZooKeeper]:
    """A server for this test alone, to be killed and frozen."""
    need(servers.missing())
    async with servers.zookeeper_server(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def shared_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """The three servers of `zookeeper_ensemble`, which is what tests ask for."""
    need(servers.missing())
    with servers.ensemble_blocking(tmp_path_factory.mktemp("zookeeper-ensemble")) as ensemble:
        yield ensemble


@pytest.fixture
async def zookeeper_ensemble(shared_ensemble: Ensemble) -> Ensemble:
    """Three servers that serve, for this test alone, to be killed and frozen. What others stored is still there: use a chroot of
    your own (`zookeeper_chroot`)."""
    await trio.to_thread.run_sync(shared_ensemble.heal_blocking)
    return shared_ensemble


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A test that failed shows what the servers said that ran meanwhile."""
    report = yield
    if report.failed:
        report.sections += [(f"log of {server.name}", server.log()) for server in processes.running]
    return report
