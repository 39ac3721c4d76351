"""Topics of a real broker, which its client wrote and read back before the broker died (`java/broker/PulsarBroker.java`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from java_bookies import Cluster
from java_pulsar import PulsarJava, need_pulsar

import replog_bookkeeper
from replog_bookkeeper import pulsar
from replog_bookkeeper.pulsar import Message, Namespace, TopicName

pytestmark = [pytest.mark.long(is_sampled=False), pytest.mark.needs_bookkeeper]


def as_line(name: str, message: Message) -> str:
    """A message as the Java program prints it."""
    properties = "{" + ", ".join(f"{key}={value}" for key, value in sorted(message.properties.items())) + "}"
    data = "null" if message.data is None else message.data.hex()
    key, index = message.key or b"", -1 if message.index is None else message.index
    words = ("message", name, key.hex(), message.producer_name, message.sequence_id, message.publish_time_ms)
    return " ".join(map(str, (*words, message.event_time_ms or 0, index, properties, f"data={data}")))


async def test_topics_of_a_broker_are_read_as_its_client_reads_them(mixed: Cluster, tmp_path: Path) -> None:
    need_pulsar("pulsar-broker")
    java = PulsarJava.compiled(tmp_path, "broker/PulsarBroker.java", "pulsar-broker")
    lines = [line for line in java.run(mixed.zookeeper.address, mixed.uri).splitlines() if line.startswith("message ")]
    async with replog_bookkeeper.connect(mixed.uri) as client:
        found = []
        for name in ("batched", "chunked"):
            topic = await pulsar.describe_topic(client, TopicName.parse(f"persistent://public/broker/{name}"))
            assert topic.ledgers[-1].is_open
            await client.recover_ledger(topic.ledgers[-1].ledger_id)
            async with pulsar.read_topic(client, str(topic.name)) as reader:
                async for each in reader:
                    assert isinstance(each, Message), each
                    found.append(as_line(name, each))
        assert len(found) == 5 * 500 + 5 * 6
        assert found == lines
        parts = TopicName.parse("persistent://public/broker/parts")
        assert await pulsar.list_partitions(client, parts) == [parts.partition(0), parts.partition(1)]
        assert parts.partition(1) in await pulsar.list_topics(client, Namespace("public", "broker"))
        batched = TopicName.parse("persistent://public/broker/batched")
        assert [each.name for each in await pulsar.list_subscriptions(client, batched)] == ["sub/one"]
