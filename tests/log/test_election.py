"""`lead_log` on every metastore: its turn comes, whatever happens to those before; and none of it is needed to be safe (M3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

import replog
from replog.abc import Metastore
from replog.config.client import ClientTuning
from replog.errors import FencedError, MetastoreError
from replog.metastores.lmdb import LMDBMetastore, LMDBOptions
from replog.metastores.memory import MemoryMetastore
from replog.registry import Registry
from replog.runtime.nursery import open_service_nursery
from replog.testing import Fault, FaultyMetastore
from tests.kit import Cluster, DeafMetastore, cluster, read_log
from tests.plain_metastore import FaultyPlainMetastore, PlainMap, PlainMetastore

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0)
LEASE_S = 10.0  # nobody is taken for gone here but on the virtual clock
TURN_S = 20.0  # on a busy machine; nobody's turn takes that long
EVERYWHERE = ["memory", "lmdb", "plain", pytest.param("zookeeper", marks=pytest.mark.needs_zookeeper)]


@attrs.frozen
class World:
    """Bookies, and ways to their metastore."""

    cluster: Cluster
    open_metastore: Callable[[], Metastore]

    @asynccontextmanager
    async def client(self, options: ClientTuning = QUICK, *, is_deaf: bool = False) -> AsyncIterator[replog.Client]:
        """A client with a way to the metastore of its own, as if it were in another process."""
        metastore = self.open_metastore()
        metastore = DeafMetastore(metastore) if is_deaf else metastore
        try:
            async with self.cluster.client(options, metastore=metastore) as client:
                yield client
        finally:
            await metastore.aclose()


@asynccontextmanager
async def world_of(open_metastore: Callable[[], Metastore]) -> AsyncIterator[World]:
    async with open_service_nursery() as nursery:
        cluster = Cluster(nursery)
        cluster.metastore.inner = open_metastore()
        try:
            for _ in range(3):
                await cluster.add_bookie()
            yield World(cluster, open_metastore)
        finally:
            for bookie in cluster.bookies:
                await bookie.kill()
            await cluster.metastore.aclose()


@pytest.fixture
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    shared, name = PlainMap(), str(tmp_path)
    kind = request.param
    url = request.getfixturevalue("zookeeper_url") if kind == "zookeeper" else ""
    ways: dict[str, Callable[[], Metastore]] = {
        "memory": lambda: MemoryMetastore(name),
        "lmdb": lambda: LMDBMetastore(tmp_path / "metadata", LMDBOptions(lease_s=LEASE_S)),
        "plain": lambda: PlainMetastore(shared, LEASE_S),
        "zookeeper": lambda: Registry().open_metastore(url),
    }
    async with world_of(ways[kind]) as made:
        yield made
    MemoryMetastore.discard(name)


everywhere = pytest.mark.parametrize("world", EVERYWHERE, indirect=True)


async def holds_the_lead(client: replog.Client, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    """Leads until cancelled."""
    with trio.CancelScope() as scope:
        async with client.lead_log("log") as log:
            await log.append(b"held")
            task_status.started(scope)
            await trio.sleep_forever()


async def waits(client: replog.Client) -> bool:
    """Whether it is somebody else's turn, as far as one can see in a short time."""
    with trio.move_on_after(0.3):
        async with client.lead_log("log"):
            return False
    return True


@everywhere
async def test_all_have_their_turn_one_after_the_other(world: World) -> None:
    leading: list[int] = []
    appended: list[bytes] = []

    async def lead(which: int) -> None:
        async with world.client() as client, client.lead_log("log") as log:
            assert leading == []
            leading.append(which)
            for number in range(3):
                appended.append(b"%d/%d" % (which, number))
                await log.append(appended[-1])
            leading.remove(which)

    with trio.fail_after(TURN_S):
        async with trio.open_nursery() as nursery:
            for which in range(4):
                nursery.start_soon(lead, which)
    assert len(appended) == 12
    async with world.client() as client:
        assert await read_log(client) == appended


@everywhere
async def test_withdrawn_candidates_do_not_delay_others(world: World) -> None:
    turn = trio.Event()

    async def lead(client: replog.Client) -> None:
        async with client.lead_log("log") as log:
            await log.append(b"next")
            turn.set()

    async def give_up(client: replog.Client) -> None:
        async with client.lead_log("log"):
            pytest.fail("two lead")

    async with world.client() as leader, world.client() as fickle, world.client() as patient:
        async with trio.open_nursery() as nursery:
            leading = await nursery.start(holds_the_lead, leader)
            async with trio.open_nursery() as waiting:
                for _ in range(3):
                    waiting.start_soon(give_up, fickle)
                assert await waits(fickle)
                nursery.start_soon(lead, patient)  # behind the fickle ones, where there is an order
                assert await waits(fickle)
                waiting.cancel_scope.cancel()
            assert not turn.is_set()
            leading.cancel()
            with trio.fail_after(TURN_S):
                await turn.wait()
        assert await read_log(fickle) == [b"held", b"next"]


@everywhere
async def test_an_error_in_the_body_is_raised_as_it_is_and_makes_room(world: World) -> None:
    async with world.client() as client, world.client() as other:
        with pytest.raises(ZeroDivisionError):
            async with client.lead_log("log") as log:
                await log.append(b"0")
                assert await waits(other)
                raise ZeroDivisionError
        with trio.fail_after(TURN_S):
            async with other.lead_log("log") as log:
                await log.append(b"1")
        assert await read_log(client) == [b"0", b"1"]


@everywhere
async def test_a_deposed_leader_campaigns_again(world: World) -> None:
    """M3, L5: the election is still theirs, the log is not; two who believe that they lead never mix."""
    # It publishes nothing (W5): else it may learn of its fence by that, and have nothing in doubt.
    quiet = attrs.evolve(QUICK, explicit_last_add_confirmed_after_s=600.0)
    async with world.client(quiet, is_deaf=True) as client, world.client() as other:
        with pytest.raises(FencedError):  # of leaving, too: what was not confirmed is nobody's success
            async with client.lead_log("log") as log:
                await log.append(b"0")
                async with other.write_log("log") as second:  # as if the election had told both that they lead
                    await second.append(b"1")
                    with pytest.raises(FencedError) as caught:
                        await log.append(b"not confirmed")
                    assert list(caught.value.positions) == [replog.Position(1, 1)]
                    await second.append(b"2")
                await log.append(b"nor this")
        with trio.fail_after(TURN_S):
            async with client.lead_log("log") as log:
                await log.append(b"3")
        assert await read_log(other) == [b"0", b"1", b"2", b"3"]


@everywhere
async def test_a_deposed_leader_with_nothing_in_doubt_leaves_cleanly(world: World) -> None:
    """R1: the ledger was closed where its writer would have closed it."""
    async with world.client() as client, world.client() as other:
        async with client.lead_log("log") as log:
            await log.append(b"0")
            async with other.write_log("log") as second:
                await second.append(b"1")
        with trio.fail_after(TURN_S):
            async with client.lead_log("log") as log:
                await log.append(b"2")
        assert await read_log(other) == [b"0", b"1", b"2"]


@everywhere
async def test_idle_deposed_leader_hears_of_it(world: World) -> None:
    quiet = attrs.evolve(QUICK, explicit_last_add_confirmed_after_s=600.0)  # no bookie tells it of its fence (W5)
    async with world.client(quiet) as client, world.client(quiet) as other, client.write_log("log") as log:
        await log.append(b"0")
        async with other.write_log("log") as second:
            with trio.fail_after(TURN_S), pytest.raises(FencedError, match="took over log 'log'") as caught:
                await log.wait_ended()
            assert list(caught.value.positions) == []
            with pytest.raises(FencedError):
                log.push_nowait(b"too late")
            await second.append(b"1")
        assert await read_log(other) == [b"0", b"1"]


@everywhere
async def test_logs_have_their_own_elections(world: World) -> None:
    names = ("log/a", "log/a/b", "log")
    async with world.client() as client, world.client() as other:
        with trio.fail_after(TURN_S):
            async with (
                client.lead_log(names[0]) as one,
                other.lead_log(names[1]) as two,
                other.lead_log(names[2]) as three,
            ):
                for log in (one, two, three):
                    await log.append(log.name.encode())
        for name in names:
            assert await read_log(client, name) == [name.encode()]


# -- a metastore that goes away, on a virtual clock: announcements are the default of the seam ----------------------------


class Plain:
    """Ways to one plain map, each of which may be cut."""

    def __init__(self) -> None:
        self.cut: set[int] = set()  # the numbers of ways, in the order of their opening
        self.opened = 0
        self._shared = PlainMap()

    def open(self) -> Metastore:
        number, self.opened = self.opened, self.opened + 1
        inner = PlainMetastore(self._shared, LEASE_S)
        return FaultyPlainMetastore(inner, lambda _operation, _key: Fault.UNAVAILABLE if number in self.cut else None)


async def test_a_leader_without_metastore_leads_until_another_does(
    autojump_clock: trio.testing.MockClock,
) -> None:
    plain = Plain()
    async with world_of(plain.open) as world, world.client() as client, world.client() as other:
        of_client = plain.opened - 2
        async with client.lead_log("log") as log:
            await log.append(b"0")
            plain.cut.add(of_client)
            await log.append(b"1")  # bookies are all that it needs
            began_s = trio.current_time()
            async with other.lead_log("log") as second:
                assert LEASE_S <= trio.current_time() - began_s <= 2 * LEASE_S
                assert await read_log(other) == [b"0", b"1"]
                with pytest.raises(FencedError):
                    await log.append(b"not confirmed")
                await second.append(b"2")
                with pytest.raises(MetastoreError):
                    async with client.lead_log("log"):
                        pytest.fail("it can't reach the metastore")
                plain.cut.clear()
        async with client.lead_log("log") as log:
            await log.append(b"3")
        assert await read_log(other) == [b"0", b"1", b"2", b"3"]


@pytest.mark.slow
async def test_a_candidate_waits_on_while_the_metastore_is_away(autojump_clock: trio.testing.MockClock) -> None:
    plain = Plain()
    turn = trio.Event()

    async def lead(client: replog.Client) -> None:
        async with client.lead_log("log") as log:
            await log.append(b"1")
            turn.set()

    async with world_of(plain.open) as world, world.client() as client, world.client() as other:
        of_other = plain.opened - 1
        async with trio.open_nursery() as nursery:
            async with client.lead_log("log") as log:
                await log.append(b"0")
                nursery.start_soon(lead, other)
                await trio.sleep(LEASE_S)
                plain.cut.add(of_other)
                await trio.sleep(8 * LEASE_S)
            await trio.sleep(8 * LEASE_S)
            assert not turn.is_set()
            plain.cut.clear()
            with trio.fail_after(2 * LEASE_S):
                await turn.wait()
        assert await read_log(client) == [b"0", b"1"]


# -- somebody takes over amid a takeover -----------------------------------------------------------------------------------


async def pause_before_cas(
    metastore: FaultyMetastore, nursery: trio.Nursery, lead: Callable[[], Awaitable[None]]
) -> None:
    """Starts a leader, and returns when its takeover has only the change of the log's record before it: 1 s of time."""
    metastore.calls.clear()
    metastore.delay_s = 0.3
    nursery.start_soon(lead)
    while not any(call.key.startswith("logs/log/pending/") for call in metastore.calls):  # noqa: ASYNC110 - no event
        await trio.sleep(0.01)
    await trio.sleep(0.1)


async def test_an_overtaken_candidate_queues_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It may not be the elected one any more: the election says, not its own belief."""
    leading = trio.Event()

    async with cluster() as world, world.client(QUICK) as other, trio.open_nursery() as nursery:
        metastore = FaultyMetastore(world.metastore.inner)
        async with world.client(QUICK, metastore=metastore) as client:

            async def lead() -> None:
                async with client.lead_log("log") as log:
                    await log.append(b"its turn")
                    leading.set()

            await pause_before_cas(metastore, nursery, lead)
            async with other.lead_log("elsewhere"), other.write_log("log") as log:
                await log.append(b"overtook")
                metastore.delay_s = 0.0
                await leading.wait()
            elections = [call for call in metastore.calls if call.operation == "elect"]
            assert len(elections) == 2, "it competed again before it took over again"
        assert await read_log(other) == [b"overtook", b"its turn"]


async def test_trim_during_a_takeover_costs_a_candidate_no_turn(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as other, trio.open_nursery() as nursery:
        async with other.write_log("log") as log:
            await log.roll()
        metastore = FaultyMetastore(world.metastore.inner)
        async with world.client(QUICK, metastore=metastore) as client:
            leading = trio.Event()

            async def lead() -> None:
                async with client.lead_log("log"):
                    leading.set()

            await pause_before_cas(metastore, nursery, lead)
            await other.trim_log("log", before="2:0")
            metastore.delay_s = 0.0
            await leading.wait()
            conflicts = [call for call in metastore.calls if (call.operation, call.key) == ("put", "logs/log")]
            assert len(conflicts) >= 2, "it met the trim's change"
            assert len([call for call in metastore.calls if call.operation == "elect"]) == 1
