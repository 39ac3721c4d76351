"""Members whose leader's process has ended stand at once, and again: seeded schedules wait for the silence (Q17)."""

from __future__ import annotations

from replog.protocol.consensus.messages import Ask, MayAsk, Message, Vote, VoteRequest
from tests.simulator.council.scripts import Script

FIRST, ONE, OTHER = range(3)


def _led_by_the_first() -> tuple[Script, str]:
    world = Script(3)
    assert world.elect(FIRST, ONE, OTHER)
    world.replicate(FIRST, ONE, OTHER)
    name = world.names[FIRST]
    assert all(world.of(host).member.leader == name for host in (ONE, OTHER))
    world.stop(FIRST)
    return world, name


def _stand(world: Script, host: int, gone: str) -> None:
    world.of(host).member.leader_is_gone(gone)
    world.carry(world.of(host))


def _leads(world: Script, host: int) -> bool:
    return world.of(host).member.leading is not None


def _asks(world: Script, host: int) -> bool:
    return any(each.sender == world.names[host] for each in world.envelopes(Ask))


def _exchange(world: Script, *kinds: type[Message]) -> None:
    """Messages of each kind cross each other."""
    for kind in kinds:
        world.move(kind, ONE, OTHER)
        world.move(kind, OTHER, ONE)
    world.sync(ONE, OTHER)


def test_q17_two_candidates_of_one_moment_stand_again() -> None:
    """Q17: both saw their leader's process end, and voted for themselves. They need not wait for the silence."""
    world, gone = _led_by_the_first()
    for host in (ONE, OTHER):
        _stand(world, host, gone)
    _exchange(world, Ask, MayAsk)
    _exchange(world, VoteRequest, Vote)
    assert not _leads(world, ONE)
    assert not _leads(world, OTHER)
    _stand(world, ONE, gone)
    _exchange(world, Ask, MayAsk)
    _exchange(world, VoteRequest, Vote)
    assert _leads(world, ONE)


def test_q17_a_voter_leaves_its_candidate_time() -> None:
    """Q17: whoever has just voted does not stand at the next look at its late leader."""
    world, gone = _led_by_the_first()
    _stand(world, ONE, gone)
    world.of(OTHER).member.has_heard = False
    _exchange(world, Ask, MayAsk)
    _exchange(world, VoteRequest)
    _stand(world, OTHER, gone)
    assert not _asks(world, OTHER)
    _exchange(world, Vote)
    assert _leads(world, ONE)


def test_q17_a_new_leader_is_not_left_for_an_old_one() -> None:
    """Q17: that an earlier leader's process has ended says nothing of this one."""
    world, gone = _led_by_the_first()
    assert world.elect(ONE, OTHER)
    world.replicate(ONE, OTHER)
    _stand(world, OTHER, gone)
    assert not _asks(world, OTHER)
    assert world.of(OTHER).member.leader == world.names[ONE]
