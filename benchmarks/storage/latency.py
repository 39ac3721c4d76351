"""How long one commit takes at a time, alone and during the compaction of much."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable

from benchmarks.figures import Figures, clock, percentiles
from benchmarks.raw import raw_fdatasync
from benchmarks.setting import MIB, NotMeasured, Round, Setting
from benchmarks.storage.stores import FILES, Source, as_wal, check, fresh, in_turn, write
from benchmarks.storage.writing import Compaction
from replog.abc import Storage
from replog.protocol.mutations import DropLedger, PutBatch

APPENDS = {"1": (1, 1024), "100": (100, 1024)}
SCATTERED = {"100 x 1024": (100, 1024, 1), "10 x 100": (10, 100, 16)}  # the last: of so much only this part
_SLICE_S = 0.25
_LEDGERS = 200
_LEDGER_BATCHES = 2000  # of a log's ledger, before it is dropped and the next one begins
_ROOM = 2.5  # times what is compacted: old and new files, and the journal


class _Appender:
    """Commits one batch at a time of one shape, into ledgers that are dropped as a log's are."""

    def __init__(self, storage: Storage, source: Source, first_ledger: int) -> None:
        self._storage = storage
        self._source = source
        self._ledger_id = first_ledger
        self._number = 0

    def run(self, seconds: float) -> list[float]:
        """How long each commit took."""
        durations: list[float] = []
        deadline = clock() + seconds
        while not durations or clock() < deadline:
            mutation = PutBatch(self._source.batch(self._ledger_id, self._number))
            started = clock()
            self._storage.commit([mutation])
            durations.append(clock() - started)
            self._number += 1
            if self._number == _LEDGER_BATCHES:
                self._storage.commit([DropLedger(self._ledger_id)])
                self._ledger_id += 1
                self._number = 0
        return durations


def during_compaction(setting: Setting) -> Round:
    """Appends before, during and after the compaction of ledgers that stand scattered, in large batches and in small ones, at
    the default rate; the disk alone in turns with them. Empty if the disk has no room."""
    if shutil.disk_usage(setting.directory).free < _ROOM * setting.scale.latency_bytes:
        return {}
    found: dict[str, Figures] = {}
    for scattered, (entries, entry_bytes, part) in SCATTERED.items():
        with fresh(setting.directory, "latency") as directory:
            storage = FILES.open(directory, journal_file_bytes=setting.scale.file_bytes)
            try:
                size_bytes = max(2 * setting.scale.file_bytes, setting.scale.latency_bytes // part)
                here = _with(setting, storage, Source(entries, entry_bytes), size_bytes)
            finally:
                storage.close()
        found |= {f"{name} {scattered}": figures for name, figures in here.items()}
    return found


def _with(setting: Setting, storage: Storage, source: Source, size_bytes: int) -> dict[str, Figures]:
    """While so much in such batches is compacted."""
    ledger_ids = range(1, min(_LEDGERS, setting.scale.ledgers) + 1)
    turns = max(2, size_bytes // source.payload_bytes // len(ledger_ids))
    write(storage, in_turn(source, ledger_ids, turns * len(ledger_ids)))
    write(storage, as_wal(Source(100, 1024), 8 * setting.scale.file_bytes, first_ledger=1 << 20))
    appenders = {
        name: _Appender(storage, Source(*shape), number << 30)
        for number, (name, shape) in enumerate(APPENDS.items(), 1)
    }
    found = _measure(setting, storage, appenders, least_bytes=size_bytes // 4)
    for number in (0, turns - 1):
        check(storage, source, ledger_ids[-1], number)
    return found


def _measure(
    setting: Setting, storage: Storage, appenders: dict[str, _Appender], least_bytes: int
) -> dict[str, Figures]:
    quiet_s = setting.scale.quiet_s / 2
    slice_s = min(_SLICE_S, setting.seconds / 4)
    runs: dict[str, Callable[[float], list[float]]] = {
        "raw": lambda seconds: raw_fdatasync(setting.directory, seconds),
        **{name: appender.run for name, appender in appenders.items()},
    }
    quiet: dict[str, list[float]] = {name: [] for name in runs}
    busy: dict[str, list[float]] = {name: [] for name in runs}

    def for_a_while(into: dict[str, list[float]], is_over: Callable[[], bool]) -> None:
        for name in itertools.cycle(runs):
            if is_over():
                return
            into[name] += runs[name](slice_s)

    def until(deadline: float) -> Callable[[], bool]:
        return lambda: clock() > deadline and all(quiet.values())

    for_a_while(quiet, until(clock() + quiet_s))
    before = storage.statistics()
    compaction = Compaction(storage)
    for_a_while(busy, lambda: not compaction.is_running)
    compaction.join()
    after = storage.statistics()
    copied_bytes = after["copied_bytes"] - before["copied_bytes"]
    if copied_bytes < least_bytes or not all(busy.values()):
        raise NotMeasured(f"the compaction copied only {copied_bytes:.0f} bytes in {compaction.took_s:.1f} s")
    for_a_while(quiet, until(clock() + quiet_s))
    found = {f"quiet {name}": percentiles(each) for name, each in quiet.items()}
    found |= {f"busy {name}": percentiles(each) for name, each in busy.items()}
    found["compaction"] = {"copied_mib": copied_bytes / MIB, "seconds": compaction.took_s}
    return found
