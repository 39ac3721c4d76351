"""A directory that a power loss or a full disk left half-made opens; one that was finished and is damaged is never replaced.

What maps a torn file may kill the process, so what is expected to be refused is refused before it is mapped.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from replog.errors import KeyNotFoundError, MetastoreCorruptError, MetastoreError
from replog.metastores import lmdb as module
from replog.metastores import lmdb_directory
from replog.runtime.lmdb_file import DataFileDamagedError, check_data_file
from tests.metastores.test_lmdb import opened

PREFIXES = [0, 1, 8, 10, 15, 16, 17, 20, 23, 24, 100, 151, 152, 511, 512, 513, 4095, 4096, 4097, 4112, 4248, 8191]


@pytest.fixture(scope="module")
def initial(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What LMDB writes first."""
    path = tmp_path_factory.mktemp("initial")
    lmdb.open(str(path)).close()
    return (path / "data.mdb").read_bytes()[:8192]


async def use(path: Path) -> None:
    """A new and empty metastore, which keeps what it is given."""
    async with opened(path) as metastore:
        assert await metastore.children("a") == []
        await metastore.create("a/b", b"1")
    async with opened(path) as metastore:
        assert (await metastore.get("a/b")).value == b"1"


@pytest.mark.parametrize("size_bytes", PREFIXES)
async def test_a_prefix_of_a_new_data_file_is_made_again(tmp_path: Path, initial: bytes, size_bytes: int) -> None:
    for number, rest in enumerate((b"", bytes(8192 - size_bytes))):
        path = tmp_path / str(number)
        path.mkdir()
        (path / "data.mdb").write_bytes(initial[:size_bytes] + rest)
        await use(path)


def write(path: Path, name: str, content: bytes) -> None:
    (path / name).write_bytes(content)


HALF_MADE: dict[str, Callable[[Path, bytes], None]] = {
    "nothing": lambda _path, _initial: None,
    "zeros": lambda path, _: write(path, "data.mdb", bytes(8192)),
    "more zeros": lambda path, _: write(path, "data.mdb", bytes(5 * 4096)),
    "the second page is zeros": lambda path, initial: write(path, "data.mdb", initial[:4096] + bytes(4096)),
    "the first page is zeros": lambda path, initial: write(path, "data.mdb", bytes(4096) + initial[4096:]),
    "torn sectors": lambda path, initial: write(path, "data.mdb", initial[:512] + bytes(4096) + initial[4608:]),
    "whole, and nothing in it": lambda path, initial: write(path, "data.mdb", initial),
    "a lock file only": lambda path, _: write(path, "lock.mdb", bytes(8192)),
    "half a lock file": lambda path, _: write(path, "lock.mdb", b"\0\1\2\3"),
    "a presence file": lambda path, _: write(path, "presence", bytes(7)),
    "half a file under another name": lambda path, initial: write(path, "data.mdb.new", initial[:5000]),
    "half a mark under another name": lambda path, _: write(path, "metastore.json.new", b'{"for'),
}


@pytest.mark.parametrize("name", HALF_MADE)
async def test_a_half_made_directory_is_made_again(tmp_path: Path, initial: bytes, name: str) -> None:
    HALF_MADE[name](tmp_path, initial)
    await use(tmp_path)


@pytest.mark.parametrize("without", ["lock.mdb", "presence", "metastore.json"])
async def test_a_missing_file_beside_a_whole_data_file_is_made_again(tmp_path: Path, without: str) -> None:
    await use(tmp_path)
    (tmp_path / without).unlink()
    async with opened(tmp_path) as metastore:
        assert (await metastore.get("a/b")).value == b"1"
    assert (tmp_path / without).exists()


async def test_crash_at_any_step_of_creation_leaves_an_openable_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rename, sync and removal fails once: what stands there then is opened again."""
    for name in ("rename", "fsync", "unlink"):
        real = getattr(os, name)
        for failing in range(4):
            path = tmp_path / f"{name}-{failing}"
            calls = 0

            def fail(*arguments: object, failing: int = failing, real: Callable[..., object] = real) -> object:
                nonlocal calls
                calls += 1
                if calls == failing + 1:
                    raise OSError(errno.EIO, "input/output error")
                return real(*arguments)

            monkeypatch.setattr(os, name, fail)
            async with opened(path) as metastore:
                try:
                    await metastore.children("a")
                except MetastoreError:
                    assert calls == failing + 1
            monkeypatch.setattr(os, name, real)
            shutil.rmtree(tmp_path / "copy", ignore_errors=True)
            if path.exists():
                shutil.copytree(path, tmp_path / "copy")
            await use(tmp_path / "copy")
            await use(path)


# -- damage to what was finished ----------------------------------------------------------------------------------


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir() if each.name != "lock.mdb"}


@pytest.mark.parametrize("size_bytes", [*PREFIXES, 8192, 12288, 20000, None])
async def test_a_finished_file_without_its_end_is_damaged_and_kept(tmp_path: Path, size_bytes: int | None) -> None:
    async with opened(tmp_path) as metastore:
        for number in range(20):
            await metastore.create(f"a/{number}", bytes(100_000))
    if size_bytes is None:
        (tmp_path / "data.mdb").unlink()
    else:
        os.truncate(tmp_path / "data.mdb", size_bytes)
    before = contents(tmp_path)
    async with opened(tmp_path) as metastore:
        for _ in range(2):
            with pytest.raises(MetastoreCorruptError, match=r"data\.mdb is (damaged|missing).*restore it"):
                await metastore.get("a/1")
    assert contents(tmp_path) == before


async def test_a_finished_file_of_zeros_is_damaged(tmp_path: Path) -> None:
    await use(tmp_path)
    size_bytes = (tmp_path / "data.mdb").stat().st_size
    (tmp_path / "data.mdb").write_bytes(bytes(size_bytes))
    async with opened(tmp_path) as metastore:
        with pytest.raises(MetastoreCorruptError, match=r"damaged at 0: not a meta page"):
            await metastore.get("a/b")


@pytest.mark.parametrize("content", [b"", b"something else" * 1000, b"something else" * 100_000, b"\x7fELF" * 2048])
async def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    if not content:  # a mark says that it was more
        (tmp_path / "metastore.json").write_bytes(b"")
    async with opened(tmp_path) as metastore:
        with pytest.raises(MetastoreCorruptError, match="no LMDB file"):
            await metastore.get("a")
    assert (tmp_path / "data.mdb").read_bytes() == content


@pytest.mark.parametrize(
    ("offset", "packing", "value", "words"),
    [
        (10, "=H", 2, "not a meta page"),
        (16, "=I", 1, "not a meta page"),
        (20, "=I", 2, "LMDB format is 2"),
        (40, "=I", 4095, "page size"),
        (16 + 24 + 40, "=Q", 1 << 40, "root is page"),
        (16 + 24 + 48 + 40, "=Q", 1, "root is page"),
        (16 + 24 + 96, "=Q", 1 << 40, "it ends there"),
        (16 + 24 + 48 + 40, "=Q", 0, "root is page"),
    ],
)
async def test_meta_pages_pointing_outside_the_file_are_refused(
    tmp_path: Path, offset: int, packing: str, value: int, words: str
) -> None:
    await use(tmp_path)
    data = tmp_path / "data.mdb"
    content = bytearray(data.read_bytes())
    newest = check_data_file(str(data)).page
    struct.pack_into(packing, content, 4096 * newest + offset, value)
    data.write_bytes(content)
    with pytest.raises(DataFileDamagedError, match=words):
        check_data_file(str(data))
    async with opened(tmp_path) as metastore:
        with pytest.raises(MetastoreCorruptError, match=words):
            await metastore.get("a")


async def test_a_root_outside_of_a_tree_is_refused(tmp_path: Path) -> None:
    await use(tmp_path)
    data = tmp_path / "data.mdb"
    meta = check_data_file(str(data))
    content = bytearray(data.read_bytes())
    content[meta.main.root * 4096 : meta.main.root * 4096 + 4096] = bytes(4096)
    data.write_bytes(content)
    async with opened(tmp_path) as metastore:
        with pytest.raises(MetastoreCorruptError, match="not the root"):
            await metastore.get("a")


async def test_a_lost_end_of_unwritten_pages_is_not_damage(tmp_path: Path) -> None:
    """LMDB counts pages that it freed before it ever wrote them: then its file is a little shorter."""
    await use(tmp_path)
    data = tmp_path / "data.mdb"
    meta = check_data_file(str(data))
    content = bytearray(data.read_bytes())
    struct.pack_into("=Q", content, 4096 * meta.page + 16 + 24 + 96, meta.last_page + 40)
    data.write_bytes(content)
    async with opened(tmp_path) as metastore:
        assert (await metastore.get("a/b")).value == b"1"
        with pytest.raises(KeyNotFoundError):
            await metastore.get("large")
        await metastore.create("large", bytes(200_000))
        assert (await metastore.get("large")).value == bytes(200_000)


async def test_two_processes_making_one_directory_get_the_same(tmp_path: Path) -> None:
    """Who is late finds what the other made: it is made under a lock."""
    path = str(tmp_path)
    lmdb_directory.prepare_directory(path)
    inode = os.stat(tmp_path / "data.mdb").st_ino
    lmdb_directory.prepare_directory(path)
    lmdb_directory.finish_directory(path)
    lmdb_directory.finish_directory(path)
    assert os.stat(tmp_path / "data.mdb").st_ino == inode
    assert module._environments == {}
