"""Administrators who wait for a process that does not come."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from replog.errors import ConfigError
from replog.metastores.quorum import admission, channels
from replog.metastores.quorum.callers import NotLeaderError
from replog.metastores.quorum.questions import Question, QuestionKind
from replog.protocol.consensus.leading import Leading
from replog.protocol.consensus.log import Base, EntryLog
from replog.protocol.consensus.member import Member
from tests.metastores.quorum.members import Members, members_of


async def add(members: Members, address: str) -> None:
    async with members.client() as client:
        with pytest.raises(ConfigError, match=r"was not let in within .* nobody there has asked to be let in yet"):
            await client.administer(QuestionKind.ADD, {"address": address}, 10)


async def test_two_who_wait_for_one_process_are_told_that_it_did_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one is who asks again after a lost answer. Neither ends the leader's process."""
    monkeypatch.setattr(admission, "_PATIENCE_S", 0.5)
    async with members_of(tmp_path, "tcp") as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(add, members, members.addresses[3])
            await trio.sleep(0.1)
            nursery.start_soon(add, members, members.addresses[3])
        assert len(members.running) == 3
        await client.create("a", b"")


async def test_administrator_waits_for_longer_than_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader's reason comes late, and does arrive: it is not asked anew every moment."""
    monkeypatch.setattr(admission, "_PATIENCE_S", 1.0)
    monkeypatch.setattr(channels, "ANSWER_S", 0.3)
    async with members_of(tmp_path, "tcp") as members:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        await add(members, members.addresses[3])


def test_a_leader_answers_before_an_administrator_gives_up() -> None:
    assert admission._PATIENCE_S < channels.CHANGE_OF_MEMBERS_S


async def test_new_disk_replaces_a_newcomer_that_was_just_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The administrator who named its address still waits: the address has one member all the same (Q11)."""
    monkeypatch.setattr(admission, "_LOOK_S", 60.0)
    async with members_of(tmp_path) as members, members.client() as client, trio.open_nursery() as nursery:
        peers = tuple(sorted((*members.peers, members.addresses[3])))
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        nursery.start_soon(client.administer, QuestionKind.ADD, {"address": members.addresses[3]}, 60)
        members.start(3, peers=peers)
        await members.are(0, 1, 2, 3)
        await members.stop(3, wiped=True)
        members.start(3, peers=peers)
        await members.are(0, 1, 2, 3)
        nursery.cancel_scope.cancel()


async def test_newly_elected_leader_is_asked_again() -> None:
    """Q10: it does not know yet what is committed. A client takes that for a member that does not lead, and asks anew."""
    member = Member("a", 1, "a", EntryLog(Base()))
    member.leading = Leading(("b", "c"), member.log.last, set())
    node: Any = SimpleNamespace(member=member)
    peers: Any = None
    with pytest.raises(NotLeaderError):
        await admission.Admission(node, peers, 1.0).administer(Question(QuestionKind.REMOVE, facts={"member": "b"}))
