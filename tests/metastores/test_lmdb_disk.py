"""The LMDB metastore on a failing or full disk: its handle goes on, what it announced stays, and errors say the cause."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
import trio

from replog.errors import KeyNotFoundError, MetastoreError, MetastoreFullError, MetastoreUncertainError
from replog.metastores.lmdb import LMDBMetastore
from replog.metastores.lmdb_environment import Environment
from tests import forks
from tests.metastores.test_lmdb import Tampered, opened


def environment_of(metastore: LMDBMetastore) -> Environment:
    assert metastore._environment is not None
    return metastore._environment


def fail_commit(metastore: LMDBMetastore, error: Exception, *, is_written: bool = False) -> None:
    """The next commit fails, after or before it was done, and LMDB refuses everything after it, as it does in life."""
    environment = environment_of(metastore)
    inner: Any = environment.map.environment

    def begin(write: bool = False, buffers: bool = False) -> Any:
        transaction = inner.begin(write=write, buffers=buffers)

        def commit() -> None:
            if is_written:
                transaction.commit()
            else:
                transaction.abort()
            inner.close()
            raise error

        return Tampered(transaction, commit=commit) if write else transaction

    environment.map.environment = Tampered(inner, begin=begin)  # type: ignore[assignment]


def disk_error(code: int) -> lmdb.Error:
    error = lmdb.DiskError(os.strerror(code)) if code == errno.ENOSPC else lmdb.Error(os.strerror(code))
    error.code = code  # type: ignore[misc]
    return error


def fail_reopening(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Callable[[], None]:
    """Opening the environment again fails until this is called."""
    real = lmdb.open

    def open_anyhow(*arguments: Any, **options: Any) -> lmdb.Environment:
        raise error

    monkeypatch.setattr(lmdb, "open", open_anyhow)
    return lambda: monkeypatch.setattr(lmdb, "open", real)


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize(("code", "words"), [(errno.ENOSPC, "The disk is full"), (errno.EIO, "Look at the disk")])
async def test_handle_continues_after_a_failed_commit(tmp_path: Path, code: int, words: str, is_written: bool) -> None:
    async with opened(tmp_path) as metastore, opened(tmp_path) as other:
        version = await metastore.create("a", b"1")
        await other.get("a")
        async with metastore.announce("bookies/b", b"me"):
            fail_commit(metastore, disk_error(code), is_written=is_written)
            told: type[MetastoreError] = MetastoreUncertainError
            known = f"commit failed.*{words}.*read back"
            if code == errno.ENOSPC and not is_written:
                # Nothing of it is left, and a disk that is only full has what it was given.
                told, known = MetastoreFullError, f"nothing was written.*{words}"
            with pytest.raises(told, match=known) as raised:
                await metastore.create("b", b"1")
            assert isinstance(raised.value.__cause__, lmdb.Error)
            for each in (metastore, other):
                assert (await each.get("a")).value == b"1"
                assert await each.announced("bookies") == {"b": b"me"}
                if is_written:
                    assert (await each.get("b")).value == b"1"
                else:
                    with pytest.raises(KeyNotFoundError):
                        await each.get("b")
            assert await metastore.put("a", b"2", version) > version
            assert (await other.get("a")).value == b"2"
    async with opened(tmp_path) as metastore:
        assert (await metastore.get("a")).value == b"2"
        assert await metastore.announced("bookies") == {}


async def test_a_visible_change_of_unknown_fate_is_made_durable(tmp_path: Path) -> None:
    """By a commit behind it, before anybody reads it: else a power loss could take back what was read."""
    async with opened(tmp_path) as metastore:
        await metastore.create("a", b"1")
        before = environment_of(metastore).last_change()
        fail_commit(metastore, disk_error(errno.EIO), is_written=True)
        with pytest.raises(MetastoreUncertainError):
            await metastore.create("b", b"1")
        assert (await metastore.get("b")).value == b"1"
        assert environment_of(metastore).last_change() == before + 2


async def test_the_first_cause_is_reported_until_the_disk_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as metastore:
        await metastore.create("a", b"1")
        async with metastore.announce("bookies/b", b"me"):
            mend = fail_reopening(monkeypatch, OSError(errno.EMFILE, "no descriptor"))
            fail_commit(metastore, disk_error(errno.EIO))
            with pytest.raises(MetastoreUncertainError, match="Input/output error"):
                await metastore.create("b", b"1")
            for call in (metastore.get, metastore.children, lambda key: metastore.create(key, b"")):
                with pytest.raises(
                    MetastoreError, match=r"Input/output error.*no descriptor.*nothing was written"
                ) as it:
                    await call("a/c")
                assert not isinstance(it.value, MetastoreUncertainError)
            mend()
            assert (await metastore.get("a")).value == b"1"
            await metastore.create("b", b"1")
            assert await metastore.announced("bookies") == {"b": b"me"}


async def test_failed_announcement_leaves_the_rest_working(tmp_path: Path) -> None:
    async with opened(tmp_path) as metastore:
        await metastore.create("a", b"1")
        fail_commit(metastore, disk_error(errno.ENOSPC))
        with pytest.raises(MetastoreFullError):
            async with metastore.announce("bookies/b", b"me"):
                pass
        await metastore.create("b", b"1")
        async with metastore.announce("bookies/b", b"me"), metastore.elect("elections/x", b"me"):
            assert await metastore.announced("bookies") == {"b": b"me"}


async def test_leaving_succeeds_and_finishes_when_the_disk_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was elected has done the work, and the next one is elected while this process lives."""
    async with opened(tmp_path, lease_s=0.2) as metastore, opened(tmp_path) as other:
        async with metastore.elect("elections/x", b"me"):
            mend = fail_reopening(monkeypatch, OSError(errno.ENOSPC, "no space"))
            fail_commit(metastore, disk_error(errno.ENOSPC))
            with pytest.raises(MetastoreUncertainError):
                await metastore.create("a", b"1")
        mend()
        with trio.fail_after(30):
            async with other.elect("elections/x", b"other"):
                assert await other.announced("elections") == {"x": b"other"}


async def test_unwritable_presence_counts_only_as_absence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as metastore:
        async with metastore.announce("bookies/b", b"me"):
            presence = environment_of(metastore).presence

            def fail(_seat: object) -> None:
                raise OSError(errno.EIO, "input/output error")

            monkeypatch.setattr(presence, "_write", fail)
            for number in range(3):
                await metastore.create(f"a/{number}", b"")
        await metastore.create("c", b"")
    assert len([each for each in caplog.records if "cannot write its presence" in each.getMessage()]) == 1


FULL_DISK = """
import resource, sys, trio
from replog.errors import *
from replog.metastores.lmdb import LMDBMetastore

async def main():
    metastore = LMDBMetastore(sys.argv[1])
    await metastore.create("a", b"1")
    async with metastore.announce("bookies/b", b"me"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        failed = 0
        for number in range(5):
            try:
                await metastore.create(f"large/{number}", bytes(500_000))
            except MetastoreError as error:
                failed += 1
                assert "File too large" in str(error) or "Input/output error" in str(error), error
            assert (await metastore.get("a")).value == b"1"
            assert await metastore.announced("bookies") == {"b": b"me"}
        assert failed >= 3, failed
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await metastore.create("larger", bytes(700_000))
    await metastore.aclose()

trio.run(main)
"""


@pytest.mark.parametrize("limit_bytes", [100_000, 700_001])
def test_really_full_disk_recovers_when_it_gets_room(tmp_path: Path, limit_bytes: int) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), str(limit_bytes)]
    done = forks.run(command)
    assert done.returncode == 0, done.stderr
