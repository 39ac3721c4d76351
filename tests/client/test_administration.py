"""Administrators ask bookies, in this trio run and over TCP: what they are told, and what when a bookie can't or won't."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

import replog
import replog.abc
import replog.records.bookies
from replog.bookie import administration
from replog.client.administration import RemoteBookie
from replog.config import BookieOptions
from replog.errors import AdministrationError, BookieTooBusyError, BookieUnreachableError, StorageFailedError
from replog.metastores.memory import MemoryMetastore
from replog.protocol.messages import AdminCommand, AdminRequest, Request, Status
from replog.records.paths import ledger_key_path
from replog.runtime.latencies import LatencyHistogram
from tests.kit import ONE, cluster

COMMANDS = ("statistics", "collect_garbage", "compact", "scrub")


async def call(bookie: RemoteBookie, command: str) -> object:
    return await getattr(bookie, command)()


async def the_only(client: replog.Client) -> RemoteBookie:
    (bookie,) = await client.admin.bookies()
    return bookie


@asynccontextmanager
async def one_bookie(answers: dict[AdminCommand, tuple[Status, str]] | None = None) -> AsyncIterator[RemoteBookie]:
    """A bookie that answers so, or as bookies do."""

    async def administer(command: AdminCommand) -> tuple[Status, str]:
        assert answers is not None
        return answers[command]

    async with cluster(1) as world, world.client() as client:
        if answers is not None:
            world.bookies[0].server.administrators.administer = administer
        yield await the_only(client)


async def test_bookies_say_how_they_are(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        async with client.create_ledger() as writer:
            await writer.extend([b"x" * 100] * 10)
        await trio.sleep(7)
        bookies = await client.admin.bookies()
        assert [each.bookie_id for each in bookies] == sorted(each.bookie_id for each in world.bookies)
        for bookie in bookies:
            assert (bookie.read_only, [each.scheme for each in bookie.endpoints]) == (False, ["memory"])
            found = await bookie.statistics()
            assert found.bookie_id == bookie.bookie_id
            assert found.version
            assert found.numbers["added_entries"] == 10
            assert found.numbers["uptime_s"] >= 7
            assert found.latencies["commit"].count == found.numbers["commits"] >= 1
            assert found.latencies["answer"].count >= 1


async def test_a_command_is_executed(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"x")
        bookie = await the_only(client)
        assert await bookie.collect_garbage() == []
        await world.metastore.delete(ledger_key_path(writer.ledger_id))  # nobody tells the bookie
        assert await bookie.collect_garbage() == [writer.ledger_id]
        await bookie.compact()
        await bookie.compact(is_major=True)
        assert await bookie.scrub() == []
        numbers = (await bookie.statistics()).numbers
        assert (numbers["forced_garbage_collections"], numbers["forced_compactions"]) == (2, 2)
        assert numbers["forced_scrubs"] == 1
        asked = [each.command for each in world.bookies[0].wire.seen if isinstance(each, AdminRequest)]
        assert asked[2:4] == [AdminCommand.COMPACT, AdminCommand.COMPACT_ALL]


async def test_damage_is_listed_up_to_a_limit(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "_DAMAGE_LISTED_MAX", 2)
    damage = [replog.abc.Damage(7, 1, first, first, f"file ä at byte {first}" + "x" * 500) for first in range(3)]
    async with cluster(1) as world, world.client() as client:
        world.bookies[0].storage.damage = lambda: damage  # type: ignore[method-assign]
        found = await (await the_only(client)).scrub()
        assert [(each.ledger_id, each.first_entry_id) for each in found] == [(7, 0), (7, 1)]
        assert found[0].description == damage[0].description[:200]


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_silent_bookie_is_given_up_after_the_timeout(
    command: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(1) as world, world.client() as client:
        bookie = await the_only(client)
        world.bookies[0].wire.is_mute = True
        with pytest.raises(BookieUnreachableError, match=f"{bookie.bookie_id}.*within 3 s"):
            await getattr(bookie, command)(timeout_s=3.0)
        assert trio.current_time() < 10
        assert client.statistics()["client"]["outstanding_bytes"] > 0
        await trio.sleep(3)
        assert client.statistics()["client"]["outstanding_bytes"] == 0


@pytest.mark.parametrize("command", COMMANDS)
async def test_absent_bookie_is_unreachable_until_it_returns(
    command: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(1) as world, world.client() as client:
        bookie = await the_only(client)
        await bookie.statistics()
        await world.bookies[0].kill()
        assert await client.admin.bookies() == []
        with pytest.raises(BookieUnreachableError):
            await call(bookie, command)
        await world.bookies[0].start()
        await call(bookie, command)


async def test_call_reports_the_end_of_its_bookie(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client() as client:
        bookie = await the_only(client)
        world.bookies[0].wire.is_held = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.bookies[0].kill)
            with pytest.raises(BookieUnreachableError):
                await bookie.scrub()


@pytest.mark.parametrize(
    ("status", "detail", "error", "match"),
    [
        (Status.UNKNOWN, "no space", AdministrationError, "no space"),
        (Status.UNAUTHORIZED, "", AdministrationError, "credentials"),
        (Status.BAD_REQUEST, "", AdministrationError, "BAD_REQUEST"),
        (Status.TOO_BUSY, "32 wait", BookieTooBusyError, "32 wait"),
        (Status.OK, "{", AdministrationError, "is not JSON"),
        (Status.OK, "[]", AdministrationError, "is not a JSON object"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
async def test_a_refused_or_garbled_answer_raises(
    command: str,
    status: Status,
    detail: str,
    error: type[Exception],
    match: str,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with one_bookie(dict.fromkeys(AdminCommand, (status, detail))) as bookie:
        with pytest.raises(error, match=match) as raised:
            await call(bookie, command)
        assert bookie.bookie_id in str(raised.value)


@pytest.mark.parametrize(
    ("command", "detail"),
    [
        ("statistics", '{"commits": "many"}'),
        ("statistics", '{"latencies": {"commit": 1}}'),
        ("statistics", '{"latencies": 1}'),
        ("collect_garbage", "{}"),
        ("collect_garbage", '{"dropped_ledgers": ["x"]}'),
        ("scrub", '{"damage": [{"ledger": 1}]}'),
        ("scrub", '{"damage": 1}'),
    ],
)
async def test_answers_of_another_shape_name_the_cause(
    command: str, detail: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with one_bookie(dict.fromkeys(AdminCommand, (Status.OK, detail))) as bookie:
        with pytest.raises(AdministrationError, match="version of replog"):
            await call(bookie, command)


async def test_statistics_of_another_version_may_lack_latencies(autojump_clock: trio.testing.MockClock) -> None:
    async with one_bookie(dict.fromkeys(AdminCommand, (Status.OK, '{"commits": 3}'))) as bookie:
        found = await bookie.statistics()
        assert (found.version, dict(found.numbers), dict(found.latencies)) == ("", {"commits": 3.0}, {})


async def test_a_command_of_a_later_version_is_refused_harmlessly(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with one_bookie() as bookie:
        with pytest.raises(AdministrationError, match="does not know what that is: upgrade it"):
            await bookie._ask(AdminCommand.UNKNOWN, 5.0)
        assert (await bookie.statistics()).numbers["commits"] == 0


async def test_a_failed_storage_still_gives_statistics(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client() as client:
        bookie = await the_only(client)
        assert (await bookie.statistics()).numbers["storage_failed"] == 0
        world.bookies[0].server.storage_raised(StorageFailedError("no such device"))
        assert (await bookie.statistics()).numbers["storage_failed"] == 1


async def test_cancelled_caller_leaves_nothing_behind(autojump_clock: trio.testing.MockClock) -> None:
    def lost(request: Request) -> bool:
        return isinstance(request, AdminRequest)

    async with cluster(1) as world, world.client() as client:
        bookie = await the_only(client)
        world.bookies[0].wire.lose_answer = lost
        with trio.move_on_after(1.0) as scope:
            await bookie.compact()
        assert scope.cancelled_caught
        world.bookies[0].wire.lose_answer = lambda _request: False
        assert (await bookie.statistics()).numbers["forced_compactions"] == 1


@pytest.mark.real
async def test_over_tcp(tmp_path: Path) -> None:
    metastore = MemoryMetastore()
    options = BookieOptions(storage="memory", listen=("tcp:127.0.0.1:0",))
    config = replog.BookieConfig(directory=str(tmp_path), metastore=metastore, options=options)
    async with replog.serve_bookie(config) as served:
        async with only_over_tcp(metastore) as client:
            async with client.create_ledger() as writer:
                await writer.append(b"x")
            await metastore.delete(ledger_key_path(writer.ledger_id))  # nobody tells the bookie
            bookie = await the_only(client)
            assert bookie.bookie_id == served.bookie_id
            assert "tcp:127.0.0.1:" in repr(bookie)
            assert await bookie.collect_garbage() == [writer.ledger_id]
            await bookie.compact(is_major=True)
            assert await bookie.scrub() == []
            found = await bookie.statistics()
            assert found.numbers["added_entries"] == 1
            assert isinstance(found.latencies["commit"], LatencyHistogram)


@asynccontextmanager
async def only_over_tcp(metastore: MemoryMetastore) -> AsyncIterator[replog.Client]:
    """A client that does not find the way within this trio run."""
    async with replog.connect(metastore, quorum=ONE) as client:
        membership = client._opened.ledgers.context.membership
        announced = membership.announced

        async def by_tcp() -> dict[str, replog.records.bookies.BookieAddress]:
            return {
                bookie_id: replog.records.bookies.BookieAddress(
                    tuple(each for each in address.endpoints if each.scheme == "tcp"), address.read_only
                )
                for bookie_id, address in (await announced()).items()
            }

        async def address(bookie_id: str) -> replog.records.bookies.BookieAddress:
            return (await by_tcp())[bookie_id]

        membership.announced = by_tcp  # type: ignore[method-assign]
        membership.address = address  # type: ignore[method-assign]
        yield client
