"""Topics that Pulsar's own managed ledgers wrote on bookies of Java's and of replog's, read without a broker."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet
import pytest
from java_bookies import Cluster
from java_pulsar import PATH, PulsarJava, golden_entries, need_pulsar
from kazoo.client import KazooClient
from test_pulsar_entries import golden_messages

import replog
import replog_bookkeeper
from replog.config.client import ClientTuning
from replog.errors import (
    ConfigError,
    EntryNotFoundError,
    EntryUnreadableError,
    LedgerNotFoundError,
    MetastoreCorruptError,
)
from replog.protocol.model import LedgerState
from replog_bookkeeper import Client, aio, blocking, pulsar
from replog_bookkeeper.pulsar import Message, Position, TopicName, Unreadable
from replog_bookkeeper.pulsar.exporting import HEADER, as_fields
from replog_bookkeeper.pulsar.schema import records
from tests import forks

pytestmark = pytest.mark.needs_bookkeeper

QUICK = ClientTuning(read_timeout_s=2.0, bookie_retry_after_s=0.5)
CLOSED, DEAD = "persistent://public/default/closed", "persistent://public/default/dead~1"
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "bookkeeper.md"


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> PulsarJava:
    need_pulsar()
    return PulsarJava.compiled(tmp_path_factory.mktemp("pulsar"))


@pytest.fixture(scope="module")
def written(java: PulsarJava, shared_mixed: Cluster) -> dict[str, list[str]]:
    """The places of the entries of two topics: one was closed, of the other a broker died."""
    return {
        CLOSED: java.write(shared_mixed, "public/default/persistent/closed", "ZSTD"),
        DEAD: java.write(shared_mixed, "public/default/persistent/dead%7E1", closes=False),
    }


@pytest.fixture
async def client(mixed: Cluster) -> AsyncIterator[Client]:
    async with replog_bookkeeper.connect(mixed.uri, options=QUICK) as found:
        yield found


@pytest.fixture
def nodes(mixed: Cluster) -> Iterator[Any]:
    """ZooKeeper itself."""
    found = KazooClient(mixed.zookeeper.address)
    found.start()
    yield found
    found.stop()
    found.close()


async def read(client: Client, name: str, **options: Any) -> list[Message | Unreadable]:
    async with pulsar.read_topic(client, name, **options) as topic:
        return [each async for each in topic]


def placed(places: list[str]) -> list[Message]:
    """The golden messages where they are in the topic that has them there."""
    by_entry = [tuple(map(int, each.split(":"))) for each in places]
    return [
        attrs.evolve(each, ledger_id=by_entry[each.entry_id][0], entry_id=by_entry[each.entry_id][1])
        for each in golden_messages()
    ]


def ledgers_of(places: list[str]) -> list[int]:
    return sorted({int(each.partition(":")[0]) for each in places})


@attrs.frozen
class Copy:
    """A topic with the ledgers of another one, and a record of its own, which a test may change."""

    name: str
    ledgers: list[int]
    info: Any
    nodes: Any

    def write(self) -> None:
        """Writes the record as it is now."""
        path = TopicName.parse(self.name).node
        self.nodes.ensure_path(path)
        self.nodes.set(path, self.info.SerializeToString())


@pytest.fixture
def copy(written: dict[str, list[str]], nodes: Any, request: pytest.FixtureRequest) -> Copy:
    info = records["ManagedLedgerInfo"]()
    ledgers = ledgers_of(written[CLOSED])
    for ledger_id in ledgers:
        info.ledgerInfo.add(ledgerId=ledger_id, entries=5, size=1, timestamp=1)
    info.ledgerInfo[-1].entries = 3
    return Copy(f"persistent://public/copies/{re.sub(r'[^a-z0-9]', '-', request.node.name)}", ledgers, info, nodes)


# -- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.long(is_sampled=False)
def test_golden_bytes_are_those_of_pulsar(java: PulsarJava) -> None:
    assert java.run("golden") == PATH.read_text()


async def test_closed_topic_gives_each_message(client: Client, written: dict[str, list[str]]) -> None:
    async with pulsar.read_topic(client, CLOSED) as topic:
        assert [each async for each in topic] == placed(written[CLOSED])
        assert topic.aborted == {(7, 9)}
    ledgers = topic.topic.ledgers
    assert [each.ledger_id for each in ledgers] == ledgers_of(written[CLOSED])
    assert [each.entries for each in ledgers] == [5, 5, 5, 5, 3]
    assert {(each.state, each.offloaded_to, each.problem) for each in ledgers} == {("closed", None, None)}
    assert all(each.closed_at_ms for each in ledgers[:-1])


async def test_dead_brokers_topic_is_whole_after_recovery(
    client: Client, written: dict[str, list[str]], java: PulsarJava, mixed: Cluster
) -> None:
    """R11: the last add confirmed is one behind, since no entry came after the last one."""
    expected = placed(written[DEAD])
    assert await read(client, DEAD) == expected[:-1]
    last = ledgers_of(written[DEAD])[-1]
    assert (await client.ledger_metadata(last)).state is LedgerState.OPEN
    subscriptions = await pulsar.list_subscriptions(client, TopicName.parse(DEAD))
    assert all(isinstance(each.problem, pulsar.LedgerOpenError) for each in subscriptions)
    await client.recover_ledger(last)
    assert await read(client, DEAD) == expected


async def test_live_topic_is_read_and_its_broker_goes_on(client: Client, java: PulsarJava, mixed: Cluster) -> None:
    name, zookeeper = "persistent://public/default/live", mixed.zookeeper.address
    with java.begin("write", zookeeper, mixed.uri, "public/default/persistent/live", "LZ4", "wait") as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        places = broker.stdout.readline().split()
        assert await read(client, name) == placed(places)[:-1]
        broker.stdin.write("\n")
        broker.stdin.flush()
        assert broker.stdout.readline() == "more\n", "it was fenced"
        broker.communicate(timeout=60)
    *same, one_more = await read(client, name)
    assert same == placed(places)
    assert isinstance(one_more, Message)
    assert one_more.data == golden_messages()[0].data


async def test_subscriptions_are_where_pulsar_left_them(client: Client, written: dict[str, list[str]]) -> None:
    places = [Position(*map(int, each.split(":"))) for each in written[CLOSED]]
    behind, holes = await pulsar.list_subscriptions(client, TopicName.parse(CLOSED))
    assert (behind.name, behind.acknowledged, behind.also_acknowledged) == ("behind", places[2], ())
    assert (holes.name, holes.acknowledged, holes.properties) == ("with holes/%", places[1], {"owner": "team"})
    assert holes.also_acknowledged == ((places[3], places[4]), (places[6], places[7]))
    assert behind.problem is holes.problem is None


async def test_lost_record_is_made_up_for_by_ledgers(
    client: Client, java: PulsarJava, mixed: Cluster, nodes: Any
) -> None:
    """And what subscriptions wrote into ledgers is not taken for messages."""
    places = java.write(mixed, "public/default/persistent/lost", closes=False)
    nodes.delete("/managed-ledgers/public/default/persistent/lost", recursive=True)
    await client.recover_ledger(ledgers_of(places)[-1])
    async with pulsar.read_topic(client, "persistent://public/default/lost") as topic:
        assert topic.topic.is_record_lost
        assert [each async for each in topic] == placed(places)


async def test_ledger_with_a_damaged_record_is_named(client: Client, mixed: Cluster, nodes: Any) -> None:
    """Where the topic's record is lost, nothing tells whether it is one of the topic."""
    custom = {"component": "managed-ledger", "pulsar/managed-ledger": "public/default/persistent/doubtful"}
    async with client.create_ledger(quorum=replog.Quorum(3, 2, 2), custom=custom) as writer:
        await writer.append(golden_entries()[0])
    async with client.create_ledger(quorum=replog.Quorum(3, 2, 2)) as other:
        pass
    root, ledger_id = mixed.uri.rpartition("/")[2], other.ledger_id
    nodes.set(f"/{root}/00/{ledger_id // 10_000:04d}/L{ledger_id % 10_000:04d}", b"garbage")
    try:
        message, lost = await read(client, "persistent://public/default/doubtful")
        with pytest.raises(pulsar.TopicNotFoundError):
            await read(client, "persistent://public/default/another")
    finally:
        await client.delete_ledger(ledger_id)
    assert isinstance(message, Message)
    assert isinstance(lost, Unreadable)
    assert (lost.ledger_id, type(lost.error)) == (ledger_id, MetastoreCorruptError)


# -- what is missing ----------------------------------------------------------------------------------------------


async def test_missing_and_offloaded_ledgers_are_named(
    client: Client, written: dict[str, list[str]], copy: Copy
) -> None:
    copy.info.ledgerInfo[1].ledgerId = missing = 987_654_321
    offload = copy.info.ledgerInfo[2].offloadContext
    offload.complete, offload.bookkeeperDeleted, offload.driverMetadata.name = True, True, "aws-s3"
    kept = copy.info.ledgerInfo[3].offloadContext
    kept.complete, kept.driverMetadata.name = True, "aws-s3"
    copy.info.ledgerInfo[4].entries = 9
    copy.write()
    topic = await pulsar.describe_topic(client, TopicName.parse(copy.name))
    assert [each.state for each in topic.ledgers] == ["closed", "missing", "offloaded", "closed", "closed"]
    assert [each.offloaded_to for each in topic.ledgers] == [None, None, "aws-s3", "aws-s3", None]
    found = await read(client, copy.name)
    lost = [each for each in found if isinstance(each, Unreadable)]
    problems = [(each.ledger_id, each.first_entry_id, each.last_entry_id, type(each.error)) for each in lost]
    assert problems == [
        (missing, None, None, LedgerNotFoundError),
        (copy.ledgers[2], None, None, pulsar.LedgerOffloadedError),
        (copy.ledgers[4], 3, 8, EntryNotFoundError),
    ]
    read_from = {each.ledger_id for each in found if isinstance(each, Message)}
    assert read_from == {copy.ledgers[each] for each in (0, 3, 4)}


async def test_damaged_messages_do_not_end_a_salvage(client: Client) -> None:
    """In ledgers that Java did not write, so that their entries are intact and their messages are not."""
    golden = golden_entries()
    flipped = bytearray(golden[1])
    flipped[-1] ^= 1
    custom = {"component": "managed-ledger", "pulsar/managed-ledger": "public/default/persistent/damaged"}
    async with client.create_ledger(quorum=replog.Quorum(3, 2, 2), custom=custom) as writer:
        await writer.extend([golden[0], bytes(flipped), b"", golden[2][:-1], golden[17], golden[8]])
    found = await read(client, "persistent://public/default/damaged")
    lost = [each for each in found if isinstance(each, Unreadable)]
    assert [(each.first_entry_id, type(each.error)) for each in lost] == [
        (1, pulsar.MessageDamagedError),
        (2, pulsar.MessageDamagedError),
        (3, pulsar.MessageDamagedError),
        (4, pulsar.ChunksMissingError),
    ]
    assert [each.entry_id for each in found if isinstance(each, Message)] == [0, *[5] * 10]


async def test_entries_of_absent_bookies_are_named(
    mixed: Cluster, client: Client, written: dict[str, list[str]]
) -> None:
    """D2: they are skipped, and what other bookies have is read."""
    ledger_id = ledgers_of(written[CLOSED])[0]
    metadata = await client.ledger_metadata(ledger_id)
    ensemble = metadata.fragments[0].ensemble
    for each in mixed.bookies:
        if each.bookie_id in ensemble[:2]:
            mixed.kill_one(each)
    try:
        found = await read(client, CLOSED)
    finally:
        mixed.heal()
    lost = {entry for entry in range(5) if set(metadata.quorum.write_set(entry)) == {0, 1}}
    assert lost
    of_ledger = [each for each in found if each.ledger_id == ledger_id]
    unreadable = [each for each in of_ledger if isinstance(each, Unreadable)]
    assert {each.first_entry_id for each in unreadable} == lost, list(map(str, unreadable))
    assert all(isinstance(each.error, EntryUnreadableError) for each in unreadable)
    assert {each.entry_id for each in of_ledger if isinstance(each, Message)} == set(range(5)) - lost


async def test_partitions_are_named(client: Client, nodes: Any, copy: Copy) -> None:
    whole = copy.name
    parts = [f"{whole}-partition-{each}" for each in range(2)]
    for part in parts:
        attrs.evolve(copy, name=part).write()
    found = await pulsar.list_partitions(client, TopicName.parse(whole))
    assert list(map(str, found)) == parts, "by the topics of the namespace"
    nodes.create(TopicName.parse(whole).partitioned_node, b'{"partitions": 3}', makepath=True)
    found = await pulsar.list_partitions(client, TopicName.parse(whole))
    assert list(map(str, found)) == [*parts, f"{whole}-partition-2"]
    with pytest.raises(pulsar.TopicNotFoundError, match="has 3 partitions"):
        await read(client, whole)
    with pytest.raises(pulsar.TopicNotFoundError, match="Is it the right topic"):
        await read(client, "persistent://public/default/never")


async def test_damaged_record_is_named(client: Client, copy: Copy, nodes: Any) -> None:
    copy.write()
    nodes.set(TopicName.parse(copy.name).node, b"\x47\x78\x00\x00\xff\xff")
    with pytest.raises(pulsar.TopicDamagedError, match="cut short"):
        await read(client, copy.name)


async def test_message_bytes_are_bounded(client: Client, written: dict[str, list[str]]) -> None:
    found = await read(client, CLOSED, message_bytes_max=999)
    lost = [each for each in found if isinstance(each, Unreadable)]
    assert {type(each.error) for each in lost} == {pulsar.MessageTooLargeError}
    assert len(lost) == 5, "four that are compressed, and a batch"
    with pytest.raises(ConfigError):
        await read(client, CLOSED, message_bytes_max=0)


# -- the other faces, and the page --------------------------------------------------------------------------------


def test_other_faces_read_the_same(mixed: Cluster, written: dict[str, list[str]]) -> None:
    expected, name = placed(written[CLOSED]), TopicName.parse(CLOSED)
    with blocking.connect(mixed.uri) as client:
        with blocking.read_topic(client, CLOSED) as topic:
            assert list(topic) == expected
            assert topic.topic == blocking.describe_topic(client, name)
        assert len(blocking.list_subscriptions(client, name)) == 2

    async def run() -> None:
        async with aio.connect(mixed.uri) as client:
            async with aio.read_topic(client, CLOSED) as topic:
                assert [each async for each in topic] == expected
            assert name in await aio.list_topics(client, name.namespace)
            assert await aio.list_partitions(client, name) == []

    asyncio.run(run())


def test_code_on_the_page_runs(mixed: Cluster, written: dict[str, list[str]]) -> None:
    section = PAGE.read_text().partition("## Salvage a topic")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    code = code.replace("zk+hierarchical://zk1:2181;zk2:2181/ledgers", mixed.uri)
    code = code.replace("persistent://public/default/orders", CLOSED)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert len(done.stdout.splitlines()) == len(placed(written[CLOSED]))


# -- the command line ---------------------------------------------------------------------------------------------


@pytest.fixture
def command(mixed: Cluster) -> Any:
    """`replog bookkeeper topic`: its exit status, lines of JSON or text, and standard error."""

    def run(*words: str, status: int = 0) -> tuple[list[Any], str]:
        environment = {**os.environ, "REPLOG_BOOKKEEPER_METASTORE": mixed.uri}
        program = [sys.executable, "-m", "replog.cli", "bookkeeper", "topic", *words]
        done = forks.run(program, env=environment, text=False)
        assert done.returncode == status, done.stderr.decode()
        lines = done.stdout.splitlines()
        return [json.loads(each) for each in lines] if "--json" in words else lines, done.stderr.decode()

    return run


def test_list_shows_ledgers_and_subscriptions(command: Any, written: dict[str, list[str]]) -> None:
    lines, _ = command("list", CLOSED, "--json")
    ledgers = [each for each in lines if each["kind"] == "ledger"]
    assert [each["ledger_id"] for each in ledgers] == ledgers_of(written[CLOSED])
    assert [each["acknowledged"] for each in lines if each["kind"] == "subscription"] == written[CLOSED][2:0:-1]
    text, _ = command("list", CLOSED)
    assert any(b"with holes/%" in line for line in text)
    names, _ = command("list", "persistent://public/default", "--json")
    assert {CLOSED, DEAD} <= {each["name"] for each in names}


def test_read_writes_data_or_lines_of_json(command: Any, written: dict[str, list[str]]) -> None:
    expected = placed(written[CLOSED])
    lines, _ = command("read", CLOSED, "--json")
    assert lines[0] == {"kind": "topic", "topic": CLOSED, "is_record_lost": False, "open_ledgers": []}
    assert lines[1:-1] == [{"kind": "message", **as_fields(CLOSED, each)} for each in expected]
    assert lines[-1] == {"kind": "aborted", "topic": CLOSED, "transaction": "(7,9)"}
    data, _ = command("read", CLOSED, "--length-prefixed")
    assert b"\n".join(data).endswith(b"\0\0\0\1" + (expected[-1].data or b""))


def test_command_names_lost_parts_and_fails(command: Any, copy: Copy, tmp_path: Path) -> None:
    copy.info.ledgerInfo[1].ledgerId = 987_654_321
    copy.write()
    path = tmp_path / "messages.jsonl"
    lines, words = command("export", copy.name, "--json-lines", str(path), "--json", status=1)
    (lost,) = [each for each in lines if each["kind"] == "unreadable"]
    assert (lost["ledger_id"], lost["error"]) == (987_654_321, "LedgerNotFoundError")
    assert lines[-1]["messages"] == len(path.read_bytes().splitlines()) > 0
    assert "1 parts named above were not" in words
    _, words = command("read", copy.name, status=1)
    assert "ledger 987654321: it has no record" in words


def test_partitions_are_exported_one_after_the_other(command: Any, copy: Copy, nodes: Any, tmp_path: Path) -> None:
    nodes.create(TopicName.parse(copy.name).partitioned_node, b'{"partitions": 3}', makepath=True)
    for number in (0, 2):
        attrs.evolve(copy, name=f"{copy.name}-partition-{number}").write()
    path = tmp_path / "messages.jsonl"
    lines, _ = command("export", copy.name, "--json-lines", str(path), "--json", status=1)
    (lost,) = [each for each in lines if each["kind"] == "unreadable"]
    assert (lost["topic"], lost["error"]) == (f"{copy.name}-partition-1", "TopicNotFoundError")
    topics = [json.loads(each)["topic"] for each in path.read_bytes().splitlines()]
    whole = len(golden_messages())
    assert topics == [f"{copy.name}-partition-{number}" for number in (0, 2) for _ in range(whole)]
    names, _ = command("list", copy.name)
    assert len(names) == 3


def test_export_to_files_has_each_message(command: Any, written: dict[str, list[str]], tmp_path: Path) -> None:
    expected = placed(written[CLOSED])
    path = tmp_path / "messages.jsonl"
    _, words = command("export", CLOSED, "--json-lines", str(path))
    assert [json.loads(each) for each in path.read_bytes().splitlines()] == [
        as_fields(CLOSED, each) for each in expected
    ]
    assert "transaction (7,9) was aborted" in words
    path = tmp_path / "messages.parquet"
    command("export", CLOSED, "--parquet", str(path), "--json")
    rows = pyarrow.parquet.read_table(path).to_pylist()
    assert [(each["ledger_id"], each["entry_id"], each["data"], each["key"]) for each in rows] == [
        (each.ledger_id, each.entry_id, each.data, each.key) for each in expected
    ]
    assert [dict(each["properties"]) for each in rows] == [dict(each.properties) for each in expected]
    assert int(rows[0]["publish_time"].timestamp() * 1000) == expected[0].publish_time_ms
    assert json.loads(rows[-2]["encryption"])["algorithm"] == "AES/GCM/NoPadding"
    command("export", CLOSED, "--parquet", str(path), status=2)
    command("export", CLOSED, status=2)
    _, words = command("export", "closed", "--parquet", str(path), status=2)
    assert "'closed' is not the name of a topic" in words
    assert sorted(each.name for each in tmp_path.iterdir()) == ["messages.jsonl", "messages.parquet"]


def test_export_to_a_log_keeps_keys_and_properties(command: Any, written: dict[str, list[str]], tmp_path: Path) -> None:
    where = ("--log", "orders", "--dir", str(tmp_path / "log"))
    command("export", CLOSED, *where)
    with replog.blocking.embed(tmp_path / "log") as client, client.read_log("orders") as log:
        entries = list(log)
    expected = placed(written[CLOSED])
    assert [(each.key, None if each.is_tombstone else each.data) for each in entries] == [
        (each.key, each.data) for each in expected
    ]
    for entry, message in zip(entries, expected, strict=True):
        own = json.loads(entry.headers[HEADER])
        assert (own["ledger_id"], own["entry_id"], own["sequence_id"]) == (
            message.ledger_id,
            message.entry_id,
            message.sequence_id,
        )
        assert {name: value.decode() for name, value in entry.headers.items() if name != HEADER} == message.properties
    _, words = command("export", CLOSED, *where, status=2)
    assert "it exists already" in words
