"""How fast a storage takes batches: the rate of the journal, and what many ledgers cost."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.figures import Figures, clock
from benchmarks.raw import zero_filled
from benchmarks.setting import MIB, NotMeasured, Round, Scale, Setting
from benchmarks.storage.stores import (
    FILES,
    JOURNAL_DIR,
    Kind,
    Source,
    Written,
    as_wal,
    check,
    drop,
    fresh,
    in_turn,
    kinds,
    write,
)
from replog.abc import Storage
from replog.protocol.mutations import DropLedger, Mutation

SHAPES = {"100": (100, 1024), "1000": (1000, 1024)}  # entries of a batch, bytes of an entry
_RAW_BYTES = 256 * MIB
_SLICE_BYTES, _RAW_SLICE_BYTES = 256 * MIB, 64 * MIB
_ALLOCATED_BYTES = 16 * MIB
Commits = Iterator[tuple[int, Sequence[Mutation]]]
_WARM_UP_BYTES = 640 * MIB  # until a trimmed log's files are all recycled ones


def raw_mib_per_s(directory: Path, size_bytes: int) -> float:
    """The disk alone: a MiB written and synced, again and again, into a recycled, zero-filled file."""
    file_bytes = min(_RAW_BYTES, size_bytes)
    path = zero_filled(directory / f"raw-{file_bytes}", file_bytes)
    block = os.urandom(MIB)
    fd = os.open(path, os.O_RDWR)
    try:
        started = clock()
        for offset in range(0, size_bytes, MIB):
            os.pwrite(fd, block, offset % file_bytes)
            os.fdatasync(fd)
        return size_bytes / MIB / (clock() - started)
    finally:
        os.close(fd)


def raw_new_mib_per_s(directory: Path, size_bytes: int) -> float:
    """The same into a new file, allocated as it grows."""
    path = directory / "raw-new"
    block = os.urandom(MIB)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        started = clock()
        for offset in range(0, size_bytes, MIB):
            if offset % _ALLOCATED_BYTES == 0:
                os.posix_fallocate(fd, offset, _ALLOCATED_BYTES)
            os.pwrite(fd, block, offset)
            os.fdatasync(fd)
        return size_bytes / MIB / (clock() - started)
    finally:
        os.close(fd)
        path.unlink()


def _beside_raw(directory: Path, storage: Storage, commits: Commits) -> Figures:
    """Writes all of it in turns with the disk alone, so that noise, and a disk that slows down, meet both."""
    written = Written()
    raw_s = raw_new_s = 0.0
    slices = 0
    while (part := write(storage, _up_to(commits, _SLICE_BYTES))).payload_bytes:
        written.add(part)
        raw_bytes = min(_RAW_SLICE_BYTES, part.payload_bytes & -MIB or MIB)
        raw_s += 1 / raw_mib_per_s(directory, raw_bytes)
        raw_new_s += 1 / raw_new_mib_per_s(directory, raw_bytes)
        slices += 1
    return written.figures() | {"raw_mib_per_s": slices / raw_s, "raw_new_mib_per_s": slices / raw_new_s}


def _up_to(commits: Commits, size_bytes: int) -> Commits:
    """So many bytes of these, or what is left."""
    while size_bytes > 0 and (commit := next(commits, None)) is not None:
        size_bytes -= commit[0]
        yield commit


def rates(setting: Setting) -> Round:
    """Each storage, as the journal of a log that is trimmed, and of ledgers that are kept; the files also while they are
    compacted and flushed."""
    found: dict[str, Figures] = {}
    for kind, (shape, (entries, entry_bytes)) in itertools.product(kinds(), SHAPES.items()):
        source = Source(entries, entry_bytes)
        for name, measure in (("trimmed", _trimmed), ("kept", _kept)):
            with fresh(setting.directory, "rates") as directory:
                found[f"{kind.name} {name} {shape}"] = measure(kind, directory, source, setting.scale.write_bytes)
    raw_bytes = min(_RAW_BYTES, setting.scale.write_bytes)
    for kind in kinds(FILES, JOURNAL_DIR):
        with fresh(setting.directory, "rates") as directory:
            before = raw_mib_per_s(setting.directory, raw_bytes)
            figures = _while_compacted(kind, directory, setting.scale)
            after = raw_mib_per_s(setting.directory, raw_bytes)
        found[f"{kind.name} compacted"] = figures | {"raw_mib_per_s": 2 / (1 / before + 1 / after)}
    return found


def _trimmed(kind: Kind, directory: Path, source: Source, size_bytes: int) -> Figures:
    warm_up_bytes = min(_WARM_UP_BYTES, size_bytes)
    commits = as_wal(source, warm_up_bytes + size_bytes)
    storage = kind.open(directory)
    try:
        write(storage, _up_to(commits, warm_up_bytes))
        figures = _beside_raw(directory, storage, commits)
        check(storage, source, max(storage.ledger_ids()), 0)
        recycled = storage.statistics().get("journal_recycled_files")
    finally:
        storage.close()
    if recycled == 0 and size_bytes >= 1 << 30:
        raise NotMeasured("no journal file was used again")
    return figures


def _kept(kind: Kind, directory: Path, source: Source, size_bytes: int) -> Figures:
    batches = size_bytes // source.payload_bytes
    storage = kind.open(directory)
    try:
        figures = _beside_raw(directory, storage, in_turn(source, [1], batches))
        for number in (0, batches // 2, batches - 1):
            check(storage, source, 1, number)
        found = storage.statistics()
    finally:
        storage.close()
    if kind is JOURNAL_DIR and size_bytes >= 1 << 30 and not found["entry_logs"]:
        raise NotMeasured("nothing was flushed to entry logs meanwhile")
    return figures


def _while_compacted(kind: Kind, directory: Path, scale: Scale) -> Figures:
    """The rate of a trimmed log while other ledgers, scattered over the files, are put in order at the default rate.

    With a journal elsewhere the flush puts ledgers in order at once: there the files are rewritten since every other
    ledger is deleted."""
    source = Source(*SHAPES["100"])
    ledger_ids = range(1, min(200, scale.ledgers) + 1)
    storage = kind.open(directory, journal_file_bytes=scale.file_bytes)
    try:
        turns = max(2, scale.scattered_bytes // source.payload_bytes // len(ledger_ids))
        write(storage, in_turn(source, ledger_ids, turns * len(ledger_ids)))
        write(storage, as_wal(source, 5 * scale.file_bytes, first_ledger=1000))
        if kind is JOURNAL_DIR:
            storage.compact()
            storage.commit([DropLedger(ledger_id) for ledger_id in ledger_ids[::2]])
        before = storage.statistics()
        compaction = Compaction(storage)
        written = write(storage, compaction.meanwhile(as_wal(source, 1 << 50, first_ledger=1_000_000)))
        compaction.join()
        after = storage.statistics()
        for number in (0, turns - 1):
            check(storage, source, ledger_ids[1], number)
    finally:
        storage.close()
    copied_bytes = after["copied_bytes"] - before["copied_bytes"]
    if after["major_compactions"] != before["major_compactions"] + 1 or copied_bytes < scale.scattered_bytes // 4:
        raise NotMeasured(f"the compaction copied only {copied_bytes:.0f} of {scale.scattered_bytes} bytes")
    return written.figures() | {"copied_mib": copied_bytes / MIB, "compaction_s": compaction.took_s}


class Compaction:
    """A forced major compaction in a thread of its own."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._failure: BaseException | None = None
        self.took_s = 0.0
        self._thread = threading.Thread(target=self._run, name="benchmark-compaction")
        self._thread.start()

    def _run(self) -> None:
        began = clock()
        try:
            self._storage.compact(is_major=True)
        except BaseException as error:
            self._failure = error
        self.took_s = clock() - began

    @property
    def is_running(self) -> bool:
        """Whether it is not done yet."""
        return self._thread.is_alive()

    def meanwhile(self, commits: Iterator[tuple[int, Sequence[Mutation]]]) -> Iterator[tuple[int, Sequence[Mutation]]]:
        """Commits for as long as it runs."""
        return itertools.takewhile(lambda _: self.is_running, commits)

    def join(self) -> None:
        """Waits for the end. Raises what it raised."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def many_ledgers(setting: Setting) -> Round:
    """The same batches, of one ledger and of many in turn, each time into the same recycled files."""
    found: dict[str, Figures] = {}
    scale = setting.scale
    for kind, (shape, (entries, entry_bytes)) in itertools.product(kinds(), SHAPES.items()):
        source = Source(entries, entry_bytes)
        batches = scale.ledgers * scale.turns * 100 // entries
        size_bytes = batches * source.payload_bytes
        with fresh(setting.directory, "ledgers") as directory:
            storage = kind.open(directory, spare_files=size_bytes // (64 * MIB) + 4)
            try:
                one, many = _one_and_many(storage, source, scale.ledgers, batches)
            finally:
                storage.close()
        found[f"{kind.name} one {shape}"] = one.figures()
        found[f"{kind.name} many {shape}"] = many.figures()
    return found


def _one_and_many(storage: Storage, source: Source, ledgers: int, batches: int) -> tuple[Written, Written]:
    """Each twice, in turns, after two times that nobody counts, which make the files."""
    first_ledger = 1
    one, many = Written(), Written()
    for count, into in ((1, None), (ledgers, None), (1, one), (ledgers, many), (ledgers, many), (1, one)):
        ledger_ids = range(first_ledger, first_ledger + count)
        written = write(storage, in_turn(source, ledger_ids, batches))
        if into is not None:
            into.add(written)
        for ledger_id in (ledger_ids[0], ledger_ids[-1]):
            check(storage, source, ledger_id, (batches - 1) // count)
        drop(storage, ledger_ids)
        first_ledger += count
    return one, many
