"""What clients ask of a bucket while nothing happens: each request is paid for."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing

import replog
from replog.testing import FaultyMetastore
from replog_objects.calls import Outcome
from replog_objects.metastore import ObjectsMetastore
from replog_objects.options import ObjectsOptions, Target
from replog_objects.requests import Found, Listed, Listing, Requests, Tag
from tests.kit import Cluster


class CountedRequests(Requests):
    """Requests that count themselves, by method: a page of a listing is one."""

    def __init__(self, target: Target, options: ObjectsOptions, counts: Counter[str]) -> None:
        super().__init__(target, options)
        self._counts = counts

    def get(self, name: str) -> Found | None:
        self._counts["get"] += 1
        return super().get(name)

    def put(self, name: str, body: bytes, expected: Tag | None) -> Tag:
        self._counts["put"] += 1
        return super().put(name, body, expected)

    def right_below(self, name: str) -> Listing:
        self._counts["list"] += 1
        return super().right_below(name)

    def below(self, name: str) -> Iterator[list[Listed]]:
        self._counts["list"] += 1
        return super().below(name)


class Place:
    """A bucket in memory, and clients of it that count. Their requests take no thread, so that time can be virtual."""

    def __init__(self) -> None:
        self._target = Target("memory", secrets.token_hex(8))

    def client(self, **options: float) -> tuple[ObjectsMetastore, Counter[str]]:
        counts: Counter[str] = Counter()
        given = ObjectsOptions(**options)  # type: ignore[arg-type]
        metastore = ObjectsMetastore(self._target, given)
        requests = CountedRequests(self._target, given, counts)

        async def attempt(ask: Callable[[Requests], object], outcome: Outcome) -> object:
            await trio.lowlevel.checkpoint()
            return ask(requests)

        metastore._calls.attempt = attempt  # type: ignore[method-assign,assignment]
        return metastore, counts


async def over(hours: float, counts: Counter[str]) -> dict[str, float]:
    """The requests in an hour, after things have settled."""
    await trio.sleep(300)
    before = counts.copy()
    await trio.sleep(3600 * hours)
    return {name: (counts[name] - before[name]) / hours for name in counts}


@pytest.mark.slow
async def test_idle_reader_asks_less_than_100_times_an_hour(autojump_clock: trio.testing.MockClock) -> None:
    place = Place()
    (servers, _), (readers, counts) = place.client(lease_s=300.0), place.client()
    read: list[bytes] = []

    async def follow(client: replog.Client) -> None:
        async with client.read_log("orders", follow=True) as reader:
            async for record in reader:
                read.append(record.data)

    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery)
        cluster.metastore = FaultyMetastore(servers)
        for _ in range(3):
            await cluster.add_bookie()
        async with cluster.client(quorum=replog.Quorum(3, 3, 2)) as writer, writer.write_log("orders") as log:
            await log.append(b"one")
            async with cluster.client(metastore=readers) as reader, trio.open_nursery() as following:
                following.start_soon(follow, reader)
                asked = await over(1, counts)
                await log.append(b"two")
                await trio.sleep(60)
                following.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    assert read == [b"one", b"two"]
    assert sum(asked.values()) < 100


async def test_leader_and_candidate_cost_as_documented(autojump_clock: trio.testing.MockClock) -> None:
    """Four puts a lease for a leader, and twenty-four gets for a candidate: docs/how-to/objects.md has prices for these."""
    place = Place()
    (leaders, led), (candidates, waited) = place.client(), place.client()
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            async with candidates.elect("elections/orders", b"candidate"):
                raise AssertionError("the leader lives")

        async with leaders.elect("elections/orders", b"leader"):
            nursery.start_soon(wait)
            leader = await over(1, led)
            before = waited.copy()
            await trio.sleep(3600)
            candidate = {name: waited[name] - before[name] for name in waited}
            nursery.cancel_scope.cancel()
    leases = 3600 / leaders.lease_s
    assert leader["put"] <= 4 * leases + 1
    assert leader["get"] == 0
    assert candidate["put"] == 0
    assert candidate["get"] <= 24 * leases
