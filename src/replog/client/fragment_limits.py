"""Begins new fragments of an unbounded ledger by bytes, entries or age, as the client's options say."""

from __future__ import annotations

import math

import trio

from replog.client.entry_writer import EntryWriter
from replog.client.sending import SizeLimit
from replog.config.client import ClientTuning
from replog.errors import MetastoreError, WriteQuorumError
from replog.runtime.loggers import logger

_log = logger("replog.client")


class FragmentRoller:
    """Rolls one writer's ledger. `run` ends when the writer takes no more entries."""

    def __init__(self, writer: EntryWriter, options: ClientTuning) -> None:
        self._writer = writer
        self._options = options
        self._due = trio.Event()
        # Entries may have been pushed since the writer was made.
        self._roll_after(writer.metadata.last_fragment.first_entry_id, 0)

    def _roll_after(self, entries: int, length_bytes: int) -> None:
        entries_max, bytes_max = self._options.roll_entries, self._options.roll_bytes
        limit = SizeLimit(
            math.inf if entries_max is None else entries + entries_max,
            math.inf if bytes_max is None else length_bytes + bytes_max,
            self._wake,
        )
        self._writer.report_to(limit, None)

    def _wake(self) -> None:
        self._due.set()

    async def run(self) -> None:
        """Rolls when it is due. A failure of the writer ends this, and is raised to callers of the writer, never here."""
        age_s = math.inf if self._options.roll_age_s is None else self._options.roll_age_s
        while not self._writer.is_ending:
            with trio.move_on_after(age_s):
                await self._due.wait()
            self._due = trio.Event()
            self._roll_after(self._writer.last_add_pushed + 1, self._writer.length_bytes)
            # If it takes long, entries appended meanwhile wait, or the fragment becomes longer: the next roll is due later.
            await self._writer.begin_fragment()
            try:
                await self._writer.complete()
            except (WriteQuorumError, MetastoreError) as error:
                # The next roll, and the end of the writer, wait for these copies again.
                _log.warning("%s", error)
