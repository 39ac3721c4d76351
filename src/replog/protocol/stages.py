"""How a state machine writes down its stages, and the only way to go from one stage to the next.

A machine's module begins with an enum of its stages, a table `TRANSITIONS`, and its invariants. The table maps a stage and
what happens in it to the stage that follows. A machine changes its stage with `after` only, so the table is complete: what
it does not list is a bug of ours. `docs/reference/state-machines.md` is drawn from these tables.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import TypeVar

Stage = TypeVar("Stage", bound=enum.Enum)
Transitions = Mapping[tuple[Stage, str], Stage]


def after(transitions: Transitions[Stage], stage: Stage, event: str) -> Stage:
    """The stage that follows when this happens in this stage."""
    following = transitions.get((stage, event))
    assert following is not None, f"a machine in stage {stage.name} must not meet: {event}"
    return following


def from_each(stages: Iterable[Stage], event: str, following: Stage) -> dict[tuple[Stage, str], Stage]:
    """Lines of a table for something that may happen in several stages and leads to the same one."""
    return {(stage, event): following for stage in stages}
