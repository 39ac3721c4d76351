"""The driver's side of writing: one change of the log's record makes a whole job visible; giving a job up; sweeping.

Rules:
- A commit may name a transaction. The log's record keeps the highest number of each, so that a restarted query, or a
  job that is run again, changes nothing. A job that is never repeated has none, and takes no place there: only an
  operator makes a log forget one. A commit of such a job that is called again finds the job's ledgers in the log.
- It is never guessed whether a job's ledgers may be deleted: an abort after a commit whose answer was lost finds the
  job in the log's record, and deletes nothing. A job that was given up is first marked so in that record; no commit of
  it succeeds then.
- The commit writes the entries that tasks have sent, so a job that is given up may have no ledger yet that could be
  marked. Hence a batch job is registered before its tasks. Giving it up forgets that first, and then looks for its
  ledgers; a commit writes its ledger first, and then looks whether the job is still registered. So one of both sees the
  other. A batch of a stream needs none of it: a later try has the same transaction.
- If old ledgers cannot be swept after a commit, that is a warning, and the commit has succeeded.
"""

from __future__ import annotations

import warnings

import attrs
import trio

import replog
from replog.errors import (
    CustomMismatchError,
    JobAbandonedError,
    LedgerNotFoundError,
    LedgerRefusedError,
    LogNotFoundError,
    ReplogError,
    TransientError,
)
from replog.protocol.admitting import table_full
from replog.protocol.model import Transaction
from replog.spark.options import SparkOptions
from replog.spark.values import ValueSchema

# How long the driver tries to commit while bookies or the metastore can't be reached: a leader's or a server's change takes
# less. The rows are written; giving up earlier would write them again.
COMMIT_TIMEOUT_S = 120.0
# How old the ledgers of a job must be that never ended, before a later job deletes them: longer than any job takes. Who needs
# their space sooner calls `client.jobs.sweep`, or `replog log sweep`.
SWEEP_GRACE_S = 7 * 86_400.0

_AGAIN_S = 0.2
_AGAIN_MAX_S = 5.0
_SWEEP_S = 20.0
_RACES_MAX = 10  # that a commit loses, each to another job that changed the log's schema
_MERGED_TOGETHER = 4096  # entries of one batch that the driver writes


@attrs.frozen
class Job:
    """The ledgers that a commit makes visible, in this order.

    `transaction` names the commit, so that a repetition of it changes nothing. With `counts_empty` that holds even if there
    were no rows."""

    name: str
    ledger_ids: tuple[int, ...]
    transaction: tuple[str, int] | None
    counts_empty: bool = False
    # Instead of `ledger_ids`: also entries that the driver writes.
    outputs: tuple[int | tuple[bytes, ...], ...] = attrs.field(default=(), repr=False)
    is_begun: bool = False  # `begin_job` has registered it


def streamed_transaction(query_id: str, batch_id: int) -> tuple[str, int]:
    """The transaction of one batch of a streaming query. A query that is restarted from its checkpoint keeps its id."""
    return f"query:{query_id}", batch_id


async def commit_job(client: replog.Client, options: SparkOptions, values: ValueSchema, job: Job) -> bool:
    """Makes the job visible, all of it with one CAS of the log's record; returns True if it was new.

    A leader of the log stays if it answers (L10); otherwise it is deposed, and may lead again at once. Raises `ReplogError`:
    the job is visible as a whole or not at all, and stays so; committing it again is safe."""
    is_empty = not job.ledger_ids and not job.outputs
    if is_empty and not job.counts_empty and not job.is_begun:
        # Nothing becomes visible, however often it is repeated: no reason to depose the log's leader.
        return True
    is_new = is_empty and not job.counts_empty
    if not is_new:
        is_new = await append_job(client, options, values, job)
    if not is_new or (is_empty and job.is_begun):
        # All that this try wrote; of a job without rows, that it has begun.
        await _tidy(client, options, job.name)
    if not is_empty or job.counts_empty:
        await _tidy(client, options, None)
    return is_new


async def begin_job(client: replog.Client, options: SparkOptions, values: ValueSchema, job: str) -> None:
    """Checks the log like `check_log`; and registers the job, if tasks may send entries to the commit. Raises the
    errors of `check_log`."""
    await check_log(client, options, values)
    if options.merge_bytes:
        await client._opened.ledgers.jobs.begin(options.log, job)


async def is_committed(client: replog.Client, options: SparkOptions) -> bool:
    """True if the transaction that the options name was committed before."""
    transaction = options.transaction()
    if transaction is None:
        return False
    try:
        metadata = await client.log_metadata(options.log)
    except LogNotFoundError:
        return False
    return metadata.has_committed(Transaction(*transaction))


async def check_log(client: replog.Client, options: SparkOptions, values: ValueSchema) -> ValueSchema:
    """The same values, spelled as the log has them if it holds some. Raises `SchemaMismatchError` if it holds something else,
    and `TransactionTableFullError`: before a task was begun."""
    try:
        metadata = await client.log_metadata(options.log)
    except LogNotFoundError:
        return values
    agreed = values.check_appendable(options.log, metadata, options.merge_schema)
    transaction = options.transaction()
    if transaction is not None and not metadata.has_room_for(Transaction(*transaction)):
        # Before the tasks write what can't be committed.
        raise table_full(metadata, Transaction(*transaction))
    return agreed


async def append_job(client: replog.Client, options: SparkOptions, values: ValueSchema, job: Job) -> bool:
    """Commits, and tries again while a failure may pass. True if the job was new. Raises as `commit_job` does."""
    deadline_s = trio.current_time() + COMMIT_TIMEOUT_S
    pause_s = _AGAIN_S
    has_failed = False
    raced = 0
    while True:
        try:
            if job.outputs:
                job = await _with_merged(client, options, job)
            is_new = await _try_to_append(client, options, values, job)
            # An earlier try may have committed the transaction, and its answer was lost: then the log has this job's ledgers.
            return is_new or (has_failed and await has_committed(client, options, job))
        except CustomMismatchError:
            # Another job was faster, to begin the log or to add columns: the next look at its schema says whether both agree.
            raced += 1
            if raced > _RACES_MAX:
                raise
            continue
        except (LedgerRefusedError, JobAbandonedError, LedgerNotFoundError):
            # A job without a transaction is refused the second time, because its ledgers are in the log: the answer to an
            # earlier try was lost, or the caller has called this before.
            if job.transaction is None and await has_committed(client, options, job):
                return has_failed
            raise
        except TransientError as error:
            has_failed = True
            if trio.current_time() + pause_s > deadline_s:
                error.add_note(
                    f"the commit was tried for {COMMIT_TIMEOUT_S:g} s: its rows are visible all or "
                    "none; with a txn_id, or from a stream's checkpoint, writing again is safe"
                )
                raise
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, _AGAIN_MAX_S)


async def _with_merged(client: replog.Client, options: SparkOptions, job: Job) -> Job:
    """The same with ledgers only: writes the entries that tasks have sent. Ledgers of a failed try are swept with the
    job. Raises `JobAbandonedError` if the job has ended before that."""
    ledger_ids = []
    for output in job.outputs:
        if isinstance(output, int):
            ledger_ids.append(output)
            continue
        custom = {"log": options.log, "job": job.name, "attempt": "driver"}
        async with client.create_ledger(password=options.password(), custom=custom) as writer:
            for first in range(0, len(output), _MERGED_TOGETHER):
                await writer.extend(output[first : first + _MERGED_TOGETHER])
        ledger_ids.append(writer.ledger_id)
    if job.is_begun and not await client._opened.ledgers.jobs.has_begun(options.log, job.name):
        problem = (
            "it has ended: it was given up before this commit, or was committed by another call; nothing was changed"
        )
        raise JobAbandonedError(options.log, f"job {job.name}: {problem}", job.name, None)
    return attrs.evolve(job, ledger_ids=tuple(ledger_ids), outputs=())


async def _try_to_append(client: replog.Client, options: SparkOptions, values: ValueSchema, job: Job) -> bool:
    # Looked at in each try: a job that was faster may have created the log meanwhile, with another schema.
    agreed = await check_log(client, options, values)
    appended = await client.jobs.append_ledgers(
        options.log,
        job.ledger_ids,
        transaction=job.transaction,
        job=job.name,
        custom=agreed.custom(),
        password=options.password(),
    )
    return appended.is_new


async def has_committed(client: replog.Client, options: SparkOptions, job: Job) -> bool:
    """True if the log has the job's ledgers. No other job has them, and a log has all of them or none."""
    try:
        segments = await client.log_segments(options.log)
    except LogNotFoundError:
        return False
    return bool(job.ledger_ids) and {segment.ledger_id for segment in segments}.issuperset(job.ledger_ids)


async def _tidy(client: replog.Client, options: SparkOptions, job: str | None) -> None:
    """Deletes the leftovers of this job, or with None of all jobs that have ended. Nothing depends on it."""
    try:
        # The rows are visible already: a slow sweep must not fail, or hold up, the job that wrote them.
        with trio.fail_after(_SWEEP_S):
            await client.jobs.sweep(options.log, grace_s=SWEEP_GRACE_S, job=job)
    except (ReplogError, trio.TooSlowError) as error:
        warnings.warn(
            f"log {options.log}: what is left of failed or repeated tasks was not swept; a later job does it, or "
            f"replog log sweep: {error!r}",
            RuntimeWarning,
            stacklevel=2,
        )


async def abort_job(client: replog.Client, options: SparkOptions, job: str) -> list[int]:
    """Gives a job up permanently and deletes its ledgers; returns which. If the log's record shows that it was committed,
    only the ledgers of attempts that lost are deleted. Raises `ReplogError`: then a sweep does it later."""
    return await client.jobs.sweep(options.log, grace_s=SWEEP_GRACE_S, job=job)
