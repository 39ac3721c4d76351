"""Act one: the leader's process is killed with entries in flight, and another process takes over."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import attrs
import trio

from replog.demo.appending import Quota
from replog.demo.errors import DemoFailedError
from replog.demo.leader import LeaderConfig
from replog.demo.leading import LeaderProcess, leading
from replog.demo.reports import Closed, Confirmed, Opened, Replayed, TakenOver
from replog.demo.results import ActResult, Rate, Takeover
from replog.demo.stage import Stage

TITLE = "Act one: a leader's process is killed"
_KILLED_WITHIN_S = 0.05  # after the quota, at random: anywhere in the leader's rounds


@attrs.frozen
class _Led:
    """What a leader did: behind how many entries it began, the last that it told, how fast it was."""

    before: int
    last: Confirmed
    rate: Rate
    takeover: Takeover


async def act_one(stage: Stage) -> ActResult:
    """Plays it and judges it. Raises `DemoFailedError` if it can't be played to its end."""
    stage.view.heading(TITLE)
    directory = stage.directory / "act-one"
    told: list[Confirmed] = []
    first = await _lead_until_killed(stage, directory, told)
    second = await _lead_after(stage, directory, told)
    own_faults = []
    survived = second.before - first.last.entries
    if survived < 0:
        own_faults.append(f"missing: of {first.last.entries:,} confirmed entries the takeover found {second.before:,}")
    if not second.takeover.ledgers_recovered:
        own_faults.append("the second leader recovered no ledger")
    return ActResult(
        title=TITLE,
        confirmed_by_first=first.last.entries,
        in_flight=max(first.last.pushed - first.last.entries, survived),  # it may have pushed after it told
        survived=survived,
        takeover=second.takeover,
        first_rate=first.rate,
        second_rate=second.rate,
        findings=await stage.read_back(directory, told),
        own_faults=tuple(own_faults),
    )


def _config(stage: Stage, directory: Path, quota: Quota) -> LeaderConfig:
    path = None if stage.source.path is None else str(stage.source.path)
    return LeaderConfig(str(directory), stage.bookies, path, quota.entries, quota.seconds)


async def _lead_until_killed(stage: Stage, directory: Path, told: list[Confirmed]) -> _Led:
    """A leader without end, killed once the quota is reached. What it told is what it wrote into the pipe before it died."""
    stage.view.step("leader 1 starts")
    config = _config(stage, directory, Quota())
    async with leading("leader 1", config, stage.directory / "leader-1.stderr") as leader:
        before, takeover = await _first_append(leader, told)
        started, first = leader.reported, told[-1]
        stage.view.done(f"leader 1 (process {leader.pid}) created the log in {takeover.total_s:.2f} s and appends")
        stage.view.step("leader 1 appends")
        while stage.show(await _next_confirmed(leader, told), before, started) < 1:
            pass
        with trio.move_on_after(random.uniform(0, _KILLED_WITHIN_S)):
            while True:
                stage.show(await _next_confirmed(leader, told), before, started)
        leader.kill()
        ended = leader.reported
        while (report := await leader.next_report()) is not None:
            if isinstance(report, Confirmed):
                told.append(report)
        if await leader.wait() != -signal.SIGKILL:
            raise await leader.ended_by_itself()
        last = told[-1]
        if last.pushed <= last.entries:
            raise DemoFailedError("leader 1 was killed with nothing in flight: nothing to see; try more entries")
        stage.view.done(
            f"leader 1 killed by SIGKILL: {last.entries:,} entries confirmed, "
            f"{last.pushed - last.entries:,} or more in flight"
        )
        return _Led(before, last, Rate(last.entries - first.entries, ended - started), takeover)


async def _lead_after(stage: Stage, directory: Path, told: list[Confirmed]) -> _Led:
    """Another leader on the same directory, which appends its quota and closes the log."""
    stage.view.step("leader 2 starts, and takes over")
    config = _config(stage, directory, stage.quota)
    async with leading("leader 2", config, stage.directory / "leader-2.stderr") as leader:
        before, takeover = await _first_append(leader, told)
        started, first = leader.reported, told[-1]
        stage.taken_over(f"leader 2 (process {leader.pid})", takeover)
        stage.view.step("leader 2 appends from there on")
        while isinstance(report := await leader.next_report(), Confirmed):
            told.append(report)
            stage.show(report, before, started)
        ended = leader.reported
        if not isinstance(report, Closed) or await leader.wait() != 0:
            raise await leader.ended_by_itself()
        last = told[-1]
        if report.entries != last.entries:
            raise DemoFailedError(f"leader 2 closed behind {report.entries} entries, and told of {last.entries}")
        rate = Rate(last.entries - first.entries, ended - started)
        stage.view.done(f"leader 2 appended {last.entries - before:,} entries and closed the log")
        return _Led(before, last, rate, takeover)


async def _first_append(leader: LeaderProcess, told: list[Confirmed]) -> tuple[int, Takeover]:
    """A leader's way to its first confirmed append: how many entries it found, and how long each part took."""
    await leader.expect(Opened)
    opened_at = leader.reported
    taken_over = await leader.expect(TakenOver)
    served_at = leader.reported
    replayed = await leader.expect(Replayed)
    replayed_at = leader.reported
    await _next_confirmed(leader, told)
    takeover = Takeover(
        start_s=opened_at - leader.started,
        recovery_s=taken_over.duration_s,
        replay_s=replayed_at - served_at,
        append_s=leader.reported - replayed_at,
        ledgers_recovered=len(taken_over.recovered),
    )
    return replayed.entries, takeover


async def _next_confirmed(leader: LeaderProcess, told: list[Confirmed]) -> Confirmed:
    report = await leader.expect(Confirmed)
    told.append(report)
    return report
