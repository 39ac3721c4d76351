"""The three acts: a leader is killed, a bookie is killed, a leader is stopped and wakes up deposed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import trio

from replog.api import Client
from replog.cli.cluster.bookie_processes import Members
from replog.demo.processes import LOG_NAME, QUORUM, Task
from replog.demo.results import Act
from replog.demo.view import View
from replog.errors import ReplogError
from replog.runtime.children import Child, python_module, running_child

# -- actors -----------------------------------------------------------------------------------------------------------
#
# The processes of leaders and of the follower, as seen by the process that watches them.


SILENCE_S = 30.0  # a process that has reported nothing for so long has failed


class DemoFailedError(ReplogError):
    """An act did not happen as planned; this says nothing of the log. Retry: yes. With `--keep` its files can be looked at."""


class Actor:
    """The process of a leader or of the follower; `first` and `last` are its first and last reports of each kind of event."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first: dict[str, dict[str, Any]] = {}
        self.last: dict[str, dict[str, Any]] = {}
        self.replaced: dict[str, dict[str, Any]] = {}  # by the bookie that was replaced
        self.child: Child  # from when it is started

    @property
    def entries(self) -> int:
        """How many entries of this leader are confirmed, or this follower has read."""
        return int((self.last.get("confirmed") or self.last.get("followed") or {"entries": 0})["entries"])

    def hear(self, line: bytes) -> None:
        """Take a line. One that is not a report is left to the errors, which quote what was written last."""
        if line.startswith(b'{"event": '):
            report = json.loads(line)
            self.first.setdefault(report["event"], report)
            self.last[report["event"]] = report
            if report["event"] == "replaced":
                self.replaced[report["old"]] = report

    async def until(self, event: str) -> dict[str, Any]:
        """Wait for the first report of this kind. Raises `ChildFailedError` if it does not come."""
        return await self.child.until(lambda: self.first.get(event) or {}, f"it reports {event!r}", SILENCE_S)

    async def progresses(self) -> bool:
        """Wait until more entries are confirmed; False if it has closed the log. Raises `ChildFailedError` if neither comes."""
        before = self.entries
        await self.child.until(
            lambda: self.entries > before or "closed" in self.first, "it has more entries", SILENCE_S
        )
        return "closed" not in self.first


@asynccontextmanager
async def acting(role: str, task: Task) -> AsyncIterator[Actor]:
    """The process of a "leader" or a "follower", as a context manager."""
    actor = Actor(task.name)
    command = python_module("replog.demo.processes", role, json.dumps(attrs.asdict(task)))
    # It may end: a deposed leader and one that has closed the log leave by themselves.
    async with running_child(task.name, command, actor.hear, may_end=True) as actor.child:
        yield actor


# -- acts -------------------------------------------------------------------------------------------------------------
#
# The three acts: a leader is killed, a bookie is killed, a leader is stopped and wakes up deposed.


_PARTS = ("start_s", "recovery_s", "replay_s", "append_s")  # of a takeover
_MOMENT_S = 0.05  # what happens, happens anywhere in a leader's rounds


@attrs.frozen
class Stage:
    """Where the acts are played. `entries` and `seconds` are what is appended before each accident, whichever is reached first.

    `client` only looks at the metadata. `leaders` keeps the processes of leaders until the end."""

    directory: Path
    members: Members
    follower: Actor
    client: Client
    leaders: AsyncExitStack
    view: View
    input: Path
    entries: int
    seconds: float | None

    async def lead(self, number: int, *, is_endless: bool = True) -> Actor:
        """Start a leader's process, and wait for its first confirmed append."""
        self.view.step(f"leader {number} starts, and takes over")
        task = Task(
            name=f"leader {number}",
            metastore=self.members.metastore,
            history=str(self.directory / f"leader-{number}.history"),
            input=str(self.input),
            entries=None if is_endless else self.entries,
            seconds=None if is_endless else self.seconds,
        )
        leader = await self.leaders.enter_async_context(acting("leader", task))
        await leader.until("confirmed")
        took = takeover_of(leader)
        did = "created the log" if number == 1 else f"fenced {took['ledgers_recovered']} ledgers and took over"
        self.view.done(f"{leader.name} (process {leader.child.pid}) {did} in {took['total']:.2f} s, and appends")
        return leader

    async def append_quota(self, leader: Actor) -> None:
        """Watch the leader append as much as was asked for, and a moment longer."""
        self.view.step(f"{leader.name} appends")
        before, began_s = leader.entries, time.monotonic()
        while leader.entries - before < self.entries and (
            self.seconds is None or time.monotonic() - began_s < self.seconds
        ):
            await leader.progresses()
            self.show(leader)
        await trio.sleep(random.uniform(0, _MOMENT_S))

    def show(self, leader: Actor) -> None:
        """Show how far the leader and the follower are."""
        last = leader.last["confirmed"]
        remark = f"at {last['position']}, {last['in_flight']:,} in flight, the follower at {self.follower.entries:,}"
        self.view.progress(leader.entries, remark)

    async def ensemble(self) -> Sequence[str]:
        """The bookies that entries are written to now."""
        log = await self.client.log_metadata(LOG_NAME)
        return (await self.client.ledger_metadata(log.segments[-1].ledger_id)).last_fragment.ensemble


def takeover_of(leader: Actor) -> dict[str, float]:
    """How long each part of its takeover took, by its reports."""
    reports = (leader.first[event] for event in ("connected", "served", "replayed", "confirmed"))
    moments = [leader.child.started_s, *(report["at_s"] for report in reports)]
    parts = dict(zip(_PARTS, (after - before for before, after in pairwise(moments)), strict=True))
    return {"total": moments[-1] - moments[0], **parts, "ledgers_recovered": leader.first["taken over"]["ledgers"]}


async def kill_leader(stage: Stage) -> tuple[Act, Actor]:
    """Act one; returns the second leader too, which goes on appending."""
    title = "Act one: leader 1 killed"
    stage.view.heading(title)
    first = await stage.lead(1)
    await stage.append_quota(first)
    killed_s = time.monotonic()
    await first.child.kill()
    stage.view.done(f"{first.name} killed by SIGKILL, with {first.entries:,} entries confirmed and others in flight")
    second = await stage.lead(2)
    took = takeover_of(second)
    faults = () if took["ledgers_recovered"] else ("the second leader recovered no ledger",)
    return Act(title, first.name, killed_s, first.name, took, faults=faults), second


async def kill_bookie(stage: Stage, leader: Actor) -> Act:
    """Act two: the leader goes on, with another bookie in the place of the dead one if there is one."""
    title = "Act two: a bookie killed"
    view = stage.view
    view.heading(title)
    await stage.append_quota(leader)
    names = {each.bookie_id: each.name for each in stage.members.members}
    victim_id = random.choice(await stage.ensemble())
    victim = names[victim_id]
    killed_s = time.monotonic()
    await stage.members.kill(victim)
    view.done(f"{victim} killed by SIGKILL: it was one of three that {leader.name} writes to")
    replaced_s = None
    faults: tuple[str, ...] = ()
    if len(names) > QUORUM.ensemble:
        view.step(f"{leader.name} replaces it, and appends")
        change = await leader.child.until(lambda: leader.replaced.get(victim_id) or {}, "it replaces it", SILENCE_S)
        # Of two processes, but one clock: CLOCK_MONOTONIC is the machine's.
        replaced_s = change["at_s"] - killed_s
        new, first_entry_id = names[change["new"]], change["first_entry_id"]
        view.done(f"{leader.name} put {new} in its place after {replaced_s:.3f} s, from entry {first_entry_id:,} on")
        if victim_id in await stage.ensemble():
            faults = (f"{victim} is dead, and still in the ensemble",)
    else:
        view.done("there is no other bookie to take its place: two of three are enough to go on, and to take over")
    await stage.append_quota(leader)
    view.done(f"{leader.name} went on")
    return Act(title, leader.name, killed_s, leader.name, bookie_replaced_s=replaced_s, faults=faults)


async def stop_leader(stage: Stage, leader: Actor) -> Act:
    """Act three, after which the third leader has closed the log."""
    title = "Act three: leader 2 stopped"
    view = stage.view
    view.heading(title)
    await leader.child.stop()
    stopped_s = time.monotonic()
    view.done(f"{leader.name} stopped by SIGSTOP while it appends: it notices nothing of what comes")
    third = await stage.lead(3, is_endless=False)
    woken_s = time.monotonic()
    leader.child.wake()
    view.step(f"{leader.name} wakes up, while leader 3 appends")
    fenced = await leader.until("fenced")
    learnt_s = fenced["at_s"] - woken_s
    view.done(
        f"{leader.name} was woken by SIGCONT, and knew after {learnt_s * 1000:,.0f} ms that it is fenced; it names "
        f"{fenced['entries']:,} entries whose fate it does not know: {fenced['first']} to {fenced['last']}"
    )
    view.step(f"{third.name} appends")
    while await third.progresses():
        stage.show(third)
    view.done(f"{third.name} appended {third.entries:,} entries and closed the log")
    took, doubts = takeover_of(third), [fenced["first"], fenced["last"]]
    return Act(title, leader.name, stopped_s, third.name, took, leader_learnt_s=learnt_s, entries_in_doubt=doubts)
