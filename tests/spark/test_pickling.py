"""What belongs to threads and sockets of one process is not sent to another: a named error says what to do instead."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest
import trio

import replog.aio
import replog.blocking
from replog.errors import NotPicklableError


def test_client_and_log_are_not_pickled(tmp_path: Path) -> None:
    with replog.blocking.embed(tmp_path / "wal") as client, client.write_log("log") as log:
        for each in (client, log):
            with pytest.raises(NotPicklableError, match=r"job\.writer"):
                pickle.dumps(each)
        log.append(b"works as before")


async def test_clients_of_asyncio_are_not_pickled(tmp_path: Path) -> None:
    async def main() -> None:
        async with replog.aio.embed(tmp_path / "wal") as client:
            with pytest.raises(NotPicklableError, match=r"job\.writer"):
                pickle.dumps(client)

    await trio.to_thread.run_sync(asyncio.run, main())


def test_closure_capturing_a_log_is_refused_by_spark(tmp_path: Path) -> None:
    serializers = pytest.importorskip("pyspark.serializers")
    with replog.blocking.embed(tmp_path / "wal") as client, client.write_log("log") as log:

        def write(rows: list[bytes]) -> None:
            for row in rows:
                log.append(row)

        with pytest.raises(pickle.PicklingError, match=r"NotPicklableError.*job\.writer"):
            serializers.CloudPickleSerializer().dumps(write)
