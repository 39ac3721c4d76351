"""Begins new fragments of an unbounded ledger by bytes, entries or age, as the client's options say."""

from __future__ import annotations

import logging
import math

import trio

from replog.client.ledger_writer import LedgerWriter
from replog.config import ClientOptions
from replog.errors import MetastoreError, WriteQuorumError

_log = logging.getLogger("replog.client")


class FragmentRoller:
    """Rolls one writer's ledger. `run` ends when the writer takes no more entries."""

    def __init__(self, writer: LedgerWriter, options: ClientOptions) -> None:
        self._writer = writer
        self._options = options
        # Entries may have been pushed since the writer was made.
        self._entries = self._rolled_entries = writer.metadata.last_fragment.first_entry_id
        self._bytes = self._rolled_bytes = 0
        self._due = trio.Event()
        writer.report_to(self._progressed, None)

    def _progressed(self, entries: int, length_bytes: int) -> None:
        self._entries, self._bytes = entries, length_bytes
        entries_max, bytes_max = self._options.roll_entries, self._options.roll_bytes
        if (entries_max is not None and entries - self._rolled_entries >= entries_max) or (
            bytes_max is not None and length_bytes - self._rolled_bytes >= bytes_max
        ):
            self._due.set()

    async def run(self) -> None:
        """Rolls when it is due. A failure of the writer ends this, and is raised to those who use the writer, never here."""
        age_s = math.inf if self._options.roll_age_s is None else self._options.roll_age_s
        while not self._writer.is_ending:
            with trio.move_on_after(age_s):
                await self._due.wait()
            self._due = trio.Event()
            self._rolled_entries, self._rolled_bytes = self._entries, self._bytes
            # If it takes long, what is appended meanwhile waits, or the fragment becomes longer: the next roll is due later.
            await self._writer.begin_fragment()
            try:
                await self._writer.complete()
            except (WriteQuorumError, MetastoreError) as error:
                # The next roll, and the end of the writer, wait for these copies again.
                _log.warning("%s", error)
