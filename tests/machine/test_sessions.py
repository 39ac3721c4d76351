"""The session of one member's calls: who waits for room in it, and what becomes of them when it ends."""

from __future__ import annotations

import random

import attrs
import pytest
import trio
import trio.testing

from replog.machine import sessions
from replog.machine.entries import Answer, Code, Kind, MachineEntry
from replog.machine.sessions import CommandId, IdSession, Session
from tests.lanes.seeds import seeds
from tests.machine.counters import OPTIONS


class Leader:
    """Opens one session after the other, and ends them."""

    def __init__(self) -> None:
        self.opened = self.ended = 0
        self.is_left = False

    async def ask(self, entry: MachineEntry) -> Answer:
        await trio.sleep(0.01)
        if self.is_left:
            raise trio.ClosedResourceError("this member was left")
        self.opened += entry.kind == Kind.OPEN
        self.ended += entry.kind == Kind.EXPIRE
        return Answer(Code.DONE, b"%d" % self.opened)


def session_of(leader: Leader) -> Session:
    return Session(leader, attrs.evolve(OPTIONS, calls_at_once_max=2), "me")  # type: ignore[arg-type]


async def test_waiting_calls_continue_when_their_session_expires(
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


@pytest.mark.parametrize("seed", seeds(10))
async def test_ids_floors_and_sessions_stay_right(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    """Commands end in any order, and also when their session has ended long since. A floor never passes a command that nobody has
    answered, and a session that nobody ended stays."""
    chance, leader = random.Random(seed), Leader()
    session = Session(leader, attrs.evolve(OPTIONS, calls_at_once_max=5), "me")  # type: ignore[arg-type]
    open_ids: list[CommandId] = []
    taken: set[CommandId] = set()
    live = 0  # the session that the leader knows; 0: none
    for _ in range(400):
        what = chance.choice(("begin", "begin", "begin", "end", "end", "expire"))
        if what == "begin":
            full = live and sum(each.session == live for each in open_ids) >= 5
            if full:
                assert session.begin_nowait() is None
                continue
            opened = leader.opened
            taken_id = await session.begin()
            assert leader.opened == opened + (not live), "a session begins only after the one before has ended"
            live = leader.opened
            assert taken_id.session == live
            assert taken_id not in taken
            taken.add(taken_id)
            open_ids.append(taken_id)
        elif open_ids:
            one = chance.choice(open_ids)
            if what == "end":
                session.ended(one)
                open_ids.remove(one)
            elif chance.random() < 0.2 or one.session != live:
                session.expired(one.session)  # maybe late: of a session that was followed by another
                live = 0 if one.session == live else live
        for each in open_ids:
            lowest = min(other.sequence for other in open_ids if other.session == each.session)
            assert session.floor(each) <= lowest, "an answer would be forgotten that may be asked for again"
            assert each.session != live or session.floor(each) == lowest, "answers would be kept that came"


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


async def id_session() -> tuple[IdSession, list[CommandId]]:
    session = IdSession(Leader(), OPTIONS, "me")  # type: ignore[arg-type]
    return session, [await session.begin() for _ in range(16)]


async def test_oldest_id_is_given_up_when_too_many_are_open(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """But none that is under way."""
    monkeypatch.setattr(sessions, "IDS_MAX", 16)
    session, ids = await id_session()
    session.called(ids[0])
    assert (await session.begin()).sequence == 17
    assert list(session._unanswered) == [1, *range(3, 18)]
    session.returned(ids[0], is_answered=False)
    await session.begin()
    assert list(session._unanswered) == [*range(3, 19)]


async def test_last_answered_ids_stay_open_until_room_is_wanted(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(sessions, "_ANSWERED_IDS_KEPT", 2)
    session, ids = await id_session()
    for each in ids[:3]:
        session.called(each)
        session.returned(each, is_answered=True)
    assert next(iter(session._unanswered)) == 2
    session.called(ids[1])
    session.make_room(ids[0].session, 2)
    session.make_room(ids[0].session + 1, 2)
    assert session.floor(ids[5]) == 2, "an id that is under way again stays"
    session.returned(ids[1], is_answered=True)
    session.make_room(ids[0].session, 2)
    assert session.floor(ids[5]) == 4


async def test_room_is_made_by_giving_up_the_oldest_ids(autojump_clock: trio.testing.MockClock) -> None:
    session, ids = await id_session()
    session.make_room(1, 1)
    assert session.floor(ids[0]) == 4
    session.make_room(1, 1)
    assert session.floor(ids[0]) == 4, "others have made room since"
    session.called(ids[4])
    session.make_room(1, 4)
    session.make_room(1, 5)
    assert session.floor(ids[0]) == 5, "it makes room itself"


@pytest.mark.parametrize("is_answered", [False, True])
async def test_session_of_answered_ids_ends_with_its_member(
    is_answered: bool, autojump_clock: trio.testing.MockClock
) -> None:
    leader = Leader()
    session = IdSession(leader, OPTIONS, "me")  # type: ignore[arg-type]
    command_id = await session.begin()
    session.called(command_id)
    session.returned(command_id, is_answered=is_answered)
    await session.close()
    assert leader.ended == is_answered
