"""Snapshots in the background of a leader: saves its core now and then, and trims the log behind it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import trio

from replog.abc import Metastore
from replog.errors import ReplogError, TrimBlockedError, UnknownCommandError
from replog.log.log_options import LogOptions
from replog.log.log_writer import LogWriter
from replog.machine import snapshots
from replog.machine.context import Logs
from replog.machine.core import Core
from replog.protocol.model import Position
from replog.records.paths import log_backups_key_path
from replog.runtime.loggers import logger
from replog.runtime.threads import current_threads

_log = logger("replog.machine")

_SHARE = 0.05  # of the time, at most, that may pass while the state is being written down
_AGAIN_S = 5.0  # after a snapshot that failed


class Saver:
    """Saves the snapshots of one leadership."""

    def __init__(
        self,
        name: str,
        core: Core[Any],
        logs: Logs,
        metastore: Metastore,
        options: LogOptions,
        every: int | None,
    ) -> None:
        self.wanted = trio.Event()
        self._name = name
        self._core = core
        self._logs = logs
        self._metastore = metastore
        self._options = options
        self._every = every

    def applied(self) -> None:
        """Commands were applied: a snapshot may be due."""
        if self._every is not None and self._core.commands - self._core.snapshot_commands >= self._every:
            self.wanted.set()

    async def run(self, log: LogWriter) -> None:
        """Saves when it is due, until cancelled. Raises `UnknownCommandError` if the state can't be restored from a snapshot."""
        while True:
            await self.wanted.wait()
            began_s = trio.current_time()
            data = self._core.dump()
            duration_s = trio.current_time() - began_s
            try:
                await self._save(log, data)
            except ReplogError as error:
                if isinstance(error, UnknownCommandError):
                    raise
                _log.warning("machine %s: no snapshot was saved: %s", self._name, error)
                await trio.sleep(_AGAIN_S)
            self.wanted = trio.Event()
            await trio.sleep(duration_s / _SHARE)
            self.applied()

    async def _save(self, log: LogWriter, data: bytes) -> None:
        position, commands = self._core.position, self._core.commands
        # What comes from here on is in another ledger than what the next snapshot makes needless.
        await log.roll()
        await current_threads().run(self._check, data)
        if await snapshots.save(self._name, position, data, self._logs, self._options):
            await self._trim(position)
        self._core.snapshot_commands = max(commands, self._core.snapshot_commands)

    async def _trim(self, position: Position) -> None:
        """Trims the log, unless it must stay longer: for a cursor on it, or for a back-up that has found it trimmed
        behind the snapshot that it had just saved (V1). The next snapshot trims it then."""
        if await self._metastore.announced(log_backups_key_path(self._name)):
            return
        with suppress(TrimBlockedError):
            await self._logs.trim_log(self._name, before=position)

    def _check(self, data: bytes) -> None:
        """In a thread: what can't be read back must not replace the log."""
        same = Core(self._core.machine)
        same.load(data)
        if same.dump() != data:
            name = self._core.machine.machine.__name__
            raise UnknownCommandError(
                f"the state of {name} differs when it was written and read: no snapshot was saved"
            )
