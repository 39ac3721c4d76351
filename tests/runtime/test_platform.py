"""What replog does on systems that are not Linux: chosen by pretending to be one of them, never run on their hardware."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from replog.runtime import platform

F_FULLFSYNC = 51


class MacFcntl:
    """The module `fcntl` of macOS, on a file system that raises `refusal` when it is told to empty the disk's cache."""

    F_FULLFSYNC = F_FULLFSYNC

    def __init__(self, refusal: int = 0) -> None:
        self.refusal = refusal
        self.asked: list[tuple[int, int]] = []

    def fcntl(self, fd: int, command: int) -> None:
        self.asked.append((fd, command))
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))


def recorder() -> tuple[SimpleNamespace, list[int]]:
    """A module `os` with `fsync` alone, and what it was called with."""
    synced: list[int] = []
    return SimpleNamespace(fsync=synced.append), synced


@pytest.mark.skipif(sys.platform != "linux", reason="what Linux has")
def test_linux_calls_the_system_directly() -> None:
    assert platform.sync_data is os.fdatasync
    assert platform.sync_all is os.fsync
    assert platform.allocate is os.posix_fallocate
    assert platform.read_cached is os.preadv
    assert platform.NO_WAIT == os.RWF_NOWAIT


def test_macos_empties_the_cache_of_the_disk() -> None:
    system, synced = recorder()
    control = MacFcntl()
    platform._choose_sync_data(system, control)(7)
    platform._choose_sync_all(system, control)(8)
    assert control.asked == [(7, F_FULLFSYNC), (8, F_FULLFSYNC)]
    assert synced == []


def test_macos_syncs_when_a_file_system_cannot_empty_the_cache() -> None:
    system, synced = recorder()
    platform._choose_sync_data(system, MacFcntl(errno.ENOTSUP))(7)
    assert synced == [7]


def test_macos_raises_when_the_disk_fails() -> None:
    system, synced = recorder()
    with pytest.raises(OSError, match="Input/output"):
        platform._choose_sync_data(system, MacFcntl(errno.EIO))(7)
    assert synced == []


def test_file_is_synced_whole_without_fdatasync() -> None:
    system, synced = recorder()
    platform._choose_sync_data(system, SimpleNamespace())(7)
    assert synced == [7]


def test_space_is_written_as_zeros_without_fallocate(tmp_path: Path) -> None:
    allocate = platform._choose_allocate(SimpleNamespace(fstat=os.fstat, pwrite=os.pwrite))
    fd = os.open(tmp_path / "journal", os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, b"kept", 0)
        allocate(fd, 0, 3 << 20)
        assert os.fstat(fd).st_size == 3 << 20
        assert os.fstat(fd).st_blocks * 512 >= 3 << 20  # no hole
        assert os.pread(fd, 6, 0) == b"kept\0\0"
        allocate(fd, 1 << 20, 1 << 20)
        assert os.fstat(fd).st_size == 3 << 20
    finally:
        os.close(fd)


def test_full_disk_raises_without_fallocate() -> None:
    def refuse(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    allocate = platform._choose_allocate(SimpleNamespace(fstat=lambda fd: SimpleNamespace(st_size=0), pwrite=refuse))
    with pytest.raises(OSError, match="No space left"):
        allocate(3, 0, 10)


def test_nothing_counts_as_cached_when_the_system_does_not_say() -> None:
    read_cached = platform._choose_read_cached(SimpleNamespace())
    with pytest.raises(BlockingIOError):
        read_cached(3, (bytearray(1),), 0, 0)
    assert platform._choose_drop_cached(SimpleNamespace())(3) is None


def test_process_has_no_exit_descriptor_without_pidfd() -> None:
    assert platform._choose_exit_descriptor(SimpleNamespace())(os.getpid()) is None

    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    assert platform._choose_exit_descriptor(SimpleNamespace(pidfd_open=refuse))(os.getpid()) is None


def test_machine_without_information_is_not_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "_BOOT_ID", str(tmp_path / "absent"))
    monkeypatch.setattr(platform, "_LOCKS", str(tmp_path / "absent"))
    monkeypatch.delattr(socket, "SO_PEERCRED")
    assert platform.boot_id() == b""
    assert platform.table_of_locks() is None
    assert platform.peer_credentials(SimpleNamespace()) == (0, -1)  # type: ignore[arg-type]


@pytest.mark.real
def test_kernel_identifies_the_peer() -> None:
    near, far = socket.socketpair()
    with closing(near), closing(far):
        assert platform.peer_credentials(near) == (os.getpid(), os.getuid())


def test_kernel_is_not_asked_to_kill_when_it_is_not_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "IS_LINUX", False)
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: pytest.fail("another system means something else by these numbers"))
    assert not platform.kill_when_closed(0, os.getpid())


CHILD = """
import sys, time
from replog.runtime import children, platform
platform.IS_LINUX = False
children.end_with_parent()
print("begun", flush=True)
time.sleep(600)
"""


@pytest.mark.real
def test_child_kills_itself_when_no_kernel_does() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"begun\n"
            assert child.poll() is None
            child.stdin.close()
            assert child.wait(30) == -signal.SIGKILL
        finally:
            child.kill()


@pytest.mark.real
def test_ps_recognizes_a_stopped_child() -> None:
    is_stopped = platform._choose_is_stopped(SimpleNamespace())
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        try:
            assert not is_stopped(child.pid)
            child.send_signal(signal.SIGSTOP)
            deadline_s = time.monotonic() + 30
            while not is_stopped(child.pid):
                assert time.monotonic() < deadline_s
        finally:
            child.kill()
