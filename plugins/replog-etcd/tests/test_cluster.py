"""Three servers: one may die or freeze at any time, also the leader."""

import contextlib
import itertools

import pytest
import trio
from etcd_servers import Etcd, Store, hasty

from replog.errors import MetastoreError, MetastoreUncertainError, VersionConflictError
from replog_etcd.errors import EtcdUnreachableError

SOON_S = 30.0


async def leader_of(store: Store) -> Etcd:
    """The server that leads now."""
    with trio.fail_after(SOON_S):
        while True:
            for server in store.servers:
                async with store.client(server.address, request_timeout_s=2.0) as metastore:
                    with contextlib.suppress(MetastoreError):
                        answer = await metastore._gateway.call("/v3/maintenance/status", {}, what="who leads")
                        if answer.get("leader", "0") == answer["header"]["member_id"]:
                            return server
            await trio.sleep(0.05)


async def until_all_serve(store: Store) -> None:
    """Each of them answers a linearizable read: the cluster is whole."""
    with trio.fail_after(SOON_S):
        for server in store.servers:
            async with store.client(server.address, request_timeout_s=1.0) as metastore:
                while True:
                    with contextlib.suppress(EtcdUnreachableError):
                        await metastore.children("a")
                        break
                    await trio.sleep(0.05)


async def test_read_at_one_server_sees_a_change_at_another(cluster: Store) -> None:
    one, two, three = (server.address for server in cluster.servers)
    async with cluster.client(one) as first, cluster.client(two) as second, cluster.client(three) as third:
        version = await first.create("a", b"0")
        clients = itertools.cycle([first, second, third])
        for number in range(100):
            version = await next(clients).put("a", b"%d" % number, version)
            found = await next(clients).get("a")
            assert (found.value, found.version) == (b"%d" % number, version)


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_changes_go_on_when_the_leader_is_gone(cluster: Store, how: str) -> None:
    """Each adds a word with CAS; what was answered is there, once, and what was not answered is there once or not at all."""
    await until_all_serve(cluster)
    leader = await leader_of(cluster)
    addresses = [leader.address, *(each.address for each in cluster.servers if each is not leader)]
    answered: list[str] = []
    tried = 0
    async with cluster.client(*addresses, request_timeout_s=3.0) as metastore:
        await metastore.create("list", b"")
        with trio.fail_after(60):
            for round_number in range(40):
                if round_number == 15:
                    leader.kill() if how == "killed" else leader.freeze()
                tried += 1
                with contextlib.suppress(EtcdUnreachableError, MetastoreUncertainError, VersionConflictError):
                    found = await metastore.get("list")
                    word = str(round_number)
                    await metastore.put("list", b" ".join([found.value, word.encode()]), found.version)
                    answered.append(word)
        words = (await metastore.get("list")).value.decode().split()
    if how == "killed":
        await trio.to_thread.run_sync(leader.start)
    else:
        leader.thaw()
    assert len(words) == len(set(words))
    assert set(answered) <= set(words)
    assert words == sorted(words, key=int)
    assert len(answered) >= tried - 4  # those that were under way


async def test_wait_continues_elsewhere_when_its_server_freezes(cluster: Store) -> None:
    await until_all_serve(cluster)
    leader = await leader_of(cluster)
    frozen = next(each for each in cluster.servers if each is not leader)
    async with (
        cluster.client(frozen.address, leader.address, watch_renewal_s=1.0, request_timeout_s=1.0) as metastore,
        cluster.client(leader.address) as other,
    ):
        version = await metastore.create("a", b"")
        with trio.fail_after(SOON_S):
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(metastore.wait_changed, "a", version)
                    while metastore._watches._slots.value == 64:  # noqa: ASYNC110 - until it watches
                        await trio.sleep(0.01)
                    await trio.sleep(0.1)
                    frozen.freeze()
                    await other.put("a", b"2", version)
            finally:
                frozen.thaw()


async def test_a_server_cut_off_from_the_others_answers_nothing(cluster: Store) -> None:
    """Neither reads, which might be stale, nor watches, which would hear nothing; when the others are back all goes on."""
    await until_all_serve(cluster)
    alone, *others = cluster.servers
    async with cluster.client(alone.address, watch_renewal_s=600.0) as metastore:
        version = await metastore.create("a", b"")
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(metastore.wait_changed, "a", version)
                while metastore._watches._slots.value == 64:  # noqa: ASYNC110 - until it watches
                    await trio.sleep(0.01)
                try:
                    for each in others:
                        each.freeze()
                    while metastore._watches._slots.value < 64:  # noqa: ASYNC110 - until etcd itself ended the watch
                        await trio.sleep(0.01)
                    with hasty(metastore, 1.0):
                        with pytest.raises(EtcdUnreachableError):
                            await metastore.get("a")
                        with pytest.raises(MetastoreUncertainError):
                            await metastore.put("a", b"2", version)
                    assert nursery.child_tasks
                finally:
                    for each in others:
                        each.thaw()
                await until_all_serve(cluster)
                found = await metastore.get("a")
                with contextlib.suppress(VersionConflictError):  # or the uncertain one came true
                    await metastore.put("a", b"3", found.version)
