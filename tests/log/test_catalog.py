"""Trimming, deleting, listing, leading; logs that somebody has broken by hand (L3, M3)."""

from __future__ import annotations

from functools import partial

import attrs
import pytest
import trio
import trio.testing

from replog.config.client import ClientTuning
from replog.errors import (
    ConfigError,
    FencedError,
    LedgerNotFoundError,
    LogNotFoundError,
    MetastoreError,
    PositionError,
    ReplogError,
    UnauthorizedError,
)
from replog.hookspecs import LogTrimmed
from replog.log.log_options import LogOptions
from replog.protocol.model import Position
from replog.protocol.quorum import Quorum
from replog.records.paths import log_key_path
from replog.testing import Fault
from tests.kit import cluster, read_log, until

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0, metastore_timeout_s=2.0)
FAULTS = [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.UNAVAILABLE, Fault.CONFLICT]


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_answers_of_a_trim_may_be_lost(fault: Fault, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client, client.write_log("log") as log:
        for number in range(4):
            await log.append(b"%d" % number)
            await log.roll()
        world.metastore.fail_next("put", fault, under=log_key_path("log"))
        world.metastore.fail_next("delete", fault, under="ledgers/")
        assert await client.trim_log("log", before="4:0") == Position(4, 0)
        assert world.metastore.planned() == 0
        assert await read_log(client) == [b"3"]
        assert len(await client.ledgers()) == 2
        assert [event.first_segment for event in world.told(LogTrimmed)] == [4]  # type: ignore[union-attr]


async def test_a_trim_deletes_nothing_before_the_list_is_cut(autojump_clock: trio.testing.MockClock) -> None:
    """L3: a metastore that fails in between leaves ledgers that nobody names, never names without ledgers."""
    async with cluster() as world, world.client(QUICK) as client, client.write_log("log") as log:
        for number in range(3):
            await log.append(b"%d" % number)
            await log.roll()
        for operation, under in (("put", log_key_path("log")), ("delete", "ledgers/")):
            world.metastore._choose = lambda each, key, operation=operation, under=under: (
                Fault.UNAVAILABLE if each == operation and key.startswith(under) else None
            )
            with pytest.raises(MetastoreError):
                await client.trim_log("log", before="3:0")
            world.metastore._choose = None
            assert (await read_log(client))[-1] == b"2"
        assert await client.trim_log("log", before="3:0") == Position(3, 0)


async def test_trims_at_the_same_time_and_beyond_the_end(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        async with client.write_log("log") as log:
            for number in range(6):
                await log.append(b"%d" % number)
                await log.roll()
            async with trio.open_nursery() as nursery:
                for segment in (2, 5, 3, 4):
                    nursery.start_soon(partial(client.trim_log, "log", before=Position(segment, 0)))
                    nursery.start_soon(partial(other.trim_log, "log", before=Position(segment, 0)))
            assert await read_log(client) == [b"4", b"5"]
            assert await client.trim_log("log", before="7:99") == Position(7, 0)
            with pytest.raises(PositionError, match="nothing was trimmed"):
                await client.trim_log("log", before="8:0")
            assert await client.ledgers() == [log.ledger_id]
        with pytest.raises(LogNotFoundError):
            await client.trim_log("other", before="1:0")


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_answer_of_a_deletion_may_be_lost(fault: Fault, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            await log.append(b"0")
            await log.roll()
            await log.append(b"1")
        world.metastore.fail_next("put", fault, under=log_key_path("log"))
        world.metastore.fail_next("delete", fault, under="ledgers/")
        await client.delete_log("log")
        assert world.metastore.planned() == 0
        assert await client.logs() == []
        assert await client.ledgers() == []
        with pytest.raises(LogNotFoundError):
            await client.delete_log("log")


async def test_deleting_a_log_deposes_its_leader_permanently(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.write_log("log") as log:
            await log.append(b"0")
            await other.delete_log("log")
            for bookie in world.bookies:
                assert bookie.served is not None
                bookie.served.ask_for_collection()
            await trio.sleep(1)
            assert all(bookie.storage.ledger_ids() == [] for bookie in world.bookies)
            with pytest.raises(FencedError):
                await log.append(b"1")
        async with client.write_log("log") as log:  # a new log of the same name
            await log.append(b"2")
        assert await read_log(client) == [b"2"]


async def test_deleting_during_a_takeover_ends_in_one_of_two_ways(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        world.metastore.delay_s = 0.01
        for delay_ms in range(0, 100, 10):
            async with client.write_log("log") as log:
                await log.append(b"0")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other.delete_log, "log")
                await trio.sleep(delay_ms / 1000)
                try:
                    async with client.write_log("log") as log:
                        await log.append(b"1")
                except FencedError:
                    pass
            metadata = await client._opened.logs.get("log") if await client.logs() else None
            named = [] if metadata is None else [segment.ledger_id for segment in metadata[0].segments]
            assert await client.ledgers() == named
            if named:
                await client.delete_log("log")


async def test_logs_are_listed_by_name(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        assert await client.logs() == []
        for name in ("b", "a/b", "Grüße", "..", "%41"):
            async with client.write_log(name) as log:
                await log.append(name.encode())
        assert await client.logs() == sorted(("b", "a/b", "Grüße", "..", "%41"))
        for name in await client.logs():
            assert await read_log(client, name) == [name.encode()]


@pytest.mark.parametrize("name", ["", "x" * 300, "a\nb", 5, None, b"log"])
async def test_impossible_log_name_is_refused(name: str, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        for context in (client.write_log(name), client.lead_log(name), client.read_log(name)):
            with pytest.raises(ConfigError):
                await context.__aenter__()
        for verb in (lambda: client.trim_log(name, before="1:0"), lambda: client.delete_log(name)):
            with pytest.raises(ConfigError):
                await verb()
        assert await client.ledgers() == []


async def test_only_one_leads_and_the_next_takes_over_when_it_leaves(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world:
        leading: list[int] = []
        led: list[int] = []
        appended: list[bytes] = []

        async def lead(which: int) -> None:
            async with world.client(QUICK) as client, client.lead_log("log") as log:
                assert not leading
                leading.append(which)
                for number in range(10):
                    appended.append(b"%d/%d" % (which, number))
                    await log.append(appended[-1])
                    await trio.sleep(0.1)
                led.append(which)
                leading.remove(which)

        async with trio.open_nursery() as nursery:
            for which in range(4):
                nursery.start_soon(lead, which)
        assert sorted(led) == [0, 1, 2, 3]
        async with world.client() as client:
            assert await read_log(client) == appended


async def test_a_waiting_candidate_can_be_cancelled_or_fail(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        with pytest.raises(ZeroDivisionError):
            async with client.lead_log("log") as log:
                await log.append(b"0")
                with trio.move_on_after(5) as scope:
                    async with other.lead_log("log"):
                        pytest.fail("two lead")
                assert scope.cancelled_caught
                await log.append(b"1")
                raise ZeroDivisionError
        with trio.fail_after(1):
            async with other.lead_log("log") as log:
                await log.append(b"2")
        assert await read_log(client) == [b"0", b"1", b"2"]


async def test_leading_is_advice_and_a_takeover_deposes_the_elected(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.lead_log("log") as log:
            await log.append(b"0")
            async with other.write_log("log") as second:
                await second.append(b"1")
                with pytest.raises(FencedError):
                    await log.append(b"2")
        assert await read_log(client) == [b"0", b"1"]


@pytest.mark.parametrize("which", [0, -1])
async def test_manually_deleted_ledger_is_named(which: int, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            for number in range(4):
                await log.append(b"%d" % number)
                await log.roll()
        metadata, _ = await client._opened.logs.get("log")
        deleted = metadata.segments[which].ledger_id
        await client.delete_ledger(deleted)
        with trio.fail_after(30), pytest.raises(LedgerNotFoundError) as caught:
            await read_log(client)
        assert caught.value.ledger_id == deleted
        if which == -1:
            with trio.fail_after(30), pytest.raises(LedgerNotFoundError, match="by hand"):
                async with client.write_log("log"):
                    pass
        else:
            async with client.write_log("log") as log:
                await log.append(b"4")


async def test_custom_metadata_is_text(autojump_clock: trio.testing.MockClock) -> None:
    """Anything else would make a record that nobody could read any more."""
    async with cluster() as world, world.client() as client:
        for custom in ({"a": 1}, {1: "a"}, "a=b", {"a": None}):
            with pytest.raises(ConfigError, match="custom"):
                async with client.create_ledger(custom=custom):  # type: ignore[arg-type]
                    pass
            with pytest.raises(ConfigError, match="custom"):
                async with client.write_log("log", options=LogOptions(custom=custom)):  # type: ignore[arg-type]
                    pass
        assert await client.ledgers() == []
        async with client.write_log("log", options=LogOptions(custom={"owner": "me"})) as log:
            async with client.open_ledger(log.ledger_id) as reader:
                assert reader.metadata.custom == {"owner": "me", "log": "log"}
        await until(lambda: True)


@pytest.mark.slow
async def test_every_call_ends_when_the_metastore_loses_every_answer(autojump_clock: trio.testing.MockClock) -> None:
    """Until its deadline a call tries again many times a second, so deadlines are short here."""
    hasty = attrs.evolve(QUICK, metastore_timeout_s=0.5, recovery_timeout_s=4.0, takeover_timeout_s=8.0)
    async with cluster() as world, world.client(hasty) as client:
        with pytest.raises(MetastoreError):
            async with client.write_log("log") as log:
                await log.append(b"0")
                await log.roll()
                world.metastore._choose = lambda operation, _key: (
                    Fault.REQUEST_LOST if operation in ("create", "put", "delete") else None
                )
                for verb in (
                    log.roll,
                    partial(client.trim_log, "log", before="2:0"),
                    partial(client.delete_ledger, log.ledger_id),
                    partial(client.write_log("log").__aenter__),
                    partial(client.create_ledger().__aenter__),
                    partial(client.delete_log, "log"),
                ):
                    with trio.fail_after(60), pytest.raises(ReplogError):
                        await verb()
        assert trio.current_time() < 400


async def test_keywords_beside_options_stand_for_theirs(autojump_clock: trio.testing.MockClock) -> None:
    options = LogOptions(quorum=Quorum(2, 2, 2), password=b"of options", custom={"made": "here"})
    async with cluster(3) as world, world.client() as client:
        async with client.write_log("log", options=options) as log:
            of_options = await client.ledger_metadata(log.ledger_id)
        async with client.write_log("other", options=options, quorum=Quorum(1, 1, 1), password=b"beside") as log:
            beside = await client.ledger_metadata(log.ledger_id)
        with pytest.raises(UnauthorizedError):
            await client.recover_ledger(log.ledger_id, password=b"of options")
        await client.recover_ledger(log.ledger_id, password=b"beside")
    assert (of_options.quorum, of_options.custom) == (Quorum(2, 2, 2), {"made": "here", "log": "log"})
    assert (beside.quorum, beside.custom) == (Quorum(1, 1, 1), {"made": "here", "log": "other"})


def test_options_do_not_show_the_password() -> None:
    assert "secret" not in repr(LogOptions(password=b"secret"))
