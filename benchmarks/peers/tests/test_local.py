"""The logs within one process that replog is compared with: what they hold is what was appended, and it is on the disk."""

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.local import LocalRunning, Store, different, parts
from benchmarks.peers.system import Load, NotMeasured, System
from benchmarks.peers.systems import file, lmdb, sqlite

MODULES = [sqlite, lmdb, file]
each_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.SYSTEM.name)


@contextmanager
def opened(module: Any, directory: Path) -> Iterator[Store]:
    store = module.open_store(directory)
    try:
        yield store
    finally:
        store.close()


@each_module
def test_store_holds_appended_entries_until_it_is_cleared(module: Any, tmp_path: Path) -> None:
    with opened(module, tmp_path) as store:
        store.append([b"one"])
        store.append([b"two", b"", os.urandom(100_000)])
        assert store.read() == 4
    with opened(module, tmp_path) as store:
        store.append([b"five"])
        assert store.read() == 5
        store.clear()
        assert store.read() == 0
        store.append([b"again"])
        assert store.read() == 1


@each_module
def test_each_call_is_one_sync(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the file, whose syncs are ours; the others are told to in their own words."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    with opened(module, tmp_path) as store:
        store.append([b"one"] * 10)
        store.append([b"two"])
        if module is sqlite:
            database = store._database  # type: ignore[attr-defined]
            assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        elif module is lmdb:
            flags = store._environment.flags()  # type: ignore[attr-defined]
            assert flags["sync"]
            assert flags["metasync"]
        else:
            assert len(synced) == 2


@pytest.mark.parametrize("cut_bytes", range(1, 13))
def test_file_ending_in_an_entry_is_cut_before_it(tmp_path: Path, cut_bytes: int) -> None:
    with opened(file, tmp_path) as store:
        store.append([b"one", b"last"])
    path = tmp_path / "entries"
    first = struct.pack("<II", 3, zlib.crc32(b"one")) + b"one"
    assert path.read_bytes() == first + struct.pack("<II", 4, zlib.crc32(b"last")) + b"last"
    os.truncate(path, path.stat().st_size - cut_bytes)
    with opened(file, tmp_path) as store:
        assert path.read_bytes() == first
        store.append([b"more"])
        assert store.read() == 2


def test_a_file_with_a_damaged_entry_ends_before_it(tmp_path: Path) -> None:
    with opened(file, tmp_path) as store:
        store.append([b"one", b"two", b"three"])
    damaged = bytearray((tmp_path / "entries").read_bytes())
    damaged[8 + 3 + 8] ^= 1
    (tmp_path / "entries").write_bytes(damaged)
    with opened(file, tmp_path) as store:
        assert store.read() == 1


def test_entry_longer_than_one_read_is_read(tmp_path: Path) -> None:
    with opened(file, tmp_path) as store:
        store.append([os.urandom(3 << 20), b"after"])
    with opened(file, tmp_path) as store:
        assert store.read() == 2


@each_module
def test_runner_gets_its_requested_values(module: Any, tmp_path: Path) -> None:
    system: System = module.SYSTEM
    assert system.missing() is None
    assert system.version()
    assert not system.is_replicated
    with system.running(tmp_path) as running:
        found = running.append(Load(100, 1, 0.01, entries_per_call=10))
        assert found["entries"] % 10 == 0
        assert found["entries"] > 0
        assert found["server_cpu_us"] == 0
        assert running.scan(100, 1500)["entries_per_s"] > 0
        for not_measured in (lambda: running.tail(100, 1), lambda: running.take_over(100)):
            with pytest.raises(NotMeasured):
                not_measured()
        with pytest.raises(NotMeasured, match="one transaction at a time"):
            running.append(Load(100, 10, 0.01))


def test_entries_of_a_killed_process_are_present(tmp_path: Path) -> None:
    with file.SYSTEM.running(tmp_path) as running:
        assert isinstance(running, LocalRunning)
        found = running.restart()
        assert found["restart_s"] > 0
        assert found["held_bytes"] >= 64 << 20
        assert running._store.read() >= (64 << 20) // 1024 - 100


def test_entries_of_a_load() -> None:
    assert [len(entry) for entry in different(10, 7)] == [10] * 7
    assert len(set(different(10, 7))) == 7
    assert len(set(map(id, different(1 << 20, 100)))) == 4, "memory is bounded"
    assert [len(part) for part in parts(10, 2500)] == [1000, 1000, 500]
