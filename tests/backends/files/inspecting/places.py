"""Storages in real directories, quickly made, for looking into them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import attrs

from replog.abc import DropLedger, Mutation, PutBatch, SetMarks
from replog.backends.disk import Disk
from replog.backends.files.options import FilesTuning
from replog.backends.files.storage import FilesStorage, open_storage
from replog.backends.inspection.reports import Problem
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.test_format import FIRST, PROOF, SECOND, fixed_disk
from tests.backends.files.workload import open_small

SMALL = FilesTuning(journal_file_bytes=64 << 10, spare_files=2, fill_ahead_bytes=16 << 10, entry_log_bytes=256 << 10)
SECRET = b"a secret that nobody may see"


class QuickDisk(Disk):
    """The system's files, never synced: what is tested here is no crash."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


def open_quick(path: Path, journal: Path | None = None) -> FilesStorage:
    """A small storage in this directory, without threads."""
    options = SMALL if journal is None else attrs.evolve(SMALL, journal_dir=str(journal), flush_bytes=64 << 10)
    return open_storage(str(path), options, disk=QuickDisk(), background=False)


def fill(storage: FilesStorage, commits: int, ledgers: int = 3, size_bytes: int = 1000) -> None:
    """So many commits of two entries, to each ledger in turn, without holes; the first ledger has a key."""
    storage.commit([SetMarks(1, SECRET, 1, -1)])
    for at in range(commits):
        storage.commit([PutBatch(make_batch(1 + at % ledgers, at // ledgers * 2, 2, size_bytes=size_bytes))])


def make_filled(path: Path, commits: int = 200, journal: Path | None = None) -> None:
    """A storage with some full journal files, and ledger 2 deleted."""
    with contextlib.closing(open_quick(path, journal)) as storage:
        fill(storage, commits)
        storage.commit([DropLedger(2)])


def make_compacted(path: Path, journal: Path | None = None) -> None:
    """A storage with an entry log, and with journal files after it."""
    make_filled(path, journal=journal)
    with contextlib.closing(open_quick(path, journal)) as storage:
        storage.compact(is_major=True)
        more: list[list[Mutation]] = [[PutBatch(make_batch(4, at, 1, size_bytes=500))] for at in range(10)]
        for mutations in more:
            storage.commit(mutations)
    assert list(path.glob("logs/*.log"))


def golden(path: Path) -> Path:
    """The storage whose journal is in the golden files, killed, with the mark that a power loss may have left."""
    disk = fixed_disk()
    storage = open_small(disk)
    mark = bytes(disk.content("/st/durable-mark"))
    storage.commit([PutBatch(FIRST), SetMarks(7, b"key", 3, 0, PROOF), SetMarks(8, None, 5)])
    storage.commit([DropLedger(9), PutBatch(SECOND)])
    disk = disk.after_kill()
    disk.content("/st/durable-mark")[:] = mark
    write_out(disk, path)
    return path


def write_out(disk: MemoryDisk, path: Path) -> None:
    """The files of a disk in memory, in a real directory."""
    for name in disk.paths():
        target = path / name.removeprefix("/st/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(disk.content(name))


def flip(path: Path, offset: int, bits: int = 0x40) -> None:
    """Changes one byte."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ bits]))


def damage_of(reports: Iterable[object]) -> list[Problem]:
    """What makes an inspection fail."""
    problems: list[Problem] = []
    for each in reports:
        problems += [each] if isinstance(each, Problem) else getattr(each, "problems", [])
    return [problem for problem in problems if problem.is_damage]


def traces(path: Path) -> dict[str, object]:
    """All that an inspection might leave behind: names, contents, times, modes."""
    found: dict[str, object] = {}
    for directory, _, names in os.walk(path):
        for name in [directory, *(f"{directory}/{name}" for name in names)]:
            status = os.stat(name)
            content = Path(name).read_bytes() if os.path.isfile(name) else b""
            times = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_mode, status.st_ino)
            found[name] = (*times, content)
    return found
