"""A metastore of members that agree: the suite of all metastores, crashes, copies, and what is answered without a majority."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from replog.errors import KeyExistsError, KeyNotFoundError, MetastoreUnavailableError, MetastoreUncertainError
from replog.metastores.quorum import node as nodes
from replog.metastores.quorum.copies import StateCopy
from replog.metastores.quorum.metastore import QuorumMetastore
from replog.metastores.quorum.node import Node
from replog.metastores.quorum.store import MemberStore
from replog.protocol.consensus.messages import Copy, Message
from replog.testing import check_metastore
from tests.kit import until
from tests.lanes.seeds import some
from tests.metastores.quorum.cluster import QuorumCluster, quorum_cluster

pytestmark = pytest.mark.real  # disks, threads and elections by real time


@pytest.mark.parametrize("size", some([1, 3], few=1))  # three that hear each other by TCP: test_conformance.py
async def test_members_pass_the_suite_of_all_metastores(size: int, tmp_path: Path) -> None:
    async with quorum_cluster(tmp_path, size) as cluster:
        await check_metastore(cluster.client)


async def test_answered_changes_survive_the_crash_of_a_leader(tmp_path: Path) -> None:
    async with quorum_cluster(tmp_path) as cluster, cluster.client() as client:
        versions = {}
        for number in range(12):
            key = f"k/{number}"
            versions[key] = await client.create(key, b"%d" % number)
            leader = await cluster.leader()
            if number % 3 == 0:
                await cluster.stop(leader.name)
                cluster.start(leader.name)
        for key, version in versions.items():
            assert (await client.get(key)).version == version
        assert sorted(await client.children("k")) == sorted(str(number) for number in range(12))
        with pytest.raises(KeyExistsError):
            await client.create("k/0", b"again")


async def test_answered_changes_survive_a_restart_of_all_members(tmp_path: Path) -> None:
    async with quorum_cluster(tmp_path) as cluster, cluster.client() as client:
        version = await client.create("a", b"1")
        version = await client.put("a", b"2", version)
        names = list(cluster.places)
        for name in names:
            await cluster.stop(name)
        for name in names:
            cluster.start(name)
        found = await client.get("a")
        assert (found.value, found.version) == (b"2", version)
        await client.delete("a", version)
        with pytest.raises(KeyNotFoundError):
            await client.get("a")


async def test_without_a_majority_nothing_is_written(tmp_path: Path) -> None:
    async with quorum_cluster(tmp_path) as cluster, cluster.client(timeout_s=0.5) as client:
        leader = await cluster.leader()
        await client.create("a", b"1")
        for name in [name for name in cluster.places if name != leader.name]:
            await cluster.stop(name)
        # The leader may have appended it before it knew that it is alone.
        with pytest.raises((MetastoreUncertainError, MetastoreUnavailableError)):
            await client.create("b", b"2")
        with pytest.raises(MetastoreUnavailableError, match="no majority"):
            await client.get("a")


async def left_behind(cluster: QuorumCluster, client: QuorumMetastore) -> tuple[Node, str]:
    """The leader, and the name of a member that has stopped: it lacks 60 keys."""
    leader = await cluster.leader()
    behind = next(name for name in cluster.places if name != leader.name)
    await cluster.stop(behind)
    for number in range(60):
        await client.create(f"k/{number}", b"%d" % number)
    return leader, behind


async def test_lagging_member_gets_a_copy_of_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q12. Entries that it lacks were dropped."""
    monkeypatch.setattr(nodes, "_LOG_ENTRIES_MAX", 20)
    async with quorum_cluster(tmp_path) as cluster, cluster.client() as client:
        leader, behind = await left_behind(cluster, client)
        node = cluster.start(behind)
        await until(lambda: node.applied >= leader.applied, 30)
        assert node.member.log.base.index > 1
        await client.create("k/one", b"")  # the copy is written by then, and outcomes count on behind it (Q13)
        await client.delete("k/one")
        await until(lambda: node.applied >= leader.applied, 30)
        assert node._state._remembered == leader._state._remembered == 62
        await cluster.stop(leader.name)
        assert len(await client.children("k")) == 60
        await client.create("k/more", b"")
        await cluster.stop(behind)
        cluster.start(behind)
        cluster.start(leader.name)
        assert len(await client.children("k")) == 61


async def test_copy_is_sent_once_while_it_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q12. Writing a large state takes longer than many heartbeats."""
    monkeypatch.setattr(nodes, "_LOG_ENTRIES_MAX", 20)
    monkeypatch.setattr(nodes, "_WRITTEN_S_MIN", 30.0)
    is_let_go, copies, replace = threading.Event(), list[str](), MemberStore.replace

    def slow_replace(store: MemberStore, *arguments: Any) -> None:
        assert is_let_go.wait(30)
        replace(store, *arguments)

    async with quorum_cluster(tmp_path) as cluster, cluster.client() as client:
        leader, behind = await left_behind(cluster, client)
        carry = cluster.carry

        def counted(sender: str, target: str, message: Message, state: StateCopy | None) -> bool:
            is_carried = carry(sender, target, message, state)
            copies.extend([target] if is_carried and isinstance(message, Copy) else [])
            return is_carried

        monkeypatch.setattr(cluster, "carry", counted)
        monkeypatch.setattr(MemberStore, "replace", slow_replace)
        node = cluster.start(behind)
        try:
            await until(lambda: bool(copies), 30)
            await trio.sleep(5 * leader._timing.heartbeat_s)
        finally:
            is_let_go.set()
        await client.create("k/more", b"")
        await until(lambda: node.applied >= leader.applied, 30)
        assert copies == [behind]


async def test_many_commands_share_entries(tmp_path: Path) -> None:
    async with quorum_cluster(tmp_path) as cluster, cluster.client() as client:
        leader = await cluster.leader()
        before = leader.member.log.last

        async def create(number: int) -> None:
            await client.create(f"k/{number}", b"")

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(create, number)
        assert len(await client.children("k")) == 100
        assert leader.member.log.last - before < 30


async def test_copy_that_arrives_again_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q12. A network may deliver it twice, and the member has taken it over by then."""
    monkeypatch.setattr(nodes, "_LOG_ENTRIES_MAX", 20)
    async with quorum_cluster(tmp_path) as cluster, cluster.client() as client:
        leader, behind = await left_behind(cluster, client)
        node = cluster.start(behind)
        await until(lambda: node.applied >= leader.applied, 30)
        base = node.member.log.base
        assert base.index > 1
        node.receive(leader.name, Copy(leader.member.term, base, 0), StateCopy.of([(b"kstale", bytes(8))]))
        await client.create("k/more", b"")
        await until(lambda: node.applied >= leader.applied, 30)
        await cluster.stop(leader.name)
        await cluster.stop(behind)
        cluster.start(behind)
        assert len(await client.children("k")) == 61
