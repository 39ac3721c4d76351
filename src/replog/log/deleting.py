"""Deleting a log, with its ledgers, cursors and other records: its segment numbers are never reused (L3)."""

from __future__ import annotations

from replog.client.ledgers import Ledgers
from replog.errors import LogNotFoundError
from replog.log.cursor_catalog import CursorCatalog
from replog.log.log_driver import NO_WRITERS, LogDriver
from replog.log.producers import ProducerRecords
from replog.protocol.dropping import LogDeleting


async def delete(name: str, ledgers: Ledgers, driver: LogDriver, cursors: CursorCatalog, password: bytes) -> None:
    """Deletes a log, its ledgers and cursors; its writer is fenced first. A small record stays, so that segment numbers are
    never reused.

    Raises as `trim`, and `RecoveryUndecidedError` or `NotEnoughBookiesError` if the writer can't be fenced (retry: when
    bookies are back). If it raises or is cancelled, the log may be deleted or not; deleting again is harmless."""
    machine = LogDeleting(name, ledgers.entropy.token(), ledgers.entropy.time_ms())
    machine.start()
    try:
        await driver.drive(machine, NO_WRITERS, password)
    except LogNotFoundError:
        # An earlier deletion may have been cut short before this.
        await _sweep(name, ledgers, driver, cursors)
        raise
    await _sweep(name, ledgers, driver, cursors)


async def _sweep(name: str, ledgers: Ledgers, driver: LogDriver, cursors: CursorCatalog) -> None:
    """Deletes the records of a deleted log beside its ledgers."""
    await cursors.sweep(name)
    head, _ = await driver.records.head(name)
    if head is not None:
        await ProducerRecords(ledgers).forget(head)
