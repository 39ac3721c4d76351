"""Ledgers of Java's client and of this one, each read, fenced, recovered and closed by the other, on Java's bookies."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from java_bookies import Cluster, Driver, JavaError, digest_of, payload
from kazoo.client import KazooClient
from typer.testing import CliRunner

import replog
import replog_bookkeeper
from replog.cli.commands import app
from replog.config.client import ClientTuning
from replog.errors import (
    ConfigError,
    EntryNotFoundError,
    EntryUnreadableError,
    FencedError,
    KeyExistsError,
    LedgerNotFoundError,
    MetastoreError,
    NotEnoughBookiesError,
    PayloadTooLargeError,
    UnauthorizedError,
)
from replog.protocol.model import LedgerState
from replog_bookkeeper import Client, Layout, LedgerDigest, NotInBookKeeperError, aio, blocking
from replog_bookkeeper.writing import ENTRY_BYTES_MAX
from tests.servers.certificates import make_certificates

pytestmark = pytest.mark.needs_bookkeeper

QUORUM = replog.Quorum(3, 3, 2)
JAVA_DIGESTS = {"CRC32": "CRC32", "CRC32C": "CRC32C", "HMAC": "MAC", "DUMMY": "DUMMY"}
PASSWORD = b"secret"
SEED = 7
QUICK = ClientTuning(add_timeout_s=3.0, read_timeout_s=3.0, recovery_timeout_s=20.0, bookie_retry_after_s=0.5)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with replog_bookkeeper.connect(cluster.uri, options=QUICK, quorum=QUORUM) as found:
        yield found


def written(
    driver: Driver, count: int, size: int = 100, *, wire: str = "java", password: bytes = b"", close: bool = True
) -> int:
    """A ledger that Java wrote, as the handle "own"."""
    (ledger_id,) = driver("create", wire, "own", 3, 2, 2, "CRC32C", password.hex() or "-")
    driver("append", "own", count, size, SEED)
    assert driver("flush", "own", 20_000) == [str(count), "0"]
    if close:
        driver("close", "own")
    return int(ledger_id)


async def until(is_so: Callable[[], bool]) -> None:
    """Returns once this is so. It blocks, so it is called in a thread."""
    with trio.fail_after(60):
        while not await trio.to_thread.run_sync(is_so):
            pass


async def read_all(client: Client, ledger_id: int, **options: Any) -> list[bytes]:
    async with client.open_ledger(ledger_id, **options) as reader:
        return [entry.data async for entry in reader]


# -- what the other wrote -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", LedgerDigest)
@pytest.mark.parametrize("quorum", [(3, 3, 2), (5, 3, 2)])
async def test_each_reads_the_ledgers_of_the_other(
    driver: Driver, client: Client, digest: LedgerDigest, quorum: tuple[int, int, int]
) -> None:
    name = JAVA_DIGESTS[digest.name]
    sizes = (0, 1, 1000, 1 << 20)
    (ledger_id,) = driver("create", "java", "own", *quorum, name, PASSWORD.hex())
    for size in sizes:
        driver("append", "own", 5, size, SEED)
    driver("flush", "own", 20_000)
    driver("close", "own")
    expected = [payload(SEED, place, sizes[place // 5]) for place in range(20)]
    assert await read_all(client, int(ledger_id), password=PASSWORD) == expected

    async with client.create_ledger(quorum=replog.Quorum(*quorum), password=PASSWORD, digest=digest) as writer:
        assert list(await writer.extend(expected)) == list(range(20))
    driver("open", "java", "read", writer.ledger_id, name, PASSWORD.hex(), "plain")
    assert driver("last", "read") == ["19", str(sum(map(len, expected))), "true"]
    assert driver("read", "read", 0, 19) == [digest_of(expected)]


async def test_each_follows_a_writer_of_the_other(driver: Driver, client: Client) -> None:
    """Without fencing: the last add confirmed comes from entries, and from what an idle writer publishes (W5)."""
    ledger_id = written(driver, 10, close=False)
    with trio.fail_after(60):
        async with client.open_ledger(ledger_id, follow=True) as reader:
            entries = aiter(reader)
            assert [(await anext(entries)).data for _ in range(10)] == [
                payload(SEED, place, 100) for place in range(10)
            ]
            driver("append", "own", 1, 100, SEED)
            assert (await anext(entries)).data == payload(SEED, 10, 100)
            driver("close", "own")
            with pytest.raises(StopAsyncIteration):
                await anext(entries)
        async with client.create_ledger() as writer:
            driver("open", "java", "read", writer.ledger_id, "CRC32C", "-", "plain")
            await writer.append(b"one")
            await until(lambda: driver("lac", "read") == ["0"])
            assert driver("get", "read", 0) == [b"one".hex()]
            await writer.append(b"two")  # nobody was fenced


async def test_java_reads_a_record_of_this_client(driver: Driver, client: Client) -> None:
    custom: dict[str, str | bytes] = {"application": "tests", "bytes": b"\xff\0"}
    async with client.create_ledger(password=PASSWORD, custom=custom) as writer:
        await writer.append(b"x" * 10)
    record = await client.ledger_record(writer.ledger_id)
    assert (record.format, record.digest, record.password) == (3, LedgerDigest.CRC32C, PASSWORD)
    assert record.metadata.custom["bytes"].encode(errors="surrogateescape") == b"\xff\0"
    assert driver("state", "java", writer.ledger_id)[:3] == ["CLOSED", "0", "10"]
    driver("delete", "java", writer.ledger_id)
    with pytest.raises(LedgerNotFoundError):
        await client.ledger_metadata(writer.ledger_id)
    await client.delete_ledger(writer.ledger_id)


async def test_javas_custom_entries_survive_a_recovery(driver: Driver, client: Client) -> None:
    ledger_id = written(driver, 1, close=False)
    await client.recover_ledger(ledger_id)
    record = await client.ledger_record(ledger_id)
    assert record.metadata.custom["made-by"].encode(errors="surrogateescape") == b"\xff\x01"
    assert record.message.HasField("cToken")


# -- fences -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["java", "java-v2"])
async def test_live_java_writer_is_fenced(driver: Driver, client: Client, wire: str) -> None:
    """R2, R4: what it had confirmed is there, and it confirms nothing more."""
    ledger_id = written(driver, 20, wire=wire, close=False)
    metadata = await client.recover_ledger(ledger_id)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 19)
    driver("append", "own", 1, 100, SEED)
    assert driver("flush", "own", 20_000)[0] == "20"
    assert await read_all(client, ledger_id) == [payload(SEED, place, 100) for place in range(20)]
    assert driver("state", "java", ledger_id)[:3] == ["CLOSED", "19", "2000"]


async def test_live_python_writer_is_fenced(driver: Driver, client: Client) -> None:
    """W4."""
    with pytest.raises(FencedError):
        async with client.create_ledger() as writer:
            await writer.append(b"one")
            driver("open", "java", "read", writer.ledger_id, "CRC32C", "-", "recover")
            await writer.append(b"two")
    assert driver("last", "read") == ["0", "3", "true"]


async def test_empty_ledger_is_recovered_with_length_zero(driver: Driver, client: Client) -> None:
    """R8."""
    ledger_id = written(driver, 0, close=False)
    assert (await client.recover_ledger(ledger_id)).last_entry_id == -1
    assert driver("state", "java", ledger_id)[:3] == ["CLOSED", "-1", "0"]


async def test_recovery_reads_the_length_where_nothing_is_behind(
    cluster: Cluster, driver: Driver, client: Client
) -> None:
    """A fragment began behind the last entry, and no bookie of it has anything: the length is read from the one before."""
    with trio.fail_after(120):
        async with client.create_ledger() as writer:
            await writer.append(b"x" * 10)
            await writer.roll()
            assert len(writer.metadata.fragments) == 2
            async with replog_bookkeeper.connect(cluster.uri) as other:
                assert (await other.recover_ledger(writer.ledger_id)).last_entry_id == 0
            writer._entries.leave()
    assert driver("state", "java", writer.ledger_id)[:3] == ["CLOSED", "0", "10"]


# -- bookies that fail --------------------------------------------------------------------------------------------


async def test_ensemble_changes_when_a_bookie_dies(cluster: Cluster, driver: Driver, client: Client) -> None:
    """C1-C5: the record names the new bookie before it is written to, and Java reads across the fragments."""
    expected = [payload(SEED, place, 100) for place in range(60)]
    with trio.fail_after(120):
        async with client.create_ledger() as writer:
            await writer.extend(expected[:20])
            names = {each.bookie_id: each for each in cluster.bookies}
            names[writer.metadata.last_fragment.ensemble[1]].kill()
            for data in expected[20:]:
                await writer.append(data)
            assert len(writer.metadata.fragments) > 1
    driver("open", "java", "read", writer.ledger_id, "CRC32C", "-", "plain")
    assert driver("read", "read", 0, 59) == [digest_of(expected)]
    assert await read_all(client, writer.ledger_id) == expected


async def test_open_ledger_without_its_bookies_is_not_empty(cluster: Cluster, driver: Driver) -> None:
    """One bookie is enough to tell how far it is confirmed. Without any that is unknown, and no empty ledger."""
    with trio.fail_after(120):
        async with replog_bookkeeper.connect(cluster.uri, options=QUICK, quorum=QUORUM) as client:
            async with client.create_ledger() as writer:
                await writer.extend([b"x"] * 10)
                driver("open", "java", "read", writer.ledger_id, "CRC32C", "-", "plain")
                await until(lambda: driver("lac", "read") == ["9"])  # an idle writer told all its bookies (W5)
                bookies = {each.bookie_id: each for each in cluster.bookies}
                members = [bookies[each] for each in writer.metadata.last_fragment.ensemble]
                writer._entries.leave()
        for each in members[:2]:
            each.kill()
        async with replog_bookkeeper.connect(cluster.uri, options=QUICK) as client:
            assert await read_all(client, writer.ledger_id) == [b"x"] * 10
            members[2].kill()
        async with replog_bookkeeper.connect(cluster.uri, options=QUICK) as client:
            with pytest.raises(EntryUnreadableError):
                await read_all(client, writer.ledger_id)


@pytest.mark.long(is_sampled=False)
async def test_long_tail_takes_longer_than_the_deadline(driver: Driver, cluster: Cluster) -> None:
    """Each entry is found by itself. Another attempt would begin where this one did: so entries that come begin the deadline anew
    (R12)."""
    ledger_id = written(driver, 250, close=False, wire="java-v2")  # none of them says that another one is confirmed
    options = ClientTuning(recovery_timeout_s=0.5)
    with trio.fail_after(120):
        async with replog_bookkeeper.connect(cluster.uri, options=options) as client:
            assert (await client.recover_ledger(ledger_id)).last_entry_id == 249


async def test_ledger_is_created_on_present_bookies_only(client: Client) -> None:
    """C7 does not hold here: Java's clients rely on ensembles that are there."""
    with pytest.raises(NotEnoughBookiesError):
        async with client.create_ledger(quorum=replog.Quorum(6, 3, 2)):
            pass


async def test_record_names_all_of_many_fragments(driver: Driver, client: Client) -> None:
    """M4: what replog keeps beside a record stands in it here, and Java reads across all of it."""
    count = 80
    with trio.fail_after(120):
        async with client.create_ledger() as writer:
            for place in range(count):
                await writer.append(payload(SEED, place, 10))
                await writer.roll()
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert [each.first_entry_id for each in metadata.fragments] == list(range(count))
    driver("open", "java", "read", writer.ledger_id, "CRC32C", "-", "plain")
    expected = [payload(SEED, place, 10) for place in range(count)]
    assert driver("read", "read", 0, count - 1) == [digest_of(expected)]
    assert await read_all(client, writer.ledger_id) == expected


async def test_silent_metastore_stops_no_append(cluster: Cluster) -> None:
    """M3: only changes need ZooKeeper. They end in a named error, and later they succeed."""
    options = ClientTuning(metastore_timeout_s=2.0)
    with trio.fail_after(120):
        async with replog_bookkeeper.connect(cluster.uri, options=options) as client:
            async with client.create_ledger() as writer:
                await writer.append(b"one")
                cluster.zookeeper.freeze()
                try:
                    await writer.append(b"two")
                    with pytest.raises(MetastoreError):
                        await client.recover_ledger(writer.ledger_id)
                finally:
                    cluster.zookeeper.thaw()
            assert await read_all(client, writer.ledger_id) == [b"one", b"two"]


@pytest.mark.long(is_sampled=False)
async def test_read_only_bookies_get_no_ledger(cluster: Cluster, tmp_path: Path) -> None:
    """And a bookie without an id of its own is known by its address."""
    other = Cluster(cluster.java, tmp_path, cluster.zookeeper, "/read-only")
    try:
        await trio.to_thread.run_sync(other.begin)
        await trio.to_thread.run_sync(lambda: other.start(1, bookieId=None))
        await trio.to_thread.run_sync(lambda: other.start(1, forceReadOnlyBookie="true", readOnlyModeEnabled="true"))
        async with replog_bookkeeper.connect(other.uri, options=QUICK) as client:
            found = {each.bookie_id: each.is_read_only for each in await client.bookies()}
            assert found == {f"127.0.0.1:{other.bookies[0].port}": False, "bookie-2": True}
            async with client.create_ledger(quorum=replog.Quorum(1, 1, 1)) as writer:
                await writer.append(b"x")
            assert writer.metadata.last_fragment.ensemble == (f"127.0.0.1:{other.bookies[0].port}",)
            assert await read_all(client, writer.ledger_id) == [b"x"]
            with pytest.raises(NotEnoughBookiesError):
                async with client.create_ledger(quorum=replog.Quorum(2, 2, 1)):
                    pass
    finally:
        other.kill()


# -- what is refused ----------------------------------------------------------------------------------------------


async def test_wrong_password_asks_no_bookie(driver: Driver, client: Client) -> None:
    ledger_id = written(driver, 1, password=PASSWORD)
    with pytest.raises(UnauthorizedError):
        await read_all(client, ledger_id, password=b"other")
    with pytest.raises(UnauthorizedError):
        await client.recover_ledger(ledger_id)


@pytest.mark.parametrize("options", [{"unbounded": True}, {"compression": "zstd"}, {"durability": "write-quorum"}])
async def test_missing_feature_is_named(client: Client, options: dict[str, Any]) -> None:
    before = await client.ledgers()
    with pytest.raises(NotInBookKeeperError):
        async with client.create_ledger(**options):
            pass
    with pytest.raises(ConfigError, match=r"replog\.token"):
        async with client.create_ledger(custom={"replog.token": "mine"}):
            pass
    assert await client.ledgers() == before


async def test_entry_above_the_frame_limit_is_refused(client: Client, driver: Driver) -> None:
    """A bookie would close the connection without an answer."""
    largest = bytes(ENTRY_BYTES_MAX)
    async with client.create_ledger() as writer:
        for data in ([largest + b"x"], [b"ok", largest + b"x"]):
            with pytest.raises(PayloadTooLargeError):
                await writer.extend(data)
        with pytest.raises(PayloadTooLargeError):
            await writer.append(largest + b"x")
        assert await writer.append(largest) == 0
    driver("open", "java", "read", writer.ledger_id, "CRC32C", "-", "plain")
    assert driver("read", "read", 0, 0) == [digest_of([largest])]
    assert await read_all(client, writer.ledger_id) == [largest]


# -- ids and layouts ----------------------------------------------------------------------------------------------


async def test_ids_around_the_end_of_short_paths(driver: Driver, client: Client) -> None:
    ids = [(1 << 31) - 2, (1 << 31) - 1, 1 << 31, (1 << 40) + 5]
    for ledger_id in ids:
        async with client.create_ledger(ledger_id=ledger_id) as writer:
            await writer.append(b"x")
        with pytest.raises(KeyExistsError):
            async with client.create_ledger(ledger_id=ledger_id):
                pass
        driver("open", "java", "read", ledger_id, "CRC32C", "-", "plain")
        assert driver("read", "read", 0, 0) == [digest_of([b"x"])]
    assert set(ids) <= set(await client.ledgers())
    for ledger_id in ids:
        await client.delete_ledger(ledger_id)
    assert not set(ids) & set(await client.ledgers())


async def test_both_take_ids_from_one_counter(driver: Driver, client: Client) -> None:
    found = []
    for _ in range(3):
        found.append(written(driver, 0))
        async with client.create_ledger() as writer:
            found.append(writer.ledger_id)
    assert found == sorted(set(found))


@pytest.mark.long(is_sampled=False)
@pytest.mark.parametrize("scheme", ["zk+flat", "zk+longhierarchical"])
async def test_other_layouts(cluster: Cluster, tmp_path: Path, scheme: str) -> None:
    other = Cluster(cluster.java, tmp_path, cluster.zookeeper, f"/{scheme.removeprefix('zk+')}", scheme)
    driver = None
    try:
        await trio.to_thread.run_sync(other.begin)
        await trio.to_thread.run_sync(other.start, 1)
        driver = await trio.to_thread.run_sync(Driver, other.java, other.uri, tmp_path / "driver.log")
        driver("client", "java", "v3")
        (javas,) = driver("create", "java", "own", 1, 1, 1, "CRC32C", "-")
        driver("append", "own", 1, 10, SEED)
        driver("flush", "own", 20_000)
        driver("close", "own")
        uri = other.uri.replace(scheme, "zk")
        async with replog_bookkeeper.connect(uri, quorum=replog.Quorum(1, 1, 1)) as client:
            assert await client.layout() is Layout(scheme.removeprefix("zk+"))
            assert await read_all(client, int(javas)) == [payload(SEED, 0, 10)]
            async with client.create_ledger() as writer:
                await writer.append(b"x")
            assert await client.ledgers() == sorted([int(javas), writer.ledger_id])
        driver("open", "java", "read", writer.ledger_id, "CRC32C", "-", "plain")
        assert driver("read", "read", 0, 0) == [digest_of([b"x"])]
        with pytest.raises(ConfigError, match="layout"):
            async with replog_bookkeeper.connect(uri.replace("zk://", "zk+hierarchical://")):
                pass
    finally:
        if driver is not None:
            driver.kill()
        other.kill()


async def test_place_without_a_cluster_is_named(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="no BookKeeper cluster"):
        async with replog_bookkeeper.connect(cluster.uri + "-not"):
            pass


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[Any]:
    """ZooKeeper itself."""
    found = KazooClient(cluster.zookeeper.address)
    found.start()
    yield found
    found.stop()
    found.close()


@pytest.mark.parametrize("version", [1, 2])
async def test_record_of_an_old_format_is_recovered_in_it(
    cluster: Cluster, driver: Driver, client: Client, nodes: Any, version: int
) -> None:
    """Java's reader takes what this client wrote back in the old format."""
    ledger_id = written(driver, 10, close=False)
    record = await client.ledger_record(ledger_id)
    message, root = record.message, cluster.uri.rpartition("/")[2]
    head = f"BookieMetadataFormatVersion\t{version}\n".encode()
    if version == 1:
        lines = ["2", "3", "0", *("\t".join(("0", *each.ensembleMember)) for each in message.segment)]
        value = head + "\n".join(lines).encode()
    else:
        value = head + str(message).encode()
    nodes.set(f"/{root}/00/{ledger_id // 10_000:04d}/L{ledger_id % 10_000:04d}", value)
    metadata = await client.recover_ledger(ledger_id, digest=LedgerDigest.CRC32C)
    assert metadata.last_entry_id == 9
    assert (await client.ledger_record(ledger_id)).format == version
    driver("open", "java", "read", ledger_id, "CRC32C", "-", "plain")
    assert driver("last", "read") == ["9", "1000", "true"]
    assert await read_all(client, ledger_id, digest=LedgerDigest.CRC32C) == [
        payload(SEED, each, 100) for each in range(10)
    ]


async def test_bookies_and_instance_are_listed(cluster: Cluster, client: Client) -> None:
    cluster.bookies[0].kill()
    assert len(await client.instance_id()) == 36
    addresses: dict[str, str | None] = {"bookie-1": ""}
    with trio.fail_after(60):
        while addresses["bookie-1"] is not None:  # ZooKeeper ends its session after some seconds
            addresses = {each.bookie_id: each.address for each in await client.bookies()}
            await trio.lowlevel.checkpoint()
    assert addresses == {each.bookie_id: f"127.0.0.1:{each.port}" for each in cluster.bookies} | {"bookie-1": None}


# -- faces and command line ---------------------------------------------------------------------------------------


def test_threads_and_asyncio_have_faces(cluster: Cluster, driver: Driver) -> None:
    with blocking.connect(cluster.uri, quorum=QUORUM) as client:
        with client.create_ledger() as writer:
            assert [writer.append(b"one"), writer.append(b"two")] == [0, 1]
        with client.open_ledger(writer.ledger_id) as reader:
            assert [entry.data for entry in reader] == [b"one", b"two"]
        with pytest.raises(PayloadTooLargeError), client.create_ledger() as refused:
            refused.append(bytes(ENTRY_BYTES_MAX + 1))

    async def in_asyncio() -> list[bytes]:
        async with aio.connect(cluster.uri, quorum=QUORUM) as client:
            async with client.create_ledger() as writer:
                await writer.append(b"three")
            assert (await client.recover_ledger(writer.ledger_id)).last_entry_id == 0
            async with client.open_ledger(writer.ledger_id) as reader:
                return [entry.data async for entry in reader]

    assert asyncio.run(in_asyncio()) == [b"three"]


def test_command_line(cluster: Cluster, driver: Driver, tmp_path: Path) -> None:
    ledger_id = str(written(driver, 3, 10, password=PASSWORD, close=False))
    password = tmp_path / "password"
    password.write_bytes(PASSWORD + b"\n")

    def command(*words: str) -> str:
        found = CliRunner().invoke(app, ["bookkeeper", *words, "--metastore", cluster.uri])
        assert found.exception is None, found.exception
        return found.stdout

    assert json.loads(command("ledger", "show", ledger_id, "--json"))["state"] == "open"
    secret = ("--password-file", str(password))
    assert json.loads(command("ledger", "recover", ledger_id, *secret, "--json"))["last_entry_id"] == 2
    assert "its last entry is 2" in command("ledger", "recover", ledger_id, *secret)
    shown = json.loads(command("ledger", "show", ledger_id, "--json"))
    assert (shown["last_entry_id"], shown["size_bytes"], shown["digest"], shown["has_password"]) == (
        2,
        30,
        "CRC32C",
        True,
    )
    assert "made-by" in command("ledger", "show", ledger_id)
    assert ledger_id in command("ledger", "list").split()
    assert {"kind": "ledger", "ledger_id": int(ledger_id)} in map(
        json.loads, command("ledger", "list", "--json").splitlines()
    )
    rows = [json.loads(line) for line in command("bookies", "--json").splitlines()]
    assert [row["bookie_id"] for row in rows] == [f"bookie-{number}" for number in range(1, 6)]
    assert "writable" in command("bookies")


def test_command_reads_bytes_as_they_are(
    cluster: Cluster, driver: Driver, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    ledger_id = str(written(driver, 3, 10))
    words = ["bookkeeper", "ledger", "read", ledger_id, "--metastore", cluster.uri]
    app([*words, "--first", "1", "--length-prefixed"], standalone_mode=False)
    expected = [payload(SEED, place, 10) for place in range(3)]
    assert capfdbinary.readouterr().out == b"".join(b"\0\0\0\n" + each for each in expected[1:])
    app([*words, "--last", "0", "--json"], standalone_mode=False)
    (line,) = capfdbinary.readouterr().out.splitlines()
    assert json.loads(line)["size_bytes"] == 10
    with pytest.raises(EntryNotFoundError):
        app([*words, "--last", "3"], standalone_mode=False)


# -- TLS ----------------------------------------------------------------------------------------------------------


async def test_start_tls(cluster: Cluster, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certificates")
    other = Cluster(cluster.java, tmp_path, cluster.zookeeper, "/secured")
    settings = {
        "tlsProvider": "JDK",
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": certificates.server.identity,
        "tlsCertificatePath": certificates.server.identity,
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": certificates.authority,
    }
    try:
        await trio.to_thread.run_sync(other.begin)
        await trio.to_thread.run_sync(lambda: other.start(1, **settings))
        context = ssl.create_default_context(cafile=str(certificates.authority))
        for version in (2, 3):
            connecting = replog_bookkeeper.connect(
                other.uri, quorum=replog.Quorum(1, 1, 1), tls=context, wire_version=version
            )
            async with connecting as client:
                assert [each.takes_tls for each in await client.bookies()] == [True]
                async with client.create_ledger() as writer:
                    await writer.append(b"in TLS")
                assert await read_all(client, writer.ledger_id) == [b"in TLS"]
        with pytest.raises(NotEnoughBookiesError, match="START_TLS failed"):
            untrusting = ssl.create_default_context()
            async with replog_bookkeeper.connect(other.uri, quorum=replog.Quorum(1, 1, 1), tls=untrusting) as client:
                async with client.create_ledger():
                    pass
    finally:
        other.kill()
    # Bookies without TLS say so.
    with pytest.raises(NotEnoughBookiesError, match="speaks no TLS"):
        async with replog_bookkeeper.connect(cluster.uri, quorum=QUORUM, tls=context) as client:
            async with client.create_ledger():
                pass


def test_java_knows_its_own_errors(driver: Driver) -> None:
    """The judge is one: Java's client refuses what it must."""
    with pytest.raises(JavaError) as refused:
        driver("open", "java", "read", 1 << 50, "CRC32C", "-", "plain")
    assert refused.value.code == -25  # no such ledger
