"""Act three: the leader's process is stopped, another one takes over, and the first learns on waking that it is fenced."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import trio

from replog.demo.leading import LeaderProcess, takeover_faults
from replog.demo.reports import Confirmed, Fenced
from replog.demo.results import ActResult
from replog.demo.stage import Stage
from replog.runtime.nursery import open_service_nursery

TITLE = "Act three: leader 2 stopped"
_LEARNS_WITHIN_S = 30.0


async def act_three(stage: Stage, leader: LeaderProcess, leaders: AsyncExitStack) -> tuple[ActResult, LeaderProcess]:
    """Plays it; the third leader, which has closed the log. Raises `DemoFailedError` if it can't be played to its end."""
    view = stage.view
    view.heading(TITLE)
    await leader.process.stop()
    stopped_s = time.monotonic()
    view.done(f"{leader.name} stopped by SIGSTOP while it appends: it knows nothing of what comes")
    view.step("leader 3 starts, and takes over")
    third = await leaders.enter_async_context(stage.leading("leader 3", is_endless=False))
    takeover = await third.take_over()
    stage.taken_over(third, takeover)
    woken_s = time.monotonic()
    fenced = await _wake(stage, leader, third, woken_s)
    at_rest = _last_before(leader, stopped_s)
    survived = third.before - leader.last.entries
    return ActResult(
        title=TITLE,
        confirmed=at_rest.entries,
        in_flight=fenced.entries,
        survived=survived,
        stalled_s=third.first.at_s - at_rest.at_s,
        rate=third.rate,
        takeover=takeover,
        learnt_s=fenced.at_s - woken_s,
        in_doubt=(str(fenced.first), str(fenced.last)),
        faults=takeover_faults(leader, third, fenced.entries),
    ), third


async def _wake(stage: Stage, leader: LeaderProcess, third: LeaderProcess, woken_s: float) -> Fenced:
    """The stopped leader goes on as if nothing had been, while the third one appends its quota and closes the log."""
    view = stage.view
    found: list[Fenced] = []
    learnt = trio.Event()

    async def learn() -> None:
        fenced = await leader.until_fenced(_LEARNS_WITHIN_S)
        found.append(fenced)
        view.done(
            f"{leader.name} was woken by SIGCONT, and knew after {(fenced.at_s - woken_s) * 1000:,.0f} ms that it is fenced; "
            f"it names {fenced.entries:,} entries whose fate it does not know: {fenced.first} to {fenced.last}"
        )
        view.step("leader 3 appends from there on")
        learnt.set()

    async with open_service_nursery() as nursery:
        leader.process.wake()
        view.step(f"{leader.name} wakes up, while leader 3 appends")
        nursery.start_soon(learn)
        show = stage.showing(third)
        await third.until_closed(show)
        await learnt.wait()
    view.done(f"leader 3 appended {third.last.entries - third.before:,} entries and closed the log")
    return found[0]


def _last_before(leader: LeaderProcess, moment_s: float) -> Confirmed:
    """What was confirmed to it last, before this moment."""
    return max((each for each in leader.told if each.at_s <= moment_s), key=lambda each: each.entries)
