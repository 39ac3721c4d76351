"""Restoring logs from a back-up, with the positions that they had.

The ledgers are written again, with the same entries under the same ids and times, by ordinary writers: so they may have another
quorum, other bookies and another password. Their own ids are new. Segments keep their numbers. All ledgers of a log become part
of it by one change of its record, as those of a job do (`append_ledgers`): a restore that is killed leaves no part of a log,
only ledgers that the next one sweeps. The record has room for some hundreds of segments; the pages with the others are written
before that change, and mean nothing without it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import ExitStack

import attrs

from replog.backup.directory import BackupDirectory, called
from replog.backup.format import LedgerFile, LedgerHead, SavedSegment
from replog.backup.saving import BackupReport, SavedLog
from replog.client.ledger_writer import LedgerWriter
from replog.client.ledgers import Ledgers
from replog.errors import BackupError, ConfigError, KeyExistsError, MetastoreUncertainError, VersionConflictError
from replog.log import appending, sweeping
from replog.log.log_driver import LogDriver
from replog.log.log_records import LogRecords
from replog.log.producers import ProducerRecords
from replog.protocol.appending import Claim
from replog.protocol.digest import DigestType
from replog.protocol.envelope import has_id
from replog.protocol.model import LogMetadata, Position
from replog.protocol.producers import ProducersRecord, ProducerWindow
from replog.protocol.quorum import Quorum
from replog.records.encoding import encode
from replog.records.paths import log_key_path
from replog.runtime.nursery import for_each

_LEDGERS_AT_ONCE = 8
_BLOCKS_AT_ONCE = 64  # read from a file in one call of a thread
_RESERVED = ("log", "job", "condemned")  # custom metadata that belongs to the log and the job


class Restorer:
    """Restores logs of one back-up."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        ledgers: Ledgers,
        logs: LogRecords,
        driver: LogDriver,
        quorum: Quorum,
        password: bytes,
    ) -> None:
        self._directory = BackupDirectory(path)
        self._ledgers = ledgers
        self._logs = logs
        self._driver = driver
        self._quorum = quorum
        self._password = password
        self._has_ids = False  # some of the entries that were restored

    async def restore(self, names: Sequence[str] | None) -> BackupReport:
        """Restores these logs, or all. Raises `BackupError` before anything is written if one exists, or is not there."""
        manifest = await called(self._directory.existing_manifest)
        found = manifest.logs
        wanted = sorted(found) if names is None else list(names)
        for name in wanted:
            if name not in found:
                have = ", ".join(sorted(found)) or "none"
                raise BackupError(self._directory.path, f"it has no log {name!r}; it has {have}")
            # All of them, before the first is written: a restore that cannot be whole begins nothing.
            await self._check_is_new(name, found[name])
        restored = [await self._restore(name, found[name], manifest.trimmed_to.get(name)) for name in wanted]
        return BackupReport(str(self._directory.path), manifest.created_at_ms, tuple(restored))

    async def _check_is_new(self, name: str, segments: Sequence[SavedSegment]) -> None:
        head, _ = await self._logs.head(name)
        first = segments[0].number if segments else 1
        if head is not None and not head.is_deleted:
            raise BackupError(self._directory.path, f"there is a log {name!r} already: restore into an empty cluster")
        if head is not None and head.next_segment_number > first:
            used = head.next_segment_number - 1
            raise BackupError(
                self._directory.path,
                f"a log {name!r} was deleted here that had segments up to {used}, and this one begins with {first}: a position "
                "would mean two records. Restore into an empty cluster",
            )

    async def _restore(
        self, name: str, segments: Sequence[SavedSegment], trimmed_to: Position | None = None
    ) -> SavedLog:
        # What an earlier restore has left belongs to nobody.
        await sweeping.sweep(name, 0.0, None, self._ledgers, self._driver)
        job = f"restore-{self._ledgers.chance.token(8)}"
        ids: dict[int, int] = {}
        self._has_ids = False

        async def write(segment: SavedSegment) -> None:
            ids[segment.number] = await self._write(name, job, segment)

        await for_each(write, segments, _LEDGERS_AT_ONCE)
        if not segments:
            return SavedLog(name, 1, 0, 0)
        # As late as possible: from here on the log exists, as a deleted one, and its numbers are taken.
        begun = await self._begin_at(name, segments[0].number)
        if self._has_ids:
            # The first writer that looks finds that all is still to be read, since no entry's id is in the record (L11).
            empty = ProducersRecord(name, begun.deletions, segments[0].number - 1)
            await ProducerRecords(self._ledgers).advance(ProducerWindow(empty))
        wanted = appending.addition(name, [ids[each.number] for each in segments], (job, 1), job, None)
        store = self._ledgers, self._driver, self._password
        claim = Claim(begun.token, begun.begins_at if trimmed_to is None else trimmed_to)
        await appending.append(name, wanted, 0.0, *store, makes_log=claim)
        size_bytes = sum(each.size_bytes for each in segments)
        return SavedLog(name, segments[0].number, segments[-1].number, size_bytes, len(segments))

    async def _begin_at(self, name: str, number: int) -> LogMetadata:
        """Has the log begin with this segment, as if an earlier one had been deleted before it (L4). Returns its record."""
        metastore, key = self._ledgers.records.metastore, log_key_path(name)
        while True:
            head, version = await self._logs.head(name)
            if head is not None and (not head.is_deleted or head.next_segment_number > number):
                raise BackupError(self._directory.path, f"somebody else began log {name!r} meanwhile")
            known = head or LogMetadata(name, page_segments=self._logs.page_segments)
            wanted = attrs.evolve(
                known,
                deletions=known.deletions + 1,
                first_segment_number=number,
                next_segment_number=number,
                trimmed_to=Position(number, 0),
                first_open_number=number,
                deleted_before_number=number,
                deleted_at_ms=self._ledgers.chance.time_ms(),
                token=self._ledgers.chance.token(),
            )
            try:
                if version is None:
                    await metastore.create(key, encode(wanted))
                else:
                    await metastore.put(key, encode(wanted), version)
            except (KeyExistsError, VersionConflictError, MetastoreUncertainError):
                continue
            return wanted

    async def _write(self, name: str, job: str, segment: SavedSegment) -> int:
        with ExitStack() as stack:
            file = await called(lambda: stack.enter_context(self._directory.opened(segment)))
            head = file.head
            if head.has_password and not self._password:
                problem = (
                    f"log {name!r} had a password, which is not in the back-up: give the one that it has from now on"
                )
                raise ConfigError(f"{self._directory.path}: {problem}")
            custom = {key: value for key, value in head.custom.items() if key not in _RESERVED}
            custom.update(log=name, job=job)
            digest_type = self._digest_type(head)
            writer = await self._ledgers.create(self._quorum, self._password, digest_type, custom)
            async with writer:
                self._has_ids |= await _copy(file, writer)
                last = writer.last_add_confirmed
            self._directory.check_read(segment, file)
        # The file was checked, but the writer is another witness: it says where the ledger really ends.
        if last != head.last_entry_id:
            raise BackupError(
                self._directory.path, f"ledger {writer.ledger_id} ends at {last}, not at {head.last_entry_id}"
            )
        return writer.ledger_id

    def _digest_type(self, head: LedgerHead) -> DigestType:
        for each in DigestType:
            if each.name.lower() == head.digest_type:
                return each
        problem = f"ledger {head.ledger_id} has codes of type {head.digest_type!r}, which this version does not know"
        raise BackupError(self._directory.path, problem)


async def _copy(file: LedgerFile, writer: LedgerWriter) -> bool:
    """Writes the entries of a saved ledger; returns True if some of them have ids."""
    has_ids = False
    source = file.blocks()
    while blocks := await called(lambda: list(itertools.islice(source, _BLOCKS_AT_ONCE))):
        for block in blocks:
            # A batch has one time, so what was sent at another one must not share it: each block is confirmed first.
            writer.date(block.timestamp_ns)
            await writer.extend(block.payloads)
            has_ids = has_ids or any(map(has_id, block.payloads))
    return has_ids
