"""The files storage on a real disk: its conformance suite, whom a directory belongs to, forks, threads."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio

from replog.abc import DropLedger, PutBatch, Storage
from replog.backends.files.options import FilesTuning
from replog.backends.files.storage import FilesStorage, open_storage
from replog.errors import (
    ConfigError,
    StorageIdentityError,
    StorageInUseError,
)
from replog.testing import check_storage
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.forks import Forked

SMALL = FilesTuning(journal_file_bytes=64 << 10)


@pytest.mark.sized
@pytest.mark.parametrize(
    "options",
    [
        FilesTuning(),
        pytest.param(SMALL, marks=pytest.mark.long(is_sampled=False)),
        pytest.param(FilesTuning(journal_file_bytes=70_001, spare_files=0), marks=pytest.mark.long(is_sampled=False)),
    ],
)
def test_conformance(tmp_path: Path, options: FilesTuning, is_long: bool) -> None:
    kills, steps = (16, 300) if is_long else (4, 100)
    check_storage(lambda path: open_storage(str(path), options), tmp_path, kills=kills, steps=steps)


@pytest.mark.long(is_sampled=False)  # what MemoryDisk does is seen in all tests of crashes
def test_conformance_on_a_disk_in_memory(tmp_path: Path) -> None:
    disk = MemoryDisk()

    def open_in_memory(path: Path) -> Storage:
        return open_storage(str(path), SMALL, disk=disk)

    check_storage(open_in_memory, tmp_path, survives_processes=False)
    assert list(tmp_path.iterdir()) == []
    assert disk.open_count == 0


def opened(path: Path, options: FilesTuning | None = None) -> contextlib.closing[FilesStorage]:
    return contextlib.closing(open_storage(str(path), options))


# -- whom a directory belongs to (B4) -----------------------------------------------------------------------------


HOLD = """
import sys
from replog.backends.files.storage import open_storage
storage = open_storage(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_waits_for_the_first_to_die(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with Forked(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StorageInUseError, match=f"open in process {holder.pid}\\."):
            open_storage(str(tmp_path))
        holder.send_signal(signal.SIGKILL)
        holder.wait(30)
    open_storage(str(tmp_path)).close()


def test_a_relative_path_means_the_same_after_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(open_storage("wal", SMALL)) as storage:
        monkeypatch.chdir("/")
        for ledger_id in range(40):
            storage.commit([PutBatch(make_batch(ledger_id, 0, 4, size_bytes=3000)), DropLedger(ledger_id - 2)])
    with opened(tmp_path / "wal", SMALL) as storage:
        assert storage.ledger_ids() == [38, 39]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "replog files storage", "version": 2, "bookie_id": "%s"}', "version 2, this storage reads"),
        (
            '{"format": "replog files storage", "version": 1, "bookie_id": "%s", "journal": "lost"}',
            "version 1 with journal 'lost'",
        ),
        ('{"format": "replog files storage", "version": 1, "bookie_id": "%s"}', "version 1 with journal None"),
        ('{"format": "something else", "version": 1, "bookie_id": "%s"}', "'something else' version 1"),
        ('{"format": "replog files storage", "version": 1}', "can't be read"),
        ('{"format": "replog files storage", "version": 1, "bookie_id": "bob"}', "can't be read"),
        ('{"format": "replog files storage", "version": 1, "bookie_id": "%S"}', "is not a bookie id"),
        ('["replog"]', "can't be read"),
        (
            '{"format": "replog files storage", "version": 1, "journal": "inside", '
            '"bookie_id": "bookie-0123456789abcdef0123456789abcdef"}',
            "is a catalog of format 1 of bookie-",
        ),
    ],
)
def test_unknown_format_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with opened(tmp_path) as storage:
        bookie_id = storage.bookie_id
    (tmp_path / "storage.json").write_text(
        text.replace("%s", bookie_id).replace("%S", bookie_id[:-32] + bookie_id[-32:].upper())
    )
    with pytest.raises(StorageIdentityError, match=message):
        open_storage(str(tmp_path))


def test_journal_file_of_another_bookie_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        open_storage(str(tmp_path / name)).close()
    foreign = tmp_path / "one" / "journal" / "000000000001.journal"
    foreign.write_bytes((tmp_path / "two" / "journal" / "000000000001.journal").read_bytes())
    with pytest.raises(StorageIdentityError, match="expected format 1 of bookie-"):
        open_storage(str(tmp_path / "one"))


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("journal_file_bytes", 64 << 10),
        ("spare_files", 0),
        ("fill_ahead_bytes", 0),
        ("flush_bytes", 1),
        ("open_files_max", 1),
        ("ledger_cache_bytes", 1 << 20),
        ("minor_compaction_threshold", 0.0),
        ("minor_compaction_interval_s", 0.0),
        ("major_compaction_threshold", 0.0),
        ("major_compaction_interval_s", 0.0),
        ("compaction_bytes_per_s", 0),
        ("entry_log_bytes", 64 << 10),
        ("scrub_interval_s", 0.0),
        ("scrub_bytes_per_s", 0),
    ],
)
def test_impossible_options(tmp_path: Path, name: str, least: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name}="):
        FilesTuning(**{name: least - 1})  # type: ignore[arg-type]
    with opened(tmp_path, FilesTuning(**{name: least})) as storage:  # type: ignore[arg-type]
        storage.commit([PutBatch(make_batch(1, 0, 4, size_bytes=30_000))])
        storage.commit([PutBatch(make_batch(2, 0, 4, size_bytes=30_000))])
        storage.compact(is_major=True)
        storage.scrub()
        assert storage.read(1, 0, 1, 1) == [make_batch(1, 0, 4, size_bytes=30_000)]


def test_options_have_upper_bounds_too() -> None:
    for name in ("minor_compaction_threshold", "major_compaction_threshold"):
        assert getattr(FilesTuning(**{name: 1.0}), name) == 1.0  # type: ignore[arg-type]
        for wrong in (1.01, float("nan")):
            with pytest.raises(ConfigError, match=name):
                FilesTuning(**{name: wrong})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="scrub_interval_s"):
        FilesTuning(scrub_interval_s=float("nan"))
    with pytest.raises(ConfigError, match="under 1 TiB"):
        FilesTuning(journal_file_bytes=1 << 40)
    with pytest.raises(ConfigError, match="needs a directory"):
        open_storage("")


def test_interval_may_be_infinite(tmp_path: Path) -> None:
    for_ever = float("inf")
    options = FilesTuning(
        minor_compaction_interval_s=for_ever, major_compaction_interval_s=for_ever, scrub_interval_s=for_ever
    )
    with opened(tmp_path, options) as storage:
        storage.commit([PutBatch(make_batch(1, 0))])
        assert storage._maintenance._thread is not None
        assert storage._maintenance._thread.is_alive()


# -- forks --------------------------------------------------------------------------------------------------------


def test_a_forked_child_does_not_keep_the_directory_locked(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    child_runs, stop = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(stop[1])
        os.write(child_runs[1], b".")
        os.read(stop[0], 1)  # lives on after its parent is done with the storage
        os._exit(0)
    os.read(child_runs[0], 1)
    storage._lifecycle.failed(RuntimeError("killed"))
    for lock in storage._locks:
        lock.forget()  # as the kernel does for a parent that is killed
    again = open_storage(str(tmp_path))
    storage.close()
    again.close()
    for fd in (*child_runs, *stop):
        os.close(fd)
    os.waitpid(pid, 0)


# -- the thread that prepares files -------------------------------------------------------------------------------


def test_close_joins_the_thread_and_closes_every_file(tmp_path: Path) -> None:
    gc.collect()  # what other tests left open is not closed meanwhile
    before, threads = set(os.listdir("/proc/self/fd")), set(threading.enumerate())
    with opened(tmp_path, SMALL) as storage:
        for ledger_id in range(60):
            storage.commit([PutBatch(make_batch(ledger_id, 0, 4, size_bytes=3000)), DropLedger(ledger_id - 20)])
    assert set(threading.enumerate()) <= threads, "idle ones of trio's, from other tests, may have ended"
    assert set(os.listdir("/proc/self/fd")) == before


def test_files_are_recycled_and_a_small_storage_stays_small(tmp_path: Path) -> None:
    options = FilesTuning(journal_file_bytes=256 << 10, spare_files=1)
    with opened(tmp_path, options) as storage:
        for ledger_id in range(300):
            storage.commit([PutBatch(make_batch(ledger_id, 0, 4, size_bytes=10_000)), DropLedger(ledger_id - 3)])
        assert storage.read(299, 3, 1, 0)
    files = list((tmp_path / "journal").iterdir())
    assert len(files) <= 6
    with opened(tmp_path / "small") as storage:
        storage.commit([PutBatch(make_batch(1, 0))])
    assert sum(path.stat().st_size for path in (tmp_path / "small" / "journal").iterdir()) <= 8 << 20


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    options = FilesTuning(journal_file_bytes=64 << 10, open_files_max=2)
    batches = [make_batch(1, 4 * number, 4, size_bytes=5000) for number in range(40)]
    for reopened in (False, True):
        with opened(tmp_path, options) as storage:
            if not reopened:
                for batch in batches:
                    storage.commit([PutBatch(batch)])
            assert storage.statistics()["journal_files"] > 8
            for batch in [*batches, *reversed(batches)]:
                assert storage.read(1, batch.last_entry_id, 1, 1) == [batch]
            at_once = 0
            for batch in batches:
                with contextlib.suppress(trio.WouldBlock):
                    at_once += storage.read_nowait(1, batch.last_entry_id, 1, 1) == [batch]
            assert at_once >= 3 or not _knows_its_cache(tmp_path)
            open_files = [name for name in os.listdir("/proc/self/fd") if _is_journal_in(tmp_path, name)]
            assert len(open_files) <= 2 + 2, "beside those: the current one and the next"


def _knows_its_cache(directory: Path) -> bool:
    """Whether the file system can read without waiting; tmpfs can't."""
    (directory / "probe").write_bytes(b"x")
    fd = os.open(directory / "probe", os.O_RDONLY)
    try:
        return os.preadv(fd, (bytearray(1),), 0, os.RWF_NOWAIT) == 1
    except OSError:
        return False
    finally:
        os.close(fd)


def _is_journal_in(directory: Path, fd: str) -> bool:
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
        return path.startswith(f"{directory}/") and path.endswith(".journal")
    except FileNotFoundError:
        return False


def test_reads_from_files_survive_their_recycling(tmp_path: Path) -> None:
    done = threading.Event()
    counts = {"found": 0, "absent": 0}
    faults = []

    def read_on(storage: FilesStorage) -> None:
        while not done.is_set():
            for ledger_id in storage.ledger_ids():
                try:
                    found = storage.read(ledger_id, 1, 1, 100_000)
                except BaseException as fault:
                    faults.append(fault)
                    raise
                counts["found" if found else "absent"] += 1

    with opened(tmp_path, FilesTuning(journal_file_bytes=64 << 10, open_files_max=1)) as storage:
        readers = [threading.Thread(target=read_on, args=(storage,)) for _ in range(2)]
        for reader in readers:
            reader.start()
        for ledger_id in range(200):
            storage.commit([PutBatch(make_batch(ledger_id, 0, 4, size_bytes=3000)), DropLedger(ledger_id - 8)])
        done.set()
        for reader in readers:
            reader.join()
        assert storage.statistics()["journal_recycled_files"] > 20
    assert faults == []
    assert counts["found"] > 50
