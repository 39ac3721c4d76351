"""Restoring logs from a back-up, with the positions that they had.

The ledgers are written again, with the same entries under the same ids and times, by ordinary writers: so they may have another
quorum, other bookies and another password. Their own ids are new. Segments keep their numbers. All ledgers of a log become part
of it by one change of its record, as those of a job do (`append_ledgers`): a restore that is killed leaves no part of a log,
only ledgers that the next one sweeps. The record has room for some hundreds of segments; the pages with the others are written
before that change, and mean nothing without it.

A machine's log is restored before its snapshots (V1): a member that starts in between finds neither a beginning nor a
snapshot, and ends with an error that says so, instead of beginning with an empty state.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import attrs

from replog.backup.content import Backup, called
from replog.backup.format import LedgerFile, LedgerHead, LogInBackup, Manifest, SavedSegment
from replog.backup.joining import behind, gap, read_snapshots, with_partners
from replog.backup.saving import BackupReport, ReportBytes, SavedLog
from replog.client.entry_writer import EntryWriter
from replog.client.ledgers import Ledgers
from replog.errors import BackupDamagedError, BackupError, ConfigError
from replog.log import appending, sweeping
from replog.log.log_driver import LogDriver
from replog.log.log_records import LogRecords
from replog.log.producers import ProducerRecords
from replog.log.snapshot_format import machine_name, snapshots_name
from replog.protocol.appending import Claim
from replog.protocol.digest import DigestType
from replog.protocol.envelope import has_id
from replog.protocol.model import LogCursor, LogMetadata, Position
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
        backup: Backup,
        ledgers: Ledgers,
        logs: LogRecords,
        driver: LogDriver,
        quorum: Quorum,
        password: bytes,
        *,
        with_cursors: bool,
        progress: ReportBytes | None = None,
    ) -> None:
        self._backup = backup
        self._ledgers = ledgers
        self._logs = logs
        self._driver = driver
        self._quorum = quorum
        self._password = password
        self._with_cursors = with_cursors
        self._progress = progress
        self._has_ids = False  # some of the entries that were restored

    async def restore(self, names: Sequence[str] | None) -> BackupReport:
        """Restores these logs with those that belong to them, or all. Raises `BackupError` before anything is written if one
        exists, or is not there."""
        manifest = await called(self._backup.existing_manifest)
        for name in names or ():
            if name not in manifest.logs:
                have = ", ".join(sorted(manifest.logs)) or "none"
                raise BackupError(self._backup.shown, f"it has no log {name!r}; it has {have}")
        wanted = with_partners(sorted(manifest.logs) if names is None else list(names), manifest)
        problems: list[str] = []
        restored: dict[str, SavedLog] = {}
        logs: dict[str, LogInBackup] = {}
        for name in wanted:
            with _damage_explained(name, wanted, restored):
                logs[name] = await self._joined(name, manifest, problems)
        for name, log in logs.items():
            # All of them, before the first is written: a restore that cannot be whole begins nothing.
            await self._check_is_new(name, log.first_segment_number)
        for name, log in logs.items():
            with _damage_explained(name, wanted, restored):
                restored[name] = await self._restore(name, log)
        return BackupReport(str(self._backup.shown), manifest.created_at_ms, tuple(restored.values()), tuple(problems))

    async def _joined(self, name: str, manifest: Manifest, problems: list[str]) -> LogInBackup:
        """The log to restore: a machine's goes on behind its newest snapshot, even if less of the log was saved."""
        log, snapshots = manifest.logs[name], manifest.logs.get(snapshots_name(name))
        if snapshots is None:
            return log
        found = await called(partial(read_snapshots, self._backup, snapshots))
        problem = gap(name, log, found)
        if problem is None:
            return log
        problems.append(problem)
        position = found.position
        if position is None or log.last_segment_number >= position.segment:
            return log
        # A new command must not get a position that the snapshot counts as applied.
        return attrs.evolve(
            log, segments=(), first_segment_number=position.segment + 1, trimmed_to=behind(position), cursors={}
        )

    async def _check_is_new(self, name: str, first: int) -> None:
        head, _ = await self._logs.head(name)
        if head is not None and not head.is_deleted:
            raise BackupError(self._backup.shown, f"there is a log {name!r} already: restore into an empty cluster")
        if head is not None and head.next_segment_number > first:
            used = head.next_segment_number - 1
            raise BackupError(
                self._backup.shown,
                f"a log {name!r} was deleted here that had segments up to {used}, and this one begins with {first}: a position "
                "would mean two records. Restore into an empty cluster",
            )

    async def _restore(self, name: str, log: LogInBackup) -> SavedLog:
        # Leftovers of an earlier restore belong to no log.
        await sweeping.sweep(name, 0.0, None, self._ledgers, self._driver)
        job = f"restore-{self._ledgers.entropy.token(8)}"
        first = log.first_segment_number
        ids: dict[int, int] = {}
        self._has_ids = False

        async def write(segment: SavedSegment) -> None:
            ids[segment.number] = await self._write(name, job, segment)

        await for_each(write, log.segments, _LEDGERS_AT_ONCE)
        if not log.segments:
            ids[first] = await self._write_empty(name, job)
        # As late as possible: from here on the log exists, as a deleted one, and its numbers are taken.
        begun = await self._begin_at(name, first)
        if self._has_ids:
            # The first writer that looks finds that all is still to be read, since no entry's id is in the record (L11).
            empty = ProducersRecord(name, begun.deletions, first - 1)
            await ProducerRecords(self._ledgers).advance(ProducerWindow(empty))
        wanted = appending.addition(name, [ids[number] for number in sorted(ids)], (job, 1), job, None)
        store = self._ledgers, self._driver, self._password
        await appending.append(name, wanted, 0.0, *store, makes_log=self._claim(begun, log))
        return SavedLog.of(name, log, len(log.segments))

    def _claim(self, begun: LogMetadata, log: LogInBackup) -> Claim:
        cursors = sorted(log.cursors.items()) if self._with_cursors else []
        return Claim(
            begun.token,
            begun.begins_at if log.trimmed_to is None else log.trimmed_to,
            log.begun_with_number,
            log.custom,
            # With new ids: nothing that an earlier log of this name has left is taken for theirs.
            tuple(LogCursor(name, self._ledgers.entropy.token(), place) for name, place in cursors),
        )

    async def _begin_at(self, name: str, number: int) -> LogMetadata:
        """Has the log begin with this segment, as if an earlier one had been deleted before it (L4). Returns its record."""
        records, key, token = self._ledgers.records, log_key_path(name), self._ledgers.entropy.token()

        async def begun(head: LogMetadata | None) -> LogMetadata | None:
            if head is not None and head.token == token:
                return None  # an earlier request was made whose answer was lost
            if head is not None and (not head.is_deleted or head.next_segment_number > number):
                raise BackupError(self._backup.shown, f"another client began log {name!r} meanwhile")
            known = head or LogMetadata(name, page_segments=self._logs.page_segments)
            return attrs.evolve(
                known,
                deletions=known.deletions + 1,
                first_segment_number=number,
                next_segment_number=number,
                trimmed_to=Position(number, 0),
                first_open_number=number,
                deleted_before_number=number,
                deleted_at_ms=self._ledgers.entropy.time_ms(),
                token=token,
            )

        async def write(head: LogMetadata | None, version: int | None) -> None:
            assert head is not None, "it is never deleted here"
            await records.write(key, encode(head), version)

        written = await records.edit(f"beginning log {name!r}", lambda: self._logs.head(name), begun, write)
        assert written is not None, "it was there, or was written"
        return written

    async def _write(self, name: str, job: str, segment: SavedSegment) -> int:
        with ExitStack() as stack:
            file = await called(lambda: stack.enter_context(self._backup.opened(segment)))
            head = file.head
            if head.has_password and not self._password:
                problem = (
                    f"log {name!r} had a password, which is not in the back-up: give the one that it has from now on"
                )
                raise ConfigError(f"{self._backup.shown}: {problem}")
            kept = {key: value for key, value in head.custom.items() if key not in _RESERVED}
            writer = await self._create(name, job, self._digest_type(head), kept)
            async with writer:
                self._has_ids |= await _copy(file, writer, self._progress)
                last = writer.last_add_confirmed
            self._backup.check_read(segment, file)
        # The file was checked, but the writer is another witness: it says where the ledger really ends.
        if last != head.last_entry_id:
            raise BackupError(
                self._backup.shown, f"ledger {writer.ledger_id} ends at {last}, not at {head.last_entry_id}"
            )
        return writer.ledger_id

    async def _write_empty(self, name: str, job: str) -> int:
        """A segment without entries: a log has one, and its numbers go on behind it."""
        writer = await self._create(name, job, DigestType.HMAC_SHA256 if self._password else DigestType.CRC32C, {})
        async with writer:
            return writer.ledger_id

    async def _create(self, name: str, job: str, digest_type: DigestType, custom: Mapping[str, str]) -> EntryWriter:
        belongs = {**custom, "log": name, "job": job}
        return await self._ledgers.create(self._quorum, self._password, digest_type, belongs)

    def _digest_type(self, head: LedgerHead) -> DigestType:
        for each in DigestType:
            if each.name.lower() == head.digest_type:
                return each
        problem = f"ledger {head.ledger_id} has codes of type {head.digest_type!r}, which this version does not know"
        raise BackupError(self._backup.shown, problem)


@contextmanager
def _damage_explained(name: str, wanted: Sequence[str], restored: Collection[str]) -> Iterator[None]:
    """Says of a damaged file which log needs it, which logs are restored, and what to do about the others."""
    try:
        yield
    except BackupDamagedError as error:
        # A machine's log and its snapshots are restored together.
        left = [each for each in wanted if each not in restored and machine_name(each) != machine_name(name)]
        words = [
            str(error).removeprefix(f"{error.path}: "),
            f"Log {name!r} needs it, and is not restored. Restored whole: {_listed(restored)}",
            "Restore it by its name (--log, logs=) from another back-up, or once an intact copy of this file is in its place",
        ]
        if left:
            words.append(f"Those that are left can be restored from here, by their names: {_listed(left)}")
        raise BackupDamagedError(error.path, ". ".join(words)) from error


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


async def _copy(file: LedgerFile, writer: EntryWriter, progress: ReportBytes | None) -> bool:
    """Writes the entries of a saved ledger; returns True if some of them have ids."""
    has_ids = False
    source = file.blocks()
    while blocks := await called(lambda: list(itertools.islice(source, _BLOCKS_AT_ONCE))):
        for block in blocks:
            # A batch has one time, so entries sent at another time must not share it: each block is confirmed first.
            writer.date(block.timestamp_ns)
            await writer.extend(block.payloads)
            if progress is not None:
                progress(sum(map(len, block.payloads)))
            has_ids = has_ids or any(map(has_id, block.payloads))
    return has_ids
