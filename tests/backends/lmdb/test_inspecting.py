"""Inspecting an LMDB storage: what a read gives, damage, and a bookie that runs meanwhile."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from replog.abc import DropLedger, PutBatch, SetMarks
from replog.backends.lmdb import inspecting
from replog.backends.lmdb.inspecting import inspect_ledger, inspect_storage
from replog.backends.lmdb.storage import open_storage
from replog.errors import EntryNotFoundError, StorageDamagedError, StorageIdentityError, StorageUncertainError
from replog.runtime.lmdb_file import check_data_file
from replog.testing.storage_conformance import make_batch
from tests.forks import Forked

SECRET = b"a secret that nobody may see"


def make_storage(path: Path) -> str:
    with contextlib.closing(open_storage(str(path))) as storage:
        storage.commit([SetMarks(1, SECRET, 3, 4)])
        for first in range(0, 40, 2):
            storage.commit([PutBatch(make_batch(ledger_id, first, 2, size_bytes=100)) for ledger_id in (1, 2)])
        storage.commit([PutBatch(make_batch(1, 1, 1, stamp=2)), PutBatch(make_batch(1, 50, 2)), DropLedger(2)])
        return storage.bookie_id


def unwatched(size_bytes: int) -> None:
    assert size_bytes >= 0


def traces(path: Path) -> dict[str, object]:
    return {each.name: (each.stat().st_mtime_ns, each.read_bytes()) for each in path.iterdir()}


def test_a_ledger(tmp_path: Path) -> None:
    make_storage(tmp_path)
    before = traces(tmp_path)
    inspection = inspect_ledger(str(tmp_path), 1, unwatched)
    report = inspection.report
    assert (report.fence_term, report.has_key, report.last_entry_id, report.batches) == (3, True, 51, 22)
    assert [(hole.first_entry_id, hole.last_entry_id) for hole in report.holes] == [(40, 49)]
    batches = list(inspection.batches())
    assert [batch.first_entry_id for batch in batches] == sorted([*range(0, 40, 2), 1, 50])
    assert not any(batch.problem for batch in batches)
    payloads = {(each.entry_id, each.stamp): each.payload for each in inspection.entries()}
    assert payloads[7, 1] == make_batch(1, 6, 2, size_bytes=100).payloads()[1]
    assert inspection.payload(1) == make_batch(1, 1, 1, stamp=2).payloads()[0]
    assert inspection.payload(1, stamp=1) == payloads[1, 1]
    with pytest.raises(EntryNotFoundError):
        inspection.payload(44)
    assert "secret" not in repr((report, batches))
    deleted = inspect_ledger(str(tmp_path), 2, unwatched).report
    assert (deleted.is_known, deleted.is_deleted) == (True, True)
    assert not inspect_ledger(str(tmp_path), 3, unwatched).report.is_known
    assert traces(tmp_path) == before


def test_a_storage(tmp_path: Path) -> None:
    bookie_id = make_storage(tmp_path)
    before = traces(tmp_path)
    report = inspect_storage(str(tmp_path), unwatched)
    assert (report.bookie_id, report.storage, report.is_open) == (bookie_id, "lmdb", False)
    assert (report.ledgers, report.deleted_ledgers) == (1, 1)
    assert report.live_bytes is not None
    assert report.live_bytes > 20 * 200
    assert report.total_bytes == sum(each.stat().st_size for each in tmp_path.iterdir())
    assert traces(tmp_path) == before


def test_mark_and_doubt_are_shown(tmp_path: Path) -> None:
    make_storage(tmp_path)
    sound = inspect_storage(str(tmp_path), unwatched)
    assert sound.durable_mark == check_data_file(str(tmp_path / "data.mdb")).txn_id
    assert (sound.doubted_below, sound.lost_below, sound.doubt_reasons, sound.problems) == (0, 0, [], [])
    copy = (tmp_path / "data.mdb").read_bytes()
    with contextlib.closing(open_storage(str(tmp_path))) as storage:
        storage.commit([SetMarks(7, fence_term=1)])
    (tmp_path / "data.mdb").write_bytes(copy)
    with contextlib.closing(open_storage(str(tmp_path))) as storage:
        storage.bound_doubt(9)
    lost = inspect_storage(str(tmp_path), unwatched)
    assert (lost.doubted_below, lost.lost_below) == (9, 9)
    assert "was durable" in lost.doubt_reasons[0]
    (tmp_path / "durable-mark").write_bytes(b"torn")
    torn = inspect_storage(str(tmp_path), unwatched)
    assert torn.durable_mark is None
    assert [problem.is_damage for problem in torn.problems] == [True]


def test_damage(tmp_path: Path) -> None:
    make_storage(tmp_path)
    data = (tmp_path / "data.mdb").read_bytes()
    at = data.rindex(b"1/7/1 ")
    changed = data.replace(b"1/7/1 ", b"1/7/2 ")
    assert changed[at] == data[at]
    (tmp_path / "data.mdb").write_bytes(changed)
    inspection = inspect_ledger(str(tmp_path), 1, unwatched)
    assert [batch.first_entry_id for batch in inspection.batches() if batch.problem] == [6]
    assert inspection.report.damaged_batches == 1
    assert [problem.is_damage for problem in inspection.report.problems] == [True]
    assert not {6, 7} & {each.entry_id for each in inspection.entries()}
    with pytest.raises(StorageUncertainError):
        inspection.payload(6)
    (tmp_path / "data.mdb").write_bytes(b"nonsense" * 1000)
    with pytest.raises(StorageDamagedError):
        inspect_storage(str(tmp_path), unwatched)
    (tmp_path / "data.mdb").unlink()
    with pytest.raises(StorageDamagedError, match="is missing"):
        inspect_storage(str(tmp_path), unwatched)
    (tmp_path / "storage.json").unlink()
    with pytest.raises(StorageIdentityError):
        inspect_storage(str(tmp_path), unwatched)


def test_data_file_of_another_bookie_is_reported(tmp_path: Path) -> None:
    """B4"""
    make_storage(tmp_path / "one")
    make_storage(tmp_path / "two")
    (tmp_path / "one" / "storage.json").write_bytes((tmp_path / "two" / "storage.json").read_bytes())
    with pytest.raises(StorageIdentityError, match="is not of"):
        inspect_ledger(str(tmp_path / "one"), 1, unwatched)


WRITER = """
import os, sys
from replog.abc import DropLedger, PutBatch
from replog.backends.lmdb import inspecting
from replog.backends.lmdb.storage import open_storage
from replog.testing.storage_conformance import make_batch
storage = open_storage(sys.argv[1])
parent = os.getppid()
at = 0
while os.getppid() == parent:
    passing = [make_batch(100 + at, first, 1, size_bytes=9000) for first in range(5)]
    storage.commit([PutBatch(each) for each in (make_batch(1, at * 2, 2, size_bytes=700), *passing)])
    if at >= 3:
        storage.commit([DropLedger(100 + at - 3)])
    at += 1
    if at == 5:
        print("writing", flush=True)
"""


def test_a_running_bookie(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with Forked(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
            last = -1
            for _ in range(20):
                inspection = inspect_ledger(str(tmp_path), 1, unwatched)
                assert inspection.report.holes == []
                assert inspection.report.last_entry_id >= last
                last = inspection.report.last_entry_id
                assert not any(batch.problem for batch in inspection.batches())
                report = inspect_storage(str(tmp_path), unwatched)
                assert (report.is_open, report.pid) == (True, writer.pid)
            assert writer.poll() is None
        finally:
            writer.kill()
    with lmdb.open(str(tmp_path), readonly=True, lock=False) as environment:
        assert environment.stat()["entries"] > 0
    assert os.path.exists(tmp_path / "lock.mdb")


def test_reading_goes_on_when_a_running_bookie_enlarges_the_map(tmp_path: Path) -> None:
    grow = (
        f"import lmdb; environment = lmdb.open({str(tmp_path)!r}, map_size=1 << 26)\n"
        "with environment.begin(write=True) as transaction:\n"
        "    for number in range(300): transaction.put(b'%d' % number, bytes(100_000))"
    )
    lmdb.open(str(tmp_path), map_size=1 << 20).close()
    with lmdb.open(str(tmp_path), readonly=True) as environment:
        subprocess.run([sys.executable, "-c", grow], timeout=60, check=True)
        with pytest.raises(lmdb.MapResizedError):
            environment.begin()
        with inspecting._begin(environment) as transaction:
            assert transaction.stat()["entries"] == 300
