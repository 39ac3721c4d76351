"""The conformance suites of archives and of places for back-ups: the built-in ones pass them, and a wrong one is named."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from replog.abc import BackupPlace, ReadFile, StoredObject
from replog.archives.directory import DirectoryArchive
from replog.backup.directory import BackupDirectory
from replog.registry import Registry
from replog.testing import archive_conformance, backup_conformance, check_archive, check_backup_place


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory has no pages and no parts."""
    monkeypatch.setattr(archive_conformance, "_MANY", 20)
    monkeypatch.setattr(archive_conformance, "_LARGE_BYTES", (1 << 20) + 1)
    monkeypatch.setattr(backup_conformance, "_PIECES", 2)


def test_directory_passes(tmp_path: Path) -> None:
    check_archive(lambda: Registry(load_installed=False).open_archive(f"file:{tmp_path}"))


def test_back_ups_directory_passes(tmp_path: Path) -> None:
    check_backup_place(lambda: BackupDirectory(tmp_path / "backup"))


class _Replaces(DirectoryArchive):
    def put(self, name: str, pieces: Sequence[bytes]) -> bool:
        self.delete([name])
        return super().put(name, pieces)


class _SaysItCreated(DirectoryArchive):
    def put(self, name: str, pieces: Sequence[bytes]) -> bool:
        super().put(name, pieces)
        return True


class _ReadsFromTheBeginning(DirectoryArchive):
    def read(self, name: str, start: int, size_bytes: int) -> bytes | None:
        return super().read(name, 0, start + size_bytes)


class _SaysEmpty(DirectoryArchive):
    def read(self, name: str, start: int, size_bytes: int) -> bytes | None:
        return super().read(name, start, size_bytes) or b""


class _ListsMore(DirectoryArchive):
    def objects(self, prefix: str) -> Iterator[StoredObject]:
        return (each for each in super().objects("") if each.name.startswith(prefix.rstrip("/")))


class _ForgetsToDelete(DirectoryArchive):
    def delete(self, names: Collection[str]) -> None:
        super().delete(list(names)[:10])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (_Replaces, "is refused"),
        (_SaysItCreated, "is refused"),
        (_ReadsFromTheBeginning, "bytes of its range"),
        (_SaysEmpty, "is None"),
        (_ListsMore, "a prefix ends at a slash"),
        (_ForgetsToDelete, "many are deleted"),
    ],
)
def test_a_wrong_archive_is_named(tmp_path: Path, wrong: type[DirectoryArchive], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_archive(lambda: wrong(str(tmp_path)))


class _NoLock(BackupDirectory):
    @contextmanager
    def locked(self) -> Iterator[None]:
        with super().locked():
            pass
        yield


class _RemovesAll(BackupDirectory):
    def remove_all_but(self, names: Collection[str]) -> None:
        super().remove_all_but(list(names)[1:])


class _FindsUnfinished(BackupDirectory):
    def finished_before(self, file_name: str) -> list[str]:
        return [file_name]


class _CutsFiles(BackupDirectory):
    def open(self, name: str, read_ahead_bytes: int) -> ReadFile:
        file = super().open(name, read_ahead_bytes)
        file.read(1)
        return file


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (_NoLock, "one is refused"),
        (_RemovesAll, "files that are needed stay"),
        (_FindsUnfinished, "no other file is found"),
        (_CutsFiles, "comes back as it was written"),
    ],
)
def test_a_wrong_place_is_named(tmp_path: Path, wrong: type[BackupPlace], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_backup_place(lambda: wrong(tmp_path / "backup"))  # type: ignore[call-arg]
