"""A seeded simulator of the protocol floor: the real machines, a world that does its worst, and an oracle.

`draw_plan(seed)` makes a `Plan`, `simulate(plan)` runs it; the same plan always has the same trace.
"""

from replog.testing.simulation.cluster import LedgerCluster, Result
from replog.testing.simulation.log_cluster import LogCluster
from replog.testing.simulation.plan import Plan
from replog.testing.simulation.scenarios import draw_plan

__all__ = ["Plan", "Result", "draw_plan", "simulate"]


def simulate(plan: Plan, transcript: list[str] | None = None) -> Result:
    """Runs a plan; with `transcript`, writes down all that happens."""
    cluster = LogCluster if plan.scenario == "log" else LedgerCluster
    return cluster(plan, transcript).run()
