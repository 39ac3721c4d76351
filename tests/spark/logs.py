"""What a log and its ledgers look like to plain replog, while Spark writes them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pyarrow as arrow
import pytest
import trio

import replog
from replog.errors import LogNotFoundError
from replog.protocol.model import LedgerMetadata
from replog.spark.values import ValueEncoder

Value = TypeVar("Value")

_WAIT_S = 20.0


def wait_for_news(caplog: pytest.LogCaptureFixture, text: str, times: int = 1) -> None:
    """Until this was logged so often. Another thread calls handlers for replog's threads, when it comes to it."""
    deadline = time.monotonic() + _WAIT_S
    while caplog.text.count(text) < times:
        assert time.monotonic() < deadline, (text, caplog.text)
        time.sleep(0.01)
    assert caplog.text.count(text) == times


def ask(metastore: str, function: Callable[[replog.Client], Awaitable[Value]]) -> Value:
    """What this async function returns, called with a client."""

    async def main() -> Value:
        async with replog.connect(metastore) as client:
            return await function(client)

    return trio.run(main)


def rows_of(metastore: str, log: str) -> list[bytes]:
    """What a plain reader sees now."""

    async def read(client: replog.Client) -> list[bytes]:
        try:
            async with client.read_log(log) as reader:
                return [record.data async for record in reader]
        except LogNotFoundError:
            return []

    return ask(metastore, read)


def listed_ids(metastore: str, log: str) -> list[int]:
    """The ledgers that the log is made of."""

    async def look(client: replog.Client) -> list[int]:
        try:
            return [segment.ledger_id for segment in await client.log_segments(log)]
        except LogNotFoundError:
            return []

    return ask(metastore, look)


def ledgers_of(metastore: str, log: str) -> dict[int, LedgerMetadata]:
    """All ledgers that were made for the log, listed in it or not."""

    async def look(client: replog.Client) -> dict[int, LedgerMetadata]:
        found = [await client.ledger_metadata(each) for each in await client.ledgers()]
        return {each.ledger_id: each for each in found if each.custom.get("log") == log}

    return ask(metastore, look)


def payloads_of(encoder: ValueEncoder, batch: arrow.RecordBatch) -> list[bytes]:
    """The entries that an encoder makes of a batch, in one list."""
    return list(itertools.chain.from_iterable(encoder.parts(batch)))
