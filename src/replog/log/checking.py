"""Checks whether ledgers may be added to a log, and forbids it for ledgers that a sweep deletes.

Both are in the custom metadata of a ledger's record: `log` is the only log that may name the ledger, and `job` the job that wrote
it. Sweeps set `condemned`, permanently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

import attrs

from replog.client.job_records import JOB_KEY as JOB_KEY
from replog.client.job_records import LOG_KEY as LOG_KEY
from replog.client.ledgers import Ledgers
from replog.errors import (
    ConfigError,
    JobAbandonedError,
    LedgerNotFoundError,
    LedgerRefusedError,
    TooManyLedgersError,
    UnauthorizedError,
)
from replog.protocol.closed_contents import Contents, Known
from replog.protocol.log_effects import CheckLedgers
from replog.protocol.model import LedgerMetadata, LedgerState, LogMetadata
from replog.records.encoding import encode
from replog.runtime.keys import VALUE_BYTES_MAX
from replog.runtime.nursery import for_each

CONDEMNED_KEY = "condemned"
# The permanent reasons why ledgers may not be added to a log; others may change the next time
REFUSALS = (LedgerNotFoundError, LedgerRefusedError, JobAbandonedError, TooManyLedgersError, UnauthorizedError)
AT_ONCE = 32
_RESERVED_BYTES = 4096  # of a record: for its token, and for the next change
# The longest that a record says of a ledger: a terabyte of entries of one byte
_LARGE = Contents(10**12, 10**12, 10**13, 10**13)


def check_leader_custom(custom: Mapping[str, str] | None) -> None:
    """Raises `ConfigError` for custom metadata that would make a sweep take a leader's ledgers for a job's. A leader adds its
    ledgers to the log without checking whether they were condemned, so a sweep must never touch them."""
    reserved = sorted({JOB_KEY, CONDEMNED_KEY} & set(custom or {}))
    if reserved:
        raise ConfigError(f"custom metadata {reserved} of a log's writer: these are for ledgers that jobs hand in")


async def check_ledgers(effect: CheckLedgers, ledgers: Ledgers, password: bytes, named: Collection[int]) -> Known:
    """Returns what the ledgers hold, if all may be added. Raises `TooManyLedgersError`, `LedgerNotFoundError`,
    `LedgerRefusedError`, `JobAbandonedError`, `UnauthorizedError`, `MetastoreError`."""
    log = effect.metadata
    _check_size(log, len(effect.ledger_ids))
    known = {}

    async def check(ledger_id: int) -> None:
        metadata, _ = await ledgers.records.get(ledger_id)
        if CONDEMNED_KEY in metadata.custom:
            job = metadata.custom.get(JOB_KEY, "")
            told = f"ledger {ledger_id} of job {job!r} was given up by a sweep of unused ledgers, and is being deleted"
            raise JobAbandonedError(log.name, f"{told}: run the job again; nothing was changed", job, ledger_id)
        # One ledger in two places of a log would be trimmed with the first, and be missing in the second.
        problem = "it is in it already" if ledger_id in named else _refusal(metadata, log.name, effect.job)
        if problem is not None:
            raise LedgerRefusedError(
                ledger_id, f"it can't be added to log {log.name!r}: {problem}; nothing was changed"
            )
        ledgers.authorize(metadata, password)
        if metadata.contents is not None:
            known[ledger_id] = metadata.contents

    await for_each(check, effect.ledger_ids, AT_ONCE)
    return known


def _refusal(ledger: LedgerMetadata, log_name: str, job: str) -> str | None:
    made_for = ledger.custom.get(LOG_KEY)
    if made_for is None:
        return f"its custom metadata does not say {LOG_KEY}={log_name!r}: it must be created with that, to belong to one log"
    if made_for != log_name:
        return f"it was made for log {made_for!r}"
    if not ledger.custom.get(JOB_KEY):
        return (
            f"its custom metadata does not say {JOB_KEY}=...: only what a job wrote can be handed in, never a leader's"
        )
    if job and ledger.custom.get(JOB_KEY) != job:
        return f"it was made for job {ledger.custom.get(JOB_KEY)!r}, not {job!r}"
    if ledger.is_unbounded:
        return "it is unbounded: it may be trimmed, and the log would lack those positions"
    if ledger.state is not LedgerState.CLOSED:
        return f"it is {ledger.state.value}, not closed: leave its writer, or recover it"
    return None


def _check_size(log: LogMetadata, added: int) -> None:
    # What the ledgers hold will stand there, too, and is not known yet: none of them was read.
    log = log.with_contents({each.ledger_id: _LARGE for each in log.segments})
    size_bytes = len(encode(log))
    allowed_bytes = VALUE_BYTES_MAX - _RESERVED_BYTES
    if size_bytes <= allowed_bytes:
        return
    # This many fit, this many don't: halve the distance.
    fitting, excess = 0, added
    while excess - fitting > 1:
        middle = (fitting + excess) // 2
        shorter = attrs.evolve(log, segments=log.segments[: len(log.segments) - added + middle])
        fitting, excess = (middle, excess) if len(encode(shorter)) <= allowed_bytes else (fitting, middle)
    problem = f"its record would have {size_bytes} bytes with {added} ledgers more, and {allowed_bytes} are allowed"
    advice = f"at most {fitting} ledgers can be added at once: write fewer, larger ones; nothing was changed"
    raise TooManyLedgersError(log.name, f"{problem}; {advice}", fitting)


async def condemn(ledger_ids: Sequence[int], ledgers: Ledgers) -> None:
    """Marks the ledgers' records. Raises `MetastoreError`: then some may be condemned, and others not."""

    records = ledgers.records

    async def condemned(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if CONDEMNED_KEY in metadata.custom:
            return None
        custom = {**metadata.custom, CONDEMNED_KEY: ledgers.entropy.token(8)}
        return attrs.evolve(metadata, custom=custom, revision=metadata.revision + 1)

    async def mark(ledger_id: int) -> None:
        with suppress(LedgerNotFoundError):  # another client has deleted it
            await records.edit(f"changing ledger {ledger_id}", lambda: records.get(ledger_id), condemned, records.put)

    await for_each(mark, ledger_ids, AT_ONCE)
