"""Q15: announced keys live while their holders are heard of, by the clock of whoever leads; and waits that the leader holds."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from replog.errors import KeyExistsError, KeyNotFoundError, RemoteProtocolError
from replog.metastores.quorum import node as nodes
from replog.metastores.quorum.leases import LeaseClock
from replog.metastores.quorum.questions import Answer, AnswerKind, Question, QuestionKind
from replog.protocol.consensus.commands import LEASE, TERM, Command, Status, What, encode_commands
from replog.protocol.consensus.registers import Registers
from replog.protocol.messages import MetastorePurpose
from tests.kit import until
from tests.metastores.quorum.cluster import QuorumCluster, quorum_cluster
from tests.simulator.council.rows import MemoryRows

real = pytest.mark.real  # disks, threads and elections by real time
TICK_S = 0.5


def clock_of(left_s: float) -> LeaseClock:
    """A clock of term 1 that counts for one key, from second 0 on."""
    clock = LeaseClock(TICK_S)
    clock.begin(1, [("a", 7, int(1000 * left_s))], 0.0)
    return clock


# -- the leader's clock -------------------------------------------------------------------------------------------------


def test_key_expires_when_its_lease_was_counted() -> None:
    clock = clock_of(1.2)
    assert [clock.tick(now_s) for now_s in (0.5, 1.0, 1.5, 2.0)] == [[], [], [("a", 7)], []]


def test_beat_gives_a_whole_lease() -> None:
    clock = clock_of(1.2)
    clock.tick(1.0)
    clock.renew("a", 7, 1200)
    assert [clock.tick(now_s) for now_s in (1.5, 2.0, 2.5)] == [[], [], [("a", 7)]]


def test_leader_that_hung_blames_nobody() -> None:
    """It could hear no beats while it was stopped for a minute."""
    clock = clock_of(10)
    assert clock.tick(60.0) == []
    assert clock.tick(60.5) == []


def test_new_leader_gives_each_holder_a_whole_lease() -> None:
    clock = clock_of(1.0)
    clock.tick(0.9)
    clock.begin(2, [("a", 7, 1000)], 0.9)
    assert clock.tick(1.8) == []
    assert clock.tick(2.0) == [("a", 7)]


# -- the state ----------------------------------------------------------------------------------------------------------


def apply(state: Registers, index: int, what: What, value: bytes, term: int, expected: int | None = None) -> Status:
    command = Command(index.to_bytes(16, "big"), index, what, "a/b", value, expected)
    ((_, outcome),) = state.apply(index, encode_commands(0, [command]), term)
    return outcome.status


def test_announced_key_is_a_key_with_a_lease() -> None:
    state = Registers(MemoryRows({}))
    assert apply(state, 1, What.ANNOUNCE, LEASE.pack(500) + b"v", 3) is Status.DONE
    assert state.get("a/b") == (1, b"v")
    assert list(state.announcements()) == [("a/b", 1, 500)]
    assert list(state.announced("a")) == [("b", 1, b"v")]
    assert apply(state, 2, What.ANNOUNCE, LEASE.pack(500), 3) is Status.EXISTS
    assert apply(state, 3, What.DELETE, b"", 3) is Status.DONE
    assert list(state.announcements()) == []
    assert apply(state, 4, What.CREATE, b"v", 3) is Status.DONE
    assert list(state.announced("a")) == [], "a key that was created is not announced, though one of its name was"
    assert list(state.values("a")) == [("b", 2, b"v")]


def test_entry_of_another_term_expires_nothing() -> None:
    """The leader that counted was deposed, and leads again: meanwhile others gave the holder time."""
    state = Registers(MemoryRows({}))
    apply(state, 1, What.ANNOUNCE, LEASE.pack(500), 3)
    assert apply(state, 2, What.EXPIRE, TERM.pack(3), 5, 1) is Status.CONFLICT
    assert apply(state, 3, What.EXPIRE, TERM.pack(5), 5, 2) is Status.CONFLICT, "another holder announces it now"
    assert state.get("a/b") is not None
    assert apply(state, 4, What.EXPIRE, TERM.pack(5), 5, 1) is Status.DONE
    assert state.get("a/b") is None


# -- holders, and those who look at them ----------------------------------------------------------------------------------


async def isolate(cluster: QuorumCluster, name: str) -> None:
    """This member hears nobody, and nobody hears it."""
    cluster.blocked |= {pair for other in cluster.places for pair in ((name, other), (other, name))}


@real
async def test_key_goes_with_its_holder(tmp_path: Path) -> None:
    async with quorum_cluster(tmp_path) as cluster, cluster.client() as client:
        client.lease_s = 0.5
        version = await client.put_announcement("a/b", b"v")
        assert await client.announced("a") == {"b": b"v"}
        with pytest.raises(KeyExistsError):
            await client.put_announcement("a/b", b"w")
        with trio.fail_after(30):  # nobody beats for it
            await client.wait_changed("a/b", version)
        with pytest.raises(KeyNotFoundError):
            await client.get("a/b")
        assert not await client.beat("a/b", version)


@real
async def test_beats_and_candidates_write_nothing(tmp_path: Path) -> None:
    """However many there are: a cluster at rest lets its disks rest."""
    async with quorum_cluster(tmp_path) as cluster, cluster.client() as holder, cluster.client() as candidate:
        holder.lease_s = candidate.lease_s = 2.0  # a machine that is busy for half of it lets no key expire

        async def stand() -> None:
            async with candidate.elect("e", b"2"):
                raise AssertionError("two are elected")

        async with AsyncExitStack() as stack:
            for number in range(20):
                await stack.enter_async_context(holder.announce(f"a/{number}", b"v"))
            await stack.enter_async_context(holder.elect("e", b"1"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stand)
                leader = await cluster.leader()
                before = leader.member.log.last
                await trio.sleep(1.2 * holder.lease_s)
                assert leader.member.log.last == before
                assert len(await candidate.announced("a")) == 20
                nursery.cancel_scope.cancel()
        assert await candidate.announced("a") == {}


@real
async def test_candidate_is_elected_as_soon_as_the_key_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_HOLD_S", 3600.0)
    async with quorum_cluster(tmp_path) as cluster, cluster.client() as first, cluster.client() as second:
        first.lease_s = second.lease_s = 3600.0  # nothing but the news has the candidate look again
        leaving = trio.CancelScope()

        async def lead() -> None:
            with leaving:
                async with first.elect("e", b"1"):
                    await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lead)
            with trio.fail_after(30):
                await first.wait_changed("e", None)
                leader = await cluster.leader()
                nursery.start_soon(cancel_when_waited_for, leader, leaving)
                async with second.elect("e", b"2"):
                    pass


async def cancel_when_waited_for(leader: nodes.Node, scope: trio.CancelScope) -> None:
    await until(lambda: "prod/e" in leader._callers.waits._events, 30)
    scope.cancel()


@real
async def test_holder_announces_again_what_was_taken_for_gone(tmp_path: Path) -> None:
    """It was stopped for longer than its lease."""
    async with quorum_cluster(tmp_path) as cluster, cluster.client() as client, cluster.client() as other:
        client.lease_s = 0.5
        async with client.announce("a/b", b"v"):
            version = (await other.get("a/b")).version
            await other.delete("a/b")
            with trio.fail_after(30):
                await other.wait_changed("a/b", None)
            found = await other.get("a/b")
            assert found.value == b"v"
            assert found.version > version


@real
async def test_leader_without_a_majority_answers_no_beat(tmp_path: Path) -> None:
    """It may say that a key exists which others have let expire."""
    async with quorum_cluster(tmp_path) as cluster, cluster.client() as client:
        client.lease_s = 3600.0
        version = await client.put_announcement("a", b"v")
        deposed = await cluster.leader()
        await isolate(cluster, deposed.name)
        body = Question(QuestionKind.BEAT, "prod/a", facts={"version": version}).encode()
        with trio.fail_after(30):
            answer = Answer.decode(await cluster.places[deposed.name].service.ask(MetastorePurpose.CLIENT, body))
        assert answer.kind is AnswerKind.NOT_LEADER
        assert await client.beat("a", version), "whoever leads now has not let it expire"


@real
async def test_clients_expire_nothing(tmp_path: Path) -> None:
    async with quorum_cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        command = Command(bytes(16), 1, What.EXPIRE, "a", TERM.pack(leader.member.term), 1)
        body = Question(QuestionKind.CHANGE, command=command).encode()
        with pytest.raises(RemoteProtocolError, match="Q15"):
            await cluster.places[leader.name].service.ask(MetastorePurpose.CLIENT, body)


# -- waits --------------------------------------------------------------------------------------------------------------


@real
async def test_waits_end_when_something_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are held: so nothing but the change ends them. A leader that is deposed sends them elsewhere."""
    monkeypatch.setattr(nodes, "_HOLD_S", 3600.0)
    async with quorum_cluster(tmp_path) as cluster, cluster.client() as client, cluster.client() as other:
        leader = await cluster.leader()
        version = await client.create("a/b", b"1")
        await client.wait_changed("a/b", 0)  # it has changed already
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.wait_changed, "a/b", version)
                nursery.start_soon(client.wait_changed, "a/c/d", None)
                nursery.start_soon(client.wait_children_changed, "a", ["b"])
                await until(lambda: len(leader._callers.waits._events) == 3, 30)
                await other.put("a/b", b"2", version)
                await other.create("a/c/d", b"")
            assert not leader._callers.waits._events, "nothing is left behind"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.wait_changed, "x", None)
                await until(lambda: bool(leader._callers.waits._events), 30)
                await isolate(cluster, leader.name)
                await other.create("x", b"")


@real
async def test_cancelled_wait_leaves_nothing(tmp_path: Path) -> None:
    async with quorum_cluster(tmp_path) as cluster, cluster.client() as client:
        leader = await cluster.leader()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.wait_changed, "x", None)
            nursery.start_soon(client.wait_changed, "x", None)
            await until(lambda: bool(leader._callers.waits._events), 30)
            nursery.cancel_scope.cancel()
        assert not leader._callers.waits._events
