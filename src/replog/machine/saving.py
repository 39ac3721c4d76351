"""Snapshots in the background of a leader: saves its core now and then, and trims the log behind it.

Rules:
- A snapshot is saved only after it was read back, and found equal to the state, types included.
- A state for which that fails stops no machine that is in use: nothing is trimmed, so the log has it.
- In a young machine it ends the leader, once: a developer's test finds it, and a restart goes on.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import trio

from replog.abc import Metastore
from replog.errors import ReplogError, TrimBlockedError, UnsavableStateError
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
_UNSAVABLE_AGAIN_S = (
    60.0  # the same for a state that can't be saved, which takes a command or another program to change
)
# After so many commands the state is looked at, unless the last look took longer: it would grow with the state.
_LOOKS = (1, 10, 100, 1000)
_LOOK_S = 0.01


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
        self._looks: tuple[int, ...] = ()  # that are due in this leadership
        self._told: UnsavableStateError | None = None

    def applied(self) -> None:
        """Commands were applied: a look at the state, or a snapshot, may be due. Raises `UnsavableStateError`."""
        core = self._core
        if self._looks and core.commands >= self._looks[0]:
            self._look()
        if core.unsavable is not self._told:
            self._told = core.unsavable
            if self._told is not None:
                _log.warning("machine %s: states are not compared: %s", self._name, self._told)
        if self._every is not None and core.commands - core.snapshot_commands >= self._every:
            self.wanted.set()

    def _look(self) -> None:
        core, began_s = self._core, trio.current_time()
        self._looks = tuple(each for each in self._looks if each > core.commands)
        try:
            core.machine.states.check(core.state)
        except UnsavableStateError as error:
            raise UnsavableStateError(
                f"machine {self._name!r} at {core.position}, after command {core.commands}: {error}. This member stops; the log "
                "has everything. Correct the type of the field, or the command that sets it, and start again"
            ) from error
        if trio.current_time() - began_s > _LOOK_S:
            self._looks = ()

    async def run(self, log: LogWriter) -> None:
        """Saves when it is due, until cancelled."""
        self._looks = tuple(each for each in _LOOKS if each > self._core.commands)
        while True:
            await self.wanted.wait()
            began_s, wait_s = trio.current_time(), 0.0
            try:
                written = self._write()
                wait_s = (trio.current_time() - began_s) / _SHARE
                await self._save(log, *written)
            except ReplogError as error:
                is_kept = isinstance(error, UnsavableStateError)
                wait_s = max(wait_s, _UNSAVABLE_AGAIN_S if is_kept else _AGAIN_S)
                what = "no snapshot was saved, and the log is kept" if is_kept else "no snapshot was saved"
                _log.warning("machine %s: %s: %s", self._name, what, error)
            self.wanted = trio.Event()
            await trio.sleep(wait_s)
            self.applied()

    def _write(self) -> tuple[bytes, dict[str, Any]]:
        """The core as bytes, and the shapes of its state at the same time."""
        core = self._core
        return core.dump(), core.machine.states.shapes(core.state)

    async def _save(self, log: LogWriter, data: bytes, shapes: dict[str, Any]) -> None:
        position, commands = self._core.position, self._core.commands
        # What can't be read back must not replace the log. In a thread: it takes longer than writing it.
        await current_threads().run(self._check, data, shapes)
        # What comes from here on is in another ledger than what the next snapshot makes needless.
        await log.roll()
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

    def _check(self, data: bytes, shapes: dict[str, Any]) -> None:
        self._core.machine.states.check_saved(json.loads(data)["state"], shapes)
