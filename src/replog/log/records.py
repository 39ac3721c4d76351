"""Logs' records in the metastore, and driving the chaining machines with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from replog.client.ledgers import Ledgers
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    LedgerNotFoundError,
    LogNotFoundError,
    MetastoreError,
    MetastoreUncertainError,
    ReplogError,
    VersionConflictError,
)
from replog.metadata import decode_log, encode_log, log_key_path
from replog.protocol.chaining import (
    CreateLedger,
    DeleteLedger,
    LogChanged,
    LogEffect,
    LogFailed,
    LogRolling,
    LogTakeover,
    LogTrimming,
    ReadLog,
    RecoverLedger,
    WriteLog,
)
from replog.protocol.model import LogMetadata

LogMachine = LogTakeover | LogRolling | LogTrimming


class LogRecords:
    """The logs' part of a metastore."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._records = ledgers.records

    async def get(self, name: str) -> tuple[LogMetadata, int]:
        """A log's record and its version. Raises `LogNotFoundError`, `MetastoreError`, `ConfigError` for a bad name."""
        key = log_key_path(name)
        try:
            found = await self._records.persist(f"reading log {name!r}", lambda: self._records.metastore.get(key))
        except KeyNotFoundError as error:
            raise LogNotFoundError(name, "there is no such log: open it for writing once, to create it") from error
        except MetastoreUncertainError as error:  # nothing was changed by a read
            raise MetastoreError(f"reading log {name!r}: {error}") from error
        return decode_log(key, found.value), found.version

    async def delete(self, name: str, expected: int) -> None:
        """Deletes a log's record if it has this version. Raises as the metastore does."""
        key = log_key_path(name)
        await self._records.persist(
            f"deleting log {name!r}", lambda: self._records.metastore.delete(key, expected=expected)
        )

    async def drive(
        self, machine: LogMachine, create_ledger: Callable[[], Awaitable[int]], password: bytes
    ) -> LogChanged:
        """Runs a machine to its end. Raises what it failed with. If cancelled, the log may be changed or not; a ledger may
        be left that no log names."""
        doubts: list[float] = []  # when answers were lost
        while True:
            for effect in machine.take_effects():
                if isinstance(effect, LogChanged):
                    return effect
                if isinstance(effect, LogFailed):
                    raise effect.error
                try:
                    await self._perform(effect, machine, create_ledger, password, doubts)
                except ReplogError as error:
                    if machine.is_done:
                        raise  # the record stands as it was decided; what was to be deleted after it stays
                    machine.abandon(error)
                    break  # what else it wanted no longer matters

    async def _perform(
        self,
        effect: LogEffect,
        machine: LogMachine,
        create_ledger: Callable[[], Awaitable[int]],
        password: bytes,
        doubts: list[float],
    ) -> None:
        if isinstance(effect, ReadLog):
            try:
                machine.log_read(*await self.get(effect.name))
            except LogNotFoundError:
                machine.log_read(None, None)
        elif isinstance(effect, WriteLog):
            await self._write(effect, machine, doubts)
        elif isinstance(effect, RecoverLedger):
            assert isinstance(machine, LogTakeover)
            try:
                await self._ledgers.recover(effect.ledger_id, password)
            except LedgerNotFoundError:
                machine.ledger_missing(effect.ledger_id)
            else:
                machine.ledger_recovered(effect.ledger_id)
        elif isinstance(effect, CreateLedger):
            assert not isinstance(machine, LogTrimming)
            machine.ledger_created(await create_ledger())
        elif isinstance(effect, DeleteLedger):
            await self._ledgers.delete(effect.ledger_id)

    async def _write(self, effect: WriteLog, machine: LogMachine, doubts: list[float]) -> None:
        key, value = log_key_path(effect.metadata.name), encode_log(effect.metadata)
        metastore, expected = self._records.metastore, effect.expected
        try:
            if expected is None:
                version = await self._records.persist(f"creating {key}", lambda: metastore.create(key, value))
            else:
                version = await self._records.persist(f"changing {key}", lambda: metastore.put(key, value, expected))
        except (VersionConflictError, KeyExistsError, KeyNotFoundError):
            machine.log_conflict()
        except MetastoreUncertainError as error:
            doubts.append(trio.current_time())
            await self._records.pause(doubts[0] + self._records.timeout_s, error)
            machine.log_uncertain()
        else:
            machine.log_written(version)
