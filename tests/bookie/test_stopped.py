"""A disk that fails or is full is told at once, with its cause, to everybody who waits (B10, B1, B5)."""

from __future__ import annotations

import errno
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest
import trio
import trio.testing

import replog
from replog.abc import Storage
from replog.backends.files.options import FilesOptions
from replog.backends.files.storage import open_storage as open_files
from replog.backends.lmdb.storage import LMDBStorage
from replog.backends.lmdb.storage import open_storage as open_lmdb
from replog.backends.lmdb.transactions import _NO_COMMIT
from replog.config import BookieOptions, ClientOptions
from replog.errors import (
    AddTimeoutError,
    NotEnoughBookiesError,
    RecoveryUndecidedError,
    StorageFailedError,
    StorageFullError,
    UnauthorizedError,
)
from replog.hookspecs import Backend, NoOptions, hookimpl
from replog.metastores.memory import MemoryMetastore
from replog.protocol.messages import AddRequest, Request, Status
from replog.registry import Registry
from replog.testing.disk import MemoryDisk
from tests.bookie.test_server import a_batch as server_batch
from tests.bookie.test_server import add, fence, poll, serving
from tests.bookie.test_serving import root_of
from tests.kit import ONE, cluster, read_ledger

THREE = replog.Quorum(3, 3, 2)
BROKEN = StorageFailedError("could not sync /disk/journal-7: [Errno 5] Input/output error (EIO)", "Look at the disk")
TIMEOUTS = ClientOptions(add_timeout_s=60.0, add_quorum_timeout_s=60.0)


class BadDisks:
    """A plugin: storages of real formats, whose disk fails when it is told to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.disk = MemoryDisk()
        self.code = 0  # with which each write to the disk, or sync of it, ends
        self.disk.fault = self._fault
        self._storages: list[LMDBStorage] = []

    @hookimpl
    def replog_storages(self) -> list[Backend[Storage]]:
        return [
            Backend("bad-files", self._open_files, NoOptions, "files on a bad disk"),
            Backend("bad-lmdb", self._open_lmdb, NoOptions, "LMDB on a bad disk"),
        ]

    def _open_files(self, rest: str, options: object) -> Storage:
        return open_files("/bookie", FilesOptions(), disk=self.disk)

    def _open_lmdb(self, rest: str, options: object) -> Storage:
        self._storages.append(open_lmdb(str(self._directory / "bookie")))
        return self._storages[-1]

    def fail(self, code: int) -> None:
        """From now on."""
        self.code = code
        for storage in self._storages:
            _fail_commits(storage, code)

    def _fault(self, name: str, *_arguments: object) -> None:
        is_concerned = name == "fdatasync" if self.code == errno.EIO else name in ("pwritev", "allocate")
        if self.code and is_concerned:
            raise OSError(self.code, {errno.EIO: "Input/output error"}.get(self.code, "No space left on device"))


def _fail_commits(storage: LMDBStorage, code: int) -> None:
    failed = lmdb.Error("mdb_txn_commit", code)
    failed.code = code  # type: ignore[misc]

    def fail(*_arguments: object, **_named: object) -> Any:
        storage._transactions._commit_number = _NO_COMMIT  # as at its begin
        raise failed

    if code == errno.ENOSPC:
        storage._transactions.disk_free_bytes = lambda: 12_345  # type: ignore[method-assign]
    storage._transactions._try_to_transact = fail  # type: ignore[method-assign]


@asynccontextmanager
async def embedded(directory: Path, disks: BadDisks, kind: str) -> AsyncIterator[replog.Client]:
    """A client with one bookie on such a disk."""
    registry = Registry({"disks": disks}, load_installed=True)
    metastore = MemoryMetastore()
    bookie_options = BookieOptions(
        storage=kind,
        read_only_below_bytes=0,
    )
    async with replog.embed(
        directory,
        bookies=1,
        metastore=metastore,
        options=TIMEOUTS,
        bookie_options=bookie_options,
        quorum=ONE,
        registry=registry,
    ) as own:
        yield own


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("kind", ["bad-files", "bad-lmdb"])
async def test_append_fails_at_once_when_the_only_disk_fails(
    kind: str, code: int, tmp_path: Path, patient_clock: trio.testing.MockClock
) -> None:
    """With what the disk said, where, and what to do."""
    disks = BadDisks(tmp_path)
    async with embedded(tmp_path / "client", disks, kind) as client:
        with pytest.raises(NotEnoughBookiesError) as failed:
            async with client.write_log("wal") as log:
                await log.append(b"0")
                began_s = trio.current_time()
                disks.fail(code)
                await log.append(b"1")
        assert trio.current_time() - began_s < (1 if code == errno.EIO else 4)
        error, told = failed.value, str(failed.value)
        root = root_of(error)
        assert str(root) in told
        if code == errno.EIO:
            assert isinstance(root, StorageFailedError)
            assert re.search("EIO|Input/output error", told), told
            assert "look at the disk, then restart the bookie" in told
        else:
            assert isinstance(root, StorageFullError)
            assert re.search(r"disk full: no space left .*\d+ bytes are free", told), told
            assert "room" in told
        assert ("/bookie" if kind == "bad-files" else str(tmp_path / "bookie")) in told
        assert error.unconfirmed


# -- every verb of a writer ---------------------------------------------------------------------------------------------

Verb = Callable[[replog.LogWriter], Awaitable[object]]


async def _push_and_flush(log: replog.LogWriter) -> None:
    log.push_nowait(b"x")
    await log.flush()


async def _push_and_leave(log: replog.LogWriter) -> None:
    log.push_nowait(b"x")


async def _append(log: replog.LogWriter) -> None:
    await log.append(b"x")


async def _extend(log: replog.LogWriter) -> None:
    await log.extend([b"x"] * 10)


async def _roll(log: replog.LogWriter) -> None:
    log.push_nowait(b"x")
    await trio.sleep(0.2)
    await log.roll()


@pytest.mark.parametrize("verb", [_append, _extend, _push_and_flush, _push_and_leave, _roll])
@pytest.mark.parametrize("bookies", [1, 3])
async def test_writer_fails_at_once_when_all_disks_failed(
    bookies: int, verb: Verb, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(bookies) as world, world.client(TIMEOUTS, _quorum(bookies)) as client:
        with pytest.raises(NotEnoughBookiesError) as failed:
            async with client.write_log("log") as log:
                await log.append(b"0")
                began_s = trio.current_time()
                for each in world.bookies:
                    each.storage.commit_error = BROKEN
                await verb(log)
        assert trio.current_time() - began_s < 1
        assert isinstance(root_of(failed.value), StorageFailedError)
        assert str(BROKEN) in str(root_of(failed.value))
        assert str(BROKEN) in str(failed.value)


def _quorum(bookies: int) -> replog.Quorum:
    return THREE if bookies == 3 else ONE


@pytest.mark.parametrize("bookies", [1, 3])
async def test_nothing_begins_at_once_when_all_disks_failed(
    bookies: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Creating a ledger, and taking over a log, whose last ledger has to be fenced."""
    async with cluster(bookies) as world, world.client(TIMEOUTS, _quorum(bookies)) as client:
        with pytest.raises(NotEnoughBookiesError):
            async with client.write_log("log") as log:
                await log.append(b"0")
                for each in world.bookies:
                    each.storage.commit_error = BROKEN
                await log.append(b"1")
        began_s = trio.current_time()
        with pytest.raises(NotEnoughBookiesError, match="EIO") as refused:
            async with client.create_ledger():
                pass
        assert isinstance(refused.value.__cause__, StorageFailedError)
        with pytest.raises(RecoveryUndecidedError, match="EIO") as undecided:
            async with client.write_log("log"):
                pass
        assert isinstance(root_of(undecided.value), StorageFailedError)
        assert trio.current_time() - began_s < 1


async def test_writer_goes_on_when_one_of_three_disks_failed(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(TIMEOUTS, THREE) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            began_s = trio.current_time()
            world.bookies[1].storage.commit_error = BROKEN
            for number in range(1, 5):
                await writer.append(b"%d" % number)
            assert trio.current_time() - began_s < 1
        assert await read_ledger(client, writer.ledger_id) == [b"%d" % number for number in range(5)]


async def test_absent_bookie_is_awaited_when_others_failed(autojump_clock: trio.testing.MockClock) -> None:
    """It may come back, and then there is an ack quorum again."""
    async with cluster(3) as world, world.client(TIMEOUTS, THREE) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            await world.bookies[0].kill()
            world.bookies[1].storage.commit_error = BROKEN
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.append, b"1")
                await trio.sleep(10)
                assert writer.error is None
                await world.bookies[0].start()
        assert await read_ledger(client, writer.ledger_id) == [b"0", b"1"]


async def test_a_deadline_reports_answers_when_a_bookie_stays_away(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(3) as world, world.client(TIMEOUTS, THREE) as client:
        with pytest.raises(NotEnoughBookiesError, match="EIO") as failed:
            async with client.create_ledger() as writer:
                await writer.append(b"0")
                await world.bookies[0].kill()
                world.bookies[1].storage.commit_error = BROKEN
                await writer.append(b"1")
        assert isinstance(root_of(failed.value), StorageFailedError)
        assert not isinstance(failed.value, AddTimeoutError)


async def test_spare_bookie_takes_over_when_the_others_failed(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(TIMEOUTS, replog.Quorum(2, 2, 2)) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            for each in world.bookies:
                if each.bookie_id in writer.metadata.last_fragment.ensemble:
                    each.storage.commit_error = BROKEN
            await writer.append(b"1")


@pytest.mark.parametrize("refusing", [1, 2])
async def test_unauthorized_answer_counts_as_failure_of_the_bookie(
    refusing: int, autojump_clock: trio.testing.MockClock
) -> None:
    """One of three that refuses the writer's key is like one that is broken; if two do, nothing can be confirmed."""

    def refuse(request: Request) -> Status | None:
        return Status.UNAUTHORIZED if isinstance(request, AddRequest) else None

    async with cluster(3) as world, world.client(TIMEOUTS, THREE) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            for each in world.bookies[:refusing]:
                each.wire.refuse = refuse
            if refusing == 1:
                await writer.append(b"1")
            else:
                began_s = trio.current_time()
                with pytest.raises(UnauthorizedError, match=f"bookie {world.bookies[0].bookie_id}"):
                    await writer.append(b"1")
                assert trio.current_time() - began_s < 1
                return
        assert await read_ledger(client, writer.ledger_id) == [b"0", b"1"]


# -- at the bookie --------------------------------------------------------------------------------------------------


async def test_long_polls_end_at_once_when_the_disk_fails(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(is_instant=True) as served:
        await served.ask(fence())
        ids = served.asker.send(poll(after=5, wait_ms=20_000), poll(after=7, wait_ms=30_000))
        served.storage.commit_error = BROKEN
        answer = await served.ask(add(server_batch(0), 2, recovery=True))
        assert answer.status is Status.UNKNOWN
        assert "EIO" in answer.detail
        told = [served.asker.answers[each] for each in ids]
        assert {each.status for each in told} == {Status.UNKNOWN}
        assert all("EIO" in each.detail for each in told)
        assert served.server.statistics()["waiting_polls"] == 0
        assert trio.current_time() < 1


async def test_failed_bookie_announces_why(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(TIMEOUTS, ONE) as client:
        with pytest.raises(NotEnoughBookiesError):
            async with client.create_ledger() as writer:
                world.bookies[0].storage.commit_error = BROKEN
                await writer.append(b"0")
        await trio.sleep(0.1)
        with pytest.raises(NotEnoughBookiesError):
            async with client.create_ledger():
                pass
        (remote,) = await client.admin.bookies()
        assert remote.read_only
        assert str(BROKEN) in str(client._opened.ledgers.context.membership.refusals[remote.bookie_id])
