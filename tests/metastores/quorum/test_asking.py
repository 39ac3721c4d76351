"""A client that looks for the leader: one that is silent costs one deadline, whoever still names it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio

from replog.abc import Authenticator
from replog.errors import MetastoreError
from replog.metastores.quorum import questions
from replog.metastores.quorum.asking import Asking, Attempt
from replog.metastores.quorum.channels import ANSWER_S, LostError, NotSentError, OpenTransport
from replog.metastores.quorum.metastore import QuorumMetastore
from replog.metastores.quorum.questions import AnswerKind, Question, QuestionKind
from replog.protocol.messages import MetastorePurpose, Response, Status

_CONNECT_S = 5.0
_NAMES = ("m1", "m2", "m3", "m4", "m5")


class Machines:
    """Members of which one is in a black hole from now on. The others name it as their leader until one of them is elected."""

    def __init__(self, elects_after_s: float, *, is_connected: bool) -> None:
        self.addresses: Sequence[str] = _NAMES
        self.asked: list[str] = []
        self._elects_at_s = trio.current_time() + elects_after_s
        self._is_connected = is_connected

    def use(self, open_transport: OpenTransport, authenticator: Authenticator | None) -> None:
        """Nothing to connect."""

    async def ask(self, address: str, purpose: MetastorePurpose, body: bytes, sent: Callable[[], None]) -> Response:
        self.asked.append(address)
        if address == "m1" and self._is_connected:
            sent()
            self._is_connected = False
            await trio.sleep(ANSWER_S)
            raise LostError("it has not answered")
        if address == "m1":
            await trio.sleep(_CONNECT_S)
            raise NotSentError("no way to it")
        leader = "m1" if trio.current_time() < self._elects_at_s else "m3"
        if address == leader:
            sent()
            return Response(0, Status.OK, body=questions.missing(1))
        await trio.sleep(0.001)
        return Response(0, Status.OK, body=questions.not_leader(leader, _NAMES))

    async def aclose(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(("elects_after_s", "within_s"), [(2.0, 3.1), (4.5, 4.6)])
async def test_leader_in_a_black_hole_is_passed_over(
    elects_after_s: float, within_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """Three seconds until the question is given up; nobody is asked to connect there while another one answers."""
    machines = Machines(elects_after_s, is_connected=True)
    asking = Asking(machines)
    asking._leader = "m1"
    started_s = trio.current_time()
    answer = await asking.ask(Question(QuestionKind.GET, "key"), Attempt())
    assert answer.kind is AnswerKind.MISSING
    assert trio.current_time() - started_s <= within_s
    started_s = trio.current_time()
    await asking.ask(Question(QuestionKind.GET, "key"), Attempt())
    assert trio.current_time() - started_s < 0.1


async def test_member_without_answer_is_the_last_to_be_asked_again(autojump_clock: trio.testing.MockClock) -> None:
    machines = Machines(0.0, is_connected=False)
    asking = Asking(machines)
    await asking.ask(Question(QuestionKind.GET, "key"), Attempt())
    assert machines.asked == ["m1", "m2", "m3"]


class Guarded:
    """Members of which m3 leads. Each takes questions of some purposes from whoever asks."""

    def __init__(self, taken: Callable[[str, MetastorePurpose], bool]) -> None:
        self.addresses: Sequence[str] = _NAMES
        self.changed: list[str] = []
        self._taken = taken

    def use(self, open_transport: OpenTransport, authenticator: Authenticator | None) -> None:
        """Nothing to connect."""

    async def ask(self, address: str, purpose: MetastorePurpose, body: bytes, sent: Callable[[], None]) -> Response:
        await trio.lowlevel.checkpoint()
        sent()
        if not self._taken(address, purpose):
            return Response(0, Status.UNAUTHORIZED, detail="it lacks the role")
        if address != "m3":
            return Response(0, Status.OK, body=questions.not_leader("m3", _NAMES))
        if purpose is MetastorePurpose.CLIENT:
            return Response(0, Status.OK, body=questions.missing(1))
        self.changed.append(address)
        return Response(0, Status.OK, body=questions.facts({"members": {}}))

    async def aclose(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param(
            lambda address, purpose: purpose is MetastorePurpose.CLIENT or address == "m3", id="on-its-machine"
        ),
        pytest.param(lambda address, purpose: purpose is MetastorePurpose.ADMIN, id="an-identity-without-reads"),
    ],
)
async def test_members_are_changed_on_the_machine_of_the_leader_alone(
    taken: Callable[[str, MetastorePurpose], bool],
) -> None:
    """Whomever it would have asked first: the others may not be on its machine."""
    members = Guarded(taken)
    await QuorumMetastore(members).administer(QuestionKind.REMOVE, {"member": "m1"}, 10)
    assert members.changed == ["m3"]


async def test_refused_administrator_is_told_where_to_run() -> None:
    members = Guarded(lambda _, purpose: purpose is MetastorePurpose.CLIENT)
    with pytest.raises(MetastoreError, match=r"the member at m3 refuses.*as an administrator; or.*on m3's own machine"):
        await QuorumMetastore(members).administer(QuestionKind.REMOVE, {"member": "m1"}, 10)
    assert not members.changed
