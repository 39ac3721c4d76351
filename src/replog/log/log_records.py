"""Logs' records in the metastore: the head of a log, its pages, and the ledgers that are pending for it."""

from __future__ import annotations

from collections.abc import Iterable

from replog.abc import Versioned
from replog.client.ledgers import Ledgers
from replog.errors import (
    KeyNotFoundError,
    LedgerNotFoundError,
    LogNotFoundError,
    MetastoreCorruptError,
)
from replog.protocol.model import PAGE_SEGMENTS, LogMetadata, LogPage, PendingLedger, Segment
from replog.records.encoding import encode
from replog.records.logs import decode_log, decode_log_page, decode_pending, list_log_pages
from replog.records.paths import log_key_path, log_page_key_path, log_pending_key_path
from replog.runtime.nursery import for_each

_PAGES_AT_ONCE = 16


class LogRecords:
    """The records of logs in one metastore."""

    def __init__(self, ledgers: Ledgers) -> None:
        self.page_segments = PAGE_SEGMENTS  # of logs that are created
        self._ledgers = ledgers
        self._records = ledgers.records

    async def get(self, name: str) -> tuple[LogMetadata, int]:
        """A log's record and its version. Raises `LogNotFoundError`, also for a log that was deleted, `MetastoreError`,
        `ConfigError` for a bad name."""
        metadata, version = await self.head(name)
        if metadata is None:
            raise LogNotFoundError(name, "there is no such log: open it for writing once, to create it")
        if metadata.is_deleted:
            raise LogNotFoundError(name, "it was deleted: open it for writing, to create it again")
        assert version is not None
        return metadata, version

    async def head(self, name: str) -> tuple[LogMetadata | None, int | None]:
        """The log's record and its version, even if the log was deleted; None and None if there was never one."""
        found = await self._read(f"log {name!r}", log_key_path(name))
        return (None, None) if found is None else (decode_log(log_key_path(name), found.value), found.version)

    async def page(self, name: str, page_number: int) -> LogPage | None:
        """A page of a log; None if it was not written, or was deleted because all its segments were trimmed.
        Raises `MetastoreError`."""
        page, _ = await self.versioned_page(name, page_number)
        return page

    async def versioned_page(self, name: str, page_number: int) -> tuple[LogPage | None, int]:
        """The page with the version of its key; 0 if there is no page."""
        key = log_page_key_path(name, page_number)
        found = await self._read(f"page {page_number} of log {name!r}", key)
        return (None, 0) if found is None else (decode_log_page(key, found.value), found.version)

    async def _read(self, what: str, key: str) -> Versioned | None:
        try:
            return await self._records.read(f"reading {what}", lambda: self._records.metastore.get(key))
        except KeyNotFoundError:
            return None

    async def page_numbers(self, name: str) -> list[int]:
        """The numbers of a log's pages, ascending; including pages to which nothing refers any more."""
        what = f"listing the pages of log {name!r}"
        return await self._records.read(what, lambda: list_log_pages(self._records.metastore, name))

    async def segments(self, name: str, first: int = 1, end: int | None = None) -> list[Segment]:
        """The segments of a log that are numbered from `first` to before `end`, in order; those trimmed meanwhile
        may be missing. Costs one read, and one for each page. Raises as `get`; `MetastoreCorruptError` if a page is missing."""
        head, _ = await self.get(name)
        found: list[Segment] = []
        pages: dict[int, LogPage | None] = {}  # read ahead
        while True:
            start = max(head.first_segment_number, first, found[-1].number + 1 if found else 0)
            stop = head.next_segment_number if end is None else min(end, head.next_segment_number)
            # The pages are read from the oldest on; what remains is in the head.
            if start >= min(stop, head.first_listed_number):
                return [*found, *(each for each in head.segments if start <= each.number < stop)]
            if head.page_of(start) not in pages:
                last = head.page_of(min(stop, head.first_listed_number) - 1)
                pages = await self._pages(name, range(head.page_of(start), last + 1)[:_PAGES_AT_ONCE])
            page = pages[head.page_of(start)]
            more = [] if page is None else [each for each in page.segments if start <= each.number < stop]
            if more[:1] and more[0].number == start:
                found += more
                continue
            head, pages = await self.after_missing(head, start), {}
            if start < head.first_segment_number:
                found = []  # otherwise there would be a gap

    async def entries_in(self, head: LogMetadata, segment_number: int) -> int | None:
        """How many entries this segment of the log with this record has; None if unknown: its ledger is not closed, or
        is gone, or the log has no such segment. Costs a read each for the segment's page and ledger, where they are
        needed. Raises as `get`."""
        listed = head.segments
        if segment_number < head.first_listed_number:
            page = await self.page(head.name, head.page_of(segment_number))
            listed = () if page is None else page.segments
        segment = next((each for each in listed if each.number == segment_number), None)
        if segment is None:
            return None
        if segment.contents is not None:
            return segment.contents.entries
        try:
            ledger, _ = await self._records.get_head(segment.ledger_id)
        except LedgerNotFoundError:
            return None
        return None if ledger.last_entry_id is None else ledger.last_entry_id + 1

    async def _pages(self, name: str, numbers: Iterable[int]) -> dict[int, LogPage | None]:
        pages: dict[int, LogPage | None] = {}

        async def read(number: int) -> None:
            pages[number] = await self.page(name, number)

        await for_each(read, numbers, _PAGES_AT_ONCE)
        return pages

    async def after_missing(self, head: LogMetadata, segment_number: int) -> LogMetadata:
        """Rereads a log's record after a segment was not found in its page. Raises `MetastoreCorruptError` if the segment was not
        trimmed meanwhile."""
        now, _ = await self.get(head.name)
        if now.deletions == head.deletions and segment_number >= now.first_segment_number:
            key = log_page_key_path(head.name, head.page_of(segment_number))
            where = "it is neither in the log's record nor in its page"
            problem = f"segment {segment_number} of log {head.name!r} is missing: {where}"
            raise MetastoreCorruptError(f"{problem}, key {key!r}; restore that from a backup of the metastore")
        return now

    async def named(self, name: str) -> frozenset[int]:
        """The ledgers that the log names, all of them; none if there is no such log."""
        try:
            return frozenset(segment.ledger_id for segment in await self.segments(name))
        except LogNotFoundError:
            return frozenset()

    async def named_before(self, log: LogMetadata) -> frozenset[int]:
        """The ledgers that the log names before those in this record of it; none if the log was deleted since."""
        try:
            segments = await self.segments(log.name, end=log.first_listed_number)
        except LogNotFoundError:
            return frozenset()
        return frozenset(segment.ledger_id for segment in segments)

    # -- ledgers that are pending (L7) ----------------------------------------------------------------------------------

    async def pending(self, name: str) -> tuple[PendingLedger, ...]:
        """The ledgers that are being created for the log, or were created and never added. Raises `MetastoreError`."""
        key, what = log_pending_key_path(name), f"listing the pending ledgers of log {name!r}"
        found = await self._records.read(what, lambda: self._records.metastore.values(key))
        return tuple(decode_pending(f"{key}/{word}", each.value) for word, each in sorted(found.items()))

    async def announce(self, name: str, ledger_id: int, segment_number: int) -> None:
        """Records that a ledger will be created for this segment of the log (L7). Raises `MetastoreError`."""
        key = log_pending_key_path(name, ledger_id)
        value = encode(PendingLedger(name, ledger_id, segment_number, self._ledgers.entropy.time_ms()))
        # If it exists, an earlier attempt has written it: no other client has this id.
        await self._records.create_key(key, value)

    async def delete_key(self, key: str) -> None:
        """Deletes a key, if there is one. Raises `MetastoreError`."""
        await self._records.delete_key(key)
