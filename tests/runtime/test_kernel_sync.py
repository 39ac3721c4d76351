"""Syncs without a thread: by this machine's kernel, if it has them, and by one that is pretended."""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from replog.runtime import kernel_sync
from replog.runtime.kernel_sync import CONTROL_BLOCK, Kernel, KernelSync, open_kernel_sync

if sys.platform != "linux":
    pytest.skip("what Linux has", allow_module_level=True)


class PretendedKernel(Kernel):
    """Takes what it is asked for, and gives these results; `is_refusing` takes nothing."""

    def __init__(self, *results: int, is_refusing: bool = False) -> None:
        self.asked: list[tuple[int, ...]] = []
        self.is_closed = False
        self._results = list(results)
        self._is_refusing = is_refusing

    def submit(self, control_block: bytes) -> bool:
        self.asked.append(CONTROL_BLOCK.unpack(control_block))
        if not self._is_refusing:
            os.eventfd_write(self.asked[-1][-1], 1)
        return not self._is_refusing

    def take_result(self) -> int:
        return self._results.pop(0)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def real() -> Iterator[KernelSync]:
    sync = open_kernel_sync()
    if sync is None:
        pytest.skip("this kernel has no asynchronous I/O, or does not allow it")
    yield sync
    sync.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def test_the_kernel_syncs_and_tells_by_the_descriptor(real: KernelSync, file: int) -> None:
    for count in range(1, 4):
        os.pwrite(file, b"x" * 4096, count * 4096)
        real.begin(file)
        assert select.select([real.descriptor], [], [], 60)[0] == [real.descriptor]
        assert real.has_ended()
        assert not real.has_ended(), "once for each sync"
        assert real.outcome() is None
    assert not real.is_refused


def test_a_thread_can_wait_for_a_sync(real: KernelSync, file: int) -> None:
    real.begin(file)
    real.wait()
    assert real.outcome() is None


def test_kernel_holds_a_file_closed_meanwhile(real: KernelSync, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"x" * (1 << 20), 0)
    real.begin(fd)
    os.close(fd)
    real.wait()
    assert real.outcome() is None


def test_sync_refused_by_the_kernel_happens_here_once(real: KernelSync) -> None:
    read_end, write_end = os.pipe()
    real.begin(write_end)  # a pipe can't be synced
    assert real.is_refused
    real.wait()
    problem = real.outcome()
    assert problem is not None
    assert problem.errno == errno.EINVAL
    os.close(read_end)
    os.close(write_end)


def test_disk_error_equals_fdatasyncs() -> None:
    sync = KernelSync(kernel := PretendedKernel(-errno.EIO, 0))
    for expected in (errno.EIO, None):
        sync.begin(7)
        assert sync.has_ended()
        problem = sync.outcome()
        assert (None if problem is None else problem.errno) == expected
    assert [(asked[3], asked[5], asked[10]) for asked in kernel.asked] == [(3, 7, 1)] * 2
    sync.close()
    assert kernel.is_closed


@pytest.mark.parametrize("code", [0, errno.EIO])
def test_a_refused_sync_has_the_outcome_of_the_one_made_here(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    synced: list[int] = []

    def sync_data(fd: int) -> None:
        synced.append(fd)
        if code:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(kernel_sync, "sync_data", sync_data)
    sync = KernelSync(PretendedKernel(is_refusing=True))
    sync.begin(7)
    assert sync.is_refused
    assert synced == [7]
    assert sync.has_ended()
    problem = sync.outcome()
    assert (0 if problem is None else problem.errno) == code
    sync.close()


def test_nothing_is_opened_where_the_system_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(kernel_sync, "IS_LINUX", False)
        assert open_kernel_sync() is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "uname", lambda: SimpleNamespace(machine="s390x"))
        assert open_kernel_sync() is None
    # A filter of system calls, and a kernel that was built without them: both refuse the first call.
    monkeypatch.setattr(kernel_sync, "_NUMBERS", {os.uname().machine: (100_000, 0, 0, 0)})
    assert open_kernel_sync() is None
