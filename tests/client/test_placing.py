"""Placement as a client does it: with labels and free space, strict or not, and readers that prefer their zone (C8)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from replog.config import BookieOptions, ClientOptions
from replog.config.client import ClientTuning
from replog.errors import NotEnoughBookiesError, PlacementUnmetError
from replog.hookspecs import PlacementUnmet
from replog.protocol.messages import ReadRequest
from replog.protocol.quorum import Quorum
from tests.kit import Cluster, cluster, read_ledger, until

QUICK = ClientTuning(add_timeout_s=0.5, add_quorum_timeout_s=5.0, bookie_retry_after_s=1.0)
TWO = Quorum(2, 2, 2)


@asynccontextmanager
async def zoned(zones: Sequence[str | None]) -> AsyncIterator[Cluster]:
    async with cluster(0) as world:
        for zone in zones:
            labels = () if zone is None else (f"zone={zone}",)
            await world.add_bookie(BookieOptions(storage="memory", labels=labels))
        yield world


def zones_of(world: Cluster, ensemble: Sequence[str]) -> list[str | None]:
    return [
        next((label.removeprefix("zone=") for label in bookie._options.labels), None)
        for bookie in world.named(ensemble)
    ]


async def test_c8_each_ledger_spans_the_zones(autojump_clock: trio.testing.MockClock) -> None:
    async with zoned("aaabbb") as world, world.client(QUICK, TWO, placement="zones:?strict=true") as client:
        for _ in range(10):
            async with client.create_ledger() as writer:
                await writer.append(b"0")
            assert set(zones_of(world, writer.metadata.last_fragment.ensemble)) == {"a", "b"}
        assert world.told(PlacementUnmet) == []


@pytest.mark.parametrize("placement", ["zones", "zones:?strict=true"])
async def test_replacement_comes_from_the_missing_zone(placement: str, autojump_clock: trio.testing.MockClock) -> None:
    async with zoned("aabb") as world, world.client(QUICK, TWO, placement=placement) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            gone = world.named(writer.metadata.last_fragment.ensemble)[0]
            await gone.kill()
            await writer.append(b"1")
            ensemble = writer.metadata.last_fragment.ensemble
            assert gone.bookie_id not in ensemble
            assert set(zones_of(world, ensemble)) == {"a", "b"}
        assert world.told(PlacementUnmet) == []


async def test_soft_placement_continues_and_names_the_lack(autojump_clock: trio.testing.MockClock) -> None:
    async with zoned("aab") as world, world.client(QUICK, TWO, placement="zones") as client:
        async with client.create_ledger() as writer:
            gone = next(bookie for bookie in world.bookies if bookie._options.labels == ("zone=b",))
            await gone.kill()
            await writer.append(b"0")
            (told,) = world.told(PlacementUnmet)
            assert isinstance(told, PlacementUnmet)
            assert told.ledger_id == writer.ledger_id
            assert not told.is_refused
            assert "spans 1 of 2 zones" in told.shortfall
        async with client.create_ledger():
            assert len(world.told(PlacementUnmet)) == 2


async def test_strict_placement_creates_no_ledger_and_says_why(autojump_clock: trio.testing.MockClock) -> None:
    async with zoned(["a", "a", None]) as world, world.client(QUICK, TWO, placement="zones:?strict=true") as client:
        with pytest.raises(PlacementUnmetError, match=r"must span 2 zones .*a: 2.*: start bookies in other zones"):
            async with client.create_ledger():
                pass
        assert await client.ledgers() == []


async def test_strict_placement_keeps_a_failed_bookie_and_says_why(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with zoned("aab") as world, world.client(QUICK, TWO, placement="zones:?strict=true") as client:
        with pytest.raises(NotEnoughBookiesError) as raised:
            async with client.create_ledger() as writer:
                await writer.append(b"0")
                await world.bookies[2].kill()
                with pytest.raises(PlacementUnmetError, match="placement is strict: a write set spans 1 of 2 zones"):
                    await writer.append(b"1")
                assert writer.metadata.last_fragment.ensemble.count(world.bookies[2].bookie_id) == 1
                await writer.flush()
        assert isinstance(raised.value, PlacementUnmetError)
        told = world.told(PlacementUnmet)
        assert [isinstance(each, PlacementUnmet) and each.is_refused for each in told] == [True], (
            "once, not at each try"
        )


async def test_strict_placement_takes_a_bookie_of_the_right_zone_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with zoned("aab") as world, world.client(QUICK, Quorum(2, 2, 1), placement="zones:?strict=true") as client:
        async with client.create_ledger() as writer:
            await world.bookies[2].kill()
            await writer.append(b"0")
            assert writer.statistics()["indices_missing"] == 1
            late = await world.add_bookie(BookieOptions(storage="memory", labels=("zone=c",)))
            await until(lambda: late.bookie_id in writer.metadata.last_fragment.ensemble, 30)
            await writer.append(b"1")
        assert await read_ledger(client, writer.ledger_id) == [b"0", b"1"]


async def test_zone_of_an_absent_bookie_is_known(autojump_clock: trio.testing.MockClock) -> None:
    """Its cookie has its labels. A recovery by a client that never saw it alive places replacements by them."""
    async with zoned("abc") as world:
        strict = "zones:?at_least=3&strict=true"
        async with world.client(QUICK) as client, client.create_ledger() as writer:
            await writer.append(b"0")
            await world.bookies[0].kill()
            await world.add_bookie(BookieOptions(storage="memory", labels=("zone=a",)))
            async with world.client(QUICK, placement=strict) as other:
                metadata = await other.recover_ledger(writer.ledger_id)
                assert set(zones_of(world, metadata.last_fragment.ensemble)) == {"a", "b", "c"}
                await world.bookies[3].kill()
                async with other.create_ledger() as second:
                    assert set(zones_of(world, second.metadata.last_fragment.ensemble)) == {"a", "b", "c"}


async def test_a_reader_asks_the_bookie_of_its_zone_first(autojump_clock: trio.testing.MockClock) -> None:
    async with zoned("abc") as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
        for zone in "abc":
            options = ClientOptions(zone=zone)
            for bookie in world.bookies:
                bookie.wire.seen.clear()
            for _ in range(5):
                async with world.client(options) as other:
                    assert await read_ledger(other, writer.ledger_id) == [b"0"]
            asked = [bookie for bookie in world.bookies if any(isinstance(e, ReadRequest) for e in bookie.wire.seen)]
            assert zones_of(world, [bookie.bookie_id for bookie in asked]) == [zone]


async def test_weighted_placement_knows_the_free_space(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world:
        for number, bookie in enumerate(world.bookies):
            free_bytes = 1 << 60 if number < 2 else 1 << 29  # the others are drawn once in 2^31
            bookie.storage.free_bytes = partial(int, free_bytes)  # type: ignore[method-assign]
        await trio.sleep(90)  # they look at their disks, and report
        async with world.client(QUICK, TWO, placement="weighted") as client:
            for _ in range(10):
                async with client.create_ledger() as writer:
                    ensemble = writer.metadata.last_fragment.ensemble
                assert set(ensemble) == {world.bookies[0].bookie_id, world.bookies[1].bookie_id}
