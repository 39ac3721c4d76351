"""The logs of one client: trimming, deleting, listing, and waiting for one's turn to lead."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from replog.client.ledgers import Ledgers
from replog.errors import (
    KeyNotFoundError,
    LedgerNotFoundError,
    LogNotFoundError,
    MetastoreUncertainError,
    PositionError,
    VersionConflictError,
)
from replog.hookspecs import LogTrimmed
from replog.log.records import LogRecords
from replog.metadata import list_log_names, log_key_path
from replog.protocol.chaining import RECOVERED_AT_TAKEOVER, LogTrimming
from replog.protocol.model import LogMetadata, Position

_ELECTIONS_KEY = "elections"


async def trim(name: str, before: Position, ledgers: Ledgers, records: LogRecords) -> Position | None:
    """Drops the ledgers that lie wholly before the position (L3); returns where the log begins now.

    Raises `LogNotFoundError`, `PositionError`, `MetastoreError`. If it raises or is cancelled, the log may be trimmed or
    not, and trimmed ledgers may wait to be deleted; trimming again is harmless."""
    metadata, _ = await records.get(name)
    if before.segment >= metadata.next_segment_number:
        last = metadata.next_segment_number - 1
        raise PositionError(f"{before} is no position of log {name!r}: its last segment is {last}; nothing was trimmed")
    machine = LogTrimming(name, before.segment, ledgers.chance.token())
    machine.start()
    changed = await records.drive(machine, _no_ledger, b"")
    segments = changed.metadata.segments
    kept = {segment.ledger_id for segment in segments}
    dropped = tuple(segment.ledger_id for segment in metadata.segments if segment.ledger_id not in kept)
    if dropped:
        ledgers.observe(LogTrimmed(name, segments[0].number, dropped))
    return Position(segments[0].number, 0) if segments else None


async def _no_ledger() -> int:
    raise AssertionError("trimming creates nothing")


async def delete(name: str, ledgers: Ledgers, records: LogRecords, password: bytes) -> None:
    """Deletes a log and its ledgers; its writer is fenced first. Raises as `trim`; deleting again is harmless."""
    deleting: LogMetadata | None = None  # what an attempt was about whose answer was lost
    deadline = math.inf
    while True:
        try:
            metadata, version = await records.get(name)
        except LogNotFoundError:
            if deleting is None:
                raise
            break
        if deleting is not None and metadata.created_at_ms != deleting.created_at_ms:
            break  # it was deleted, and somebody has made a new log of this name
        await _fence_writer(metadata, ledgers, password)
        try:
            await records.delete(name, version)
        except VersionConflictError:
            continue  # somebody took over or trimmed meanwhile: look again
        except MetastoreUncertainError as error:
            if deleting is None:
                deadline = trio.current_time() + ledgers.records.timeout_s
            deleting = metadata
            await ledgers.records.pause(deadline, error)
            continue
        except KeyNotFoundError as error:
            if deleting is None:
                raise LogNotFoundError(name, "somebody else deleted it meanwhile") from error
        deleting = metadata
        break
    for segment in deleting.segments:
        await ledgers.delete(segment.ledger_id)


async def _fence_writer(metadata: LogMetadata, ledgers: Ledgers, password: bytes) -> None:
    for segment in metadata.segments[-RECOVERED_AT_TAKEOVER:]:
        try:
            await ledgers.recover(segment.ledger_id, password)
        except LedgerNotFoundError:
            continue


async def names(ledgers: Ledgers) -> list[str]:
    """The names of all logs, sorted."""
    return await list_log_names(ledgers.records.metastore)


@asynccontextmanager
async def elected(name: str, ledgers: Ledgers) -> AsyncIterator[None]:
    """Waits until nobody else leads the log, and leads it while the context is open. Only advice (M3): what keeps the
    log safe is the takeover that follows."""
    key = f"{_ELECTIONS_KEY}/{log_key_path(name).partition('/')[2]}"
    async with ledgers.records.metastore.elect(key, ledgers.chance.token(8).encode()):
        yield
