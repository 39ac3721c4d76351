"""Logs that are restored with more segments than their record has room for: what is in pages is theirs only with the record."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

import replog
from replog.backup.content import open_backup
from replog.backup.format import LogInBackup, SavedSegment
from replog.backup.restoring import Restorer
from replog.config import ClientOptions
from replog.errors import BackupError, ConfigError, MetastoreError, MetastoreUnavailableError, TakeoverFailedError
from replog.protocol.chaining import LogMachine
from replog.protocol.digest import DigestType, ledger_key, ledger_key_check
from replog.protocol.log_effects import WritePage
from replog.protocol.model import Fragment, LedgerMetadata, LogPage
from replog.records.bookies import Cookie, cookie_key, encode_cookie
from replog.records.encoding import encode
from replog.records.logs import decode_log_page
from replog.records.paths import ledger_key_path
from replog.testing import Fault
from tests.kit import ONE, Cluster, cluster

QUICK = ClientOptions(add_timeout_s=1.0, add_quorum_timeout_s=10.0, metastore_timeout_s=2.0)
PAGES = "logs/log/pages"
FIRST, LAST = 2, 11


@pytest.fixture(autouse=True)
def ledgers_are_only_records(monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock) -> None:
    """No file is read, and no bookie asked: what is restored are closed ledgers that have one entry, as their records say."""

    async def write(self: Restorer, name: str, job: str, segment: SavedSegment) -> int:
        custom = {"log": name, "job": job}
        ledger_id = segment.number
        if segment.number < 100:  # the others are many, and nobody sweeps them
            ledger_id = await self._ledgers.records.new_id()
            await self._ledgers.jobs.register(ledger_id, custom)
        key, fragment = ledger_key_check(ledger_key(ledger_id, b"")), Fragment(0, ("a",))
        ledger = attrs.evolve(
            LedgerMetadata(ledger_id, ONE, DigestType.CRC32C, key, (fragment,)).closed_at(0), custom=custom
        )
        await self._ledgers.records.metastore.create(ledger_key_path(ledger_id), encode(ledger))
        return ledger_id

    monkeypatch.setattr(Restorer, "_write", write)


@asynccontextmanager
async def small_pages() -> AsyncIterator[tuple[Cluster, replog.Client]]:
    async with cluster() as world, world.client(QUICK) as client:
        await world.metastore.create(cookie_key("a"), encode_cookie(Cookie()))  # who has what is restored
        client._opened.logs.page_segments = 2
        yield world, client


async def restore(client: replog.Client, first: int = FIRST, last: int = LAST) -> None:
    restorer = Restorer(
        open_backup("nowhere", client._opened.plugins),
        client._opened.ledgers,
        client._opened.logs,
        client._opened.log_driver,
        ONE,
        b"",
        with_cursors=True,
    )
    segments = tuple(SavedSegment(number, number, 1, "") for number in range(first, last + 1))
    await restorer._restore("log", LogInBackup(segments, first))


async def write(client: replog.Client, last: int) -> None:
    """Takes the log over, and writes segments up to this one."""
    async with client.write_log("log") as log:
        while (await log.append(b"x")).segment < last:
            await log.roll()


async def check(client: replog.Client, first: int, last: int) -> None:
    """The log has these segments, and nothing else is left."""
    segments = await client.log_segments("log")
    assert [each.number for each in segments] == list(range(first, last + 1))
    await client.jobs.sweep("log", grace_s=0)
    assert sorted(each.ledger_id for each in segments) == await client.ledgers()


async def pages(world: Cluster) -> list[LogPage]:
    found = await world.metastore.values(PAGES)
    return [decode_log_page(f"{PAGES}/{word}", each.value) for word, each in sorted(found.items())]


def fail_after_pages(world: Cluster, count: int) -> None:
    """From now on so many pages are written, and no more."""
    left = itertools.count(1)
    world.metastore._choose = lambda operation, key: (
        Fault.UNAVAILABLE if operation in ("create", "put") and key.startswith(PAGES) and next(left) > count else None
    )


def before_page(client: replog.Client, number: int, act: Callable[[], Awaitable[None]]) -> None:
    """Has this happen once, right before the client writes this page."""
    driver = client._opened.log_driver
    write_page = driver._write_page

    async def interrupted(effect: WritePage, machine: LogMachine) -> None:
        if effect.page.number == number:
            driver._write_page = write_page  # type: ignore[method-assign]
            await act()
        await write_page(effect, machine)

    driver._write_page = interrupted  # type: ignore[method-assign]


async def test_restored_log_keeps_old_segments_in_pages() -> None:
    async with small_pages() as (world, client):
        await restore(client)
        assert [each.number for each in (await client.log_metadata("log")).segments] == [10, 11]
        assert [each.number for each in await pages(world)] == [1, 2, 3, 4]
        assert all(each.contents is not None for page in await pages(world) for each in page.segments)
        await check(client, FIRST, LAST)
        await client.trim_log("log", before="8:0")
        assert [each.number for each in await pages(world)] == [4]
        await client.delete_log("log")
        assert await pages(world) == []
        assert await client.ledgers() == []


async def test_log_of_many_segments_is_restored() -> None:
    async with cluster() as world, world.client() as client:
        await restore(client, 107, 5_206)
        assert len((await client.log_metadata("log")).segments) < 200
        assert [each.number for each in await client.log_segments("log")] == list(range(107, 5_207))


@pytest.mark.parametrize("count", range(4))
async def test_log_is_restored_when_pages_of_another_attempt_are_left(count: int) -> None:
    async with small_pages() as (world, client):
        fail_after_pages(world, count)
        with pytest.raises(MetastoreUnavailableError):
            await restore(client)
        assert await client.logs() == []
        assert len(await pages(world)) == count
        world.metastore._choose = None
        await restore(client)
        await check(client, FIRST, LAST)


async def test_log_grows_when_pages_of_a_restore_are_left() -> None:
    """L3: the log that somebody else began there has other segments by these numbers."""
    async with small_pages() as (world, client):
        fail_after_pages(world, 3)
        with pytest.raises(MetastoreUnavailableError):
            await restore(client)
        world.metastore._choose = None
        await write(client, LAST)
        await check(client, FIRST, LAST)
        assert not any(each.is_tentative for each in await pages(world))


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE])
@pytest.mark.parametrize("operation", ["create", "put"])
async def test_answers_about_pages_may_be_lost(fault: Fault, operation: str) -> None:
    async with small_pages() as (world, client):
        fail_after_pages(world, 2)
        with pytest.raises(MetastoreError):
            await restore(client)
        world.metastore._choose = None
        for _ in range(2):
            world.metastore.fail_next(operation, fault, under=PAGES)
        await restore(client)
        assert world.metastore.planned() == 0
        await check(client, FIRST, LAST)


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE])
async def test_log_is_restored_once_when_its_answer_is_lost(fault: Fault) -> None:
    async with small_pages() as (world, client):

        async def lose() -> None:
            world.metastore.fail_next("put", fault, under="logs/log")

        before_page(client, 4, lose)
        await restore(client)
        assert world.metastore.planned() == 0
        await check(client, FIRST, LAST)


@pytest.mark.parametrize("page", [1, 2, 4])
async def test_writer_keeps_the_log_it_began_during_a_restore(page: int) -> None:
    async with small_pages() as (world, client), world.client(QUICK) as other:
        other._opened.logs.page_segments = 2
        before_page(client, page, lambda: write(other, 9))
        with pytest.raises((TakeoverFailedError, ConfigError)):
            await restore(client)
        await check(other, FIRST, 9)
        await write(other, 13)
        await check(other, FIRST, 13)


@pytest.mark.parametrize("other_page", [1, 3, 4])
@pytest.mark.parametrize("page", [1, 2, 4])
async def test_latest_restore_makes_the_log(page: int, other_page: int) -> None:
    """The other one, which goes on before that page, must not write pages on which the log counts."""
    async with small_pages() as (world, client), world.client(QUICK) as other:
        began, ended = trio.Event(), trio.Event()

        async def begin() -> None:
            nursery.start_soon(restore, other)
            await began.wait()

        async def wait() -> None:
            began.set()
            await ended.wait()

        before_page(client, page, begin)
        before_page(other, other_page, wait)
        async with trio.open_nursery() as nursery:
            with pytest.raises((TakeoverFailedError, BackupError)):
                await restore(client)
            ended.set()
        await check(client, FIRST, LAST)


async def test_restore_fails_when_another_one_was_faster() -> None:
    async with small_pages() as (world, client), world.client(QUICK) as other:
        before_page(client, 2, lambda: restore(other))
        with pytest.raises((TakeoverFailedError, ConfigError)):
            await restore(client)
        await check(client, FIRST, LAST)
