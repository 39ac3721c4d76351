"""The logs of one client: trimming, deleting and listing them, and electing a leader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from replog.client.ledgers import Ledgers
from replog.errors import LogNotFoundError, PositionError
from replog.hookspecs import LogTrimmed
from replog.log.log_driver import LogDriver, no_ledger
from replog.protocol.dropping import LogDeleting, LogTrimming
from replog.protocol.model import Position
from replog.records.logs import list_log_names
from replog.records.paths import log_key_path

_ELECTIONS_KEY = "elections"


async def trim(name: str, before: Position, ledgers: Ledgers, driver: LogDriver) -> Position:
    """Drops the ledgers that are entirely before the position (L3); returns where the log begins now.

    Raises `LogNotFoundError`, `PositionError`, `MetastoreError`. If it raises or is cancelled, the log may be trimmed or
    not, and trimmed ledgers may wait to be deleted; the next trim, deletion, sweep or takeover deletes them (L7)."""
    metadata, _ = await driver.records.head(name)
    if metadata is not None and not metadata.is_deleted and before.segment >= metadata.next_segment_number:
        last = metadata.next_segment_number - 1
        raise PositionError(
            f"{before} is not a position of log {name!r}: its last segment is {last}; nothing was trimmed"
        )
    machine = LogTrimming(name, before.segment, ledgers.chance.token(), ledgers.chance.time_ms())
    machine.start()
    changed = await driver.drive(machine, no_ledger, b"")
    first = changed.metadata.first_segment_number
    if machine.dropped:
        ledgers.observe(LogTrimmed(name, first, machine.dropped))
    return Position(first, 0)


async def delete(name: str, ledgers: Ledgers, driver: LogDriver, password: bytes) -> None:
    """Deletes a log and its ledgers; its writer is fenced first. A small record stays, so that segment numbers are never reused.

    Raises as `trim`, and `RecoveryUndecidedError` or `NotEnoughBookiesError` if the writer can't be fenced (retry: when
    bookies are back). If it raises or is cancelled, the log may be deleted or not; deleting again is harmless."""
    machine = LogDeleting(name, ledgers.chance.token(), ledgers.chance.time_ms())
    machine.start()
    await driver.drive(machine, no_ledger, password)


async def finish(name: str, ledgers: Ledgers, driver: LogDriver) -> None:
    """Finishes what other clients left unfinished, even for a log that was deleted or never created (L7). Raises
    `MetastoreError`."""
    machine = LogTrimming(name, None, ledgers.chance.token(), ledgers.chance.time_ms())
    machine.start()
    # Ledgers may be pending for a log that was never created: its takeover failed.
    with suppress(LogNotFoundError):
        await driver.drive(machine, no_ledger, b"")


async def names(ledgers: Ledgers) -> list[str]:
    """The names of all logs, sorted."""
    return await list_log_names(ledgers.records.metastore)


@asynccontextmanager
async def elected(name: str, ledgers: Ledgers) -> AsyncIterator[None]:
    """Waits until no other client leads the log, and leads it while the context is open. Leading is only advice (M3): the
    takeover that follows keeps the log safe."""
    key = f"{_ELECTIONS_KEY}/{log_key_path(name).partition('/')[2]}"
    async with ledgers.records.metastore.elect(key, ledgers.chance.token(8).encode()):
        yield
