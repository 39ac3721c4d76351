"""Fixtures: the servers, each in a process of its own that all tests share, and buckets of a test's own."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# So that tests find `s3_server`, and the judge of histories, wherever pytest was started.
sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parent))

from s3_server import SERVERS, Bucket, S3Server, use_credentials


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, S3Server]]:
    """The servers that were asked for so far."""
    servers: dict[str, S3Server] = {}
    yield servers
    for each in servers.values():
        each.kill()


# Not of the session: pytest would change the order of the tests for it, in each worker in its own way.
@pytest.fixture(params=SERVERS)
def s3_server(
    request: pytest.FixtureRequest, started: dict[str, S3Server], tmp_path_factory: pytest.TempPathFactory
) -> S3Server:
    """A server that all tests share, and none ends."""
    if request.param not in started:
        server = SERVERS[request.param](tmp_path_factory.mktemp("s3"))
        server.start()
        started[request.param] = server
    return started[request.param]


@pytest.hookimpl(tryfirst=True)  # before those of the long lane are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is slow runs against a second server in the long lane only."""
    for item in items:
        cases = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if cases.get("s3_server", "moto") != "moto" and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.long(is_sampled=False))


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """For this process and those that it starts. Without any, obstore would ask for some beyond this machine."""
    use_credentials(monkeypatch)


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket."""
    if not s3_server.TAKES_SESSION_TOKENS:
        monkeypatch.delenv("AWS_SESSION_TOKEN")
    return s3_server.bucket(f"test-{secrets.token_hex(8)}")
