"""The storages that are measured, opened as a bookie opens them, and the batches that are written to them."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from benchmarks.figures import Figures, clock
from benchmarks.setting import NotMeasured
from replog.abc import Storage
from replog.backends.files import storage as files
from replog.backends.files.options import FilesTuning
from replog.config import BackendURL
from replog.errors import ConfigError, PluginNotFoundError
from replog.protocol.batch import BATCH_BYTES_MAX, FORMAT, HEADER, MAGIC, Batch, build, check_damage
from replog.protocol.digest import Digest, DigestType
from replog.protocol.mutations import DropLedger, Mutation, PutBatch
from replog.registry import Registry

MIB = 1 << 20
STAMP = 1
COMMIT_BYTES = MIB  # about: what a bookie's group commit gathers under load
WAL_LEDGER_BYTES = 64 * MIB  # a log's ledger, when it is trimmed while it is written
_WAL_LEDGERS = 3  # that are kept
_SETTLE_TIMEOUT_S = 120.0

bytes(16 * MIB)  # once so much was freed, glibc reuses memory for batches, and does not fault it in anew for each


@attrs.frozen
class Kind:
    """A storage with its options."""

    name: str
    scheme: str
    has_journal_elsewhere: bool = False

    def open(self, directory: Path, **options: Any) -> Storage:
        """The storage in this directory, made if it is new. Options and constants that only the files storage has are left out
        for others."""
        directory.mkdir(exist_ok=True)
        path = str(directory / "storage")
        if self.scheme != "files":
            return _registry().open_storage(BackendURL(self.scheme, path))
        if self.has_journal_elsewhere:
            options["journal_dir"] = str(directory / "journal")
        return files.open_storage(path, FilesTuning(**options))


FILES = Kind("files", "files")
JOURNAL_DIR = Kind(
    "journal_dir", "files", has_journal_elsewhere=True
)  # on the same disk here: two writes to one device
LMDB = Kind("lmdb", "lmdb")
KINDS = (FILES, JOURNAL_DIR, LMDB)


@cache
def _registry() -> Registry:
    return Registry(load_installed=False)


@cache
def missing() -> Mapping[str, str]:
    """The storages that this installation does not have, and why."""
    found: dict[str, str] = {}
    for kind in KINDS:
        try:
            _registry().open_storage(BackendURL(kind.scheme, ""))
        except PluginNotFoundError as error:
            found[kind.name] = str(error)
        except ConfigError:
            continue  # it is there, and wants a directory
    return found


def kinds(*wanted: Kind) -> list[Kind]:
    """Those of the wanted storages, or of all, that are there."""
    return [kind for kind in wanted or KINDS if kind.name not in missing()]


@contextmanager
def fresh(directory: Path, name: str) -> Iterator[Path]:
    """A directory that is removed at the end."""
    path = directory / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path)


_CRC32C = Digest(DigestType.CRC32C, 0, b"")  # the same for every ledger


class Source:
    """Makes the batches of one shape, each with the next ids of its ledger. Entries are random, and the same in each batch."""

    def __init__(self, entries: int, entry_bytes: int) -> None:
        self.entries = entries
        self.payloads = [os.urandom(entry_bytes) for _ in range(entries)]
        example = build(
            _CRC32C,
            ledger_id=0,
            first_entry_id=0,
            stride=1,
            payloads=self.payloads,
            last_add_confirmed=-1,
            stamp=STAMP,
            timestamp_ns=0,
            cumulative_length=entries * entry_bytes,
        )
        self._body = example.data[HEADER.size : -4]
        self.batch_bytes = len(example.data)
        assert self.batch_bytes <= BATCH_BYTES_MAX
        self.payload_bytes = entries * entry_bytes

    def batch(self, ledger_id: int, number: int) -> Batch:
        """The batch of this number, from 0, of a ledger. As `protocol.batch.build` makes it, in less time: what the entries
        have in common is joined once."""
        first = number * self.entries
        fields = (ledger_id, first, first - 1, STAMP, 0, (number + 1) * self.payload_bytes)
        header = HEADER.pack(MAGIC, FORMAT, DigestType.CRC32C, 0, self.batch_bytes, self.entries, 1, 0, *fields)
        code = _CRC32C.code(header, self._body)
        batch = Batch(
            b"".join((header, self._body, code)),
            DigestType.CRC32C,
            self.entries,
            1,
            ledger_id,
            first,
            first - 1,
            STAMP,
            0,
            fields[-1],
        )
        check_damage(batch)  # as a bookie does with each that comes
        return batch

    @property
    def batches_per_commit(self) -> int:
        """So many make a commit of about a MiB."""
        return max(1, COMMIT_BYTES // self.batch_bytes)


@attrs.define
class Written:
    """What was written: how long the commits took, their thread's CPU time, and how long all of it took, with making the
    batches."""

    payload_bytes: int = 0
    commits_s: list[float] = attrs.field(factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def add(self, other: Written) -> None:
        """Counts this too."""
        self.payload_bytes += other.payload_bytes
        self.commits_s += other.commits_s
        self.cpu_s += other.cpu_s
        self.wall_s += other.wall_s

    def figures(self) -> Figures:
        """Rates in MiB of entries per second, and the commits' durations."""
        if not self.commits_s:
            raise NotMeasured("nothing was written")
        ordered = sorted(self.commits_s)
        mib = self.payload_bytes / MIB
        return {
            "mib_per_s": mib / sum(ordered),
            "wall_mib_per_s": mib / self.wall_s,
            "seconds": sum(ordered),
            "cpu_us": self.cpu_s / len(ordered) * 1e6,
            "p50_us": ordered[len(ordered) // 2] * 1e6,
            "p99_us": ordered[len(ordered) * 99 // 100] * 1e6,
        }


def write(storage: Storage, commits: Iterator[tuple[int, Sequence[Mutation]]]) -> Written:
    """Commits all of these one after the other; each comes with the bytes of its entries."""
    written = Written()
    began = clock()
    for payload_bytes, mutations in commits:
        cpu_began, started = time.thread_time(), clock()
        storage.commit(mutations)
        written.commits_s.append(clock() - started)
        written.cpu_s += time.thread_time() - cpu_began
        written.payload_bytes += payload_bytes
    written.wall_s = clock() - began
    return written


def in_turn(
    source: Source, ledger_ids: Sequence[int], batches: int, first_number: int = 0
) -> Iterator[tuple[int, Sequence[Mutation]]]:
    """So many batches in all, of one ledger after the other and again, in commits of about a MiB."""
    places = ((ledger_ids[at % len(ledger_ids)], first_number + at // len(ledger_ids)) for at in range(batches))
    while group := [PutBatch(source.batch(*place)) for place in itertools.islice(places, source.batches_per_commit)]:
        yield len(group) * source.payload_bytes, group


def as_wal(source: Source, size_bytes: int, first_ledger: int = 1) -> Iterator[tuple[int, Sequence[Mutation]]]:
    """So many bytes, ledger after ledger; old ones are dropped, as those of a log that is trimmed."""
    ledger_id = first_ledger
    while size_bytes >= source.payload_bytes:
        if ledger_id >= first_ledger + _WAL_LEDGERS:
            yield 0, [DropLedger(ledger_id - _WAL_LEDGERS)]
        here = max(1, min(WAL_LEDGER_BYTES, size_bytes) // source.payload_bytes)
        yield from in_turn(source, [ledger_id], here)
        size_bytes -= here * source.payload_bytes
        ledger_id += 1


def drop(storage: Storage, ledger_ids: Sequence[int]) -> None:
    """Deletes ledgers, and waits until their space may be used again."""
    storage.commit([DropLedger(ledger_id) for ledger_id in ledger_ids])
    storage.compact()
    settle(storage, lambda found: found.get("journal_files", 1) <= 1)


def settle(storage: Storage, is_done: Callable[[Mapping[str, float]], bool]) -> None:
    """Waits until the statistics say so."""
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    while not is_done(storage.statistics()):
        if time.monotonic() > deadline:
            raise NotMeasured(f"the storage did not come to rest within {_SETTLE_TIMEOUT_S:.0f} s")
        time.sleep(0.02)


def check(storage: Storage, source: Source, ledger_id: int, number: int) -> None:
    """Raises `NotMeasured` unless this batch is there as it was written."""
    wanted = source.batch(ledger_id, number)
    found = storage.read(ledger_id, wanted.last_entry_id, STAMP, 1)
    if found != [wanted]:
        raise NotMeasured(f"batch {number} of ledger {ledger_id} is not what was written: {found}")
