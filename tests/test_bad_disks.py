"""`embed` with three disks, of which one is damaged, missing or foreign when it starts (C7, B4)."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import replog
from replog.errors import StorageError, StorageIdentityError
from replog.hookspecs import BookieLeftOut, BookieStartsEmpty, Event, hookimpl
from replog.registry import Registry


class Observer:
    def __init__(self) -> None:
        self.events: list[Event] = []

    @hookimpl
    def replog_observe(self, event: Event) -> None:
        if isinstance(event, BookieLeftOut | BookieStartsEmpty):
            self.events.append(event)


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in ("one", "two", "three")]


async def append(
    disks: list[Path], data: bytes, storage: str = "files", registry: Registry | None = None
) -> list[bytes]:
    """Appends an entry, and returns all that the log holds then."""
    async with replog.embed(disks, storage=storage, registry=registry) as client:
        async with client.write_log("log") as log:
            await log.append(data)
        async with client.read_log("log") as reader:
            return [record.data async for record in reader]


def break_format(bookie: Path) -> None:
    (bookie / "storage.json").write_bytes(b"\0" * 100)


def be_a_file(bookie: Path) -> None:
    """What a file system check leaves of a directory, for example."""
    shutil.rmtree(bookie)
    bookie.write_bytes(b"")


@pytest.mark.parametrize("storage", ["files", "lmdb"])
@pytest.mark.parametrize("harm", [break_format, be_a_file])
@pytest.mark.parametrize("number", [1, 2])
async def test_two_healthy_disks_start_and_say_so(
    number: int, harm: Callable[[Path], None], storage: str, disks: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    await append(disks, b"with three", storage)
    bookie = disks[number] / "bookie-0"
    harm(bookie)
    observer = Observer()
    caplog.clear()
    registry = Registry({"observer": observer})
    assert await append(disks, b"with two", storage, registry=registry) == [b"with three", b"with two"]
    (event,) = observer.events
    assert isinstance(event, BookieLeftOut)
    assert event.directory == str(bookie)
    assert isinstance(event.error, StorageError)
    (said,) = [each for each in caplog.records if each.levelno == logging.ERROR and "left out" in each.getMessage()]
    assert str(bookie) in said.getMessage()
    async with replog.embed(disks, storage=storage) as client:
        assert client.statistics()["client"]["bookies_left_out"] == 1
        assert list(client.left_out) == [str(bookie)]


@pytest.mark.parametrize("code", [errno.EACCES, errno.ESTALE, errno.EIO])
async def test_uncountable_bookies_are_not_absent(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bookie in place of three would deny what the others have."""
    async with replog.embed(tmp_path, bookies=3) as client:
        assert len(client.bookies) == 3
    real = os.listdir

    def fail(path: str | os.PathLike[str]) -> list[str]:
        if Path(path) == tmp_path:
            raise OSError(code, os.strerror(code), str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(StorageError, match=f"is unknown.*{errno.errorcode[code]}.*nothing was touched"):
        async with replog.embed(tmp_path):
            pass
    monkeypatch.undo()
    async with replog.embed(tmp_path) as client:
        assert len(client.bookies) == 3


async def test_healthy_start_leaves_no_bookie_out(disks: list[Path]) -> None:
    observer = Observer()
    await append(disks, b"0")
    await append(disks, b"1", registry=Registry({"observer": observer}))
    assert observer.events == []
    async with replog.embed(disks) as client:
        assert client.statistics()["client"]["bookies_left_out"] == 0
        assert client.left_out == {}


async def test_one_healthy_disk_of_three_is_too_few(disks: list[Path]) -> None:
    await append(disks, b"0")
    for disk in disks[1:]:
        break_format(disk / "bookie-0")
    with pytest.raises(StorageError, match=r"storage\.json"):
        await append(disks, b"1")


async def test_the_only_disk_is_never_left_out(tmp_path: Path) -> None:
    await append([tmp_path], b"0")
    break_format(tmp_path / "bookie-0")
    with pytest.raises(StorageError, match=r"storage\.json"):
        await append([tmp_path], b"1")


async def test_empty_directory_of_a_former_bookie_is_reported(
    disks: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    await append(disks, b"0")
    shutil.rmtree(disks[2])
    observer = Observer()
    assert await append(disks, b"1", registry=Registry({"observer": observer})) == [b"0", b"1"]
    (event,) = observer.events
    assert isinstance(event, BookieStartsEmpty)
    assert event.directory == str(disks[2] / "bookie-0")
    assert len(event.absent) == 1
    assert event.bookie_id not in event.absent
    assert any(event.absent[0] in each.getMessage() for each in caplog.records)
    await append(disks, b"2", registry=Registry({"observer": observer}))
    assert len(observer.events) == 1, "it is no newcomer any more"


async def test_a_foreign_disk_is_refused(disks: list[Path], tmp_path: Path) -> None:
    await append(disks, b"0")
    others = [tmp_path / "others" / name for name in ("one", "two", "three")]
    await append(others, b"theirs")
    shutil.rmtree(disks[1])
    shutil.move(others[1], disks[1])
    with pytest.raises(StorageIdentityError, match="never heard of it"):
        await append(disks, b"1")


async def test_the_disk_of_the_metadata_is_named_when_it_is_lost(disks: list[Path]) -> None:
    await append(disks, b"0")
    shutil.move(disks[0], disks[0].with_name("saved"))
    with pytest.raises(StorageIdentityError, match=r"metastore.*mount that disk, or restore .*one/metadata"):
        await append(disks, b"1")
    shutil.rmtree(disks[0])
    shutil.move(disks[0].with_name("saved"), disks[0])
    assert await append(disks, b"1") == [b"0", b"1"]


async def test_the_bookie_beside_the_metadata_may_be_left_out(disks: list[Path]) -> None:
    await append(disks, b"0")
    break_format(disks[0] / "bookie-0")
    assert await append(disks, b"1") == [b"0", b"1"]
