"""Cases: reading from the bookies' memory to the application, and from the storage files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import replog
from benchmarks.speed.bookies import STAMP, Batches, open_storage
from benchmarks.speed.setting import Case, Work, embedded
from replog.protocol.mutations import PutBatch

_ENTRY_BYTES = 100
_BATCH_ENTRIES = 500


@asynccontextmanager
async def _filled(directory: Path, batches: int) -> AsyncIterator[replog.Client]:
    """A client with a closed log of so many batches."""
    async with embedded(directory, 1) as client:
        async with client.write_log("speed") as log:
            for _ in range(batches):
                await log.extend([bytes(_ENTRY_BYTES)] * _BATCH_ENTRIES)
        yield client


@asynccontextmanager
async def _scan(directory: Path) -> AsyncIterator[Work]:
    count = 20
    async with _filled(directory, count) as client:

        async def run(_: object) -> None:
            found = 0
            async with client.read_log("speed") as reader:
                async for batch in reader.batches():
                    found += len(batch.payloads())
            assert found == count * _BATCH_ENTRIES

        yield Work(lambda: None, run, count * _BATCH_ENTRIES)


@asynccontextmanager
async def _records(directory: Path) -> AsyncIterator[Work]:
    count = 4
    async with _filled(directory, count) as client:

        async def run(_: object) -> None:
            found = 0
            async with client.read_log("speed") as reader:
                async for record in reader:
                    found += len(record.data)
            assert found == count * _BATCH_ENTRIES * _ENTRY_BYTES

        yield Work(lambda: None, run, count * _BATCH_ENTRIES)


@asynccontextmanager
async def _read(directory: Path) -> AsyncIterator[Work]:
    count = 50
    async with embedded(directory, 1) as client:
        async with client.create_ledger() as writer:
            for _ in range(count):
                await writer.append(bytes(_ENTRY_BYTES))

        async with client.open_ledger(writer.ledger_id) as reader:

            async def run(_: object) -> None:
                for entry_id in range(count):
                    assert len(await reader.read(entry_id, entry_id)) == 1

            yield Work(lambda: None, run, count)


@asynccontextmanager
async def _read_files(directory: Path) -> AsyncIterator[Work]:
    count, entries = 100, 10
    storage, batches = open_storage("files", directory), Batches(entries, _ENTRY_BYTES)
    try:
        storage.commit([PutBatch(batches.next(1)) for _ in range(count)])

        async def run(_: object) -> None:
            for first in range(0, count * entries, entries):
                assert len(storage.read_nowait(1, first, STAMP, 1)) == 1

        yield Work(lambda: None, run, count)
    finally:
        storage.close()


CASES = (
    Case("scan", "reader.batches() with payloads() of a closed log, batches of 500 x 100 B, in memory", _scan),
    Case("records", "the same record by record", _records),
    Case("read", "LedgerReader.read of one entry, in memory", _read),
    Case("read-files", "the storage files alone: read_nowait of a batch of 10 entries", _read_files),
)
