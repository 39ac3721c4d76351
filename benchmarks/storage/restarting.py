"""How long a restart takes, and how much memory the index does."""

from __future__ import annotations

import gc
import itertools
import os
import tracemalloc
from contextlib import closing
from pathlib import Path

from benchmarks.figures import Figures, clock
from benchmarks.setting import MIB, NotMeasured, Round, Setting
from benchmarks.storage.stores import FILES, LMDB, Kind, Source, check, fresh, in_turn, kinds, settle, write
from replog.abc import Storage

REPLAY_SHAPES = {"1000 x 1024": (1000, 1024), "100 x 1024": (100, 1024), "10 x 1024": (10, 1024), "1 x 1024": (1, 1024)}
_INDEX_ENTRIES, _INDEX_ENTRY_BYTES = 1000, 100
_INDEX_BYTES_MAX = 0.1  # for each entry
_WARM_UP_BATCHES = 200
_PIECE_BYTES = 4 * MIB


def restarts(setting: Setting) -> Round:
    """Opening a storage of which the whole journal must be replayed, and one of which all is indexed, beside reading the
    same files. Both in the page cache."""
    found: dict[str, Figures] = {}
    size_bytes = setting.scale.replay_bytes
    for shape, (entries, entry_bytes) in REPLAY_SHAPES.items():
        source = Source(entries, entry_bytes)
        with fresh(setting.directory, "restart") as directory:
            options: dict[str, object] = {"journal_file_bytes": size_bytes + size_bytes // 2 + 16 * MIB}
            found[f"files replay {shape}"] = _restart(FILES, directory, source, size_bytes, options)
    source = Source(*REPLAY_SHAPES["100 x 1024"])
    for kind in kinds():
        with fresh(setting.directory, "restart") as directory:
            found[f"{kind.name} indexed"] = _restart(kind, directory, source, size_bytes, {})
    return found


def _restart(kind: Kind, directory: Path, source: Source, size_bytes: int, options: dict[str, object]) -> Figures:
    batches = size_bytes // source.payload_bytes
    storage = kind.open(directory, **options)
    try:
        write(storage, in_turn(source, [1], batches))
        if kind is not LMDB and not options:  # at its defaults, once it has come to rest
            at_rest_bytes = 64 * MIB if kind is FILES else 512 * MIB
            settle(storage, lambda found: found["journal_replay_bytes"] <= at_rest_bytes)
        replayed_bytes = storage.statistics().get("journal_replay_bytes", 0.0)
    finally:
        storage.close()
    if options and replayed_bytes < batches * source.payload_bytes:
        raise NotMeasured(f"only {replayed_bytes:.0f} bytes are there to replay")
    read_s, files_bytes = _read_files(directory)
    started = clock()
    storage = kind.open(directory, **options)
    open_s = clock() - started
    try:
        for number in (0, batches // 2, batches - 1):
            check(storage, source, 1, number)
    finally:
        storage.close()
    again_s, _ = _read_files(directory)
    # Spare files, and what was allocated ahead, don't count.
    share = min(1.0, size_bytes / files_bytes)
    return {
        "open_ms": open_s * 1e3,
        "read_ms": (read_s + again_s) / 2 * share * 1e3,
        "replayed_mib": replayed_bytes / MIB,
    }


def _read_files(directory: Path) -> tuple[float, int]:
    """How long it takes to read all that is there from the page cache, and how much that is."""
    paths = [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith("spare")]
    buffer = memoryview(bytearray(_PIECE_BYTES))
    size_bytes = 0
    started = clock()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            offset = 0
            while count := os.preadv(fd, (buffer,), offset):
                offset += count
        finally:
            os.close(fd)
        size_bytes += offset
    return clock() - started, max(1, size_bytes)


def memory(setting: Setting) -> Round:
    """What Python has allocated more after so many batches of 1000 entries, of one ledger and of many; when those were put in
    order; and after another start. For each entry, without the ledger cache, which has a bound of its own."""
    found: dict[str, Figures] = {}
    source = Source(_INDEX_ENTRIES, _INDEX_ENTRY_BYTES)
    entries = setting.scale.batches * source.entries
    for kind, (name, count) in itertools.product(kinds(), (("one", 1), ("many", setting.scale.ledgers))):
        with fresh(setting.directory, "memory") as directory:
            states = _allocated(kind, directory, source, count, setting)
        for state, (allocated, cached) in states.items():
            found[f"{kind.name} {name} {state}"] = {
                "bytes": (allocated - cached) / entries,
                "all_bytes": allocated / entries,
                "limit_bytes": _INDEX_BYTES_MAX,
            }
    return found


def _allocated(
    kind: Kind, directory: Path, source: Source, ledgers: int, setting: Setting
) -> dict[str, tuple[float, float]]:
    """In each state, how much memory came into use, and how much of that the ledger cache says it has."""
    batches = setting.scale.batches
    options = {"compaction_bytes_per_s": 0, "journal_file_bytes": setting.scale.file_bytes}
    found: dict[str, tuple[float, float]] = {}
    tracemalloc.start()
    try:
        with closing(kind.open(directory, **options)) as storage:
            write(storage, in_turn(source, [1 << 40], _WARM_UP_BATCHES))  # LMDB keeps the last few MiB in memory
            before = _in_use(storage, kind, setting)
            write(storage, in_turn(source, range(1, ledgers + 1), batches))
            found["written"] = _less(_in_use(storage, kind, setting), before)
            storage.compact(is_major=True)
            found["compacted"] = _less(_in_use(storage, kind, setting), before)
        del storage
        gc.collect()
        before = tracemalloc.get_traced_memory()[0], 0.0
        with closing(kind.open(directory, **options)) as storage:
            found["reopened"] = _less(_in_use(storage, kind, setting), before)
            check(storage, source, 1, 0)
            check(storage, source, ledgers, (batches - 1) // ledgers)
    finally:
        tracemalloc.stop()
    return found


def _in_use(storage: Storage, kind: Kind, setting: Setting) -> tuple[float, float]:
    """What Python has allocated, and what of it is the ledger cache, once the storage has come to rest."""
    if kind is FILES:
        settle(storage, lambda found: found["journal_replay_bytes"] <= setting.scale.file_bytes)
    gc.collect()
    return tracemalloc.get_traced_memory()[0], storage.statistics().get("ledger_cache_bytes", 0.0)


def _less(after: tuple[float, float], before: tuple[float, float]) -> tuple[float, float]:
    return after[0] - before[0], after[1] - before[1]
