"""The effects that machines of logs request, and the calls that return their results."""

from __future__ import annotations

import attrs

from replog.errors import ReplogError
from replog.protocol.model import LogMetadata, LogPage


class LogEffect:
    """An action for the shell to perform."""


@attrs.define
class ReadLog(LogEffect):
    """Read the log's record. Answer: `log_read`, with None for a record that does not exist."""

    name: str


@attrs.define
class WritePage(LogEffect):
    """Create this page of the log. Answer: `page_written`, even if it exists already with all these segments, or `abandon`.

    If it exists without one of them, either the head's version is not `head_version` any more: then `log_conflict`. Or the page
    is a tentative one that the log never came to count on: then replace it, by a CAS on a version that was read before the head
    was found to have that version still."""

    page: LogPage
    head_version: int


@attrs.define
class WriteLog(LogEffect):
    """CAS the log's record on this version, or create it if that is None.
    Answer: `log_written`, `log_conflict` or `log_uncertain`."""

    metadata: LogMetadata
    expected: int | None


@attrs.define
class RecoverLedger(LogEffect):
    """Fence the ledger and close it. Answer: `ledger_recovered`, `ledger_missing` or `abandon`."""

    ledger_id: int


@attrs.define
class ContinueLedger(LogEffect):
    """If the ledger is unbounded, and not closed: take it over, for the next term (T2, L9). Otherwise as `RecoverLedger`. Answer:
    `ledger_continued`, `ledger_contested` if somebody else claimed a term meanwhile, or one to `RecoverLedger`."""

    ledger_id: int


@attrs.define
class CreateLedger(LogEffect):
    """Write down that a ledger is pending for this segment of the log, then create it (L7). Answer: `ledger_created` or
    `abandon`."""

    log_name: str
    segment_number: int
    is_unbounded: bool = False


@attrs.define
class CheckLedgers(LogEffect):
    """Look whether all these ledgers exist, are closed, were made for this log and this job, and were not given up; and
    whether the record can be written as `metadata`. With `looks_into_pages`, also whether a page names one of them.
    Answer: `ledgers_checked` or `abandon`; to a roll, `ledgers_refused` if one of them may not be added."""

    ledger_ids: tuple[int, ...]
    metadata: LogMetadata
    job: str
    looks_into_pages: bool


@attrs.define
class DeleteLedger(LogEffect):
    """Delete a ledger that lost its CAS. No answer. A ledger that is gone is not an error.

    `segment_number` is the number that it was to get. With `page_number`, that page says which ledger has the number: delete
    this one only if the page names another, or is gone because its segments were trimmed."""

    ledger_id: int
    log_name: str
    segment_number: int
    page_number: int | None = None


@attrs.define
class LogChanged(LogEffect):
    """Done: the log's record is this now. `ledger_id` is the ledger to append to, None for a trim or a deletion."""

    metadata: LogMetadata
    version: int
    ledger_id: int | None


@attrs.define
class LogFailed(LogEffect):
    """Done: the change failed."""

    error: ReplogError
