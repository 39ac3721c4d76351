"""The storages beside one another: `python -m benchmarks.storage.choosing`. Prints the table of docs/how-to/storages.md.

Each round does the same with each storage, one after the other, so that noise meets all; the table has the medians.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from benchmarks.raw import raw_fdatasync
from replog.abc import DropLedger, PutBatch, Storage
from replog.protocol.batch import Batch, build
from replog.protocol.digest import Digest, DigestType
from replog.registry import Registry

KIB = 1 << 10
MIB = 1 << 20
_LEDGERS = 1000
_PAYLOAD = os.urandom(KIB)

Figures = dict[str, float]


def make(ledger_id: int, first: int, count: int) -> Batch:
    """A batch of 1 KiB entries."""
    return build(
        Digest(DigestType.CRC32C, ledger_id, b""),
        ledger_id=ledger_id,
        first_entry_id=first,
        stride=1,
        payloads=[_PAYLOAD] * count,
        last_add_confirmed=first - 1,
        stamp=1,
        timestamp_ns=0,
        cumulative_length=(first + count) * KIB,
    )


def write(storage: Storage, ledger_id: int, count: int, batches: int, per_commit: int) -> tuple[float, list[float]]:
    """Payload MiB per second, and what each commit took, in seconds."""
    made = [make(ledger_id, at * count, count) for at in range(batches)]
    durations = []
    for start in range(0, batches, per_commit):
        mutations = [PutBatch(batch) for batch in made[start : start + per_commit]]
        started = time.perf_counter()
        storage.commit(mutations)
        durations.append(time.perf_counter() - started)
    return batches * count * KIB / MIB / sum(durations), durations


def read_through(storage: Storage, ledger_id: int, last: int) -> float:
    """MiB per second, a mebibyte at a time."""
    started, entry_id = time.perf_counter(), 0
    while entry_id <= last:
        entry_id = storage.read(ledger_id, entry_id, 1, MIB)[-1].last_entry_id + 1
    return (last + 1) * KIB / MIB / (time.perf_counter() - started)


def measure(open_storage: Callable[[], Storage], size_mib: int) -> Figures:
    """One round with one storage."""
    found: Figures = {}
    with closing(open_storage()) as storage:
        _, durations = write(storage, 1, 1, 500, 1)
        found["1 entry of 1 KiB a commit, p50, us"] = statistics.median(durations) * 1e6
        found["batches of 100, MiB/s"], durations = write(storage, 2, 100, size_mib * 10, 1)
        found["batches of 100, p50, us"] = statistics.median(durations) * 1e6
        found["batches of 100, p99, us"] = statistics.quantiles(durations, n=100)[98] * 1e6
        found["batches of 1000, MiB/s"], _ = write(storage, 3, 1000, size_mib, 1)
        found["8 batches of 100 a commit, MiB/s"], _ = write(storage, 4, 100, size_mib * 10, 8)
        started = time.perf_counter()
        for first in (0, 4, 8):
            for base in range(0, _LEDGERS, 50):
                storage.commit([PutBatch(make(1000 + base + at, first, 4)) for at in range(50)])
        found["1000 ledgers in turn, 50 a commit, MiB/s"] = 12 * _LEDGERS * KIB / MIB / (time.perf_counter() - started)
        found["read a ledger through, MiB/s"] = read_through(storage, 2, size_mib * 1000 - 1)
        started = time.perf_counter()
        for at in range(5000):
            storage.read(1, at * 7 % 500, 1, 0)
        found["read one batch of 1 KiB, us"] = (time.perf_counter() - started) / 5000 * 1e6
    started = time.perf_counter()
    with closing(open_storage()) as storage:
        found["restart, ms"] = (time.perf_counter() - started) * 1e3
        started = time.perf_counter()
        storage.commit([DropLedger(3)])
        found["drop a ledger, ms"] = (time.perf_counter() - started) * 1e3
    return found


def main() -> None:
    """Runs the rounds and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage.choosing", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(), help="on which disk; a directory is made there")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--mib", type=int, default=128, help="of entries, in each of the large cases")
    parser.add_argument("--storages", nargs="*", default=["files", "lmdb"])
    options = parser.parse_args()
    registry = Registry(load_installed=False)
    rounds: dict[str, list[Figures]] = {storage: [] for storage in options.storages}
    raw: list[float] = []
    for _ in range(options.runs):
        for storage in options.storages:
            directory = Path(tempfile.mkdtemp(prefix=".storages-", dir=options.dir))
            try:
                raw += raw_fdatasync(directory, 0.5)
                rounds[storage].append(measure(lambda: registry.open_storage(f"{storage}:{directory}/it"), options.mib))  # noqa: B023
            finally:
                shutil.rmtree(directory)
    print(f"| {options.runs} rounds, medians | " + " | ".join(f"`{each}`" for each in options.storages) + " |")
    print("|---|" + "---|" * len(options.storages))
    for name in rounds[options.storages[0]][0]:
        medians = [statistics.median(each[name] for each in rounds[storage]) for storage in options.storages]
        print(f"| {name} | " + " | ".join(f"{each:,.0f}" if each >= 10 else f"{each:.1f}" for each in medians) + " |")
    print(f"\nfdatasync of 4 KiB alone, p50: {statistics.median(raw) * 1e6:.0f} us")


if __name__ == "__main__":
    main()
