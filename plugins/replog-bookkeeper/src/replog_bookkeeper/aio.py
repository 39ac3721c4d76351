"""The same nouns and verbs for asyncio: `async with replog_bookkeeper.aio.connect(URI) as client`. See `replog.aio`."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any

from replog.aio import readers as _readers  # noqa: F401 - loaded before the first append, as are writers
from replog.aio import writers as _writers  # noqa: F401
from replog.aio.contexts import Opened
from replog.aio.faces import FACES
from replog_bookkeeper import client as _client
from replog_bookkeeper import pulsar as _pulsar

connect = FACES.function_of(_client.connect)
describe_topic = FACES.function_of(_pulsar.describe_topic)
list_partitions = FACES.function_of(_pulsar.list_partitions)
list_subscriptions = FACES.function_of(_pulsar.list_subscriptions)
list_topics = FACES.function_of(_pulsar.list_topics)


@FACES.face_of(_client.Client)
class Client(Opened):
    """A way to the ledgers of a BookKeeper cluster. Made by `connect`; belongs to the event loop that made it.

    Every verb works like that of `replog_bookkeeper.Client`, with the same arguments, results and errors. After its block it
    raises `ClosedError`."""


@functools.wraps(_pulsar.read_topic)
def read_topic(client: Client, topic: str, **options: Any) -> Any:
    return FACES.opening(client._way, lambda: _pulsar.read_topic(client._inner, topic, **options))


@FACES.face_of(_pulsar.TopicReader)
class TopicReader(Opened):
    """Iterates over the messages of a topic, and over what could not be read of it. Made by `read_topic`."""

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (batch := await self.receive_batch()) is not None:
            for each in batch:
                yield each
