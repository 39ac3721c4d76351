"""Saving logs to a directory, and checking the saved files.

Only closed ledgers are saved, from the log's first segment up to the first one that is not closed: they never change, so writers
go on, and a file that is there already is not read again.

Positions that point into a log are saved so that they land inside (V1):

- A machine's snapshots are saved before its log. A leader rolls the log before it saves a snapshot, so the closed
  segments reach the snapshot; and it trims the log afterwards, so the log may by then begin behind it. Then both are
  saved again, while an announcement asks the leader not to trim.
- Cursors are read after the log was saved. A cursor that has come further is put behind the saved part: all of it is
  processed.

Names are listed again at the end, as a machine may have begun its snapshots meanwhile. Logs that cannot be saved so are
a problem of the report, and the back-up keeps their earlier content.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack
from functools import partial

import attrs
import trio

from replog.backup.content import Backup, called
from replog.backup.format import Block, LedgerHead, LogInBackup, Manifest, SavedSegment
from replog.backup.joining import Snapshots, gap, gaps, read_snapshots
from replog.client.entries import EntryBatch
from replog.client.ledgers import Ledgers
from replog.errors import BackupDamagedError, BackupError, LedgerNotFoundError, LogNotFoundError
from replog.log.cursor_catalog import CursorCatalog
from replog.log.log_records import LogRecords
from replog.log.snapshot_format import machine_name, snapshots_name
from replog.protocol.model import LedgerMetadata, LedgerState, LogMetadata, Position, Segment
from replog.records.logs import list_log_names
from replog.records.paths import log_backups_key_path
from replog.runtime.threads import run_in_thread

_LISTINGS_MAX = 5  # of names, and of a log's segments: logs that are made faster than that are in the next back-up
# Between two attempts to save a machine. A leader may take some seconds to close a ledger, if a bookie has failed.
_PAUSES_S = (0.1, 0.3, 1.0, 2.0, 5.0)


ReportBytes = Callable[[int], None]


@attrs.frozen
class SavedLog:
    """A log in a back-up: its segments from `first_segment` to `last_segment`, both included; 1 and 0 if it has none.
    `new_segments` of them were saved by this run."""

    name: str
    first_segment: int
    last_segment: int
    size_bytes: int
    new_segments: int = 0

    @classmethod
    def of(cls, name: str, log: LogInBackup, new_segments: int = 0) -> SavedLog:
        """The back-up's content of this log."""
        if not log.segments:
            return cls(name, 1, 0, 0)
        size_bytes = sum(each.size_bytes for each in log.segments)
        return cls(name, log.first_segment_number, log.last_segment_number, size_bytes, new_segments)


@attrs.frozen
class BackupReport:
    """The contents of a back-up: `logs` has each log with its `name`, its segments from `first_segment` to `last_segment`,
    `size_bytes`, and how many of the segments are `new_segments`, saved by this run.

    `problems` name each log that could not be saved or restored whole, and, if they were checked, each damaged file, and each
    machine whose log and snapshots are not joined."""

    directory: str
    created_at_ms: int
    logs: tuple[SavedLog, ...]
    problems: tuple[str, ...] = ()


async def save(
    backup: Backup,
    names: Sequence[str] | None,
    ledgers: Ledgers,
    logs: LogRecords,
    password: bytes,
    progress: ReportBytes | None = None,
) -> BackupReport:
    """Saves the closed segments of these logs, or of all; the back-up keeps its content of other logs. `progress` is called with
    the payload bytes that were saved since the last call."""
    with ExitStack() as stack:
        await run_in_thread(lambda: stack.enter_context(backup.locked()))
        before = await called(backup.manifest) or Manifest(0, {})
        saving = _Saving(_Saver(backup, before, ledgers, password, progress), before, ledgers, logs)
        if names is None:
            await saving.save_all()
        else:
            await saving.save(names)
        manifest = Manifest(ledgers.entropy.time_ms(), saving.saved)
        await run_in_thread(lambda: backup.write_manifest(manifest))
    return _report(backup, manifest, saving.saver.new, saving.problems)


@attrs.frozen
class _Attempt:
    """The saved part of a machine, or of a log that is not one. `problem` says why the two don't fit."""

    commands: LogInBackup | None
    saved_snapshots: LogInBackup | None
    snapshots: Snapshots
    problem: str | None


class _Saving:
    """One run: what it has saved, with what the back-up had before."""

    def __init__(self, saver: _Saver, before: Manifest, ledgers: Ledgers, logs: LogRecords) -> None:
        self.saved = dict(before.logs)
        self.problems: list[str] = []
        self.saver = saver
        self._backup = saver.backup
        self._ledgers = ledgers
        self._logs = logs
        self._cursors = CursorCatalog(ledgers, logs)

    async def save_all(self) -> None:
        """Saves all logs, and those that appear meanwhile; one that is deleted meanwhile stays as it was."""
        known: set[str] = set()
        for _ in range(_LISTINGS_MAX):
            names = set(await list_log_names(self._ledgers.records.metastore)) - known
            if not names:
                return
            known |= names
            # Those whose snapshots have just appeared are saved again with these.
            for machine in sorted({machine_name(each) for each in names}):
                await self._save(machine)

    async def save(self, names: Sequence[str]) -> None:
        """Saves these logs, and with each its machine's log or snapshots. Raises `LogNotFoundError`."""
        for name in names:
            await self._logs.get(name)
        for machine in dict.fromkeys(map(machine_name, names)):
            await self._save(machine)

    async def _save(self, machine: str) -> None:
        """Saves the log of this name, and the one with its snapshots, if there are such logs."""
        found = await self._attempt(machine)
        if found.problem is not None:
            found = await self._again(machine, found)
        both = {machine: found.commands, snapshots_name(machine): found.saved_snapshots}
        was_there = both.keys() & self.saved.keys()
        if found.problem is not None:
            kept = "the back-up keeps what it had of them" if was_there else "they are saved as they are"
            self.problems.append(
                f"{found.problem}, after {len(_PAUSES_S) + 1} attempts: {kept}; back up again once its leader is well"
            )
        elif found.commands is not None or not found.snapshots.are_of_machine:
            await self._say_if_empty(machine, found)
            was_there = set()
        # Of two that don't fit, what was there before does, or is at least older. So it is of a machine whose log was deleted.
        if not was_there:
            self.saved.update({name: log for name, log in both.items() if log is not None})

    async def _again(self, machine: str, found: _Attempt) -> _Attempt:
        key = f"{log_backups_key_path(machine)}/{self._ledgers.entropy.token(8)}"
        # The leader trims nothing more meanwhile: so it can't outrun this, however often it saves snapshots.
        async with self._ledgers.records.metastore.announce(key, b"a back-up"):
            for pause_s in _PAUSES_S:
                if found.problem is not None:
                    await trio.sleep(pause_s)
                    found = await self._attempt(machine)
        return found

    async def _attempt(self, machine: str) -> _Attempt:
        saved, snapshots = await self._snapshots(machine)
        commands = await self._log(machine)
        problem = None if commands is None else await self._gap(machine, commands, saved, snapshots)
        return _Attempt(commands, saved, snapshots, problem)

    async def _snapshots(self, machine: str) -> tuple[LogInBackup | None, Snapshots]:
        """Saves a machine's snapshots, if there are any, and reads the saved files."""
        saved = await self._log(snapshots_name(machine))
        if saved is None:
            return None, Snapshots(None, are_of_machine=False)
        try:
            return saved, await called(partial(read_snapshots, self._backup, saved))
        except BackupDamagedError:
            self.saver.forget(saved)
            saved = await self._log(snapshots_name(machine)) or saved
            return saved, await called(partial(read_snapshots, self._backup, saved))

    async def _gap(
        self, machine: str, commands: LogInBackup, snapshots: LogInBackup | None, found: Snapshots
    ) -> str | None:
        if snapshots is not None and snapshots.segments:
            return gap(machine, commands, found)
        if commands.has_beginning:
            return None
        # The leader that trimmed the log may have closed its first snapshot since they were looked for.
        name = snapshots_name(machine)
        head, _ = await self._logs.head(name)
        if head is None or head.is_deleted:
            return None
        closed = [each for each in await self._logs.segments(name) if await self.saver.is_closed(each)]
        return f"log {name!r} has got its first snapshot meanwhile" if closed else None

    async def _say_if_empty(self, machine: str, found: _Attempt) -> None:
        log, name = found.commands, machine
        if log is None:
            log, name = found.saved_snapshots, snapshots_name(machine)
        # Of a machine that has rolled just now, the snapshot has all.
        if log is None or log.segments or found.snapshots.position is not None:
            return
        head, _ = await self._logs.head(name)
        if head is not None and head.segment_count:
            problem = f"log {name!r} has no closed segment, so nothing of it is in the back-up"
            self.problems.append(f"{problem}: have its writer roll it, or end, and back up again")

    async def _log(self, name: str) -> LogInBackup | None:
        """Saves the closed segments of this log; None if there is none."""
        try:
            for number in range(1, _LISTINGS_MAX + 1):
                found = await self._listed(name, accepts_none=number == _LISTINGS_MAX)
                if found is not None:
                    return found
        except LogNotFoundError:
            pass
        return None

    async def _listed(self, name: str, *, accepts_none: bool) -> LogInBackup | None:
        """The same; None also if all segments of it were trimmed meanwhile, or it was begun again."""
        before, _ = await self._logs.get(name)
        was_trimmed, saved = await self.saver.save(await self._logs.segments(name))
        after, _ = await self._logs.get(name)
        if before.deletions != after.deletions or (was_trimmed and not saved and not accepts_none):
            return None
        return await self._as_saved(saved, before, after)

    async def _as_saved(self, saved: dict[SavedSegment, int], before: LogMetadata, after: LogMetadata) -> LogInBackup:
        segments = tuple(saved)
        first = segments[0].number if segments else after.first_segment_number
        # If it was trimmed twice meanwhile, it is unknown.
        known = [each.trimmed_to for each in (before, after) if each.first_segment_number == first]
        end = Position(segments[-1].number, saved[segments[-1]] + 1) if segments else Position(first, 0)
        cursors = {each.name: min(each.begins_at, end) for each in await self._cursors.records_of(after)}
        trimmed_to = known[0] if known else None
        return LogInBackup(segments, first, after.begun_with_number, trimmed_to, after.custom, cursors)


class _Saver:
    """Saves segments."""

    def __init__(
        self, backup: Backup, before: Manifest, ledgers: Ledgers, password: bytes, progress: ReportBytes | None
    ) -> None:
        self.backup = backup
        self.new: set[int] = set()  # the ledgers that this run has saved
        self._progress = progress
        self._ledgers = ledgers
        self._password = password
        # Of all logs: a file is named after its ledger, and one that is there must not be replaced by another cluster's.
        segments = itertools.chain.from_iterable(log.segments for log in before.logs.values())
        self._known = {each.ledger_id: each for each in segments}

    def forget(self, log: LogInBackup) -> None:
        """Has the files of this log looked at again, from beginning to end."""
        for segment in log.segments:
            self._known.pop(segment.ledger_id, None)

    async def is_closed(self, segment: Segment) -> bool:
        """True if the ledger of this segment is closed; False also if it is gone."""
        try:
            metadata, _ = await self._ledgers.records.get(segment.ledger_id)
        except LedgerNotFoundError:
            return False
        return metadata.state is LedgerState.CLOSED

    async def save(self, segments: Sequence[Segment]) -> tuple[bool, dict[SavedSegment, int]]:
        """Saves these segments of a log up to the first one that is not closed. Returns whether some were trimmed, and of those
        that are saved, in order, the last entry's id."""
        saved: dict[SavedSegment, int] = {}
        was_trimmed = False
        for segment in segments:
            try:
                metadata, _ = await self._ledgers.records.get(segment.ledger_id)
                if metadata.state is not LedgerState.CLOSED:
                    break  # what follows has no end yet, and a log has no holes
                head = head_of(metadata)
                saved[await self._saved(segment, head)] = head.last_entry_id
            except LedgerNotFoundError:
                # It was trimmed meanwhile, and with it all before it.
                was_trimmed = True
                saved.clear()
        return was_trimmed, saved

    async def _saved(self, segment: Segment, head: LedgerHead) -> SavedSegment:
        backup = self.backup
        known = self._known.get(segment.ledger_id)
        known_head = None if known is None else await called(partial(backup.head, known))
        if known is not None and known_head == head and known.number == segment.number:
            return known
        if known_head is not None and known_head != head:
            raise BackupError(
                backup.shown,
                f"it has another ledger {segment.ledger_id} than this cluster, so it is a back-up of another cluster: nothing "
                "was changed. Use a place for each cluster, and a new one after a cluster was made anew or restored",
            )
        found: SavedSegment | None = await called(lambda: backup.finished_before(segment.number, head))
        if found is None:
            found = await self._write(segment, head)
        self.new.add(segment.ledger_id)
        self._known[segment.ledger_id] = found
        return found

    async def _write(self, segment: Segment, head: LedgerHead) -> SavedSegment:
        file = await called(lambda: self.backup.begin(head))
        try:
            async with await self._ledgers.open(head.ledger_id, self._password) as reader:
                async for batch in reader.batches():
                    blocks = _blocks(batch)
                    await run_in_thread(partial(file.add, blocks))
                    if self._progress is not None:
                        self._progress(batch.payload_bytes)
            return await called(lambda: file.finish(segment.number))
        finally:
            file.close()


def head_of(metadata: LedgerMetadata) -> LedgerHead:
    """The head for the file of a closed ledger."""
    assert metadata.last_entry_id is not None, "only closed ledgers are saved"
    quorum = metadata.quorum
    return LedgerHead(
        metadata.ledger_id,
        metadata.creation,
        metadata.created_at_ms,
        metadata.last_entry_id,
        quorum.ensemble,
        quorum.write,
        quorum.ack,
        metadata.digest_type.name.lower(),
        # A record does not say whether there is a password; but everybody can compute the check of the empty one.
        not metadata.is_opened_by(b""),
        dict(metadata.custom),
    )


def _blocks(batch: EntryBatch) -> list[Block]:
    found: list[Block] = []
    rows = zip(batch.stored(), batch.timestamps_ns(), strict=False)
    first = batch.first_entry_id
    for (timestamp_ns, _), group in itertools.groupby(rows, key=lambda row: (row[1], type(row[0]))):
        payloads = [payload for payload, _ in group]
        found.append(Block(first, timestamp_ns, payloads))
        first += len(payloads)
    return found


async def verify(backup: Backup) -> BackupReport:
    """Reads a whole back-up in a worker thread, and returns its content and its faults."""
    return await called(lambda: check(backup))


def check(backup: Backup, progress: ReportBytes | None = None) -> BackupReport:
    """The same in this thread; `progress` is called with the bytes of each file that was checked. Raises `BackupError` if there
    is no back-up, or its manifest is damaged."""
    manifest = backup.existing_manifest()
    problems: list[str] = []
    damaged: set[str] = set()
    for name, log in manifest.logs.items():
        for segment in log.segments:
            try:
                backup.check(segment)
            except BackupDamagedError as error:
                problems.append(str(error))
                damaged.add(name)
            if progress is not None:
                progress(segment.size_bytes)
    problems += gaps(backup, manifest, damaged)
    return _report(backup, manifest, frozenset(), problems)


def _report(backup: Backup, manifest: Manifest, new: Set[int], problems: Sequence[str]) -> BackupReport:
    logs = []
    for name, log in sorted(manifest.logs.items()):
        logs.append(SavedLog.of(name, log, sum(each.ledger_id in new for each in log.segments)))
    return BackupReport(str(backup.shown), manifest.created_at_ms, tuple(logs), tuple(problems))
