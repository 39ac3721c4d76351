"""Makes a failing plan small: leaves out operations and faults while the same rule is still broken (ddmin)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs

from tests.simulator import simulate
from tests.simulator.cluster import Result
from tests.simulator.plan import Fault, Op, Plan

_RUNS_MAX = 3000
Item = TypeVar("Item")


def shrink(result: Result) -> Result:
    """A smaller run that breaks the same rule. Apply the mutant, if any, around this."""
    rule = result.rule
    assert rule, "only a failing run can be shrunk"
    suffered = tuple(result.world.suffered)
    plan = attrs.evolve(result.plan, faults=suffered)
    runs = [0]

    def fails(items: Sequence[Op | Fault], base: Plan) -> bool:
        runs[0] += 1
        return runs[0] < _RUNS_MAX and simulate(_with(base, items)).rule == rule

    items: list[Op | Fault] = [*plan.ops, *suffered]
    if fails(items, plan):  # else something that was not written down had a say: leave it as it is
        items = minimize(items, lambda kept: fails(kept, plan))
        for spread in (1, 3):
            calm = attrs.evolve(plan, rates=attrs.evolve(plan.rates, spread=spread))
            if fails(items, calm):
                plan = calm
                items = minimize(items, lambda kept, plan=plan: fails(kept, plan))  # type: ignore[misc]
                break
        plan = _with(plan, items)
    return simulate(plan)


def _with(plan: Plan, items: Sequence[Op | Fault]) -> Plan:
    ops = tuple(item for item in items if isinstance(item, Op))
    return attrs.evolve(plan, ops=ops, faults=tuple(item for item in items if isinstance(item, Fault)))


def minimize(items: list[Item], fails: Callable[[list[Item]], bool]) -> list[Item]:
    """Zeller's ddmin: a list from which no single item can be left out."""
    parts = 2
    while len(items) >= 2:
        size = -(-len(items) // parts)
        for start in range(0, len(items), size):
            kept = items[:start] + items[start + size :]
            if fails(kept):
                items, parts = kept, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(items))
    return items
