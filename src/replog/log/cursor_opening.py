"""Acquiring a cursor, and reading on from where it is."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import attrs

from replog.client.ledgers import Ledgers, check_password
from replog.errors import TrimmedError
from replog.log.cursor import Cursor
from replog.log.cursor_catalog import CursorCatalog, HeldCursor
from replog.log.log_reader import LogReader, started
from replog.log.log_records import LogRecords
from replog.log.log_summaries import LogSummaries
from replog.protocol.model import Position
from replog.records.paths import cursor_election_key_path
from replog.runtime.nursery import open_service_nursery


@attrs.frozen
class CursorOptions:
    """How a cursor is opened: the arguments of `Client.cursor`."""

    start: Position | None
    after: Position | None
    follow: bool
    wait: bool
    password: bytes


def owner_here() -> str:
    """This process, for people who look at a cursor."""
    return f"process {os.getpid()} on {socket.gethostname()}"


@asynccontextmanager
async def opened(
    log_name: str, name: str, options: CursorOptions, catalog: CursorCatalog, ledgers: Ledgers, logs: LogRecords
) -> AsyncIterator[Cursor]:
    """A cursor of this client, as a context. Raises as `Client.cursor`."""
    key = cursor_election_key_path(log_name, name)
    check_password(options.password)
    if options.follow:
        # As other followers do, it waits for a log that is not there yet.
        await started(LogReader(log_name, ledgers, logs, options.password, None, follow=True))
    metastore, candidate = ledgers.records.metastore, owner_here()
    # Waiting for the others is advice (M3): the term keeps the cursor safe.
    async with metastore.elect(key, candidate.encode()) if options.wait else nullcontext():
        held = await catalog.acquire(log_name, name, candidate, options.start)
        reader = await _reader(held, options, ledgers, logs)
        cursor = Cursor(catalog, held, reader, LogSummaries(ledgers, logs, catalog, options.password))
        async with open_service_nursery() as nursery, cursor:
            nursery.start_soon(cursor._run)
            yield cursor
            await cursor.flush()


async def _reader(held: HeldCursor, options: CursorOptions, ledgers: Ledgers, logs: LogRecords) -> LogReader:
    begins_at, name = held.record.begins_at, held.cursor.name
    after = options.after or Position(begins_at.segment, begins_at.entry - 1)
    log_name = held.record.log_name
    reader = LogReader(log_name, ledgers, logs, options.password, after, options.follow)
    try:
        await started(reader)
    except TrimmedError as error:
        problem = (
            f"cursor {name!r} needs it from {begins_at} on, which was trimmed away; the log begins at "
            f"{error.first_available}: what is between is lost to this cursor; move the cursor there to go on"
        )
        raise TrimmedError(log_name, problem, error.first_available) from error
    return reader
