"""A seeded simulator of the protocol floor: the real machines, a world that does its worst, and an oracle.

`draw_plan(seed)` makes a `Plan`, `simulate(plan)` runs it; the same plan always has the same trace.
"""

from contextlib import nullcontext

from tests.simulator.chunked import small_chunks
from tests.simulator.cluster import LedgerCluster, Result
from tests.simulator.log_cluster import LogCluster
from tests.simulator.plan import CHUNKS, CHUNKS_LOG, UNBOUNDED_LOG, Plan
from tests.simulator.scenarios import draw_plan
from tests.simulator.terms import UnboundedCluster

__all__ = ["Plan", "Result", "draw_plan", "simulate"]


def simulate(plan: Plan, transcript: list[str] | None = None) -> Result:
    """Runs a plan; with `transcript`, writes down all that happens."""
    clusters = {
        "log": LogCluster,
        UNBOUNDED_LOG: LogCluster,
        CHUNKS_LOG: LogCluster,
        "unbounded": UnboundedCluster,
        CHUNKS: UnboundedCluster,
    }
    with small_chunks() if plan.scenario in (CHUNKS, CHUNKS_LOG) else nullcontext():
        return clusters.get(plan.scenario, LedgerCluster)(plan, transcript).run()
