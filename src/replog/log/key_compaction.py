"""Compaction of a log into a new one: of each key its last value.

Rules:

- It reads the entries that were known to be confirmed when it began, twice: for the last position of each key, then for
  the kept ones. It deposes no writer and changes nothing in the log that it reads; entries appended meanwhile are left
  out.
- An entry without a key is kept: nothing says that it is obsolete. A tombstone is not: the new log has no value that it
  ends.
- Kept entries stay in their order, with their keys, headers and times.
- The new log exists with one change of its record, whole, or not at all. Ledgers of a compaction that failed belong to
  a job that is given up: they are deleted at once if that can be done in a few seconds, and else by the next sweep.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress

import attrs
import trio

from replog.client.ledgers import Ledgers, check_password
from replog.errors import ConfigError, ReplogError, TrimmedError
from replog.log import appending, sweeping
from replog.log.log_driver import LogDriver
from replog.log.log_reader import LogReader, started
from replog.log.log_records import LogRecords
from replog.log.record_batches import Record, RecordBatch
from replog.protocol.batch import Payloads
from replog.protocol.digest import DigestType
from replog.protocol.envelope import pack
from replog.protocol.model import Position
from replog.protocol.quorum import Quorum
from replog.records.paths import log_key_path

_ROLL_BYTES = 1 << 30  # of a ledger of the new log, if the client's options name no size
_GIVING_UP_S = 5.0


@attrs.frozen
class CompactedLog:
    """The result of `Client.compact_log`: how many entries were read and kept, and how many different `keys` were read.

    `through` is the last position that was read; None if there was none. The new log lacks what follows it in the first log."""

    name: str
    into: str
    read_entries: int
    kept_entries: int
    keys: int
    through: Position | None


class LogCompaction:
    """One compaction of a log into a new one."""

    def __init__(
        self,
        name: str,
        into: str,
        ledgers: Ledgers,
        driver: LogDriver,
        logs: LogRecords,
        quorum: Quorum,
        password: bytes,
        digest_type: DigestType,
    ) -> None:
        log_key_path(name)
        log_key_path(into)
        check_password(password)
        self._name = name
        self._into = into
        self._ledgers = ledgers
        self._driver = driver
        self._logs = logs
        self._quorum = quorum
        self._password = password
        self._digest_type = digest_type
        self._last: dict[bytes, Position] = {}  # the last entry of each key
        self._through: Position | None = None
        self._read_entries = 0
        self._kept_entries = 0

    async def run(self) -> CompactedLog:
        """Compacts. Raises as `Client.compact_log`."""
        await self._check_is_new()
        await self._find_last()
        job = f"compact-{self._ledgers.entropy.token(8)}"
        is_done = False
        try:
            ledger_ids = await self._write(job)
            wanted = appending.addition(self._into, ledger_ids, (job, 1), job, None)
            known = self._ledgers, self._driver, self._password
            await appending.append(self._into, wanted, 0.0, *known, makes_log=True)
            is_done = True
        finally:
            if not is_done:
                # A sweep leaves what the log names: the answer to the change may have been lost.
                with trio.CancelScope(deadline=trio.current_time() + _GIVING_UP_S, shield=True), suppress(ReplogError):
                    await sweeping.sweep(self._into, 0.0, job, self._ledgers, self._driver)
        counts = self._read_entries, self._kept_entries, len(self._last)
        return CompactedLog(self._name, self._into, *counts, self._through)

    async def _check_is_new(self) -> None:
        head, _ = await self._logs.head(self._into)
        if head is not None and not head.is_deleted:
            raise ConfigError(
                f"there is a log {self._into!r} already: a log is compacted into a new one; nothing was changed, choose "
                "another name"
            )

    async def _find_last(self) -> None:
        async with await self._reader() as reader:
            async for batch in reader.batches():
                self._through = batch.last_position
                self._read_entries += len(batch)
                if batch.has_envelopes:
                    self._last.update((each.key, each.position) for each in batch if each.key is not None)

    async def _reader(self) -> LogReader:
        reader = LogReader(self._name, self._ledgers, self._logs, self._password, None, follow=False)
        await started(reader)
        return reader

    async def _write(self, job: str) -> list[int]:
        """Writes the kept entries into ledgers of this job; returns their ids."""
        roll_bytes = self._ledgers.options.roll_bytes or _ROLL_BYTES
        ledger_ids: list[int] = []
        read_entries = 0
        async with AsyncExitStack() as stack, await self._reader() as reader:
            writer = None
            async for batch in reader.batches():
                if self._through is None or batch.first_position > self._through:
                    break
                is_whole = batch.last_position <= self._through
                read_entries += len(batch) if is_whole else sum(each.position <= self._through for each in batch)
                kept = self._kept(batch)
                if not kept:
                    continue
                if writer is None or writer.length_bytes >= roll_bytes:
                    await stack.aclose()
                    writer = await self._ledgers.create(
                        self._quorum, self._password, self._digest_type, {"log": self._into, "job": job}
                    )
                    ledger_ids.append(writer.ledger_id)
                    await stack.enter_async_context(writer)
                # A batch has one time: `extend` returns when all of it is sent.
                writer.date(batch.timestamp_ns)
                await writer.extend(kept)
                self._kept_entries += len(kept)
        await self._check_read_again(read_entries)
        return ledger_ids

    async def _check_read_again(self, read_entries: int) -> None:
        """Raises `TrimmedError` unless the second reading found as many entries as the first one: a reader begins where the log
        begins by then, and may have missed the last values of keys."""
        if read_entries != self._read_entries:
            head, _ = await self._logs.get(self._name)
            begin = Position(head.first_segment_number, 0)
            problem = (
                f"it was trimmed while it was compacted, and begins at {begin} now; there is no log {self._into!r}: "
                "compact again"
            )
            raise TrimmedError(self._name, problem, begin)

    def _kept(self, batch: RecordBatch) -> Payloads:
        through = self._through
        assert through is not None, "something was read"
        return Payloads(_packed(each) for each in batch if each.position <= through and self._is_kept(each))

    def _is_kept(self, record: Record) -> bool:
        if record.key is None:
            return True
        return not record.is_tombstone and self._last.get(record.key) == record.position


def _packed(record: Record) -> bytes:
    return pack(record.data, key=record.key, headers=record.headers)
