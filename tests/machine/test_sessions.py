"""The session of one member's calls: who waits for room in it, and what becomes of them when it ends."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

from replog.machine.entries import Answer, Code, Kind, MachineEntry
from replog.machine.sessions import CommandId, Session
from tests.machine.counters import OPTIONS


class Leader:
    """Opens one session after the other, and ends them."""

    def __init__(self) -> None:
        self.opened = 0
        self.is_left = False

    async def ask(self, entry: MachineEntry) -> Answer:
        await trio.sleep(0.01)
        if self.is_left:
            raise trio.ClosedResourceError("this member was left")
        self.opened += entry.kind == Kind.OPEN
        return Answer(Code.DONE, b"%d" % self.opened)


def session_of(leader: Leader) -> Session:
    return Session(leader, attrs.evolve(OPTIONS, calls_at_once_max=2), "me")  # type: ignore[arg-type]


async def test_waiting_calls_go_on_in_another_session_when_theirs_expires(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Two ids were taken, and nobody has sent them: no answer would ever make room."""
    leader = Leader()
    session = session_of(leader)
    taken = [await session.begin() for _ in range(2)]
    found: list[CommandId] = []

    async def begin() -> None:
        found.append(await session.begin())
        session.ended(found[-1])

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(begin)
        await trio.testing.wait_all_tasks_blocked()
        began_s = trio.current_time()
        session.expired(taken[0].session)
    assert trio.current_time() - began_s < 1
    assert (leader.opened, {each.session for each in found}) == (2, {2})
    assert len(set(found)) == 5


async def test_waiting_calls_end_when_their_member_is_left(autojump_clock: trio.testing.MockClock) -> None:
    leader = Leader()
    session = session_of(leader)
    for _ in range(2):
        await session.begin()
    async with trio.open_nursery() as nursery:

        async def begin() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await session.begin()

        nursery.start_soon(begin)
        await trio.testing.wait_all_tasks_blocked()
        began_s = trio.current_time()
        await session.close()
        leader.is_left = True
    assert trio.current_time() - began_s < 1
