"""Inspecting while a bookie's process writes, rolls, indexes, compacts and recycles: no damage is imagined, nothing is missed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replog.backends.files.inspecting import (
    find_place,
    inspect_entry_logs,
    inspect_indexes,
    inspect_journal,
    inspect_ledger,
    inspect_storage,
)
from tests.backends.files.inspecting.places import damage_of
from tests.forks import Forked

WRITER = """
import mmap, os, sys
from replog.abc import DropLedger, PutBatch
from replog.backends.disk import Disk
from replog.backends.files.options import FilesTuning
from replog.backends.files.storage import open_storage
from replog.testing.storage_conformance import make_batch

class QuickDisk(Disk):
    def fdatasync(self, fd): pass
    def sync_directory(self, path): pass

path, journal, progress = sys.argv[1:]
options = FilesTuning(
    journal_file_bytes=256 << 10, journal_dir=journal, flush_bytes=256 << 10, entry_log_bytes=1 << 20, spare_files=2,
    minor_compaction_interval_s=0.05, major_compaction_interval_s=0.2, compaction_bytes_per_s=0,
)
storage = open_storage(path, options, disk=QuickDisk())
shown = mmap.mmap(os.open(progress, os.O_RDWR), 8)
at = 0
parent = os.getppid()
while os.getppid() == parent:
    kept = make_batch(1, at * 2, 2, size_bytes=700)
    passing = [make_batch(100 + at, entry_id, 1, size_bytes=12000) for entry_id in range(10)]
    storage.commit([PutBatch(each) for each in (kept, *passing)])
    if at >= 4:
        storage.commit([DropLedger(100 + at - 4)])
    at += 1
    shown[:8] = at.to_bytes(8, "little")
    if at == 1:
        print("writing", flush=True)
"""


@contextmanager
def running(path: Path, journal: str) -> Iterator[Path]:
    """A process that writes as fast as it can. Gives the file that says how many batches of ledger 1 are durable."""
    progress = path.with_suffix(".progress")
    progress.write_bytes(bytes(8))
    command = [sys.executable, "-c", WRITER, str(path), journal, str(progress)]
    with Forked(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        try:
            assert writer.stdout.readline() == "writing\n"
            yield progress
            assert writer.poll() is None, "the writer failed"
        finally:
            writer.kill()


@pytest.mark.parametrize(
    "is_elsewhere", [pytest.param(False, marks=pytest.mark.long(is_sampled=False)), True], ids=["inside", "elsewhere"]
)
def test_inspection_is_right_while_a_bookie_writes(tmp_path: Path, is_elsewhere: bool) -> None:
    path = tmp_path / "st"
    journal = str(tmp_path / "journal") if is_elsewhere else ""
    with running(path, journal) as progress:
        place = find_place(str(path), journal or None)
        compacted = 0
        for turn in range(600):
            if turn >= 12 and compacted:
                break  # a writer that is kept waiting needs more
            durable = int.from_bytes(progress.read_bytes(), "little")
            inspection = inspect_ledger(place, 1)
            report = inspection.report
            assert [problem for problem in report.problems if problem.is_damage] == []
            if not any(problem.kind == "gone" for problem in report.problems):
                assert report.holes == []
                assert report.last_entry_id >= durable * 2 - 1
            assert sum(1 for _ in inspection.batches()) == report.copies > 0
            assert damage_of([report]) == []
            assert damage_of(inspect_journal(place, with_records=True)) == []
            assert damage_of(inspect_entry_logs(place)) == []
            assert damage_of(inspect_entry_logs(place, with_records=True)) == []
            assert damage_of(inspect_indexes(place, with_batches=True, verify=True)) == []
            storage = inspect_storage(place)
            assert damage_of([storage]) == []
            assert storage.is_open
            compacted += storage.entry_logs or 0
        assert compacted, "the writer never compacted: this test shows nothing"
