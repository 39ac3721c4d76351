"""The function for `foreachPartition`: rows appended to a log for each partition, at least once.

Rules:
- Each partition has a log of its own, and each attempt at it takes that log over (L1). So the writer
  before, an attempt that Spark believes dead or a job that was thought to have ended, is fenced: its task fails with
  `FencedError`. Its rows stay, and the next attempt writes all rows of the partition again, behind them.
- Spark numbers attempts in the order of their starts. One that comes to write only after a later one of the same job has
  begun does not take over. It is advice: two that come at once fence each other, and Spark repeats the one that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import uuid4

import attrs
import trio
from pyspark import TaskContext

import replog
from replog.errors import ConfigError, FencedError, LedgerNotFoundError, LogNotFoundError
from replog.protocol.batch import check_payload
from replog.spark.clients import WorkerClient
from replog.spark.envelopes import bytes_of
from replog.spark.options import SparkOptions
from replog.spark.values import check_binary

PARTITION_FIELD = "{partition}"
_CHUNK_ROWS = 1000  # that go to the client's thread at once
_CHUNK_BYTES = 256 << 10  # the same, if rows are long


def foreach_partition_writer(
    metastore: str,
    log: str,
    *,
    to_bytes: Callable[[Any], bytes] | None = None,
    password_file: str | None = None,
    config_file: str | None = None,
    quorum: str = "3,3,2",
) -> PartitionWriter:
    """A function for `rdd.foreachPartition` and `df.foreachPartition`: appends each partition's rows to a log of its own.

    `log` names it, and has "{partition}" in it, which becomes the partition's number, from 0. Each row is an entry: what
    `to_bytes` makes of it; without it, rows must be bytes, or have one column of bytes. The other options are those of the
    format `replog`. Raises `ConfigError` with all invalid arguments at once.
    """
    options = SparkOptions(
        metastore=metastore, log=log, password_file=password_file, config_file=config_file, quorum=quorum
    )
    if PARTITION_FIELD not in log:
        raise ConfigError(
            f"log={log!r}: each partition needs a log of its own, since each has a writer: put {PARTITION_FIELD} into the "
            "name. One log for all partitions takes the format replog, or write_arrow"
        )
    if to_bytes is not None and not callable(to_bytes):
        raise ConfigError(f"to_bytes={to_bytes!r} must be a function from a row to bytes")
    return PartitionWriter(options, to_bytes, str(uuid4()))


@attrs.frozen
class PartitionWriter:
    """A function for `foreachPartition`. Can be pickled, as Spark does, if `to_bytes` can."""

    _options: SparkOptions
    _to_bytes: Callable[[Any], bytes] | None
    _writer_id: str

    def __call__(self, rows: Iterable[Any]) -> None:
        """In a task: appends these rows to the log of its partition, and returns once all are confirmed. A partition without
        rows takes nothing over.

        Raises `FencedError` if another attempt at this partition took over, or had begun after this one, or the errors
        of a writer; entries appended until then stay, and later ones may. Also what `rows` and `to_bytes` raise."""
        context = TaskContext.get()
        if context is None:
            raise ConfigError("this function is for tasks of Spark: give it to foreachPartition")
        entries = map(bytes_of if self._to_bytes is None else self._to_bytes, rows)
        chunks = chunks_of(entries)
        # Before the log is taken over: a partition without rows must not fence its last writer.
        first = next(chunks, None)
        if first is None:
            return
        attempt = _PartitionAttempt(self._writer_id, context.partitionId(), context.taskAttemptId())
        options = self._options
        name = options.log.replace(PARTITION_FIELD, str(attempt.partition))
        with options.worker() as client:
            client.call(lambda within: _check_turn(within, name, attempt))
            self._append_all(client, name, attempt, first, chunks)

    def _append_all(
        self,
        client: WorkerClient,
        name: str,
        attempt: _PartitionAttempt,
        first: list[bytes],
        rest: Iterator[list[bytes]],
    ) -> None:
        password = self._options.password()
        try:
            with client.opened(
                lambda within: within.write_log(
                    name, password=password, options=replog.LogOptions(custom=attempt.custom())
                )
            ) as writer:
                client.call(lambda _: _push_all(writer, first))
                for chunk in rest:
                    client.call(lambda _, chunk=chunk: _push_all(writer, chunk))  # type: ignore[misc]
        except FencedError as error:
            error.add_note(
                f"log {name!r} was taken over, most likely by another attempt at partition {attempt.partition}, which writes "
                f"all of its rows again: attempt {attempt.attempt} need not be repeated"
            )
            raise


@attrs.frozen
class _PartitionAttempt:
    """One attempt of Spark at a partition, as the custom metadata of its ledgers names it."""

    writer_id: str  # of one call of `foreach_partition_writer`
    partition: int
    attempt: int  # Spark's number of it, ascending with the time of its start in one application

    def custom(self) -> dict[str, str]:
        return {"writer": self.writer_id, "partition": str(self.partition), "attempt": str(self.attempt)}


async def _check_turn(client: replog.Client, name: str, attempt: _PartitionAttempt) -> None:
    """Raises `FencedError` if a later attempt at the same partition has taken the log over, and `SchemaMismatchError` if the
    log holds something else than bytes."""
    try:
        log = await client.log_metadata(name)
        if not log.segments:
            return
        check_binary(name, log)
        ledger = await client.ledger_metadata(log.segments[-1].ledger_id)
    except (LogNotFoundError, LedgerNotFoundError):
        # No attempt has begun, or a trim or takeover is under way: the takeover finds out.
        return
    custom = ledger.custom
    # Only among attempts of one call: Spark numbers them in one application, and each application begins again.
    if custom.get("writer") == attempt.writer_id and int(custom.get("attempt", "-1")) > attempt.attempt:
        raise FencedError(
            ledger.ledger_id,
            f"attempt {custom['attempt']} at partition {attempt.partition} has begun to write log {name!r} after attempt "
            f"{attempt.attempt} was started, which therefore writes nothing",
        )


async def _push_all(writer: replog.LogWriter, entries: list[bytes]) -> None:
    """Puts them in flight, and waits only for room: leaving the writer confirms them."""
    for entry in entries:
        try:
            writer.push_nowait(entry)
        except trio.WouldBlock:
            await writer.push(entry)


def chunks_of(entries: Iterator[bytes]) -> Iterator[list[bytes]]:
    """The entries in portions. Raises what they raise, and `PayloadTooLargeError`, TypeError."""
    chunk: list[bytes] = []
    size_bytes = 0
    for entry in entries:
        # In the task's own thread, where the traceback shows the caller's code.
        check_payload(entry)
        chunk.append(entry)
        size_bytes += len(entry)
        if len(chunk) >= _CHUNK_ROWS or size_bytes >= _CHUNK_BYTES:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk
