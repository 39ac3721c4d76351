"""The directory of a storage of either kind: whom it belongs to (B4), and forks of the process that has it open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from replog.abc import SetMarks, Storage
from replog.backends.files import FilesOptions
from replog.backends.files import storage as files
from replog.backends.lmdb import LMDBStorageOptions
from replog.backends.lmdb import storage as lmdb
from replog.errors import (
    LocalProtocolError,
    StorageDamagedError,
    StorageFailedError,
    StorageIdentityError,
    StorageInUseError,
)


@attrs.frozen
class Kind:
    """A kind of storage that keeps a directory."""

    open_storage: Callable[..., Storage]
    options: Callable[..., object]

    def open(self, path: Path, **options: object) -> Storage:
        return self.open_storage(str(path), self.options(**options))

    def opened(self, path: Path, **options: object) -> contextlib.closing[Storage]:
        return contextlib.closing(self.open(path, **options))


KINDS = {"files": Kind(files.open_storage, FilesOptions), "lmdb": Kind(lmdb.open_storage, LMDBStorageOptions)}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def test_second_opener_in_this_process_is_refused(kind: Kind, tmp_path: Path) -> None:
    refused = pytest.raises(StorageInUseError, match=rf"open in process {os.getpid()} \(this one\)")
    with kind.opened(tmp_path), refused:
        kind.open(tmp_path)
    kind.open(tmp_path).close()


def test_foreign_directory_is_refused_untouched(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StorageIdentityError, match=r"not a storage of replog, and not empty: it has thesis\.txt"):
        kind.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_path_is_refused_when_it_is_a_file(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailedError, match="make the directory"):
        kind.open(tmp_path / "file")


def test_directories_above_are_made(kind: Kind, tmp_path: Path) -> None:
    with kind.opened(tmp_path / "a" / "b" / "c") as storage:
        storage.commit([SetMarks(1, fence_term=1)])
    with kind.opened(tmp_path / "a" / "b" / "c") as storage:
        assert storage.ledger_ids() == [1]


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"\xff{"])
def test_storage_is_refused_when_format_file_is_damaged(kind: Kind, content: bytes, tmp_path: Path) -> None:
    with kind.opened(tmp_path):
        pass
    (tmp_path / "storage.json").write_bytes(content)
    with pytest.raises(StorageDamagedError, match=r"storage\.json can't be read"):
        kind.open(tmp_path)


def test_the_expected_identity_is_checked(kind: Kind, tmp_path: Path) -> None:
    with kind.opened(tmp_path / "one") as storage:
        bookie_id = storage.bookie_id
    with kind.opened(tmp_path / "one", expected_bookie_id=bookie_id) as storage:
        assert storage.bookie_id == bookie_id
    with pytest.raises(StorageIdentityError, match=f"belongs to {bookie_id}, expected bookie-other"):
        kind.open(tmp_path / "one", expected_bookie_id="bookie-other")
    with pytest.raises(StorageIdentityError, match=f"is empty, expected the storage of {bookie_id}"):
        kind.open(tmp_path / "two", expected_bookie_id=bookie_id)


def test_neither_storage_opens_the_others_directory(tmp_path: Path) -> None:
    for name, kind in KINDS.items():
        kind.open(tmp_path / name).close()
    for name, other in (("files", "lmdb"), ("lmdb", "files")):
        said = f"says 'replog {name} storage'.*open it with the storage that it names"
        with pytest.raises(StorageIdentityError, match=said):
            KINDS[other].opened(tmp_path / name)


def in_child(action: Callable[[], int]) -> int:
    """Runs the function in a forked child; returns its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(action())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_can_not_use_the_storage(kind: Kind, tmp_path: Path) -> None:
    storage = kind.open(tmp_path)
    storage.commit([SetMarks(1, fence_term=1)])

    def child() -> int:
        refused = 0
        for call in (
            lambda: storage.commit([SetMarks(2, fence_term=1)]),
            lambda: storage.read(1, 0, 1, 0),
            lambda: storage.marks(1),
            storage.ledger_ids,
        ):
            try:
                call()
            except LocalProtocolError as error:
                refused += "nothing was written" in str(error)
        storage.close()
        return refused

    assert in_child(child) == 4
    storage.commit([SetMarks(3, fence_term=1)])  # the child's close closed nothing of ours
    with pytest.raises(StorageInUseError):
        kind.open(tmp_path)
    storage.close()
    with kind.opened(tmp_path) as storage:
        assert storage.ledger_ids() == [1, 3]
