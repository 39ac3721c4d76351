"""Streams that read logs: what Spark's checkpoint holds, and how far each micro-batch goes.

Rules:
- An offset says where to read on: the position of the next entry of each log. It only grows, all entries before it are
  confirmed, and the entries between two offsets never change: a micro-batch that is repeated reads the same entries.
- Behind a closed ledger the offset is the beginning of the next segment. So entries that a stream has read may be
  trimmed. If entries that it has not read are gone, the stream ends with an error, or skips them if its options say so.
  Then a warning and the offset, and with it the query's progress, report the loss: nothing is left out silently.
- An offset also has the log's name, and how often it was deleted: so another log of the same name is not mistaken for
  it.
- A log that matches a pattern and is found while the query runs is read from its first record on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import attrs
import trio
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

import replog
from replog.errors import ConfigError, LogNotFoundError, TrimmedError
from replog.protocol.model import LogMetadata, Position
from replog.runtime.loggers import logger
from replog.spark.extents import CLOSING_S, Extent, Survey, each_at_once
from replog.spark.lag import Backlog, Lag
from replog.spark.limits import Unread, ends_within_bytes, shares
from replog.spark.offsets import Offset, Place, as_offset, places_in
from replog.spark.read_options import ReadOptions
from replog.spark.rows import RowReader, partitions_of
from replog.spark.selection import check_values
from replog.spark.sizes import Measured

Value = TypeVar("Value")
_TRIMMED_MEANWHILE_MAX = 3
_log = logger("replog.spark")


class LogStreamReader(RowReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs as they grow: over rolls and takeovers, from the positions in its checkpoint.

    On the driver it keeps a client from call to call; in tasks it is `RowReader`. Raises `LogNotFoundError` if there is
    no such log (yet), `TrimmedError` if unread entries were trimmed."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        options.check_stream()
        super().__init__(options, schema)
        self._selection = options.selection
        self._goals: dict[str, Position] | None = None  # with the trigger availableNow
        self._planned: dict[str, Place] = {}  # where the last micro-batch ends
        self._found: dict[str, Place] = {}  # logs that were found and have no entry in a micro-batch yet
        self._backlogs: dict[str, Backlog] = {}
        self._turns: dict[str, int] = {}  # by log, the number of the last micro-batch that had entries of it
        self._waits_since: float | None = None  # since when there are rows, and fewer than a micro-batch waits for

    def _call(self, look: Callable[[replog.Client], Awaitable[Value]]) -> Value:
        options = self._options

        async def call(client: replog.Client) -> Value:
            for _ in range(_TRIMMED_MEANWHILE_MAX if options.skips_trimmed else 0):
                try:
                    return await look(client)
                except TrimmedError:
                    continue  # during the look: the next one begins where the log does then
            return await look(client)

        # Spark asks for the latest offset several times in each micro-batch.
        return options.call(call)

    def _survey(self, client: replog.Client, name: str, closing_s: float = 0.0) -> Survey:
        return Survey(client, name, self._options.password(), closing_s, self._options.skips_trimmed)

    # -- offsets --------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """Where a query without a checkpoint begins: where the option `from` says, else where the logs begin."""

        async def look(client: replog.Client) -> dict[str, Place]:
            names = await self._selection.found(client)
            places = await each_at_once(names, partial(self._first_place, client))
            return dict(zip(names, places, strict=True))

        return as_offset(self._call(look), self._selection)

    async def _first_place(self, client: replog.Client, name: str) -> Place:
        survey = self._survey(client, name, CLOSING_S)
        head = await survey.head()
        begin, lost = self._options.begin.of(name), None
        if begin.is_latest:
            position = await survey.end()
        elif begin.position is not None:
            position = survey.beginning(head, begin.position)
            lost = _lost(head, begin.position, position)
        else:
            position = Position(head.first_segment_number, 0)
            if begin.time_ns is not None:
                position = await self._first_in_time(survey, position, head)
        return Place(position, head.deletions, lost)

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
        """How far the next micro-batch goes: at least one entry if there is one, and as many as the limit allows; or nowhere, if
        it waits for more rows."""
        places = places_in(start, self._selection)
        reached = self._call(lambda client: self._reached(client, places, limit))
        # All logs of this micro-batch have had their turn: those that had none for longest are the first of the next one.
        self._turns.update(dict.fromkeys(reached, max(self._turns.values(), default=0) + 1))
        self._planned = {**places, **reached}
        return as_offset(self._planned, self._selection)

    async def _reached(self, client: replog.Client, places: Mapping[str, Place], limit: ReadLimit) -> dict[str, Place]:
        """The places after the next micro-batch, of logs that have entries in it."""
        logs = await self._unread(client, places)
        ends = await self._ends(logs, limit)
        found = {}
        for log, end in zip(logs, ends, strict=True):
            # With `availableNow` entries that were appended after the start are left to the next run.
            end = end if log.goal is None else min(end, log.goal)
            end = max(log.place.position, end)
            # The last loss stays in all later offsets: an offset must not change while nothing is appended.
            lost = _lost(log.head, log.place.position, min(log.start, end)) or log.place.lost
            place = attrs.evolve(log.place, position=end, lost=lost)
            if place != places.get(log.head.name) and end > log.place.position:
                found[log.head.name] = place
                self._found.pop(log.head.name, None)
        return found

    async def _unread(self, client: replog.Client, places: Mapping[str, Place]) -> list[Unread]:
        """All logs that the query reads now. Logs that had no entries in micro-batches for longest come first."""
        names = await self._selection.found(client)
        # A log that was deleted matches no more: that its place is in the checkpoint must not be passed over.
        names = sorted({*names, *filter(self._selection.selects, places)})
        if self._goals is not None:
            names = [name for name in names if name in self._goals or name in places]
        logs = await each_at_once(names, partial(self._unread_of, client, places))
        return sorted(filter(None, logs), key=lambda log: self._turns.get(log.head.name, 0))

    async def _unread_of(self, client: replog.Client, places: Mapping[str, Place], name: str) -> Unread | None:
        survey = self._survey(client, name)
        place = places.get(name) or self._found.get(name)
        try:
            head = await survey.head()
        except LogNotFoundError as error:
            if place is None and name not in self._selection.names:
                return None  # it matched, and was deleted before anything of it was read
            if not self._selection.is_many or not self._options.skips_trimmed:
                raise
            _log.warning("%s; skipped: what the query had not read of it", error)
            return None
        if place is None:
            check_values(head, self._values, self._options.values)
            begin = Position(head.first_segment_number, 0)
            place = self._found[name] = Place(begin, head.deletions, begin=begin)
        self._check_same_log(head, place)
        goal = None if self._goals is None else self._goals.get(name, place.position)
        return Unread(survey, head, place, survey.beginning(head, place.position), goal)

    def _check_same_log(self, head: LogMetadata, place: Place) -> None:
        if place.deletions != head.deletions:
            available = Position(head.first_segment_number, 0)
            raise TrimmedError(
                head.name,
                f"it was deleted and created again since the checkpoint was written, at {place.position}; the log begins at "
                f"{available}: begin a new query there, with a new checkpoint",
                available,
            )

    # -- limits ---------------------------------------------------------------------------------------------------

    async def _ends(self, logs: Sequence[Unread], limit: ReadLimit) -> list[Position]:
        """Where to read on in each of these logs."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        size_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if not rows and size_bytes is None and not isinstance(limit, ReadAllAvailable | ReadMinRows):
            raise ConfigError(
                f"Spark asks for {limit!r}: a log is read up to its end, or so many rows or bytes at a time"
            )
        # A query that ends at the present entries does not wait for more.
        may_wait = not isinstance(limit, ReadAllAvailable) and self._goals is None
        least = (self._options.min_rows_per_trigger or 0) if may_wait else 0
        if rows or least or size_bytes is not None:
            await each_at_once(logs, lambda log: log.look(max(rows, least), size_bytes))
        if self._is_waiting(sum(log.rows for log in logs), least):
            return [log.place.position for log in logs]
        if rows:
            given = shares(rows, [log.rows for log in logs])
            return [log.after_rows(each) for log, each in zip(logs, given, strict=True)]
        if size_bytes is not None:
            return await ends_within_bytes(logs, size_bytes)
        return await each_at_once(logs, lambda log: log.survey.end())

    def _is_waiting(self, rows: int, least: int) -> bool:
        """True if a micro-batch waits for more rows than these."""
        now = trio.current_time()
        if not 0 < rows < least:
            self._waits_since = None
            return rows < least
        if self._waits_since is None:
            self._waits_since = now
        if now - self._waits_since < self._options.max_trigger_delay_s:
            return True
        self._waits_since = None
        return False

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit in the options. Spark keeps one limit; a least number of rows is added to any."""
        options = self._options
        if options.max_rows_per_trigger is not None:
            return ReadMaxRows(options.max_rows_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_rows_per_trigger is not None:
            return ReadMinRows(options.min_rows_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of the query: it ends there, even if more is appended meanwhile."""

        async def look(client: replog.Client) -> dict[str, Position]:
            names = await self._selection.found(client)
            ends = await each_at_once(names, lambda name: self._survey(client, name, CLOSING_S).end())
            return dict(zip(names, ends, strict=True))

        self._goals = self._call(look)

    def reportLatestOffset(self) -> Offset | None:
        """Where the logs end now, for the query's progress, and how far the query is behind: `lag`. No lag before its first
        micro-batch."""
        return self._call(self._progress)

    async def _progress(self, client: replog.Client) -> Offset:
        names = await self._selection.found(client)
        found = [each for each in await each_at_once(names, partial(self._end_of, client)) if each is not None]
        offset = as_offset({name: place for name, place, _ in found}, self._selection)
        lags = {name: lag for name, _, lag in found if lag is not None}
        if lags:
            offset["lag"] = Lag.of_all(lags.values()).as_offset()
        for name, each in offset.get("logs", {}).items():
            if name in lags:
                each["lag"] = lags[name].as_offset()
        return offset

    async def _end_of(self, client: replog.Client, name: str) -> tuple[str, Place, Lag | None] | None:
        survey = self._survey(client, name)
        try:
            head = await survey.head()
        except LogNotFoundError:
            if name in self._selection.names:
                raise
            return None  # it matched, and was deleted meanwhile
        if not self._planned:
            return name, Place(await survey.end(), head.deletions), None
        available = Position(head.first_segment_number, 0)
        place = self._planned.get(name) or self._found.get(name)
        start = available if place is None else max(place.position, available)
        backlog = self._backlogs.setdefault(name, Backlog())
        lag, end = await backlog.behind(survey, head, start, client._opened.ledgers.entropy.time_ns())
        return name, Place(end, head.deletions), lag

    # -- micro-batches --------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The partitions of a micro-batch, which may be one of an earlier run that is repeated."""
        begins, ends = places_in(start, self._selection), places_in(end, self._selection)
        self._planned = ends
        changed = [name for name in sorted(ends) if name not in begins or begins[name] != ends[name]]

        async def look(client: replog.Client) -> list[InputPartition]:
            found = await each_at_once(changed, lambda name: self._between(client, begins.get(name), name, ends[name]))
            return partitions_of([pair for each in found for pair in each], self._options)

        # Nothing lies between: the logs need not be looked at.
        return self._call(look) if changed else []

    async def _between(
        self, client: replog.Client, begin: Place | None, name: str, end: Place
    ) -> list[tuple[Extent, Measured]]:
        survey = self._survey(client, name)
        try:
            head = await survey.head()
        except LogNotFoundError as error:
            if not self._selection.is_many or not self._options.skips_trimmed:
                raise
            _log.warning("%s; skipped: what a micro-batch that is repeated had of it", error)
            return []
        for place in (begin, end):
            if place is not None:
                self._check_same_log(head, place)
        start = end.begin if begin is None else begin.position
        if start is None:
            raise ConfigError(
                f"the checkpoint's offset does not say where log {name!r} begins: it is none of this format"
            )
        return await survey.measured(await survey.between(start, end.position))

    def commit(self, end: Offset) -> None:
        """Does nothing. Only an operator knows all readers of a log, and trims it; Spark calls this late, and not always."""


def _lost(head: LogMetadata, start: Position, first: Position) -> str | None:
    """The skipped part, in words for an offset."""
    return f"{start} to {first}" if start < first and head.resume(start) is None else None
