"""Records that jobs keep in the metastore until a commit or a sweep: their ledgers, and the parts that their tasks wrote."""

from __future__ import annotations

import attrs


@attrs.frozen
class JobLedger:
    """A ledger that a job writes for a log: written before the ledger is created, so that a sweep finds it."""

    log_name: str
    job: str
    ledger_id: int
    created_at_ms: int = 0


@attrs.frozen
class JobPart:
    """The result of one task of a job: the ledger of the first attempt that ended. None for the ledger if it had no rows.

    `action` names the action of the tasks, which reveals a writer that serves a second one."""

    log_name: str
    job: str
    writer: int
    partition: int
    ledger_id: int | None
    rows: int
    action: str
    created_at_ms: int = 0
