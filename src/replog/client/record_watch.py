"""Whether the metastore still has the records of the ledgers that this client writes (W9).

A writer needs the metastore only to change its ledger's record. So it would go on confirming into a ledger that no
reader can find any more, after the metastore was emptied or went back. This task looks at the records beside the
appends, and never before one. A metastore that does not answer says nothing: appends go on.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio

from replog.client.entry_writer import EntryWriter
from replog.client.ledger_records import LedgerRecords
from replog.errors import (
    LedgerDeletedError,
    LedgerNotFoundError,
    LedgerRecordLostError,
    MetastoreError,
    ReplogError,
)
from replog.protocol.model import LedgerMetadata
from replog.records.ids import read_next_ledger_id

_LOOK_EVERY_S = 3.0  # at a record, while entries are appended
_ROUND_S = 1.0
_PAUSE_S = 0.01  # between two looks of one client


@attrs.define
class _Seen:
    """The last good look at one ledger's record."""

    looked_at_s: float
    confirmed: int  # the last add confirmed at that moment


class RecordWatch:
    """Looks at the records of one client's writers, by ledger: at each that appended, every few seconds."""

    def __init__(self, records: LedgerRecords, writers: Mapping[int, EntryWriter]) -> None:
        self._records = records
        self._writers = writers
        self._seen: dict[EntryWriter, _Seen] = {}

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            await trio.sleep(_ROUND_S)
            alive = list(self._writers.values())
            self._seen = {each: self._seen.get(each) or _first_look(each) for each in alive}
            for writer in alive:
                seen = self._seen[writer]
                is_due = writer.is_watched and trio.current_time() >= seen.looked_at_s + _LOOK_EVERY_S
                if is_due and writer.last_add_pushed > seen.confirmed and not writer.is_ending:
                    await self._look(writer, seen)
                    await trio.sleep(_PAUSE_S)

    async def _look(self, writer: EntryWriter, seen: _Seen) -> None:
        # Both before the reading: meanwhile the writer may change its record, and confirm more.
        known, confirmed = writer.metadata, writer.last_add_confirmed
        problem, is_deleted = "", False
        try:
            problem = await self._problem_with(known)
        except LedgerNotFoundError:
            is_deleted = True
        except MetastoreError:
            return
        if not problem and not is_deleted:
            seen.looked_at_s, seen.confirmed = trio.current_time(), confirmed
        elif not writer.is_ending:
            doubtful = range(seen.confirmed + 1, writer.last_add_confirmed + 1)
            error: ReplogError = LedgerRecordLostError(writer.ledger_id, problem, doubtful)
            if is_deleted:
                error = LedgerDeletedError(writer.ledger_id, "it was deleted while this client wrote it")
            writer.abandon(error)

    async def _problem_with(self, known: LedgerMetadata) -> str:
        """The fault of a record, or "". Raises `LedgerNotFoundError` if the ledger was deleted, `MetastoreError`."""
        records, ledger_id = self._records, known.ledger_id
        try:
            found, _ = await records.get_head(ledger_id)
        except LedgerNotFoundError:
            # A metastore that knows of the id had the record: a client has deleted it.
            next_ledger_id = await records.read("looking for a ledger", lambda: read_next_ledger_id(records.metastore))
            if next_ledger_id > ledger_id:
                raise
            return "the metastore has neither its record nor given out its id"
        if found.creation != known.creation:
            return "the metastore has the record of another creation of this id (M5)"
        # A claim keeps the revision, and its fence tells the writer.
        is_other = found.revision == known.revision and found.token != known.token and found.term == known.term
        if found.revision < known.revision or is_other:
            return f"the metastore has change {found.revision} of its record, and this writer knows change {known.revision}"
        return ""


def _first_look(writer: EntryWriter) -> _Seen:
    """A writer begins with a record that it has just written."""
    return _Seen(trio.current_time(), writer.first_entry_id - 1)
