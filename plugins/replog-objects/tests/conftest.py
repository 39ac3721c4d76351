"""Fixtures: moto's server, in a process of its own that all tests share, and buckets of a test's own."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# So that tests find `s3_server`, and the judge of histories, wherever pytest was started.
sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parent))

from s3_server import Bucket, S3Server, use_credentials


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that all tests share, and none ends."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """For this process and those that it starts. Without any, obstore would ask for some beyond this machine."""
    use_credentials(monkeypatch)


@pytest.fixture
def bucket(s3_server: S3Server) -> Bucket:
    """A new bucket."""
    return s3_server.bucket(f"test-{secrets.token_hex(8)}")
