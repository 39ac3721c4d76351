"""Act two: a bookie's process is killed while a leader appends, which goes on: with another one in its place, if there is one."""

from __future__ import annotations

import random
import time

from replog.demo.bookies import Bookie
from replog.demo.leading import LeaderProcess
from replog.demo.results import ActResult
from replog.demo.stage import Stage

TITLE = "Act two: a bookie killed"
_REPLACED_WITHIN_S = 30.0


async def act_two(stage: Stage, leader: LeaderProcess) -> ActResult:
    """Plays it. Raises `DemoFailedError` if it can't be played to its end."""
    view = stage.view
    view.heading(TITLE)
    view.step(f"{leader.name} appends")
    await stage.append_quota(leader)
    # The leader does not roll: what the metadata says now is where the next entries go.
    ensemble = (await stage.current_ledger()).last_fragment.ensemble
    victim = stage.cluster.find(random.choice(ensemble))
    before = leader.last
    killed_s = time.monotonic()
    await victim.kill()
    view.done(
        f"{victim.name} (process {victim.pid}) killed by SIGKILL: it was one of three that {leader.name} writes to"
    )
    replaced_s = None
    if len(stage.cluster.bookies) > len(ensemble):
        replaced_s = await _replace(stage, leader, victim, killed_s)
    else:
        view.done("there is no other bookie to take its place: two of three are enough to go on, and to take over")
    view.step(f"{leader.name} appends")
    await stage.append_quota(leader)
    ensemble = (await stage.current_ledger()).last_fragment.ensemble
    faults = []
    if replaced_s is not None and victim.bookie_id in ensemble:
        faults.append(f"{victim.name} is dead, and still in the ensemble")
    stalled_s = leader.longest_pause_s(before.at_s)
    view.done(f"{leader.name} went on: appends stalled for {stalled_s * 1000:,.0f} ms at most")
    return ActResult(
        title=TITLE,
        confirmed=before.entries,
        in_flight=before.pushed - before.entries,
        stalled_s=stalled_s,
        rate=leader.rate,
        replaced_s=replaced_s,
        faults=tuple(faults),
    )


async def _replace(stage: Stage, leader: LeaderProcess, victim: Bookie, killed_s: float) -> float:
    """Waits until the leader has put another bookie in the place of the dead one; returns how long after the kill that was."""
    stage.view.step(f"{leader.name} replaces it, and appends")
    replaced = await leader.until_replaced(victim.bookie_id, _REPLACED_WITHIN_S, stage.showing(leader))
    new = stage.cluster.find(replaced.new)
    stage.view.done(
        f"{leader.name} put {new.name} in its place {(replaced.at_s - killed_s) * 1000:,.0f} ms later, "
        f"from entry {replaced.first_entry_id:,} of its ledger on"
    )
    return replaced.at_s - killed_s
