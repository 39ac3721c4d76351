"""The LMDB storage: whom a directory belongs to, growth, full and failing disks, deletion in pieces, forks, threads."""

import contextlib
import errno
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import lmdb
import pytest
import trio

import replog
from replog.abc import DropLedger, Marks, PutBatch, SetMarks
from replog.backends.lmdb import LMDBStorageOptions, maintenance
from replog.backends.lmdb.opening import RESERVE_BYTES
from replog.backends.lmdb.options import LMDBStorageTuning
from replog.backends.lmdb.storage import LMDBStorage, open_storage
from replog.errors import (
    ConfigError,
    StorageDamagedError,
    StorageFailedError,
    StorageFullError,
    StorageIdentityError,
)
from replog.protocol.mutations import DELETED_TERM
from replog.registry import Registry
from replog.testing.storage_conformance import make_batch
from tests import forks
from tests.forks import Forked

SMALL = LMDBStorageTuning(map_bytes=1 << 20)


def opened(path: Path, options: LMDBStorageOptions | None = None) -> contextlib.closing[LMDBStorage]:
    return contextlib.closing(open_storage(str(path), options))


def large(ledger_id: int, number: int, size_bytes: int = 50_000) -> PutBatch:
    return PutBatch(make_batch(ledger_id, 4 * number, 4, size_bytes=size_bytes // 4))


# -- as a plugin --------------------------------------------------------------------------------------------------


def test_the_registry_opens_it_by_url(tmp_path: Path) -> None:
    with contextlib.closing(
        Registry(load_installed=False).open_storage(f"lmdb:{tmp_path}?map_bytes_max=2MiB")
    ) as storage:
        assert isinstance(storage, LMDBStorage)
        assert storage.statistics()["map_bytes"] == 2 << 20


async def test_embedded_log_survives_reopening(tmp_path: Path) -> None:
    entries = [b"%d" % number * 100 for number in range(500)]
    async with replog.embed(tmp_path, storage="lmdb") as client, client.write_log("orders") as log:
        for start in range(0, len(entries), 100):
            await log.extend(entries[start : start + 100])
        await log.append(b"last")
    async with replog.embed(tmp_path, storage="lmdb") as client:
        async with client.read_log("orders") as reader:
            assert [record.data async for record in reader] == [*entries, b"last"]
        async with client.write_log("orders") as log:
            await log.append(b"more")
        (statistics,) = (bookie.statistics() for bookie in client.bookies)
        assert any(name.endswith("live_bytes") for name in statistics)
    assert {path.name for path in (tmp_path / "bookie-0").iterdir()} >= {"data.mdb", "storage.json", "lock"}


# -- whom a directory belongs to (B4) -----------------------------------------------------------------------------


def test_foreign_environment_is_refused_untouched(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"theirs", b"1")
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(StorageDamagedError, match=r"storage\.json is missing, but .*data\.mdb holds records"):
        open_storage(str(tmp_path))
    assert (tmp_path / "data.mdb").read_bytes() == before


def test_a_data_file_of_another_bookie_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        open_storage(str(tmp_path / name)).close()
    (tmp_path / "one" / "data.mdb").write_bytes((tmp_path / "two" / "data.mdb").read_bytes())
    with pytest.raises(StorageIdentityError, match=r"says 'replog lmdb storage 1 bookie-.*expected 'replog lmdb"):
        open_storage(str(tmp_path / "one"))


def test_missing_or_foreign_data_file_counts_as_damage(tmp_path: Path) -> None:
    open_storage(str(tmp_path)).close()
    (tmp_path / "data.mdb").unlink()
    with pytest.raises(StorageDamagedError, match=r"data\.mdb is missing"):
        open_storage(str(tmp_path))
    (tmp_path / "data.mdb").write_bytes(b"no map at all" * 1000)
    with pytest.raises(StorageDamagedError, match=r"data\.mdb is damaged at 0: not a meta page"):
        open_storage(str(tmp_path))


@pytest.mark.parametrize("left", [b"", b"\0" * 100, b"\0" * 20480])
def test_half_made_storage_is_made_again(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(left)
    with opened(tmp_path) as storage:
        storage.commit([SetMarks(1, fence_term=1)])
    with opened(tmp_path) as storage:
        assert storage.ledger_ids() == [1]
    (tmp_path / "storage.json").unlink()
    with pytest.raises(StorageDamagedError, match="holds records"):
        open_storage(str(tmp_path))


@pytest.mark.parametrize("change", [{"version": 2}, {"format": "x"}, {"bookie_id": "bob"}])
def test_unknown_format_file_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    open_storage(str(tmp_path)).close()
    path = tmp_path / "storage.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StorageIdentityError, match=r"storage\.json"):
        open_storage(str(tmp_path))


@pytest.mark.parametrize("options", [{"map_bytes": 1000}, {"map_bytes_max": 1 << 50}, {"map_bytes": 2 << 40}])
def test_impossible_options(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        LMDBStorageTuning(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a directory"):
        open_storage("")


# -- growth and full disks (B5) -----------------------------------------------------------------------------------


def test_the_map_grows_while_others_read(tmp_path: Path) -> None:
    done = threading.Event()
    faults: list[BaseException] = []
    reads = [0, 0]
    acknowledged = [0]

    def read_on(reader: int) -> None:
        number = 0
        try:
            while not done.is_set():
                number = (number + 7) % max(1, acknowledged[0])
                if acknowledged[0]:
                    assert storage.read(1, 4 * number + 1, 1, 0) == [large(1, number).batch]
                    reads[reader] += 1
        except BaseException as fault:
            faults.append(fault)
            raise

    with opened(tmp_path, SMALL) as storage:
        readers = [threading.Thread(target=read_on, args=(reader,)) for reader in range(2)]
        for reader in readers:
            reader.start()
        for number in range(300):
            storage.commit([large(1, number)])
            acknowledged[0] = number + 1
        done.set()
        for reader in readers:
            reader.join(60)
        assert storage.statistics()["map_growths"] >= 4
    assert faults == []
    assert min(reads) > 10


def test_a_full_map_keeps_nothing_and_goes_on_after_a_deletion(tmp_path: Path) -> None:
    options = LMDBStorageTuning(map_bytes=1 << 20, map_bytes_max=4 << 20)
    with opened(tmp_path, options) as storage:
        stored = 0
        with pytest.raises(StorageFullError, match=r"is full at 4.* bytes, of map_bytes_max=4194304"):
            while True:
                storage.commit([large(stored % 2, stored)])
                stored += 1
        free_bytes = storage.free_bytes()
        assert free_bytes is not None
        assert free_bytes < 200_000
        assert storage.read(stored % 2, 4 * stored, 1, 0) == []
        with pytest.raises(StorageFullError):
            storage.commit([SetMarks(7, fence_term=9), large(1, stored)])
        assert storage.marks(7) is None, "all of it, or nothing"
        for ledger_id in range(100, 400):  # fences are still taken: from the reserve
            storage.commit([SetMarks(ledger_id, b"key" * 30, 2)])
        assert storage.statistics()["map_bytes"] < options.map_bytes_max + RESERVE_BYTES
        with pytest.raises(StorageFullError):
            storage.commit([large(1, stored)])
        storage.commit([DropLedger(0)])
        storage.compact()
        storage.commit([large(1, stored)])
        after = storage.free_bytes()
        assert after is not None
        assert after > 1 << 20
    with opened(tmp_path, options) as storage:
        assert storage.read(1, 4 * stored, 1, 0) == [large(1, stored).batch]
        assert storage.marks(399) == Marks(b"key" * 30, 2)


def test_free_bytes_cover_the_map_and_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, LMDBStorageTuning(map_bytes=1 << 20, map_bytes_max=1 << 30)) as storage:
        monkeypatch.setattr(storage._transactions, "disk_free_bytes", lambda: 1 << 40)
        before = storage.free_bytes()
        assert before is not None
        assert (1 << 30) - (1 << 16) < before < 1 << 30
        for number in range(20):
            storage.commit([large(1, number)])
        after = storage.free_bytes()
        assert after is not None
        assert 20 * 50_000 < before - after < 30 * 50_000
        monkeypatch.setattr(storage._transactions, "disk_free_bytes", lambda: 0)
        assert storage.free_bytes() < 1 << 20  # type: ignore[operator]


# The kernel takes half of a write, and then no more, as a full disk does; LMDB calls that EIO.
FULL_DISK = """
import resource, signal, sys
from replog.abc import PutBatch, SetMarks
from replog.backends.lmdb.storage import open_storage
from replog.errors import StorageFullError
from replog.testing.storage_conformance import make_batch

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
storage = open_storage(sys.argv[1])
storage._transactions.disk_free_bytes = lambda: 0
storage.commit([PutBatch(make_batch(1, 0, 4, size_bytes=50_000))])
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
full = 0
for _ in range(3):
    try:
        storage.commit([PutBatch(make_batch(1, 4, 4, size_bytes=50_000)), SetMarks(2, b"key")])
    except StorageFullError as error:
        full += "no space left" in str(error)
assert full == 3
assert storage.read(1, 5, 1, 0) == [] and storage.marks(2) is None
assert storage.read(1, 1, 1, 0) == [make_batch(1, 0, 4, size_bytes=50_000)]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
storage.commit([PutBatch(make_batch(1, 4, 4, size_bytes=50_000))])
storage.close()
"""


def test_half_written_commit_keeps_nothing(tmp_path: Path) -> None:
    forks.run([sys.executable, "-c", FULL_DISK, str(tmp_path)]).check_returncode()
    with opened(tmp_path) as storage:
        for first in (0, 4):
            assert storage.read(1, first, 1, 0) == [make_batch(1, first, 4, size_bytes=50_000)]
        storage.scrub()
        assert storage.damage() == []


# Reads with LMDB itself, beside the storage, as LMDB's own tools do, and is killed while it does.
STALE_READER = """
import sys
import lmdb

environment = lmdb.open(sys.argv[1])
transaction = environment.begin()
print("reading", flush=True)
sys.stdin.read()
"""


def pids_of_readers(storage: LMDBStorage) -> list[int]:
    """As LMDB lists them, one a line below a heading: a process, a thread, a transaction."""
    return [int(line.split()[0]) for line in storage._map.environment.readers().splitlines()[1:]]


def test_dead_readers_do_not_keep_old_pages(tmp_path: Path) -> None:
    with opened(tmp_path, SMALL) as storage:
        storage.commit([large(1, 0)])
        command = [sys.executable, "-c", STALE_READER, str(tmp_path)]
        with Forked(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"reading\n"
            reader.send_signal(signal.SIGKILL)
        assert reader.pid in pids_of_readers(storage)
        for number in range(1, 200):  # dropped as they come: what is freed is enough for what follows
            storage.commit([large(number, 0), DropLedger(number - 1)])
            storage.compact()
        assert reader.pid not in pids_of_readers(storage)
        assert storage.statistics()["map_bytes"] <= 2 << 20


# The process runs out of addresses: LMDB would give its map up and get no other.
NO_ADDRESSES = """
import resource, sys
from replog.abc import PutBatch, SetMarks
from replog.backends.lmdb.storage import open_storage
from replog.backends.lmdb.options import LMDBStorageTuning
from replog.errors import StorageFullError
from replog.testing.storage_conformance import make_batch

storage = open_storage(sys.argv[1], LMDBStorageTuning(map_bytes=64 << 20))
batches = [make_batch(1, 4 * at, 4, size_bytes=1 << 20) for at in range(40)]
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), resource.RLIM_INFINITY))
stored = 0
try:
    for stored, batch in enumerate(batches):
        storage.commit([PutBatch(batch)])
except StorageFullError as error:
    assert "is full at 67108864 bytes" in str(error), error
else:
    raise SystemExit("it never was full")
assert stored > 10
for at in range(stored):
    assert storage.read(1, 4 * at, 1, 0) == [batches[at]]
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
storage.commit([PutBatch(batches[stored])])
storage.close()
"""


def test_map_stays_when_addresses_are_exhausted(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", NO_ADDRESSES, str(tmp_path)], check=True, timeout=60)


# -- failing disks (B1) -------------------------------------------------------------------------------------------


class Tampered:
    """An LMDB environment or transaction of which some methods are replaced."""

    def __init__(self, inner: Any, **replaced: Any) -> None:
        self._inner = inner
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def fail_commits(storage: LMDBStorage, error: BaseException) -> None:
    inner: Any = storage._map.environment

    def begin(write: bool = False, buffers: bool = False) -> Any:
        transaction = inner.begin(write=write, buffers=buffers)

        def commit() -> None:
            transaction.abort()
            raise error

        return Tampered(transaction, commit=commit, cursor=transaction.cursor) if write else transaction

    storage._map.environment = Tampered(inner, begin=begin)  # type: ignore[assignment]


def test_a_failed_sync_stops_the_storage(tmp_path: Path) -> None:
    failed = lmdb.Error("mdb_txn_commit", errno.EIO)
    failed.code = errno.EIO  # type: ignore[misc]
    with opened(tmp_path) as storage:
        storage.commit([large(1, 0)])
        fail_commits(storage, failed)
        with pytest.raises(StorageFailedError, match=rf"could not write to {tmp_path}"):
            storage.commit([large(1, 1)])
        calls = (
            lambda: storage.commit([]),
            lambda: storage.read(1, 0, 1, 0),
            lambda: storage.read_nowait(1, 0, 1, 0),
            lambda: storage.marks(1),
            storage.ledger_ids,
            storage.free_bytes,
            storage.compact,
            storage.scrub,
            storage.damage,
            storage.statistics,
        )
        for call in calls:
            with pytest.raises(StorageFailedError, match="has stopped"):
                call()
    with opened(tmp_path) as storage:
        assert storage.read(1, 0, 1, 0) == [large(1, 0).batch]


def test_storage_goes_on_after_a_full_disk(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        inner = storage._map.environment
        fail_commits(storage, lmdb.DiskError("no space left on device"))
        with pytest.raises(StorageFullError, match="no space left"):
            storage.commit([large(1, 0), SetMarks(2, b"key")])
        storage._map.environment = inner
        assert storage.marks(1) is None
        storage.commit([large(1, 0)])
        assert storage.read(1, 0, 1, 0) == [large(1, 0).batch]


# -- deletion in pieces -------------------------------------------------------------------------------------------


def test_large_ledger_is_removed_in_small_pieces(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        for first in range(0, 6000, 1000):
            storage.commit([PutBatch(make_batch(1, at, 1)) for at in range(first, first + 1000)])
        storage.commit([DropLedger(1)])
        commits = 0
        deadline = time.monotonic() + 60
        while storage.statistics()["deleted_ledgers_to_remove"] and time.monotonic() < deadline:
            storage.commit([PutBatch(make_batch(2, commits, 1))])
            commits += 1
        statistics = storage.statistics()
        assert statistics["deleted_ledgers_to_remove"] == 0
        assert statistics["removed_pieces"] >= 6000 // maintenance._PIECE_RECORDS_MAX
        assert commits >= statistics["removed_pieces"] / 2
        with storage._map.environment.begin() as transaction:
            kinds = {key[:1] for key in transaction.cursor().iternext(values=False) if key[1:9] == bytes(7) + b"\1"}
        assert kinds == {b"d"}, "nothing of it is left but that it was deleted"


def test_deleted_ledgers_are_kept_as_ranges(tmp_path: Path) -> None:
    order = [5, 9, 7, 6, 8, 1, 3, 2, 0, 20, 4]
    with opened(tmp_path) as storage:
        for ledger_id in order:
            storage.commit([DropLedger(ledger_id)])
        storage.commit([DropLedger(ledger_id) for ledger_id in range(30, 50)])
    with opened(tmp_path) as storage:
        assert list(storage._contents.deleted) == [(0, 9), (20, 20), (30, 49)]
        for ledger_id in (0, 9, 20, 35):
            assert storage.marks(ledger_id) == Marks(fence_term=DELETED_TERM)
        assert storage.marks(10) is None
        with storage._map.environment.begin() as transaction:
            ranges = [key for key in transaction.cursor().iternext(values=False) if key[:1] == b"d"]
        assert len(ranges) == 3


# -- reading without waiting --------------------------------------------------------------------------------------


def test_only_recent_batches_are_read_without_waiting(tmp_path: Path) -> None:
    batches = [large(1, number, 200_000).batch for number in range(80)]
    with opened(tmp_path) as storage:
        for batch in batches:
            storage.commit([PutBatch(batch)])
        assert storage.read_nowait(1, batches[-3].first_entry_id, 1, 1 << 30) == batches[-3:]
        assert storage.read_nowait(1, batches[-3].first_entry_id + 2, 1, 1) == batches[-3:-2]
        with pytest.raises(trio.WouldBlock):
            storage.read_nowait(1, 0, 1, 1)
        with pytest.raises(trio.WouldBlock):
            storage.read_nowait(1, batches[-1].last_entry_id + 1, 1, 1)
        storage.commit([DropLedger(1)])
        assert storage.read_nowait(1, batches[-1].first_entry_id, 1, 1) == []
        assert storage._contents.recent._bytes <= 8 << 20


# -- forks and threads --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_child_opens_directory_when_its_parent_closed_it(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.commit([SetMarks(1, fence_term=1)])
    parent_is_done = os.pipe()

    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            os.read(parent_is_done[0], 1)
            with opened(tmp_path) as anew:
                anew.commit([SetMarks(2, fence_term=1)])
                status = len(anew.ledger_ids())
        finally:
            os._exit(status)
    storage.close()
    os.write(parent_is_done[1], b".")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    with opened(tmp_path) as storage:
        assert storage.ledger_ids() == [1, 2]
    for fd in parent_is_done:
        os.close(fd)


def test_close_waits_for_reads_and_closes_every_file(tmp_path: Path) -> None:
    gc.collect()  # what other tests left open is not closed meanwhile
    before = set(os.listdir("/proc/self/fd"))
    storage = open_storage(str(tmp_path))
    for number in range(50):
        storage.commit([large(1, number)])
    outcomes: list[str] = []

    def read_on() -> None:
        try:
            while True:
                assert storage.read(1, 0, 1, 1 << 30)
        except trio.ClosedResourceError:
            outcomes.append("closed")

    readers = [threading.Thread(target=read_on) for _ in range(3)]
    for reader in readers:
        reader.start()
    storage.close()
    for reader in readers:
        reader.join(30)
    assert outcomes == ["closed"] * 3
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("replog maintenance")] == []
    assert set(os.listdir("/proc/self/fd")) == before
