"""A file system that is really full: what is opened there says so with advice, loses nothing, and works when there is room."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from replog.runtime import lmdb_file
from replog.runtime.lmdb_map import LMDBMap
from tests import forks
from tests.disks.preload import preloaded
from tests.disks.small_disk import on_small_disk

KIB = 1 << 10
FREE = [
    each * KIB
    for each in (0, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 60, 64, 68, 72, 76, 80, 84, 88, 96, 128, 1090, 1150, 1300)
]
PROGRAM = ("-m", "tests.disks.open_full")


@pytest.mark.sized
@pytest.mark.parametrize("kind", ["metastore", "files", "lmdb"])
def test_first_opening_names_the_lack_of_space_and_goes_on_later(kind: str, is_long: bool, tmp_path: Path) -> None:
    """At each step that needs space, the lack of it is named; and then the directory opens as a new one."""
    sizes = FREE if is_long else [each for each in FREE if each % (32 * KIB) == 0 or each > 128 * KIB]
    done = on_small_disk(tmp_path, 200 << 20, *PROGRAM, kind, tmp_path, "first", *map(str, sizes))
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(sizes), said
    assert f"{64 * KIB}: told" in said


@pytest.mark.parametrize(("kind", "damages"), [("files", 6), ("lmdb", 3)])
def test_start_with_damage_on_a_full_disk_reports_and_keeps_all(kind: str, damages: int, tmp_path: Path) -> None:
    """B3, B8: what repairs need space for is done before anything is acknowledged, or the start is refused."""
    sizes = [str(each * KIB) for each in (0, 4, 8, 64)]
    done = on_small_disk(tmp_path, 16 << 20, "-m", "tests.disks.start_damaged", kind, tmp_path, *sizes)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert len(said) == damages * len(sizes), said
    assert all(each.endswith((": told", ": worked")) for each in said), said
    assert any(each.endswith(" 0: told") for each in said), said


@pytest.mark.parametrize("kind", ["metastore", "lmdb"])
def test_a_missing_table_of_readers_does_not_kill_on_a_full_disk(kind: str, tmp_path: Path) -> None:
    """LMDB would write into a hole of `lock.mdb`, which ends the process with SIGBUS."""
    sizes = [each for each in FREE if each <= 64 * KIB]
    done = on_small_disk(tmp_path, 4 << 20, *PROGRAM, kind, tmp_path, "table", *map(str, sizes))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"{each}: told" for each in sizes]


HOLES = """
import os, sys, lmdb
from pathlib import Path
from tests.disks.small_disk import fill
from replog.runtime.lmdb_map import LMDBMap
directory = Path(sys.argv[1])
table = directory / "lock.mdb"
lmdb.open(str(directory), max_readers=1024).close()
os.truncate(table, 0)
os.truncate(table, 65664)  # all of it is a hole: as a copy by a tool that saves space leaves it
assert not table.stat().st_blocks
fill(directory, 8192)
try:
    LMDBMap(str(directory), 1 << 20, 1 << 20)
except OSError as error:
    print(error)
fill(directory, 1 << 18)
opened = LMDBMap(str(directory), 1 << 20, 1 << 20)
assert table.stat().st_blocks * 512 >= 65664
assert opened.close()
"""


def test_holes_in_a_table_of_readers_are_filled_before_mapping(tmp_path: Path) -> None:
    done = on_small_disk(tmp_path, 1 << 20, "-c", HOLES, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "No space left" in done.stdout
    assert "lock.mdb" in done.stdout


def test_a_new_table_of_readers_has_all_its_bytes(tmp_path: Path) -> None:
    opened = LMDBMap(str(tmp_path), 1 << 20, 1 << 20)
    found = (tmp_path / lmdb_file.READERS_FILE).stat()
    assert found.st_blocks * 512 >= found.st_size > lmdb_file.READERS_MAX * 64
    assert opened.environment.info()["max_readers"] >= lmdb_file.READERS_MAX
    assert opened.close()


SMALL_TABLE = """
import lmdb, sys
environment = lmdb.open(sys.argv[1], max_readers=100)
print("open", flush=True)
sys.stdin.read()
"""


def test_table_keeps_its_size_while_other_processes_use_it(tmp_path: Path) -> None:
    """They would follow readers beyond the end of what they have mapped."""
    table = tmp_path / lmdb_file.READERS_FILE
    with forks.Forked(
        [sys.executable, "-c", SMALL_TABLE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        size_bytes = table.stat().st_size
        opened = LMDBMap(str(tmp_path), 1 << 20, 1 << 20)
        assert table.stat().st_size == size_bytes
        assert opened.environment.info()["max_readers"] < 1024
        assert opened.close()
        other.communicate(timeout=60)
    opened = LMDBMap(str(tmp_path), 1 << 20, 1 << 20)
    assert opened.environment.info()["max_readers"] >= 1024
    assert opened.close()


REFUSED = """
import errno, sys, trio
from replog.backends.lmdb import storage as lmdb
from replog.errors import MetastoreError, MetastoreFullError, StorageFailedError, StorageFullError
from replog.metastores.lmdb import LMDBMetastore
from tests import forks
from tests.disks.failing import SIZES, end_failing, fail_calls

async def use(path):
    metastore = LMDBMetastore(path)
    try:
        return await metastore.children("a")
    finally:
        await metastore.aclose()

def open_metastore(path):
    trio.run(use, path)

def open_storage(path):
    lmdb.open_storage(path).close()

for open_it, full, other in (
    (open_metastore, MetastoreFullError, MetastoreError), (open_storage, StorageFullError, StorageFailedError)
):
    for name in ("ENOSPC", "EDQUOT", "EIO", "EROFS"):
        path = f"{sys.argv[1]}/{open_it.__name__}-{name}"
        fail_calls(f"{path}/lock.mdb", SIZES, getattr(errno, name))
        try:
            open_it(path)
        except full if name in ("ENOSPC", "EDQUOT") else other as error:
            assert path in str(error) and name in str(error), error
        else:
            raise AssertionError(name)
        end_failing()
        open_it(path)
"""


def test_readers_table_refused_by_the_disk_is_a_named_error(tmp_path: Path) -> None:
    done = preloaded("-c", REFUSED, tmp_path)
    assert done.returncode == 0, done.stderr
