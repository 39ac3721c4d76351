"""How fast a storage reads: one ledger of many after compaction, and single batches out of the page cache."""

from __future__ import annotations

import itertools
import os
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import trio
from crc32c import crc32c

import replog
from benchmarks.figures import Figures, clock
from benchmarks.setting import MIB, NotMeasured, Round, Setting
from benchmarks.storage.stores import FILES, LMDB, STAMP, Kind, Source, fresh, in_turn, kinds, settle, write
from replog.abc import Storage
from replog.config import BookieOptions
from replog.protocol.batch import Batch

READ_SHAPES = {"100 x 1024": (100, 1024), "10 x 100": (10, 100)}
POINT_SHAPES = {"10 x 100": (10, 100), "100 x 100": (100, 100), "100 x 1024": (100, 1024)}
_READ_BYTES = MIB  # asked for at once, as a reader does
_LEDGERS_READ = 50
_POINT_BATCHES = 200  # to choose from
_SMALL_FILE_BYTES = 4 * MIB
_POINT_US_MAX = 4.0
_TIMED_TOGETHER = 20  # reads: asking for the time costs something too
_MISSES_MAX = 3  # at first; later one for ten times that nothing was missed
Read = Callable[[int, int, int, int], list[Batch]]

_SMALL_BYTES = 512 * MIB  # what is less is written in small files, so that there are several
_LONE, _TARGET, _FILLER = 1, 1, 2
_FILLER_LEDGER = 1 << 40


# -- one ledger of many -------------------------------------------------------------------------------------------------


def ledgers(setting: Setting) -> Round:
    """Ledgers that were written in turn, then compacted, beside one of the same size alone in its storage. All of it is in
    the page cache. First right after opening, without the pages of the index; then once more."""
    found: dict[str, Figures] = {}
    scale = setting.scale
    for kind, (shape, (entries, entry_bytes)) in itertools.product(kinds(), READ_SHAPES.items()):
        source = Source(entries, entry_bytes)
        ledger_bytes = scale.ledger_bytes if entry_bytes == 1024 else scale.ledger_bytes // 8
        turns = max(2, ledger_bytes // source.payload_bytes)
        with fresh(setting.directory, "read") as directory:
            lone, _ = _prepared(kind, directory / "lone", source, 1, turns)
            many, ordered_share = _prepared(kind, directory / "many", source, scale.ledgers, turns)
            if kind is not LMDB:
                found[f"{kind.name} order {shape}"] = {"share": ordered_share, "all": 1.0}
            try:
                found |= {
                    f"{kind.name} {name} {shape}": each for name, each in _compare(lone, many, source, turns).items()
                }
            finally:
                lone.close()
                many.close()
    return found


def _prepared(kind: Kind, directory: Path, source: Source, count: int, turns: int) -> tuple[Storage, float]:
    """So many ledgers written in turn, put in order, and opened again; and which share of their batches was moved."""
    options: dict[str, object] = {"compaction_bytes_per_s": 0}
    if count * turns * source.batch_bytes < _SMALL_BYTES:
        options["journal_file_bytes"] = _SMALL_FILE_BYTES
    copied_batches = 0.0
    storage = kind.open(directory, **options)
    try:
        write(storage, in_turn(source, range(1, count + 1), count * turns))
        if count > 1:
            _roll(storage, source, kind)
            storage.compact(is_major=True)
            copied_batches = storage.statistics().get("copied_batches", 0.0)
    finally:
        storage.close()
    return kind.open(directory), min(1.0, copied_batches / (count * turns))


def _roll(storage: Storage, source: Source, kind: Kind) -> None:
    """Fills journal files, so that what was written before is in full ones."""
    files_before = storage.statistics().get("journal_files", 0.0)
    filler = in_turn(source, [_FILLER_LEDGER], 128 * MIB // source.batch_bytes)
    write(storage, itertools.takewhile(lambda _: not _has_rolled(storage, files_before, kind), filler))


def _has_rolled(storage: Storage, files_before: float, kind: Kind) -> bool:
    return kind is LMDB or storage.statistics()["journal_files"] > files_before


def _compare(lone: Storage, many: Storage, source: Source, turns: int) -> dict[str, Figures]:
    """The middle rates, in MiB of entries per second. Both in turns, so that noise meets both."""
    there = [each for each in many.ledger_ids() if each < _FILLER_LEDGER]
    chosen = random.sample(there, min(_LEDGERS_READ, len(there)))
    rates: dict[str, list[float]] = {"lone": [], "cold": [], "warm": []}
    _read_ledger(lone, source, _LONE, turns)
    for name in ("cold", "warm"):
        for ledger_id in chosen:
            rates[name].append(_read_ledger(many, source, ledger_id, turns))
            rates["lone"].append(_read_ledger(lone, source, _LONE, turns))
    return {name: {"mib_per_s": statistics.median(each)} for name, each in rates.items()}


def _read_ledger(storage: Storage, source: Source, ledger_id: int, turns: int) -> float:
    """From end to end. Raises `NotMeasured` if it is not what was written."""
    entry_id = 0
    started = clock()
    while batches := storage.read(ledger_id, entry_id, STAMP, _READ_BYTES):
        entry_id = batches[-1].last_entry_id + 1
        if entry_id == turns * source.entries:
            break
    took_s = clock() - started
    if entry_id != turns * source.entries or batches[-1] != source.batch(ledger_id, turns - 1):
        raise NotMeasured(f"ledger {ledger_id} ends at entry {entry_id}, or with another batch than was written")
    return turns * source.payload_bytes / MIB / took_s


# -- one batch ----------------------------------------------------------------------------------------------------------


def points(setting: Setting) -> Round:
    """A batch by one of its entries, chosen at random, out of the page cache, without waiting: from the current journal
    file, from a full one, and from an entry log. LMDB only promises not to wait for what was written last: there it is `read`."""
    found: dict[str, Figures] = {}
    for kind, (shape, (entries, entry_bytes)) in itertools.product(kinds(FILES, LMDB), POINT_SHAPES.items()):
        source = Source(entries, entry_bytes)
        for state, prepare in STATES.items() if kind is FILES else {"map": _in_current}.items():
            with fresh(setting.directory, "points") as directory:
                options = {"journal_file_bytes": _SMALL_FILE_BYTES} if state != "current" else {}
                storage = kind.open(directory, **options)
                try:
                    prepare(storage, source)
                    read = storage.read_nowait if kind is FILES else storage.read
                    found[f"{kind.name} {state} {shape}"] = _time_points(storage, read, source, setting.scale.points)
                finally:
                    storage.close()
    for shape, (entries, entry_bytes) in POINT_SHAPES.items():
        batch_bytes = Source(entries, entry_bytes).batch_bytes
        found[f"pread {shape}"] = _time_preads(setting.directory, batch_bytes, setting.scale.points)
    with fresh(setting.directory, "points") as directory:
        found["api"] = trio.run(_time_public, directory, setting.scale.points)
    return found


def _in_current(storage: Storage, source: Source) -> None:
    write(storage, in_turn(source, [_TARGET], _POINT_BATCHES))


def _in_full(storage: Storage, source: Source) -> None:
    _in_current(storage, source)
    write(storage, in_turn(source, [_FILLER], 2 * _SMALL_FILE_BYTES // source.batch_bytes))
    settle(storage, lambda found: found["journal_replay_bytes"] <= _SMALL_FILE_BYTES and found["catalogs_written"] > 1)
    if storage.statistics()["entry_logs"]:
        raise NotMeasured("the journal files are no longer the log")


def _in_entry_log(storage: Storage, source: Source) -> None:
    """The batches alternate with those of another ledger, so that compaction rewrites their files."""
    write(storage, in_turn(source, [_TARGET, _FILLER], 2 * _POINT_BATCHES))
    write(storage, in_turn(source, [_FILLER + 1], 2 * _SMALL_FILE_BYTES // source.batch_bytes))
    storage.compact(is_major=True)
    if storage.statistics()["copied_batches"] < 2 * _POINT_BATCHES:
        raise NotMeasured("the batches were not moved to an entry log")


STATES: dict[str, Callable[[Storage, Source], None]] = {
    "current": _in_current,
    "full": _in_full,
    "entry log": _in_entry_log,
}


def _time_points(storage: Storage, read: Read, source: Source, count: int) -> Figures:
    """The middle time of one read."""
    _read_points(storage, source)
    entry_ids = [random.randrange(_POINT_BATCHES * source.entries) for _ in range(count)]
    durations: list[float] = []
    misses = 0
    while (start := len(durations) * _TIMED_TOGETHER) <= count - _TIMED_TOGETHER:
        some = entry_ids[start : start + _TIMED_TOGETHER]
        started = clock()
        try:
            for entry_id in some:
                read(_TARGET, entry_id, STAMP, 1)
        except trio.WouldBlock:  # the page cache let go of it, or the kernel is moving its pages
            misses += 1
            if misses > _MISSES_MAX + len(durations) // 10:
                raise NotMeasured("the batches don't stay in the page cache") from None
            _read_points(storage, source)
        else:
            durations.append((clock() - started) / _TIMED_TOGETHER)
    return {"p50_us": statistics.median(durations) * 1e6, "limit_us": _POINT_US_MAX}


def _read_points(storage: Storage, source: Source) -> None:
    """Each batch once: index and page cache have it then, and the answers are right."""
    for number in range(_POINT_BATCHES):
        entry_id = number * source.entries + source.entries // 2
        if storage.read(_TARGET, entry_id, STAMP, 1) != [source.batch(_TARGET, number)]:
            raise NotMeasured(f"entry {entry_id} is not in the batch that was written")


def _time_preads(directory: Path, size_bytes: int, count: int) -> Figures:
    """The least that reading so many bytes and checking them takes."""
    file_bytes = _POINT_BATCHES * size_bytes
    path = directory / "preads"
    path.write_bytes(os.urandom(file_bytes))
    durations: list[float] = []
    fd = os.open(path, os.O_RDONLY)
    try:
        for _ in range(0, count, _TIMED_TOGETHER):
            offsets = [random.randrange(_POINT_BATCHES) * size_bytes for _ in range(_TIMED_TOGETHER)]
            started = clock()
            for offset in offsets:
                crc32c(os.pread(fd, size_bytes, offset))
            durations.append((clock() - started) / _TIMED_TOGETHER)
    finally:
        os.close(fd)
        path.unlink()
    return {"p50_us": statistics.median(durations) * 1e6}


async def _time_public(directory: Path, count: int) -> Figures:
    """One entry by `LedgerReader.read`, of an embedded bookie; and an await that does nothing beside it."""
    payloads = [bytes([number % 256]) * 100 for number in range(100)]
    durations: list[float] = []
    async with replog.embed(directory, bookies=1, bookie_options=BookieOptions(storage="files")) as client:
        async with client.create_ledger() as writer:
            for _ in range(_POINT_BATCHES):
                await writer.extend(payloads)
        async with client.open_ledger(writer.ledger_id) as reader:
            for entry_id in random.choices(range(_POINT_BATCHES * len(payloads)), k=max(100, count // 20)):
                started = clock()
                found = await reader.read(entry_id, entry_id)
                durations.append(clock() - started)
                if found != [payloads[entry_id % len(payloads)]]:
                    raise NotMeasured(f"entry {entry_id} is not what was written")
        checkpoints = await _time_checkpoints()
    return {"p50_us": statistics.median(durations) * 1e6, "checkpoint_us": checkpoints * 1e6}


async def _time_checkpoints() -> float:
    durations: list[float] = []
    for _ in range(500):
        started = clock()
        await trio.lowlevel.checkpoint()
        durations.append(clock() - started)
    return statistics.median(durations)
