"""Saving logs to a directory, and checking what is there.

Only closed ledgers are saved, from the log's first segment up to the first one that is not closed: they never change, so writers
go on, and a file that is there already is not read again.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import attrs

from replog.backup.directory import BackupDirectory, called
from replog.backup.format import Block, LedgerHead, Manifest, SavedSegment
from replog.client.entries import EntryBatch
from replog.client.ledgers import Ledgers
from replog.errors import BackupDamagedError, BackupError, LedgerNotFoundError
from replog.log.log_records import LogRecords
from replog.protocol.model import LedgerMetadata, LedgerState, Segment
from replog.runtime.threads import run_in_thread


@attrs.frozen
class SavedLog:
    """A log in a back-up: its segments from `first_segment` to `last_segment`, both included; 1 and 0 if it has none.
    `new_segments` of them were saved by this run."""

    name: str
    first_segment: int
    last_segment: int
    size_bytes: int
    new_segments: int = 0


@attrs.frozen
class BackupReport:
    """What a back-up holds. `problems` name each damaged file, if it was checked."""

    directory: str
    created_at_ms: int
    logs: tuple[SavedLog, ...]
    problems: tuple[str, ...] = ()


async def save(
    path: str | os.PathLike[str], names: Sequence[str], ledgers: Ledgers, logs: LogRecords, password: bytes
) -> BackupReport:
    """Saves the closed segments of these logs; what the back-up has of other logs stays in it."""
    directory = BackupDirectory(path)
    with ExitStack() as stack:
        await run_in_thread(lambda: stack.enter_context(directory.locked()))
        before = await called(directory.manifest) or Manifest(0, {})
        saved, trimmed_to = dict(before.logs), dict(before.trimmed_to)
        new: dict[str, int] = {}
        # Of all logs: a file is named after its ledger, and one that is there must not be replaced by another cluster's.
        known = {each.ledger_id: each for each in itertools.chain.from_iterable(before.logs.values())}
        for name in names:
            saver = _Saver(directory, ledgers, password, known)
            head, _ = await logs.get(name)
            saved[name] = await saver.save(await logs.segments(name))
            trimmed_to.pop(name, None)
            # Otherwise it was trimmed meanwhile, and the next back-up knows where to.
            if saved[name] and saved[name][0].number == head.first_segment_number:
                trimmed_to[name] = head.trimmed_to
            new[name] = saver.new_segments
        manifest = Manifest(ledgers.chance.time_ms(), saved, trimmed_to)
        await run_in_thread(lambda: directory.write_manifest(manifest))
    return _report(directory, manifest, new)


class _Saver:
    """Saves one log."""

    def __init__(
        self, directory: BackupDirectory, ledgers: Ledgers, password: bytes, known: dict[int, SavedSegment]
    ) -> None:
        self.new_segments = 0
        self._directory = directory
        self._ledgers = ledgers
        self._password = password
        self._known = known

    async def save(self, segments: Sequence[Segment]) -> tuple[SavedSegment, ...]:
        saved: list[SavedSegment] = []
        for segment in segments:
            try:
                metadata, _ = await self._ledgers.records.get(segment.ledger_id)
                if metadata.state is not LedgerState.CLOSED:
                    break  # what follows has no end yet, and a log has no holes
                saved.append(await self._saved(segment, metadata))
            except LedgerNotFoundError:
                # It was trimmed meanwhile, and with it all before it.
                saved.clear()
        return tuple(saved)

    async def _saved(self, segment: Segment, metadata: LedgerMetadata) -> SavedSegment:
        directory, head = self._directory, head_of(metadata)
        known = self._known.get(segment.ledger_id)
        known_head = None if known is None else await called(partial(directory.head, known))
        if known is not None and known_head == head and known.number == segment.number:
            return known
        if known_head is not None and known_head != head:
            raise BackupError(
                directory.path,
                f"it has another ledger {segment.ledger_id} than this cluster, so it is a back-up of another cluster: nothing "
                "was changed. Use a directory for each cluster, and a new one after a cluster was made anew or restored",
            )
        found: SavedSegment | None = await called(lambda: directory.finished_before(segment.number, head))
        if found is None:
            found = await self._write(segment, metadata, head)
        self.new_segments += 1
        return found

    async def _write(self, segment: Segment, metadata: LedgerMetadata, head: LedgerHead) -> SavedSegment:
        file = await called(lambda: self._directory.begin(head))
        try:
            async with await self._ledgers.open(metadata.ledger_id, self._password) as reader:
                async for batch in reader.batches():
                    blocks = _blocks(batch)
                    await run_in_thread(partial(file.add, blocks))
            return await called(lambda: file.finish(segment.number))
        finally:
            file.close()


def head_of(metadata: LedgerMetadata) -> LedgerHead:
    """What a back-up says of a closed ledger."""
    assert metadata.last_entry_id is not None, "only closed ledgers are saved"
    quorum = metadata.quorum
    return LedgerHead(
        metadata.ledger_id,
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


async def verify(path: str | os.PathLike[str]) -> BackupReport:
    """Reads a whole back-up in a worker thread, and returns what is in it and what is damaged."""
    return await called(lambda: check(path))


def check(path: str | os.PathLike[str]) -> BackupReport:
    """The same in this thread. Raises `BackupError` if there is no back-up, or its manifest is damaged."""
    directory = BackupDirectory(path)
    manifest = directory.existing_manifest()
    problems = []
    for segment in itertools.chain.from_iterable(manifest.logs.values()):
        try:
            directory.check(segment)
        except BackupDamagedError as error:
            problems.append(str(error))
    return attrs.evolve(_report(directory, manifest, {}), problems=tuple(problems))


def _report(directory: BackupDirectory, manifest: Manifest, new: dict[str, int]) -> BackupReport:
    logs = []
    for name, segments in sorted(manifest.logs.items()):
        first, last = (segments[0].number, segments[-1].number) if segments else (1, 0)
        size_bytes = sum(each.size_bytes for each in segments)
        logs.append(SavedLog(name, first, last, size_bytes, new.get(name, 0)))
    return BackupReport(str(directory.path), manifest.created_at_ms, tuple(logs))
