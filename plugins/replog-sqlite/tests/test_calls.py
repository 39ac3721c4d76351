"""Calls that are cancelled, out of time, or many at once: what is known of them is what is said."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from replog.errors import KeyNotFoundError, MetastoreError, MetastoreUncertainError
from replog_sqlite import SQLiteMetastore, SQLiteOptions, database


class Gate:
    """Holds the next transaction of a metastore in its thread, at the moment when it is about to write."""

    def __init__(self, metastore: SQLiteMetastore) -> None:
        self._database = metastore._database
        self._transact = metastore._database._transact
        self.is_reached, self._is_open = threading.Event(), threading.Event()
        metastore._database._transact = self._held  # type: ignore[method-assign, assignment]

    def _held(self, *arguments: Any) -> Any:
        self._database._transact = self._transact  # type: ignore[method-assign]
        self.is_reached.set()
        assert self._is_open.wait(timeout=60)
        return self._transact(*arguments)

    def open(self) -> None:
        self._is_open.set()

    async def until_reached(self) -> None:
        await trio.to_thread.run_sync(self.is_reached.wait)


@asynccontextmanager
async def opened(path: Path, *, timeout_s: float = 10.0) -> AsyncIterator[SQLiteMetastore]:
    metastore = SQLiteMetastore(path, SQLiteOptions(timeout_s=timeout_s))
    try:
        yield metastore
    finally:
        await metastore.aclose()


async def test_a_hanging_change_is_uncertain_and_the_next_is_not_made(tmp_path: Path) -> None:
    async with opened(tmp_path / "f") as metastore:
        await metastore.create("a", b"")
        gate = Gate(metastore)
        metastore._database._timeout_s = 1.0  # for what hangs, not for what comes before it and after it
        with pytest.raises(MetastoreUncertainError, match=r"'b': no answer within 1\.0 s: the disk hangs; read back"):
            await metastore.create("b", b"")
        with pytest.raises(MetastoreError, match=r"'c': no answer within .*nothing was written") as raised:
            await metastore.create("c", b"")
        assert not isinstance(raised.value, MetastoreUncertainError)
        metastore._database._timeout_s = 10.0
        gate.open()
        with trio.fail_after(10):
            await metastore.wait_changed("b", None)  # in this case it came through
        with pytest.raises(KeyNotFoundError):
            await metastore.get("c")


async def test_hanging_read_is_an_error_and_never_uncertain(tmp_path: Path) -> None:
    async with opened(tmp_path / "f", timeout_s=0.2) as metastore:
        gate = Gate(metastore)
        with pytest.raises(MetastoreError, match="no answer within") as raised:
            await metastore.get("a")
        assert not isinstance(raised.value, MetastoreUncertainError)
        gate.open()


async def test_a_change_cancelled_before_its_turn_never_happens(tmp_path: Path) -> None:
    async with opened(tmp_path / "f") as metastore:
        gate = Gate(metastore)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(metastore.create, "a", b"")
            await gate.until_reached()
            with trio.move_on_after(0.01) as scope:
                await metastore.create("b", b"")
            assert scope.cancelled_caught
            gate.open()
        assert await metastore.values("a") == {}
        with pytest.raises(KeyNotFoundError):
            await metastore.get("b")


async def test_a_cancelled_change_returns_at_once_and_may_happen(tmp_path: Path) -> None:
    async with opened(tmp_path / "f") as metastore:
        gate = Gate(metastore)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(metastore.create, "a", b"1")
                await gate.until_reached()
                nursery.cancel_scope.cancel()
        gate.open()
        assert (await metastore.get("a")).value == b"1", "the thread had it already: the next call waits for its turn"


async def test_closing_leaves_hanging_calls_to_close_the_file(tmp_path: Path) -> None:
    metastore = SQLiteMetastore(tmp_path / "f", SQLiteOptions(timeout_s=1.0))
    gate = Gate(metastore)
    with pytest.raises(MetastoreUncertainError):
        await metastore.create("a", b"")
    with trio.fail_after(5):
        await metastore.aclose()
    gate.open()
    with trio.fail_after(10):
        async with metastore._database._thread:  # once the thread has ended
            pass
    assert metastore._database._connection is None
    assert database._open == {}
    async with opened(tmp_path / "f") as other:
        assert (await other.get("a")).value == b""


async def test_many_calls_at_once_take_turns(tmp_path: Path) -> None:
    async with opened(tmp_path / "f") as metastore:
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(metastore.create, f"a/{number}", b"")
        assert len(await metastore.children("a")) == 100
        versions = {each.version for each in (await metastore.values("a")).values()}
        assert len(versions) == 100
