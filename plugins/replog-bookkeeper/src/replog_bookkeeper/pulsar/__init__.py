"""Salvage of Apache Pulsar's topics from the ledgers of BookKeeper, without a broker.

    async with replog_bookkeeper.connect("zk+hierarchical://zk1;zk2/ledgers") as client:
        async with pulsar.read_topic(client, "persistent://tenant/namespace/topic") as topic:
            async for found in topic:
                ...  # a Message, or an Unreadable

For asyncio there is `replog_bookkeeper.aio.read_topic`, for any thread `replog_bookkeeper.blocking.read_topic`.
"""

from __future__ import annotations

from replog_bookkeeper.pulsar.errors import (
    ChunksMissingError,
    LedgerOffloadedError,
    LedgerOpenError,
    MessageDamagedError,
    MessageTooLargeError,
    TopicDamagedError,
    TopicNotFoundError,
)
from replog_bookkeeper.pulsar.messages import Encryption, Message, Unreadable
from replog_bookkeeper.pulsar.names import Namespace, TopicName
from replog_bookkeeper.pulsar.reading import TopicReader, read_topic
from replog_bookkeeper.pulsar.topics import (
    Position,
    Subscription,
    Topic,
    TopicLedger,
    describe_topic,
    list_partitions,
    list_subscriptions,
    list_topics,
)

__all__ = [
    "ChunksMissingError",
    "Encryption",
    "LedgerOffloadedError",
    "LedgerOpenError",
    "Message",
    "MessageDamagedError",
    "MessageTooLargeError",
    "Namespace",
    "Position",
    "Subscription",
    "Topic",
    "TopicDamagedError",
    "TopicLedger",
    "TopicName",
    "TopicNotFoundError",
    "TopicReader",
    "Unreadable",
    "describe_topic",
    "list_partitions",
    "list_subscriptions",
    "list_topics",
    "read_topic",
]
