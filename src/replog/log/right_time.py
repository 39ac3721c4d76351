"""Whether this client's wall clock may decide on dropping or forgetting by age (L3a).

The bookies of one ledger are asked for their time: of the log's last one, since its leader can reach them.
"""

from __future__ import annotations

from collections.abc import Sequence

from replog.client.clocks import ClockReading
from replog.client.ledgers import Ledgers
from replog.config import check_seconds
from replog.errors import ClockMismatchError, LedgerNotFoundError
from replog.log.log_records import LogRecords


async def clock_refusal(
    log_name: str,
    ledger_id: int,
    reading: ClockReading,
    ledgers: Ledgers,
    outcome: str,
    *,
    jump: str = "",
    is_needed: bool = True,
) -> ClockMismatchError | None:
    """Why nothing may be decided by this reading of the clocks; None if it is right.

    Unless it `is_needed`, a clock that too few bookies confirm will do, if no majority contradicts it. `outcome` says what was
    not done; `jump`, how the wall clock has jumped."""
    comparison = await ledgers.clocks.compare(await _ensemble(ledger_id, ledgers), reading)
    problem = jump or (comparison.problem if is_needed or comparison.is_contradicted else "")
    if not problem:
        return None
    advice = "the next call goes by the clock as it is now" if jump else "set the clocks right, and try again"
    return ClockMismatchError(log_name, f"{problem}. {outcome}: {advice}", comparison.doubtful)


async def time_ms_before(older_than_s: float | None, log_name: str, ledgers: Ledgers, logs: LogRecords) -> int:
    """The time so long ago, in ms since the epoch, to forget what is older; 0 for None. Raises `ConfigError`, and
    `ClockMismatchError` if bookies do not confirm this client's clock: then nothing may be forgotten."""
    if older_than_s is None:
        return 0
    check_seconds("older_than_s", older_than_s)
    reading = ledgers.clocks.read()
    head, _ = await logs.head(log_name)
    if head is not None and head.segments:
        last = head.segments[-1].ledger_id
        refusal = await clock_refusal(log_name, last, reading, ledgers, "Nothing was forgotten by age")
        if refusal is not None:
            raise refusal
    return int(reading.time_ms - 1000 * older_than_s)


async def _ensemble(ledger_id: int, ledgers: Ledgers) -> Sequence[str]:
    try:
        metadata, _ = await ledgers.records.get(ledger_id)
    except LedgerNotFoundError:
        return ()  # it was trimmed meanwhile: the next call finds a later one
    return metadata.fragments[-1].ensemble
