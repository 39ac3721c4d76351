"""Act one: the leader's process is killed with entries in flight, and another process takes over."""

from __future__ import annotations

from contextlib import AsyncExitStack

from replog.demo.errors import DemoFailedError
from replog.demo.leading import LeaderProcess, takeover_faults
from replog.demo.options import ROLL_BYTES
from replog.demo.results import ActResult
from replog.demo.stage import Stage

TITLE = "Act one: leader 1 killed"


async def act_one(stage: Stage, leaders: AsyncExitStack) -> tuple[ActResult, LeaderProcess, LeaderProcess]:
    """Plays it; the killed leader, and the second one, which goes on appending in the context of `leaders`.

    Raises `DemoFailedError` if it can't be played to its end."""
    view = stage.view
    view.heading(TITLE)
    first = await _lead_until_killed(stage)
    view.step("leader 2 starts, and takes over")
    second = await leaders.enter_async_context(stage.leading("leader 2"))
    takeover = await second.take_over()
    stage.taken_over(second, takeover)
    survived = second.before - first.last.entries
    faults = [*takeover_faults(first, second)]
    if not takeover.ledgers_recovered:
        faults.append("the second leader recovered no ledger")
    result = ActResult(
        title=TITLE,
        confirmed=first.last.entries,
        in_flight=max(first.last.pushed - first.last.entries, survived),  # it may have pushed after it told
        survived=survived,
        stalled_s=second.first.at_s - first.last.at_s,
        rate=first.rate,
        takeover=takeover,
        faults=tuple(faults),
    )
    return result, first, second


async def _lead_until_killed(stage: Stage) -> LeaderProcess:
    """A leader without end, killed once the quota is reached. What it told is what it wrote into the pipe before it died."""
    view = stage.view
    view.step("leader 1 starts")
    async with stage.leading("leader 1", roll_bytes=ROLL_BYTES) as leader:
        takeover = await leader.take_over()
        view.done(f"leader 1 (process {leader.process.pid}) created the log in {takeover.total_s:.2f} s and appends")
        view.step("leader 1 appends")
        await stage.append_quota(leader)
        await leader.until_killed()
    last = leader.last
    if last.pushed <= last.entries:
        raise DemoFailedError("leader 1 was killed with nothing in flight: nothing to see; try more entries")
    view.done(
        f"leader 1 killed by SIGKILL: {last.entries:,} entries confirmed, {last.pushed - last.entries:,} or more in flight"
    )
    return leader
