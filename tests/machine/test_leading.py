"""When a leader pushes what it is asked for, and whom it answers: over a log whose confirmations are made by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from replog.errors import FencedError
from replog.machine import core as cores
from replog.machine import member as members
from replog.machine.commands import MachineType
from replog.machine.core import Core
from replog.machine.entries import Kind, MachineEntry, decode_entry
from replog.machine.leading import Leader
from replog.machine.visits import Visit
from replog.protocol.messages import Response, Status
from replog.protocol.model import Position
from replog.runtime.entropy import Entropy
from tests.kit import cluster
from tests.machine.counters import OPTIONS, Counters, member


class Log:
    """What a leader uses of a `LogWriter`. Each flush waits until it is confirmed, or fails."""

    def __init__(self) -> None:
        self.pushed: list[MachineEntry] = []
        self.last_add_confirmed: Position | None = None
        self.error: FencedError | None = None
        self._changed = trio.Event()

    def push_nowait(self, data: bytes) -> Position:
        self.pushed.append(decode_entry(data))
        return Position(2, len(self.pushed) - 1)

    async def flush(self) -> None:
        last = Position(2, len(self.pushed) - 1)
        while self.last_add_confirmed is None or self.last_add_confirmed < last:
            if self.error is not None:
                raise self.error
            await self._changed.wait()

    async def settle(self) -> None:
        """Lets the leader do all that it can do now."""
        await trio.testing.wait_all_tasks_blocked()

    async def confirm(self) -> None:
        """All that was pushed so far."""
        self.last_add_confirmed = Position(2, len(self.pushed) - 1)
        await self._news()

    async def fence(self) -> None:
        self.error = FencedError(1, "another leader")
        await self._news()

    async def _news(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        await self.settle()


class Town:
    """A leader, its log, and callers that ask by messages of some commands or reads."""

    def __init__(self, leader: Leader, log: Log, core: Core[Counters]) -> None:
        self.leader, self.log, self.core = leader, log, core
        self.heard: dict[int, Status] = {}
        self._sequence = 0

    async def ask(self, message: int, commands: int = 0, reads: int = 0) -> None:
        body = self.core.machine.by_attribute["add"].encode(("visits", 1), {})
        entries = [MachineEntry(Kind.READ) for _ in range(reads)]
        for _ in range(commands):
            self._sequence += 1
            entries.append(MachineEntry(Kind.COMMAND, 1, self._sequence, body=body))
        self.leader.take(Visit(message, self._reply, len(entries)), entries)
        await self.log.settle()

    def _reply(self, responses: Sequence[Response]) -> None:
        self.heard |= {each.request_id: each.status for each in responses}


@asynccontextmanager
async def town() -> AsyncIterator[Town]:
    core = Core(MachineType(Counters))
    core.apply(Position(1, 0), MachineEntry(Kind.BEGIN))
    core.apply(Position(1, 1), MachineEntry(Kind.OPEN))
    log = Log()
    async with trio.open_nursery() as nursery:
        leader = Leader(core, log, nursery, OPTIONS, Entropy(), lambda: None)  # type: ignore[arg-type]
        yield Town(leader, log, core)
        nursery.cancel_scope.cancel()


async def test_few_commands_wait_for_those_under_way() -> None:
    async with town() as made:
        await made.ask(1, commands=3)
        await made.ask(2, commands=1)
        await made.ask(3, reads=1)
        assert len(made.log.pushed) == 3
        await made.log.confirm()
        assert made.heard == {1: Status.OK}
        assert [each.kind for each in made.log.pushed[3:]] == [Kind.COMMAND, Kind.BARRIER]
        await made.log.confirm()
        assert made.heard == dict.fromkeys((1, 2, 3), Status.OK)
        assert made.core.state.values == {"visits": 4}


async def test_more_commands_than_are_under_way_go_at_once() -> None:
    async with town() as made:
        await made.ask(1, commands=2)
        await made.ask(2, commands=1)
        await made.ask(3, commands=2)
        assert len(made.log.pushed) == 5
        await made.log.confirm()
        assert made.heard == dict.fromkeys((1, 2, 3), Status.OK)


async def test_failing_leader_refuses_gathered_commands() -> None:
    async with town() as made:
        await made.ask(1, commands=3)
        await made.ask(2, commands=1)
        await made.ask(3, reads=1)
        await made.log.fence()
        assert made.heard == dict.fromkeys((1, 2, 3), Status.FENCED)
        await made.ask(4, commands=1)
        assert made.heard[4] is Status.FENCED
        assert len(made.log.pushed) == 3, "a deposed leader pushes nothing more"


async def test_nothing_is_written_for_an_answer_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "RESULTS_MAX", 2)
    monkeypatch.setattr(cores, "SESSIONS_MAX", 1)
    async with town() as made:
        await made.ask(1, commands=2)
        await made.log.confirm()
        body = made.core.machine.by_attribute["add"].encode(("visits", 1), {})
        known, beyond = (MachineEntry(Kind.COMMAND, 1, sequence, floor=1, body=body) for sequence in (1, 3))
        known.floor = 0
        made.leader.take(Visit(2, made._reply, 2), [known, MachineEntry(Kind.OPEN)])
        made.leader.take(Visit(3, made._reply, 1), [beyond])
        await made.log.settle()
        assert made.heard == {1: Status.OK, 2: Status.OK}
        assert len(made.log.pushed) == 3, "a floor may make room"
        await made.log.confirm()
        made.leader.take(Visit(4, made._reply, 1), [beyond])
        assert made.heard[4] is Status.OK
        assert len(made.log.pushed) == 3


@pytest.mark.usefixtures("autojump_clock")
async def test_read_does_not_wait_for_the_rest_of_a_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_REST_S", 25.0)
    async with cluster(1) as made, member(made) as leader, member(made) as other:
        for number in range(1, 4):
            began_s = trio.current_time()
            assert await leader.add("visits") == number
            assert await other.read(lambda state: state.values["visits"]) == number
            assert trio.current_time() - began_s < 20


def expired(made: Town) -> list[bytes]:
    """The bodies of the entries that end sessions."""
    return [each.body for each in made.log.pushed if each.kind == Kind.EXPIRE]


async def test_paused_leader_expires_no_session() -> None:
    """While it was stopped it could hear nobody: each caller has the whole time again."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    timeout_s = OPTIONS.session_timeout_s
    async with town() as made, trio.open_nursery() as nursery:
        nursery.start_soon(made.leader.expire_sessions)
        await made.ask(1, commands=1)
        await made.log.confirm()
        for _ in range(3):
            clock.jump(2 * timeout_s)
            await made.log.settle()
            assert expired(made) == []
        await trio.sleep(0.9 * timeout_s)
        assert expired(made) == []
        await trio.sleep(0.6 * timeout_s)
        assert expired(made) == [b"[1]"]
        nursery.cancel_scope.cancel()


async def test_late_opened_session_has_its_full_time() -> None:
    """It has sent nothing yet, and the leader leads for long."""
    timeout_s = OPTIONS.session_timeout_s
    async with town() as made, trio.open_nursery() as nursery:

        async def confirm() -> None:
            while True:
                await trio.sleep(timeout_s / 100)
                if made.log.pushed:
                    await made.log.confirm()

        nursery.start_soon(made.leader.expire_sessions)
        nursery.start_soon(confirm)
        await trio.sleep(5 * timeout_s)
        assert expired(made) == [b"[1]"]
        made.leader.take(Visit(9, made._reply, 1), [MachineEntry(Kind.OPEN)])
        await trio.sleep(0.9 * timeout_s)
        assert made.core.sessions == [2]
        await trio.sleep(timeout_s)
        assert expired(made) == [b"[1]", b"[2]"]
        nursery.cancel_scope.cancel()
