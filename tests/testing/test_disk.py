"""The disk in memory is as bad as a real one may be: what it keeps to is all that the files storage may rely on."""

import errno
import random
from collections.abc import Callable

import pytest

from replog.testing.disk import SECTOR_BYTES, MemoryDisk


def made() -> MemoryDisk:
    disk = MemoryDisk()
    for directory in ("/a", "/b"):
        disk.make_directory(directory)
    disk.sync_directory("/")
    return disk


def write(disk: MemoryDisk, path: str, data: bytes, *, sync: bool) -> None:
    fd = disk.open(path, create=True)
    disk.pwritev(fd, (data,), 0)
    if sync:
        disk.fdatasync(fd)
    disk.close(fd)


def outcomes(disk: MemoryDisk, look: Callable[[MemoryDisk], object]) -> set[object]:
    return {look(disk.after_power_loss(random.Random(seed))) for seed in range(800)}


def test_file_survives_when_it_was_synced_with_its_name() -> None:
    disk = made()
    write(disk, "/a/one", b"x" * 3000, sync=True)
    disk.sync_directory("/a")
    assert outcomes(disk, lambda left: bytes(left.content("/a/one"))) == {b"x" * 3000}


def test_a_synced_file_may_lose_its_name_and_a_name_its_content() -> None:
    disk = made()
    write(disk, "/a/one", b"x", sync=True)
    assert outcomes(disk, lambda left: "/a/one" in left.paths()) == {True, False}
    disk = made()
    write(disk, "/a/one", b"x", sync=False)
    disk.rename("/a/one", "/a/two")
    disk.sync_directory("/a")
    assert outcomes(disk, lambda left: bytes(left.content("/a/two"))) == {b"x", b""}


def test_pages_dropped_from_the_cache_are_read_from_disk() -> None:
    disk = made()
    write(disk, "/a/one", b"x" * 9, sync=True)
    fd = disk.open("/a/one")
    disk.pwritev(fd, (b"y",), 0)
    disk.drop_cached(fd)
    assert disk.pread_cached(fd, 9, 0) == b"y" + b"x" * 8, "what is not synced stays"
    disk.fdatasync(fd)
    disk.drop_cached(fd)
    with pytest.raises(BlockingIOError):
        disk.pread_cached(fd, 9, 0)
    assert disk.pread(fd, 9, 0) == b"y" + b"x" * 8
    assert disk.pread_cached(fd, 9, 0) == b"y" + b"x" * 8


def test_data_of_a_failed_sync_is_gone_after_a_drop() -> None:
    def fault(operation: str, path: str) -> None:
        if operation == "fdatasync":
            raise OSError(errno.EIO, "injected", path)

    found = set()
    for seed in range(20):
        disk = MemoryDisk(seed)
        write(disk, "/one", b"x", sync=True)
        fd = disk.open("/one")
        disk.pwritev(fd, (b"y",), 0)
        disk.fault = fault
        with pytest.raises(OSError, match="injected"):
            disk.fdatasync(fd)
        assert disk.pread(fd, 1, 0) == b"y"
        disk.drop_cached(fd)
        found.add(disk.pread(fd, 1, 0))
    assert found == {b"x", b"y"}


def test_any_subset_of_sectors_survives() -> None:
    disk = made()
    write(disk, "/a/one", bytes(3 * SECTOR_BYTES), sync=True)
    disk.sync_directory("/a")
    fd = disk.open("/a/one")
    disk.pwritev(fd, (b"x" * (3 * SECTOR_BYTES),), 0)
    kept = outcomes(disk, lambda left: bytes(left.content("/a/one"))[::SECTOR_BYTES])
    assert kept == {bytes(each) for each in ((a, b, c) for a in (0, 120) for b in (0, 120) for c in (0, 120))}


def test_directories_lose_their_last_changes_independently() -> None:
    disk = made()
    write(disk, "/a/1", b"-", sync=True)
    write(disk, "/b/1", b"-", sync=True)
    write(disk, "/a/2", b"-", sync=True)
    write(disk, "/b/2", b"-", sync=True)
    beginnings = ((), ("1",), ("1", "2"))
    found = outcomes(disk, lambda left: (tuple(left.names("/a")), tuple(left.names("/b"))))
    assert found == {(a, b) for a in beginnings for b in beginnings}
    disk.sync_directory("/b")
    assert outcomes(disk, lambda left: tuple(left.names("/b"))) == {("1", "2")}
    assert outcomes(disk, lambda left: tuple(left.names("/a"))) == set(beginnings)


def test_names_move_within_one_directory_only() -> None:
    disk = made()
    write(disk, "/a/one", b"x", sync=True)
    with pytest.raises(OSError, match="two directories"):
        disk.rename("/a/one", "/b/one")


def test_a_failed_sync_keeps_some_and_the_next_saves_nothing() -> None:
    found = set()
    for seed in range(60):
        disk = MemoryDisk(seed)
        fd = disk.open("/one", create=True)
        disk.sync_directory("/")
        disk.pwritev(fd, (b"x" * (2 * SECTOR_BYTES),), 0)

        def fault(operation: str, path: str) -> None:
            if operation == "fdatasync":
                raise OSError(errno.EIO, "Input/output error", path)

        disk.fault = fault
        with pytest.raises(OSError, match="Input/output"):
            disk.fdatasync(fd)
        disk.fault = MemoryDisk().fault
        disk.fdatasync(fd)
        assert disk.pread(fd, 5000, 0) == b"x" * (2 * SECTOR_BYTES), "it can still be read"
        found.add(bytes(disk.after_power_loss(random.Random(seed)).content("/one")).count(b"x") // SECTOR_BYTES)
    assert found == {0, 1, 2}


def test_a_kill_changes_neither_content_nor_durability() -> None:
    disk = made()
    write(disk, "/a/one", b"x" * 10, sync=False)
    killed = disk.after_kill()
    assert killed.content("/a/one") == b"x" * 10
    killed = disk.after_kill()
    assert outcomes(killed, lambda left: "/a/one" in left.paths()) == {True, False}
    write(killed, "/a/two", b"y", sync=True)
    killed.sync_directory("/a")
    assert "/a/two" not in disk.paths(), "what happens to one happens to the other"
    assert outcomes(disk, lambda left: "/a/one" in left.paths()) == {True, False}
