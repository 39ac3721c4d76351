"""Members that are reached by a transport, as in processes: they begin, lose disks, are added and let go; and their clients."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from replog.errors import ConfigError, KeyExistsError, MetastoreError, MetastoreUnavailableError
from replog.metastores.quorum import asking, watch
from replog.metastores.quorum.directory import MemberDirectory
from replog.metastores.quorum.node import Timing
from replog.metastores.quorum.questions import QuestionKind
from replog.protocol.consensus.messages import Append
from tests.kit import until
from tests.metastores.quorum.members import QUICK, SOON_S, Members, members_of


@pytest.mark.parametrize("transport", ["memory", "tcp"])
async def test_three_begin_and_serve_clients(tmp_path: Path, transport: str) -> None:
    """Q16: all of them are members, under one cluster's id."""
    async with members_of(tmp_path, transport) as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        version = await client.create("a/b", b"1")
        with pytest.raises(KeyExistsError):
            await client.create("a/b", b"1")
        for each in members.running.values():
            assert (await each.metastore(prefix="prod").get("a/b")).version == version
        assert await client.children("a") == ["b"]
        assert {word: found.value for word, found in (await client.values("a")).items()} == {"b": b"1"}
        assert await client.put("a/b", b"2", version) > version
        await client.delete("a/b")
        status = await client.status(5)
        assert [each["address"] for each in status] == sorted(members.peers)
        assert len({each["cluster"] for each in status}) == 1
        (leading,) = [each for each in status if each["role"] == "leader"]
        assert leading["survives"] == 1


async def test_cluster_begins_when_all_have_come(tmp_path: Path) -> None:
    """Q16: two of three begin nothing, and say who is missing."""
    async with members_of(tmp_path) as members, members.client(timeout_s=1.0) as client:
        members.start(0, 1)
        with pytest.raises(MetastoreUnavailableError, match="no majority of the members answers"):
            await client.create("a", b"")
        assert all(each.node is None for each in members.running.values())
        members.start(2)
        await members.are(0, 1, 2)


async def test_wiped_disk_is_a_new_member_in_the_place_of_the_old_one(tmp_path: Path) -> None:
    """Q11: under another name, with everything that is committed; and never a second cluster, even if it was the first peer."""
    async with members_of(tmp_path) as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        for number in range(3):
            before = members.running[number].name
            await client.create(f"k{number}", b"v")
            await members.stop(number, wiped=True)
            members.start(number)
            await members.are(0, 1, 2)
            assert members.running[number].name != before
        for number in range(3):
            assert (await client.get(f"k{number}")).value == b"v"


async def test_member_that_answers_is_not_replaced_by_another_with_its_address(tmp_path: Path) -> None:
    """Q11: two processes were given one address: the second one stays outside."""
    async with members_of(tmp_path) as members:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        names = members.names()
        node = next(each for each in members.running.values() if each.node and each.node.member.is_ready)
        other = next(each for each in members.running.values() if each is not node)
        assert node.node is not None
        for _ in range(3):
            said = node._admission.ask_in("impostor", node._peers.address_of(other.name))
            assert "two processes have that address" in said
            await trio.sleep(0.2)
        assert members.names() == names


async def test_members_are_added_replaced_and_removed(tmp_path: Path) -> None:
    """Q9, by commands of an administrator."""
    async with members_of(tmp_path) as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        await client.create("a", b"v")
        members.start(3, peers=tuple(sorted((*members.peers, members.addresses[3]))))
        found = await client.administer(QuestionKind.ADD, {"address": members.addresses[3]}, 30)
        assert members.addresses[3] in found["members"].values()
        await members.are(0, 1, 2, 3)
        members.start(4, peers=tuple(sorted((*members.peers, members.addresses[4]))))
        await client.administer(
            QuestionKind.REPLACE, {"member": members.addresses[0], "address": members.addresses[4]}, 30
        )
        await members.stop(0)
        await members.are(1, 2, 3, 4)
        for number in (1, 2):  # one of them may lead
            await client.administer(QuestionKind.REMOVE, {"member": members.addresses[number]}, 30)
            await members.stop(number)
        await members.are(3, 4)
        assert (await client.get("a")).value == b"v"


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_removed_member_is_told_so_when_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_replaced: bool
) -> None:
    """Q9, Q11: its disk says that it is a member. It takes no part, and can be let in again."""
    monkeypatch.setattr(watch, "_SAY_S", 3.0)  # the others try once a second to reach it, and tell it then
    async with members_of(tmp_path) as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        await members.stop(0)
        gone, facts, left = members.addresses[0], {"member": members.addresses[0]}, [1, 2]
        if is_replaced:
            members.start(3, peers=tuple(sorted((*members.peers, members.addresses[3]))))
            await client.administer(QuestionKind.REPLACE, {**facts, "address": members.addresses[3]}, 30)
            left.append(3)
        else:
            await client.administer(QuestionKind.REMOVE, facts, 30)
        await members.are(*left)
        caplog.clear()
        members.start(0)
        await until(lambda: any("member of the metastore any more" in each for each in caplog.messages), SOON_S)
        (said, *_) = [each for each in caplog.messages if "not a member of the metastore" in each]
        assert f"let it in with: replog metastore add {gone};" in said
        others = said.partition("--metastore quorum:")[2].split()[0].split(",")
        assert sorted(others) == [members.addresses[number] for number in left]
        assert not any("no leader" in each for each in caplog.messages)
        await members.are(*left)
        await client.administer(QuestionKind.ADD, {"address": gone}, 30)
        await members.are(0, *left)
        await until(lambda: not members.running[0]._watch.refusal, SOON_S)


async def test_newcomer_is_let_in_when_it_knows_a_follower_only(tmp_path: Path) -> None:
    """Q11: so does one whose disk was emptied, years after its list of peers was written."""
    async with members_of(tmp_path) as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        follower = next(each for each, member in members.running.items() if member.status()["role"] == "follower")
        members.start(3, peers=tuple(sorted((members.addresses[follower], members.addresses[3]))))
        await client.administer(QuestionKind.ADD, {"address": members.addresses[3]}, 30)
        await members.are(0, 1, 2, 3)


@pytest.mark.parametrize(
    ("kind", "facts", "said"),
    [
        (QuestionKind.ADD, {"address": "m9:0"}, "a member needs a port"),
        (QuestionKind.ADD, {"address": "memory:m0"}, "is a member's address already"),
        (QuestionKind.REMOVE, {"member": "m9:1"}, "names no members"),
        (QuestionKind.REMOVE, {"member": ""}, "names no members"),
        (QuestionKind.REPLACE, {"member": "m9:1", "address": "m8:1"}, "names no members"),
    ],
)
async def test_wrong_changes_are_refused(tmp_path: Path, kind: QuestionKind, facts: dict[str, str], said: str) -> None:
    async with members_of(tmp_path) as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        names = members.names()
        with pytest.raises(ConfigError, match=said):
            await client.administer(kind, facts, 10)
        assert members.names() == names


async def test_change_that_leaves_no_majority_is_refused(tmp_path: Path) -> None:
    async with members_of(tmp_path) as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        leading = next(number for number, each in members.running.items() if each.node and each.node.member.is_ready)
        gone, left = sorted({0, 1, 2} - {leading})
        leader, name = members.running[leading], members.running[gone].name
        await members.stop(gone)
        await until(lambda: leader._peers.silence_s(name) > 2 * QUICK.election_s, 15)
        with pytest.raises(ConfigError, match="of the 2 members that would be left, only 1 answer"):
            await client.administer(QuestionKind.REMOVE, {"member": members.addresses[left]}, 10)


async def test_directory_is_opened_once(tmp_path: Path) -> None:
    """One name in two processes would vote twice."""
    async with members_of(tmp_path) as members:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        with pytest.raises(MetastoreError, match="open in another process"):
            MemberDirectory(members.place(0), "x")


async def test_member_that_meets_the_impossible_stops_alone(tmp_path: Path) -> None:
    """Q1, B10: two leaders of one term can't be: who hears of one stops, and neither its process nor the others do."""
    async with members_of(tmp_path) as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        leading = next(each for each in members.running.values() if each.node and each.node.member.is_ready)
        other = next(each for each in members.running.values() if each is not leading)
        node = leading.node
        assert node is not None
        node.receive(other.name, Append(node.member.term, 0, 0, (), 0, 0))
        await until(lambda: bool(leading.failure))
        await client.create("a", b"v")
        status = {each["name"]: each for each in await client.status(5)}
        assert status[leading.name]["role"] == "stopped"
        assert "a term has one leader" in status[leading.name]["problem"]


async def test_client_hears_of_new_members_while_it_only_asks_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All members that it was given are replaced in the end; it asked nobody but leaders."""
    monkeypatch.setattr(asking, "_REFRESH_S", 0.05)
    async with members_of(tmp_path) as members, members.client() as client, members.client() as administrator:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        await client.create("a", b"v")
        for number in (3, 4):
            members.start(number, peers=tuple(sorted((*members.peers, members.addresses[number]))))
            await administrator.administer(QuestionKind.ADD, {"address": members.addresses[number]}, 30)
        await trio.sleep(0.1)
        await client.get("a")
        assert set(client._asking.addresses) == set(members.addresses)
        for number in (0, 1, 2):
            await administrator.administer(QuestionKind.REMOVE, {"member": members.addresses[number]}, 30)
            await members.stop(number)
        assert (await client.get("a")).value == b"v"


@pytest.mark.parametrize("moved", [(1,), (1, 2), (0, 1, 2)])
async def test_members_started_at_other_addresses_stay_members(tmp_path: Path, moved: tuple[int, ...]) -> None:
    """Q9, Q11: with the disks that they had. The record follows, so that clients and newcomers find them."""
    async with members_of(tmp_path) as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        names = members.names()
        await client.create("a", b"v")
        for number in moved:
            await members.stop(number)
        for number in moved:
            members.addresses[number] += "-moved"
        members.peers = tuple(sorted(members.addresses[:3]))
        members.start(*moved)
        await members.are(0, 1, 2)
        assert members.names() == names

        def have_moved() -> bool:
            nodes = [each.node for each in members.running.values() if each.node is not None]
            return all(set(node.member.members.addresses.values()) == set(members.peers) for node in nodes)

        await until(have_moved, SOON_S)
        async with members.client() as other:
            assert (await other.get("a")).value == b"v"


async def calm_cluster(members: Members) -> int:
    """Begins it, and has nobody stand for an hour because of silence. Returns the leader's number."""
    members.start(0, 1, 2)
    await members.are(0, 1, 2)
    for each in members.running.values():
        assert each.node is not None
        each.node._timing = Timing(QUICK.heartbeat_s, 3600.0)
    await trio.sleep(2 * QUICK.election_s)  # timeouts that were drawn before
    return next(number for number, each in members.running.items() if each.node and each.node.member.is_ready)


@pytest.mark.parametrize("transport", ["memory", "tcp"])
async def test_leader_is_replaced_at_the_end_of_its_process(tmp_path: Path, transport: str) -> None:
    """Q17: nobody listens where it was. So the silence is not waited for."""
    async with members_of(tmp_path, transport) as members, members.client(timeout_s=30.0) as client:
        leading = await calm_cluster(members)
        await client.create("a", b"v")
        await members.stop(leading)
        assert (await client.get("a")).value == b"v"


async def test_leader_stays_while_only_one_member_cannot_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q17: the others hear from it, and do not vote."""
    async with members_of(tmp_path) as members:
        leading = await calm_cluster(members)
        other = members.running[next(number for number in members.running if number != leading)]
        node, leader = members.running[leading].node, members.running[leading].name
        assert node is not None
        term = node.member.term
        with monkeypatch.context() as patched:
            patched.setattr(other._peers, "is_gone", lambda name: name == leader)
            await trio.sleep(1.0)
        assert (node.member.term, node.member.is_ready) == (term, True)


async def test_missing_members_are_named_without_a_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once soon, then more and more seldom; and once when there is a leader again."""
    monkeypatch.setattr(watch, "_SAY_S", 0.5)
    async with members_of(tmp_path) as members:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        caplog.clear()
        for number in (0, 1):
            await members.stop(number)
        await until(lambda: any("no leader" in each for each in caplog.messages), SOON_S)
        said = next(each for each in caplog.messages if "no leader" in each)
        assert all(f"{members.addresses[number]}: " in said for number in (0, 1))
        members.start(0)
        await until(lambda: "has a leader again" in caplog.messages[-1], SOON_S)
