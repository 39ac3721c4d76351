"""The actors of a run, and the length of its storm.

The whole cast acts for four seconds. A swarm's seed draws some of it, and a shorter storm mostly: so what one actor hides of
another's doing is seen too, and a seed costs a third ("Swarm Testing", Groce et al., ISSTA 2012).
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import attrs

_USUAL = {
    "leader": 3,
    "archive": 1,
    "follower": 2,
    "reader": 1,
    "writer": 2,
    "recovery": 1,
    "looker": 1,
    "brief": 1,
    "deleter": 1,
    "brief reader": 1,
    "intruder": 1,
}


@attrs.frozen
class Cast:
    """How often each role is played at the same time."""

    storm_s: float
    roles: Mapping[str, int]


WHOLE = Cast(4.0, _USUAL)


def drawn_cast(chance: random.Random) -> Cast:
    """The cast of a swarm's seed. Somebody writes."""
    roles = {role: chance.randint(1, count) for role, count in _USUAL.items() if chance.random() < 0.5}
    if "leader" not in roles and "writer" not in roles:
        roles[chance.choice(("leader", "writer"))] = 1
    return Cast(chance.choice((0.7, 1.5, 1.5, 4.0)), roles)
