"""Streams that read a log: what Spark's checkpoint holds, and how far each micro-batch goes.

Rules:
- An offset says where to read on: the position of the next entry. It only grows, all entries before it are confirmed, and the
  entries between two offsets never change: a micro-batch that is repeated reads the same entries.
- Behind a closed ledger the offset is the beginning of the next segment. So entries that a stream has read may be trimmed. If
  entries that it has not read are gone, the stream ends with an error, or skips them if it is told to. Then a warning and the
  offset, and with it the query's progress, say what was lost: nothing is left out silently.
- An offset also has the log's name, and how often it was deleted: so another log of the same name is not mistaken for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from replog import Client
from replog.errors import ConfigError, TrimmedError
from replog.protocol.model import LogMetadata, Position
from replog.spark.clients import worker_client
from replog.spark.extents import CLOSING_S, Extent, Survey
from replog.spark.read_options import ReadOptions
from replog.spark.rows import RowReader, partitions_of

Value = TypeVar("Value")
_TRIMMED_MEANWHILE_MAX = 3
Offset = dict[str, Any]


class LogStreamReader(RowReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log as it grows: over rolls and takeovers, from the position in its checkpoint.

    On the driver it keeps a client from call to call; in tasks it is `RowReader`. Raises `LogNotFoundError` if there is no such
    log (yet), `TrimmedError` if something that it has not read was trimmed."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        options.check_stream()
        super().__init__(options, schema)
        self._goal: Position | None = None  # with the trigger availableNow

    def _call(self, look: Callable[[Survey], Awaitable[Value]], closing_s: float = 0.0) -> Value:
        options = self._options

        async def call(client: Client) -> Value:
            survey = Survey(client, options.log, options.password(), closing_s, options.skips_trimmed)
            for _ in range(_TRIMMED_MEANWHILE_MAX if options.skips_trimmed else 0):
                try:
                    return await look(survey)
                except TrimmedError:
                    continue  # amid the look: the next one begins where the log does then
            return await look(survey)

        with worker_client(options.metastore_url(), options=options.client_options()) as worker:
            # The client is kept: Spark asks for the latest offset several times in each micro-batch.
            return worker.call(call)

    # -- offsets --------------------------------------------------------------------------------------------------

    def _offset(self, head: LogMetadata, position: Position, lost: str | None = None) -> Offset:
        offset = {"log": head.name, "position": str(position), "deletions": head.deletions}
        return offset if lost is None else {**offset, "lost": lost}

    def _position(self, offset: Offset) -> Position:
        try:
            name, text = offset["log"], offset["position"]
        except (KeyError, TypeError):
            raise ConfigError(
                f"the checkpoint's offset {offset!r} is none of this format: give the query its own checkpoint"
            ) from None
        if name != self._options.log:
            raise ConfigError(
                f"the checkpoint is of log {name!r}, and the query reads {self._options.log!r}: give it its own checkpoint"
            )
        return Position.parse(text)

    def _check_same_log(self, head: LogMetadata, offset: Offset) -> None:
        if offset.get("deletions") != head.deletions:
            available = Position(head.first_segment_number, 0)
            raise TrimmedError(
                head.name,
                f"it was deleted and created again since the checkpoint was written, at {offset['position']}; the log begins at "
                f"{available}: begin a new query there, with a new checkpoint",
                available,
            )

    def initialOffset(self) -> Offset:
        """Where a query without a checkpoint begins: where the option `from` says, else where the log begins."""
        return self._call(self._first_offset, CLOSING_S)

    async def _first_offset(self, survey: Survey) -> Offset:
        head = await survey.head()
        begin, lost = self._options.begin, None
        if begin.is_latest:
            position = await survey.end()
        elif begin.position is not None:
            position = survey.beginning(head, begin.position)
            lost = _lost(begin.position, position)
        else:
            position = Position(head.first_segment_number, 0)
            if begin.time_ns is not None:
                position = await self._first_in_time(survey, position, head)
        return self._offset(head, position, lost)

    async def _first_in_time(self, survey: Survey, start: Position, head: LogMetadata) -> Position:
        """The beginning of the first segment that has something of that time; what comes before it there is left out later."""
        end = start
        extents = []
        async for extent in survey.extents(start, head):
            end = extent.after
            if extent.count:
                extents.append(extent)
        for extent, measured in await survey.measured(extents):
            if self.may_be_in_time(measured):
                return Position(extent.segment, extent.first)
        return end

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far the next micro-batch goes: at least one entry if there is one, and as many as the limit allows."""

        position = self._position(start)

        async def look(survey: Survey) -> Offset:
            head = await survey.head()
            self._check_same_log(head, start)
            begin = survey.beginning(head, position)
            end = await self._reached(survey, begin, head, limit)
            # With `availableNow` entries that were appended after the start are left to the next run.
            if self._goal is not None:
                end = min(end, self._goal)
            end = max(position, end)
            # The last loss stays in all later offsets: an offset must not change while nothing is appended.
            return self._offset(head, end, _lost(position, min(begin, end)) or start.get("lost"))

        return self._call(look)

    async def _reached(self, survey: Survey, start: Position, head: LogMetadata, limit: ReadLimit) -> Position:
        if isinstance(limit, ReadAllAvailable):
            survey.check_start(head, start)
            return await survey.end()
        if isinstance(limit, ReadMaxRows):
            async with aclosing(survey.extents(start, head)) as extents:
                return await _after_rows(extents, start, limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            async with aclosing(survey.extents(start, head)) as extents:
                return await _after_bytes(survey, extents, start, limit.max_bytes)
        raise ConfigError(f"Spark asks for {limit!r}: a log is read up to its end, or so many rows or bytes at a time")

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say."""
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of the query: it ends there, even if more is appended meanwhile."""
        self._goal = self._call(lambda survey: survey.end(), CLOSING_S)

    def reportLatestOffset(self) -> Offset | None:
        """Where the log ends now, for the query's progress."""

        async def look(survey: Survey) -> Offset:
            return self._offset(await survey.head(), await survey.end())

        return self._call(look)

    # -- micro-batches --------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The partitions of a micro-batch, which may be one of an earlier run that is repeated."""

        positions = self._position(start), self._position(end)

        async def look(survey: Survey) -> list[InputPartition]:
            head = await survey.head()
            for offset in (start, end):
                self._check_same_log(head, offset)
            extents = await survey.between(*positions)
            return partitions_of(await survey.measured(extents), self._options)

        # Nothing lies between: the log need not be looked at.
        return [] if start == end else self._call(look)

    def commit(self, end: Offset) -> None:
        """Does nothing. Only an operator knows all readers of a log, and trims it; Spark calls this late, and not always."""


def _lost(start: Position, first: Position) -> str | None:
    """What is skipped, in words for an offset."""
    return f"{start} to {first}" if start < first else None


async def _after_rows(extents: AsyncGenerator[Extent], start: Position, rows: int) -> Position:
    """Where to read on after so many entries, or at the end."""
    end = start
    async for extent in extents:
        if extent.count > rows:
            return Position(extent.segment, extent.first + rows)
        rows -= extent.count
        end = extent.after
    return end


async def _after_bytes(survey: Survey, extents: AsyncGenerator[Extent], start: Position, wanted_bytes: int) -> Position:
    """Where to read on after so many bytes of values, and at least one entry; or at the end."""
    end = start
    is_first = True
    left_bytes = wanted_bytes
    async for extent in extents:
        if extent.count:
            size_bytes = (await survey.measure(extent)).size_bytes
            if size_bytes > left_bytes:
                fitting = await _fitting(survey, extent, left_bytes)
                # At least one entry: a limit below the size of an entry would stop the query for good.
                return Position(extent.segment, max(fitting, extent.first + is_first))
            left_bytes -= size_bytes
            is_first = False
        end = extent.after
    return end


async def _fitting(survey: Survey, extent: Extent, wanted_bytes: int) -> int:
    """The first entry that exceeds the bytes. Found by halving: about twenty small reads for a million entries."""
    before_bytes = (await survey.ledger_bytes(extent, extent.first - 1))[0] if extent.first else 0
    # All before `low` fit, what reaches through `high` does not.
    low, high = extent.first, extent.last
    while low < high:
        middle = (low + high) // 2
        through_bytes, _ = await survey.ledger_bytes(extent, middle)
        if through_bytes - before_bytes <= wanted_bytes:
            low = middle + 1
        else:
            high = middle
    return low
