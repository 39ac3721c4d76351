"""A storage that a power loss or a full disk left half-made is made again; one that was finished is never replaced (B4)."""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from replog.abc import SetMarks
from replog.backends.lmdb.storage import open_storage
from replog.errors import StorageDamagedError, StorageError

PREFIXES = [0, 1, 8, 15, 16, 20, 23, 24, 100, 152, 511, 512, 513, 4095, 4096, 4097, 4248, 8191, 8192]


@pytest.fixture(scope="module")
def initial(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What LMDB writes first."""
    path = tmp_path_factory.mktemp("initial")
    lmdb.open(str(path)).close()
    return (path / "data.mdb").read_bytes()[:8192]


def use(path: Path) -> None:
    with contextlib.closing(open_storage(str(path))) as storage:
        assert storage.ledger_ids() == []
        storage.commit([SetMarks(1, fence_term=1)])
    with contextlib.closing(open_storage(str(path))) as storage:
        assert storage.ledger_ids() == [1]


@pytest.mark.parametrize("size_bytes", PREFIXES)
def test_half_made_data_file_is_made_again(tmp_path: Path, initial: bytes, size_bytes: int) -> None:
    for number, rest in enumerate((b"", bytes(8192 - size_bytes))):
        path = tmp_path / str(number)
        path.mkdir()
        (path / "data.mdb").write_bytes(initial[:size_bytes] + rest)
        use(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lock", b""),
        ("lock.mdb", bytes(100)),
        ("data.mdb.new", b"\0" * 5000),
        ("storage.json.tmp", b""),
        ("storage.json.tmp", b'{"form'),
    ],
)
def test_storage_is_made_beside_files_of_a_crash(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    use(tmp_path)


def test_storage_opens_after_crash_at_any_step_of_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rename", "fsync", "mkdir"):
        real = getattr(os, name)
        for failing in range(5):
            path = tmp_path / f"{name}-{failing}" / "storage"
            calls = 0

            def fail(*arguments: object, failing: int = failing, real: Callable[..., object] = real) -> object:
                nonlocal calls
                calls += 1
                if calls == failing + 1:
                    raise OSError(errno.EIO, "input/output error")
                return real(*arguments)

            monkeypatch.setattr(os, name, fail)
            with contextlib.suppress(StorageError):
                open_storage(str(path)).close()
            monkeypatch.setattr(os, name, real)
            shutil.rmtree(tmp_path / "copy", ignore_errors=True)
            if path.exists():
                shutil.copytree(path, tmp_path / "copy")
            use(tmp_path / "copy")
            use(path)


@pytest.mark.parametrize("content", [b"something else" * 1000, b"torn" * 10])
def test_foreign_data_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(StorageDamagedError, match=r"data\.mdb is damaged"):
        open_storage(str(tmp_path))
    assert (tmp_path / "data.mdb").read_bytes() == content


@pytest.mark.parametrize("size_bytes", PREFIXES[:-1])
def test_truncated_data_file_of_finished_storage_is_damage(tmp_path: Path, size_bytes: int) -> None:
    use(tmp_path)
    os.truncate(tmp_path / "data.mdb", size_bytes)
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(StorageDamagedError, match=r"data\.mdb is damaged"):
        open_storage(str(tmp_path))
    assert (tmp_path / "data.mdb").read_bytes() == before
