"""Inspecting a storage as a whole: who it is, who has it open, how much there is."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from replog.abc import PutBatch
from replog.backends.files.inspecting import find_place, inspect_storage
from replog.errors import ConfigError, StorageIdentityError
from replog.testing.storage_conformance import make_batch
from tests.backends.files.inspecting.places import (
    damage_of,
    flip,
    make_compacted,
    make_filled,
    open_quick,
    traces,
)
from tests.forks import Forked


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["inside", "elsewhere"])
def test_the_figures_are_those_of_the_storage(tmp_path: Path, is_elsewhere: bool) -> None:
    path = tmp_path / "st"
    journal = tmp_path / "journal" if is_elsewhere else None
    make_compacted(path, journal)
    with contextlib.closing(open_quick(path, journal)) as storage:
        bookie_id, ledgers = storage.bookie_id, storage.ledger_ids()
    report = inspect_storage(find_place(str(path), None if journal is None else str(journal)))
    assert (report.storage, report.version, report.bookie_id) == ("files", 1, bookie_id)
    assert (report.ledgers, report.deleted_ledgers) == (len(ledgers), 1)
    names = [name for directory in (path, journal) if directory for name in directory.rglob("*.journal")]
    assert report.journal_files == len([name for name in names if not name.name.startswith("spare-")])
    assert report.entry_logs == len(list(path.glob("logs/*.log"))) > 0
    directories = [each for each in (path, journal) if each is not None]
    files = [file for directory in directories for file in directory.rglob("*") if file.is_file()]
    cookie = journal / "journal.json" if journal else None
    assert report.total_bytes == sum(file.stat().st_size for file in files)
    assert cookie is None or cookie.exists()
    assert report.batch_bytes is not None
    assert report.live_share is not None
    assert 0.5 < report.live_share <= 1
    assert damage_of([report]) == []
    assert abs(report.free_bytes - os.statvfs(path).f_bavail * os.statvfs(path).f_frsize) < 1 << 30


def test_mark_and_doubt_are_shown(tmp_path: Path) -> None:
    """B8: what a start would find is told before it; what it found stays."""
    path = tmp_path / "st"
    with contextlib.closing(open_quick(path)) as storage:
        storage.commit([PutBatch(make_batch(1, 0)), PutBatch(make_batch(2, 0))])
        storage.commit([PutBatch(make_batch(1, 3))])
        end = storage._journal.current.position
    report = inspect_storage(find_place(str(path)))
    assert (report.durable_mark, report.doubted_below, report.lost_below, report.doubt_reasons) == (2, 0, 0, [])
    assert report.problems == []
    flip(path / "journal" / "000000000001.journal", end - 1)
    (problem,) = damage_of([inspect_storage(find_place(str(path)))])
    assert "its last group is 1, but group 2 was durable" in problem.reason
    with contextlib.closing(open_quick(path)) as storage:
        storage.bound_doubt(7)
        doubt = storage.doubt()
    report = inspect_storage(find_place(str(path)))
    assert (report.doubted_below, report.lost_below, tuple(report.doubt_reasons)) == (7, 7, doubt.reasons)
    assert report.problems == []
    for name in ("durable-mark", "doubt"):
        (path / name).write_bytes(b"")
        (problem,) = damage_of([inspect_storage(find_place(str(path)))])
        assert (problem.path, problem.reason) == (str(path / name), "it is damaged: the next start doubts every ledger")
        open_quick(path).close()


def test_journal_elsewhere_must_be_named(tmp_path: Path) -> None:
    make_filled(tmp_path / "st", journal=tmp_path / "journal")
    make_filled(tmp_path / "other", journal=tmp_path / "others")
    make_filled(tmp_path / "inside")
    report = inspect_storage(find_place(str(tmp_path / "st")))
    assert (report.journal_path, report.journal_files, report.batches) == (None, None, None)
    assert report.bookie_id.startswith("bookie-")
    with pytest.raises(StorageIdentityError, match="others is the journal of"):
        find_place(str(tmp_path / "st"), str(tmp_path / "others"))
    with pytest.raises(ConfigError, match="leave --journal-dir out"):
        find_place(str(tmp_path / "inside"), str(tmp_path / "others"))


def test_open_storage_shows_its_process(tmp_path: Path) -> None:
    """The table of locks tells, so that the lock is never taken, not even for a moment."""
    path = tmp_path / "st"
    make_filled(path)
    place = find_place(str(path))
    assert inspect_storage(place).is_open is False
    with contextlib.closing(open_quick(path)):
        report = inspect_storage(place)
        assert (report.is_open, report.pid) == (True, os.getpid())
    assert inspect_storage(place).is_open is False
    script = f"""
import sys
from replog.backends.files.storage import open_storage
storage = open_storage({str(path)!r})
print("open", flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with Forked([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "open\n"
            report = inspect_storage(place)
            assert (report.is_open, report.pid) == (True, owner.pid)
        finally:
            owner.kill()
    assert inspect_storage(place).is_open is False


def test_damaged_catalog_is_reported_and_all_else_shown(tmp_path: Path) -> None:
    path = tmp_path / "st"
    make_filled(path)
    flip(path / "catalog", 100)
    report = inspect_storage(find_place(str(path)))
    assert str(path / "catalog") in [problem.path for problem in damage_of([report])]
    (path / "catalog").unlink()
    report = inspect_storage(find_place(str(path)))
    assert "the file is missing" in [problem.reason for problem in damage_of([report])]


def test_path_without_storage_is_refused(tmp_path: Path) -> None:
    make_filled(tmp_path / "st")
    for path in (tmp_path / "st" / "journal" / "000000000001.journal", tmp_path):
        with pytest.raises(ConfigError):
            inspect_storage(find_place(str(path)))


def test_storage_is_inspected_when_directory_is_read_only(tmp_path: Path) -> None:
    path = tmp_path / "st"
    make_filled(path)
    before = traces(tmp_path)
    for directory in (path / "journal", path):
        directory.chmod(0o500)
    try:
        assert damage_of([inspect_storage(find_place(str(path)))]) == []
    finally:
        for directory in (path / "journal", path):
            directory.chmod(0o755)
    after = traces(tmp_path)
    assert {name: found[-1] for name, found in before.items()} == {name: found[-1] for name, found in after.items()}  # type: ignore[index]
