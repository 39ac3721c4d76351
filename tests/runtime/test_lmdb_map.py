"""What metastores and storages on LMDB share: the gate around the map, growth, forks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from replog.runtime import lmdb_map as module
from replog.runtime.lmdb_map import ForkedInUseError, Gate, LMDBMap


@contextmanager
def opened(path: Path, map_bytes: int = 1 << 20, map_bytes_max: int = 4 << 20) -> Iterator[LMDBMap]:
    found = LMDBMap(str(path), map_bytes, map_bytes_max)
    try:
        yield found
    finally:
        assert found.close(10)


def test_a_crowd_of_readers_does_not_keep_a_writer_out() -> None:
    """Two readers that relieve each other: there is no moment without one, unless who waits keeps new ones out."""
    gate = Gate()
    inside = [threading.Event(), threading.Event()]
    done = threading.Event()

    def relieve(own: threading.Event, other: threading.Event) -> None:
        while not done.is_set():
            with gate:
                own.set()
                other.wait(0.5)  # until the other one is inside too, or kept out
                other.clear()

    readers = [threading.Thread(target=relieve, args=(inside[at], inside[1 - at]), daemon=True) for at in range(2)]
    for reader in readers:
        reader.start()
    try:
        assert gate.alone(lambda: None, timeout_s=20)
    finally:
        done.set()
        for reader in readers:
            reader.join(20)


def test_lasting_reader_ends_the_wait_and_others_continue() -> None:
    gate = Gate()
    done: list[int] = []
    with gate:
        assert not gate.alone(lambda: done.append(1), timeout_s=0.01)
        thread = threading.Thread(target=gate.__enter__)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        gate.__exit__()
    assert gate.alone(lambda: done.append(2), timeout_s=10)
    assert done == [2]


def test_error_of_exclusive_work_readmits_readers() -> None:
    gate = Gate()
    with pytest.raises(ZeroDivisionError):
        gate.alone(lambda: 1 / 0)  # type: ignore[arg-type]
    with gate:
        pass


def test_the_map_doubles_up_to_its_maximum(tmp_path: Path) -> None:
    with opened(tmp_path, 1 << 20, 3 << 20) as found:
        sizes = [found.map_bytes]
        while found.grow():
            sizes.append(found.map_bytes)
        assert sizes == [1 << 20, 2 << 20, 3 << 20]
        with found.writing, found.environment.begin(write=True) as transaction:
            transaction.put(b"large", bytes(2 << 20))
        found.resize(1 << 20)
        assert 2 << 20 < found.map_bytes < 3 << 20, "never below what is used"


def forked(action: object) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(action())  # type: ignore[operator]
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_child_reopening_the_path_does_not_harm_its_parent(tmp_path: Path) -> None:
    """LMDB's table of readers is shared: a child that closes what it inherited must not free its parent's places."""

    def child() -> int:
        with opened(tmp_path) as anew, anew.gate, anew.environment.begin() as transaction:
            return int(transaction.get(b"a") == b"1")

    with opened(tmp_path) as found:
        with found.writing, found.environment.begin(write=True) as transaction:
            transaction.put(b"a", b"1")
        faults: list[Exception] = []
        reads = 0
        done = threading.Event()

        def read_on() -> None:
            nonlocal reads
            while not done.is_set():
                try:
                    with found.gate, found.environment.begin() as transaction:
                        assert transaction.get(b"a") == b"1"
                        time.sleep(0.0001)  # within the transaction: that is when a fork would hurt
                    reads += 1
                except lmdb.Error as fault:
                    faults.append(fault)
                    return

        reader = threading.Thread(target=read_on)
        reader.start()
        statuses = [forked(child) for _ in range(10)]
        done.set()
        reader.join(20)
        assert statuses == [1] * 10
        assert faults == []
        assert reads > 10


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_of_a_fork_in_use_cannot_open_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FORK_TIMEOUT_S", 0.01)

    def child() -> int:
        try:
            LMDBMap(str(tmp_path), 1 << 20, 1 << 20)
        except ForkedInUseError as error:
            return 7 if str(tmp_path) in str(error) else 1
        return 2

    with opened(tmp_path) as found:
        with found.writing:
            assert forked(child) == 7
        with found.gate:
            assert forked(child) == 7
        with found.writing, found.gate:  # the parent goes on
            pass


def test_aborting_does_not_wait_for_busy_readers(tmp_path: Path) -> None:
    """The binding waits for a moment without any reader in a call: three busy ones kept it for minutes."""
    with opened(tmp_path) as found:
        with found.writing, found.environment.begin(write=True) as transaction:
            for number in range(300):
                transaction.put(b"%d" % number, bytes(1000))
        done = threading.Event()

        def read_on() -> None:
            while not done.is_set():
                with found.gate, found.environment.begin() as transaction:
                    assert sum(1 for _ in transaction.cursor()) == 300

        readers = [threading.Thread(target=read_on) for _ in range(3)]
        for reader in readers:
            reader.start()
        try:
            started = time.monotonic()
            for _ in range(10):
                with found.writing:
                    transaction = found.environment.begin(write=True)
                    transaction.put(b"x", b"")
                    found.abort(transaction)
            assert time.monotonic() - started < 10
        finally:
            done.set()
            for reader in readers:
                reader.join(20)


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_simultaneous_forks_leave_no_lock_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FORK_TIMEOUT_S", 0.05)

    def child() -> int:
        return 3

    with opened(tmp_path) as found:
        statuses: list[int] = []
        threads = [threading.Thread(target=lambda: statuses.extend(forked(child) for _ in range(4))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert statuses == [3] * 12
        assert found.writing.acquire(timeout=5)
        found.writing.release()
        assert found.gate.alone(lambda: None, timeout_s=5)
