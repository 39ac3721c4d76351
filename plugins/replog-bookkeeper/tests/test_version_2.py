"""This client in version 2 of the protocol, against bookies of both kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from java_bookies import Cluster, Driver, digest_of, payload

import replog
import replog_bookkeeper
from replog.config.client import ClientTuning
from replog.errors import ConfigError, FencedError
from replog.protocol.model import LedgerState
from replog_bookkeeper import Client, LedgerDigest

SEED, SIZE = 7, 1000
DIGESTS = {"CRC32": "CRC32", "CRC32C": "CRC32C", "HMAC": "MAC", "DUMMY": "DUMMY"}
QUICK = ClientTuning(add_timeout_s=3.0, read_timeout_s=3.0, recovery_timeout_s=20.0, bookie_retry_after_s=0.5)


@pytest.fixture
def java(mixed_driver: Driver) -> Driver:
    """Java's client, as "v2"."""
    return mixed_driver


@pytest.fixture
async def client(mixed: Cluster) -> AsyncIterator[Client]:
    quorum = replog.Quorum(3, 3, 2)
    async with replog_bookkeeper.connect(mixed.uri, options=QUICK, quorum=quorum, wire_version=2) as found:
        yield found


def expected(count: int) -> list[bytes]:
    return [payload(SEED, place, SIZE) for place in range(count)]


@pytest.mark.needs_bookkeeper
@pytest.mark.parametrize("digest", list(DIGESTS))
async def test_java_reads_a_ledger_of_version_2(client: Client, java: Driver, digest: str) -> None:
    async with client.create_ledger(digest=LedgerDigest[digest]) as writer:
        for each in expected(200):
            await writer.push(each)
    java("open", "v2", "read", writer.ledger_id, DIGESTS[digest], "-", "recover")
    assert java("last", "read") == ["199", str(200 * SIZE), "true"]
    assert java("read", "read", 0, 199) == [digest_of(expected(200))]


@pytest.mark.needs_bookkeeper
@pytest.mark.parametrize("digest", list(DIGESTS))
async def test_version_2_recovers_from_a_live_java_writer(client: Client, java: Driver, digest: str) -> None:
    (ledger_id,) = java("create", "v2", "own", 3, 3, 2, DIGESTS[digest], b"secret".hex())
    java("append", "own", 50, SIZE, SEED)
    assert java("flush", "own", 20_000) == ["50", "0"]
    recovered = await client.recover_ledger(int(ledger_id), password=b"secret")
    assert (recovered.state, recovered.last_entry_id) == (LedgerState.CLOSED, 49)
    java("append", "own", 1, SIZE, SEED)
    assert java("flush", "own", 20_000)[0] == "50"
    async with client.open_ledger(int(ledger_id), password=b"secret") as reader:
        assert [entry.data async for entry in reader] == expected(50)


@pytest.mark.needs_bookkeeper
async def test_a_writer_of_version_2_is_fenced(client: Client, mixed: Cluster) -> None:
    async with client.create_ledger() as writer:
        await writer.append(b"one")
        async with replog_bookkeeper.connect(mixed.uri, options=QUICK, wire_version=2) as other:
            await other.recover_ledger(writer.ledger_id)
        with pytest.raises(FencedError):
            await writer.append(b"two")


@pytest.mark.needs_bookkeeper
async def test_a_reader_of_version_2_follows(client: Client, java: Driver) -> None:
    """It lags by one entry, until the ledger is closed."""
    (ledger_id,) = java("create", "v2", "own", 3, 3, 2, "CRC32C", "-")
    found: list[bytes] = []
    seen = trio.Event()

    async def follow() -> None:
        async with client.open_ledger(int(ledger_id), follow=True) as reader:
            async for entry in reader:
                found.append(entry.data)
                if len(found) == 2:
                    seen.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for _ in range(3):
                java("append", "own", 1, SIZE, SEED)
                java("flush", "own", 20_000)
            await seen.wait()
            await trio.to_thread.run_sync(java, "close", "own")
    assert found == expected(3)


async def test_other_versions_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 or 3"):
        async with replog_bookkeeper.connect("zk://127.0.0.1/ledgers", wire_version=1):
            pass
