"""Where to begin reading a log, so that every entry since a time comes.

Rules:

- No entry that was sent at the time or later is skipped, by the clock of its writer. Earlier ones may come.
- The times in the log's record rule segments out. Bookies are asked about the first segment that they don't rule out;
  about a second one only if the first one has no such entry after all.
- The entries of one writer are searched by halving: its times never go back (`replog.protocol.closed_contents`). Other clocks
  may differ, so segments are looked through in order, and so are the terms of an unbounded ledger, each of which has a
  writer of its own.
- Behind the last entry that is known to be confirmed, nothing is known of times. So reading never begins later than
  there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from replog.client.ledger_reader import LedgerRangeReader
from replog.client.ledgers import Ledgers
from replog.errors import ConfigError, EntryNotFoundError, LedgerNotFoundError, LedgerTrimmedError, TrimmedError
from replog.log.log_reader import LogReader, started
from replog.log.log_records import LogRecords
from replog.protocol.model import LedgerMetadata, LedgerState, Position, Segment

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_ns_of(since: datetime | timedelta, now_ns: int) -> int:
    """The time that `since` means, in ns since the epoch. Raises `ConfigError` if it means none."""
    if isinstance(since, timedelta):
        if since < timedelta(0):
            raise ConfigError(f"since={since!r} is negative: a timedelta counts back from now; nothing was read")
        return now_ns - _in_ns(since)
    if not isinstance(since, datetime):
        raise ConfigError(
            f"since={since!r} must be a datetime with a time zone, or a timedelta that counts back from now"
        )
    if since.utcoffset() is None:
        raise ConfigError(f"since={since!r} has no time zone: give it one, as datetime.now(UTC) has; nothing was read")
    return _in_ns(since - _EPOCH)


def _in_ns(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1) * 1000


async def reader_since(
    name: str, time_ns: int, ledgers: Ledgers, records: LogRecords, password: bytes, *, follow: bool
) -> LogReader:
    """A reader of a log that was started where its entries since this time begin (ns since the epoch).

    Raises `LogNotFoundError` (with `follow` it waits for the log instead), `EntryUnreadableError` (retry: yes),
    `UnauthorizedError`, `MetastoreError`. If cancelled, nothing is left behind."""
    if follow:
        await started(LogReader(name, ledgers, records, password, None, follow=True))
    while True:
        after = await _TimeSearch(name, time_ns, ledgers, records, password).find()
        reader = LogReader(name, ledgers, records, password, after, follow)
        try:
            await started(reader)
        except TrimmedError:
            # The place was trimmed since it was found. So the log begins behind it now.
            continue
        return reader


class _TimeSearch:
    def __init__(self, name: str, time_ns: int, ledgers: Ledgers, records: LogRecords, password: bytes) -> None:
        self._name = name
        self._time_ns = time_ns
        self._ledgers = ledgers
        self._records = records
        self._password = password

    async def find(self) -> Position:
        """The position after which the entries since the time begin; -1 for the entry means: from the segment's beginning."""
        while True:
            head, _ = await self._records.get(self._name)
            try:
                return await self._look_through(await self._records.segments(self._name))
            except (LedgerNotFoundError, LedgerTrimmedError, EntryNotFoundError):
                now, _ = await self._records.get(self._name)
                if (now.deletions, now.first_segment_number) == (head.deletions, head.first_segment_number):
                    raise
                # The log was trimmed, or deleted and created again, while this looked: it looks at what is left.

    async def _look_through(self, segments: list[Segment]) -> Position:
        end: Position | None = None
        for segment in segments:
            contents = segment.contents
            if contents is not None and not contents.may_be_sent_since(self._time_ns):
                end = Position(segment.number, contents.entries - 1)
                continue
            found, end = await self._look_into(segment)
            if found is not None:
                return found
        assert end is not None, "a log has segments (L1)"
        return end

    async def _look_into(self, segment: Segment) -> tuple[Position | None, Position]:
        """Where to begin in this segment, None if it has no entry since the time; and its last entry."""
        metadata, _ = await self._ledgers.records.get(segment.ledger_id)
        scan = self._ledgers.scan(metadata, metadata.fragments[0].first_entry_id, self._password)
        await scan.refresh()
        metadata, last = scan.metadata, scan.last_readable
        if metadata.chunks:
            metadata, _ = await self._ledgers.records.get(segment.ledger_id)
        end = Position(segment.number, last)
        for entries in _entries_by_writer(metadata, last):
            entry_id = await self._first_since(metadata, entries)
            if entry_id is not None:
                return Position(segment.number, entry_id - 1), end
        # A ledger that is not closed may have more entries than are known: what lies behind it must wait for them.
        return (None if metadata.state is LedgerState.CLOSED else end), end

    async def _first_since(self, metadata: LedgerMetadata, entries: range) -> int | None:
        """The first of these entries, all of one writer, that was sent at the time or later."""
        low, high = entries[0], entries[-1]
        if await self._sent_ns(metadata, high) < self._time_ns:
            return None
        while low < high:
            middle = (low + high) // 2
            if await self._sent_ns(metadata, middle) < self._time_ns:
                low = middle + 1
            else:
                high = middle
        return low

    async def _sent_ns(self, metadata: LedgerMetadata, entry_id: int) -> int:
        scan = self._ledgers.scan(metadata, entry_id, self._password)
        batch = await LedgerRangeReader(scan, entry_id, entry_id).receive_batch()
        assert batch is not None, "one entry was asked for"
        return batch.timestamp_ns


def _entries_by_writer(metadata: LedgerMetadata, last_entry_id: int) -> Iterator[range]:
    """The entries of a ledger up to this one, in parts that one writer wrote each."""
    terms = itertools.groupby(metadata.fragments, key=lambda fragment: fragment.term)
    firsts = [next(fragments).first_entry_id for _, fragments in terms]
    for first, end in zip(firsts, [*firsts[1:], last_entry_id + 1], strict=True):
        entries = range(first, min(end, last_entry_id + 1))
        if entries:
            yield entries
