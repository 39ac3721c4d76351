"""Messages and questions that make no sense: each is refused, and no process ends over one (B10)."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from replog.errors import ConfigError
from replog.metastores.quorum import QuorumPlace
from replog.metastores.quorum.copies import copy_payload
from replog.metastores.quorum.frames import FrameKind, MemberFrame
from replog.metastores.quorum.questions import Question, QuestionKind
from replog.metastores.quorum.running import RunningMember
from replog.protocol.consensus.commands import Command, What
from replog.protocol.consensus.log import Base
from replog.protocol.consensus.message_codec import encode_message
from replog.protocol.consensus.messages import Append, Ask, Copy, VoteRequest
from replog.protocol.messages import MetastorePurpose, MetastoreRequest, Response, Status
from tests.kit import until
from tests.metastores.quorum.members import Members, members_of

DEEP = b"[" * 200_000  # more than Python's parser of JSON goes into


def leading(members: Members) -> RunningMember:
    return next(each for each in members.running.values() if each.node and each.node.member.is_ready)


async def answer(member: RunningMember, purpose: MetastorePurpose, body: bytes) -> Response:
    """What the member answers to a request of another process."""
    answers: list[Response] = []
    member.service.handle([MetastoreRequest(1, purpose, body)], answers.extend)
    await until(lambda: bool(answers))
    return answers[0]


@pytest.mark.parametrize("purpose", [MetastorePurpose.CLIENT, MetastorePurpose.ADMIN])
async def test_question_that_is_too_deep_is_refused(tmp_path: Path, purpose: MetastorePurpose) -> None:
    async with members_of(tmp_path) as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        found = await answer(leading(members), purpose, bytes([QuestionKind.ADD]) + DEEP)
        assert found.status is Status.BAD_REQUEST
        await client.create("a", b"")
        assert len(members.running) == 3


async def test_message_of_founding_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    async with members_of(tmp_path) as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        body = MemberFrame(FrameKind.FOUNDING, "", "x", "memory:x", DEEP).encode()
        found = await answer(leading(members), MetastorePurpose.MEMBER, body)
        assert found.status is Status.BAD_REQUEST
        await client.create("a", b"")


async def test_copy_without_its_state_is_refused(tmp_path: Path) -> None:
    async with members_of(tmp_path) as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        lead = leading(members)
        copy = encode_message(Copy(lead.node.member.term if lead.node else 0, Base(1 << 20, 1), 0))
        append = encode_message(Append(1, 0, 0, (), 0, 0))
        for kind, payload in ((FrameKind.MESSAGE, copy), (FrameKind.COPY, copy_payload(1, 0, append))):
            body = MemberFrame(kind, lead._peers.cluster, lead.name, "memory:m0", payload).encode()
            other = next(each for each in members.running.values() if each is not lead)
            assert (await answer(other, MetastorePurpose.MEMBER, body)).status is Status.BAD_REQUEST
        await client.create("a", b"")
        assert len(members.running) == 3


def _fail(*_given: object) -> bytes:
    raise lmdb.CorruptedError("a page can't be read")


@pytest.mark.parametrize("is_leader", [True, False])
async def test_member_that_cannot_read_its_disk_stops_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_leader: bool
) -> None:
    """B10: it meets that in the task of a client, or of the listener, which go on."""
    async with members_of(tmp_path, "tcp") as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        await client.create("a", b"v")
        lead = leading(members)
        failing = lead if is_leader else next(each for each in members.running.values() if each is not lead)
        assert failing.node is not None
        await until(
            lambda: failing.node is not None and failing.node._rows.is_empty and not failing.node._rows._in_write
        )
        monkeypatch.setattr(failing._directory.store, "get", _fail)
        assert (await client.get("a")).value == b"v"
        await client.create("b", b"")
        await until(lambda: "a page can't be read" in failing.failure)
        await client.create("c", b"")
        assert len(members.running) == 3


async def test_member_that_sees_an_impossible_term_stops_alone(tmp_path: Path) -> None:
    async with members_of(tmp_path, "tcp") as members:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        lead = leading(members)
        other = next(each for each in members.running.values() if each is not lead)
        message = encode_message(Ask((1 << 64) - 1, (1 << 64) - 1, 1, 1))
        body = MemberFrame(FrameKind.MESSAGE, lead._peers.cluster, lead.name, "127.0.0.1:1", message).encode()
        await answer(other, MetastorePurpose.MEMBER, body)
        message = encode_message(VoteRequest((1 << 64) - 1, 1, 1))
        body = MemberFrame(FrameKind.MESSAGE, lead._peers.cluster, lead.name, "127.0.0.1:1", message).encode()
        await answer(other, MetastorePurpose.MEMBER, body)
        await until(lambda: bool(other.failure), 10)
        assert len(members.running) == 3


async def test_command_that_no_member_could_write_is_refused(tmp_path: Path) -> None:
    """Once it is in the log, all members stop over it, and again when they are started."""
    async with members_of(tmp_path) as members, members.client() as client:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        long = "k" * 509
        questions = [
            Question(QuestionKind.CHANGE, command=Command(bytes(16), 0, What.CREATE, key, value))
            for key, value in ((long, b""), ("k", bytes(1_000_001)))
        ]
        questions += [Question(each, long) for each in (QuestionKind.GET, QuestionKind.CHILDREN, QuestionKind.VALUES)]
        for question in questions:
            found = await answer(leading(members), MetastorePurpose.CLIENT, question.encode())
            assert found.status is Status.BAD_REQUEST
        await client.create("a", b"")


async def test_longest_key_has_room_behind_the_longest_prefix(tmp_path: Path) -> None:
    async with members_of(tmp_path) as members:
        members.start(0, 1, 2)
        await members.are(0, 1, 2)
        place = ",".join(members.peers)
        for prefix in ("p" * 28, "a//b", "..", "a\0b"):
            with pytest.raises(ConfigError, match="prefix"):
                QuorumPlace.parse(f"{place}/{prefix}")
        client = members.running[0].metastore(prefix=QuorumPlace.parse(f"{place}/{'p' * 27}").prefix)
        await client.create("k" * 480, b"v")
        assert (await client.get("k" * 480)).value == b"v"
        assert await client.children("k" * 480) == []
        assert await client.values("k" * 480) == {}
        below = "k" * 240
        await client.create(f"{below}/{'w' * 239}", b"v")
        node = leading(members).node
        assert node is not None
        await until(lambda: node._rows.is_empty and not node._rows._in_write)
        assert await client.children(below) == ["w" * 239]
        assert list(await client.values(below)) == ["w" * 239]
