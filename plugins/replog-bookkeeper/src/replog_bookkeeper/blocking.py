"""The same nouns and verbs for any thread: `with replog_bookkeeper.blocking.connect(URI) as client`. See `replog.blocking`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from replog.blocking import writers as _writers  # noqa: F401 - loaded before the first append
from replog.blocking.contexts import Opened
from replog.blocking.faces import FACES
from replog_bookkeeper import client as _client
from replog_bookkeeper import pulsar as _pulsar

connect = FACES.function_of(_client.connect)
describe_topic = FACES.function_of(_pulsar.describe_topic)
list_partitions = FACES.function_of(_pulsar.list_partitions)
list_subscriptions = FACES.function_of(_pulsar.list_subscriptions)
list_topics = FACES.function_of(_pulsar.list_topics)


@FACES.face_of(_client.Client)
class Client(Opened):
    """A way to the ledgers of a BookKeeper cluster, for any number of threads. Made by `connect`.

    Every method works like that of `replog_bookkeeper.Client`, with the same arguments, results and errors. After it was left, it
    raises `ClosedError`; in a fork of its process, `ForkedError`."""


@functools.wraps(_pulsar.read_topic)
def read_topic(client: Client, topic: str, **options: Any) -> Any:
    return FACES.opening(client._way, lambda: _pulsar.read_topic(client._inner, topic, **options))


@FACES.face_of(_pulsar.TopicReader)
class TopicReader(Opened):
    """Iterates over the messages of a topic, and over what could not be read of it. Made by `read_topic`."""

    def __iter__(self) -> Iterator[Any]:
        while (batch := self.receive_batch()) is not None:
            yield from batch
