"""An archive in a directory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from replog.archives.directory import DirectoryArchive
from replog.errors import ArchiveError, ConfigError
from replog.registry import Registry
from replog.runtime.platform import sync_all, sync_directory

NAME = "ledgers/0000000000000000007/9c02/one"


def archive(path: Path) -> DirectoryArchive:
    opened = Registry(load_installed=False).open_archive(f"file:{path}")
    assert isinstance(opened, DirectoryArchive)
    return opened


def test_object_is_read_listed_and_deleted(tmp_path: Path) -> None:
    store = archive(tmp_path)
    assert store.put(NAME, [b"0123456789"])
    assert not store.put(NAME, [b"another"])
    assert store.put("cookie", [b"c"])
    assert store.read(NAME, 2, 3) == b"234"
    assert store.read(NAME, 8, 10) == b"89"
    assert store.read("ledgers/none", 0, 1) is None
    assert [(each.name, each.size_bytes) for each in store.objects("ledgers/")] == [(NAME, 10)]
    assert sorted(each.name for each in store.objects("")) == ["cookie", NAME]
    assert list(store.objects("ledgers/0000000000000000008/")) == []
    store.delete([NAME, "ledgers/none"])
    assert [each.name for each in store.objects("")] == ["cookie"]
    assert not (tmp_path / "ledgers").exists(), "empty directories go with the last object"


def test_one_of_many_puts_of_a_name_creates_it(tmp_path: Path) -> None:
    created: list[bytes] = []

    def put(data: bytes) -> None:
        if archive(tmp_path).put(NAME, [data]):
            created.append(data)

    threads = [threading.Thread(target=put, args=(b"%d" % each,)) for each in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(created) == 1
    assert archive(tmp_path).read(NAME, 0, 10) == created[0]


def test_object_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noted(what: str, call: Callable[..., object]) -> Callable[..., object]:
        def call_it(*arguments: object) -> object:
            done.append(what)
            return call(*arguments)

        return call_it

    monkeypatch.setattr("replog.archives.directory.sync_all", noted("file", sync_all))
    monkeypatch.setattr(os, "link", noted("name", os.link))
    monkeypatch.setattr("replog.archives.directory.sync_directory", noted("directory", sync_directory))
    archive(tmp_path).put(NAME, [b"0"])
    assert done == ["directory", "file", *["directory"] * 3, "name", "directory"]


def test_object_is_put_while_others_remove_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last object of a directory is deleted, and the directory with it, just before another has its name there."""
    store, removed = archive(tmp_path), list[str]()

    def link(source: Path, target: Path, link: Callable[[Path, Path], None] = os.link) -> None:
        if len(removed) < 5:
            removed.append(str(target))
            store.delete([f"{target.parent.relative_to(tmp_path).as_posix()}/absent"])
        link(source, target)

    monkeypatch.setattr(os, "link", link)
    assert store.put(NAME, [b"0"])
    assert len(removed) == 5
    assert store.read(NAME, 0, 1) == b"0"


def test_files_of_killed_programs_are_removed_a_day_later(tmp_path: Path) -> None:
    store = archive(tmp_path)
    store.put("cookie", [b"0"])
    old, young = (tmp_path / "unfinished" / each for each in ("old", "young"))
    for each, age_s in ((old, 100_000), (young, 50_000)):
        each.write_bytes(b"a part")
        now_s = (tmp_path / "cookie").stat().st_mtime
        os.utime(each, (now_s - age_s, now_s - age_s))
    assert store.put(NAME, [b"0"])
    assert list((tmp_path / "unfinished").iterdir()) == [young]


def test_missing_directory_is_an_error_and_no_absence(tmp_path: Path) -> None:
    store = archive(tmp_path / "unmounted")
    for call in (lambda: store.read(NAME, 0, 1), lambda: list(store.objects("ledgers/"))):
        with pytest.raises(ArchiveError, match=r"file:.*unmounted.*then try again"):
            call()
    with pytest.raises(ArchiveError):
        store.put(NAME, [b"0"])


def test_relative_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="from the root on"):
        Registry(load_installed=False).open_archive("file:archive")
