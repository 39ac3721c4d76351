"""The bookies of a local cluster: processes that are started, watched, started again when they die, and never left behind.

Each is `replog bookie`, as anybody would run it. A Ctrl-C reaches only the cluster, which asks the bookies to leave in order. If
the cluster itself is killed, the kernel kills them (`replog.runtime.children`).
"""

from __future__ import annotations

import enum
import json
import math
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from replog.cli.cluster.peers import METADATA, ClusterFailedError, url_of
from replog.config import BackendURL
from replog.errors import ConfigError, ReplogError
from replog.runtime.children import Child, python_module, running_child
from replog.runtime.nursery import open_service_nursery

_LEAVE_S = 30.0  # a bookie that takes longer is killed
_WAIT_MIN_S, _WAIT_MAX_S = 1.0, 30.0  # before one that died is started again
_LONG_S = 60.0  # after serving for so long, the wait is the shortest again
_LOGS = "logs"


class State(enum.Enum):
    """The state of a bookie's process."""

    STARTING = "starting"
    SERVING = "serving"
    WAITING = "waiting"  # it died, and is started again soon
    DEAD = "dead"
    LEAVING = "leaving"
    LEFT = "left"


@attrs.define
class Member:
    """One bookie and its present state. `problem` says in words why it is not well."""

    name: str
    directory: Path
    state: State = State.STARTING
    bookie_id: str = ""
    address: str = ""
    pid: int = 0
    restarts: int = 0
    problem: str = ""

    def to_json(self) -> dict[str, object]:
        """The fields for programs."""
        return {
            "name": self.name,
            "state": self.state.value,
            "bookie": self.bookie_id,
            "address": self.address,
            "pid": self.pid or None,
            "restarts": self.restarts,
            "problem": self.problem,
        }


@attrs.frozen
class Plan:
    """The bookies to start, below a directory. `assignments` are those of `--set`; `peers` are the addresses of those that keep
    the metastore.

    A bookie that dies is started again, unless `restarts` is false; with `needs_all`, all of them leave then."""

    directory: Path
    bookies: int
    storage: str = "files"
    restarts: bool = True
    assignments: Sequence[str] = ()
    needs_all: bool = False
    peers: Sequence[str] = ()

    @property
    def metastore(self) -> str:
        """The URL of the metastore in which the bookies announce themselves."""
        if self.peers:
            return url_of(self.peers)
        return BackendURL("lmdb", str(self.directory / METADATA)).with_secrets()

    def where(self, number: int) -> list[str]:
        """The flags of one bookie that say where it listens, and where the metadata is."""
        if number < len(self.peers):
            return ["--peers", ",".join(self.peers), "--listen", self.peers[number]]
        # Port 0: any that is free, so that clusters on one machine do not meet.
        return ["--metastore", self.metastore, "--listen", "127.0.0.1:0"]


class Members:
    """The bookies of a plan. `tell` is called whenever the state of one changes."""

    def __init__(self, plan: Plan, tell: Callable[[Member], None]) -> None:
        self.metastore = plan.metastore
        self.members = [Member(f"bookie-{each}", plan.directory / f"bookie-{each}") for each in range(plan.bookies)]
        self._plan = plan
        self._tell = tell
        self._leaving = trio.Event()
        self._failure: ReplogError | None = None
        self._served = trio.Event()  # all of them, at least once
        self._children: dict[str, Child] = {}
        self._killed: set[str] = set()

    async def run(self) -> None:
        """Run them until `leave`, or until one of them cannot serve; none is left then.

        Raises `ClusterFailedError`, or `ConfigError` if wrong configuration is the cause."""
        (self._plan.directory / _LOGS).mkdir(exist_ok=True)
        async with trio.open_nursery() as nursery:
            for each in self.members:
                nursery.start_soon(self._keep, each)
        if self._failure is not None:
            raise self._failure
        failed = [each for each in self.members if each.state is State.DEAD and each.name not in self._killed]
        if failed:
            raise ClusterFailedError("; ".join(f"{each.name}: {each.problem}" for each in failed))

    async def served(self) -> None:
        """Wait until each of them has served."""
        await self._served.wait()

    def leave(self) -> None:
        """Ask all of them to leave; `run` ends when they have left."""
        self._leaving.set()

    async def kill(self, name: str) -> None:
        """Kill the process of this bookie, and wait until it is dead. It is not started again, and `run` does not fail for
        it."""
        self._killed.add(name)
        await self._children[name].kill()

    # -- one of them ------------------------------------------------------------------------------------------------

    def _turn(self, member: Member, state: State, problem: str = "") -> None:
        member.state, member.problem = state, problem
        self._tell(member)
        # A bookie has an id from the moment it served first, and keeps it when it dies: `served` is about the start.
        if all(each.bookie_id for each in self.members):
            self._served.set()

    async def _keep(self, member: Member) -> None:
        wait_s = _WAIT_MIN_S
        while True:
            began_s = trio.current_time()
            self._turn(member, State.STARTING)
            status = await self._run_once(member)
            problem = member.problem or _ending(status)
            if member.name in self._killed:
                self._turn(member, State.DEAD, problem)
                return
            if self._leaving.is_set():
                # It did not handle signals yet: there was nothing to leave.
                if status == -signal.SIGTERM:
                    status = 0
                self._turn(member, State.DEAD if status else State.LEFT, problem if status else "")
                return
            # One that never served would not serve the next time either: its configuration is wrong, or its directory.
            if not member.bookie_id or self._plan.needs_all:
                words = f"{member.name} {'died' if member.bookie_id else 'cannot serve'}: {problem}"
                self._failure = self._failure or (ConfigError(words) if status == 2 else ClusterFailedError(words))
                self._turn(member, State.DEAD, problem)
                self.leave()
                return
            if not self._plan.restarts:
                self._turn(member, State.DEAD, problem)
                await self._leaving.wait()
                return
            wait_s = _WAIT_MIN_S if trio.current_time() - began_s > _LONG_S else min(wait_s, _WAIT_MAX_S)
            self._turn(member, State.WAITING, f"{problem}; it is started again in {wait_s:g} s")
            with trio.move_on_after(wait_s):
                await self._leaving.wait()
                self._turn(member, State.LEFT, problem)
                return
            wait_s *= 2
            member.restarts += 1

    async def _run_once(self, member: Member) -> int:
        plan = self._plan
        command = python_module("replog.cli", "bookie", "--data", str(member.directory), "--log-format", "json")
        command += [*plan.where(self.members.index(member)), "--storage", plan.storage]
        for each in plan.assignments:
            command += ["--set", each]
        log = plan.directory / _LOGS / f"{member.name}.log"
        hear = partial(self._said, member)
        async with (
            running_child(member.name, command, hear, may_fail=True, log=log) as child,
            trio.open_nursery() as nursery,
        ):
            member.pid, self._children[member.name] = child.pid, child
            nursery.start_soon(self._end_when_leaving, child, member)
            status = await child.ended(math.inf)
            nursery.cancel_scope.cancel()
        member.pid = 0
        return status

    async def _end_when_leaving(self, child: Child, member: Member) -> None:
        await self._leaving.wait()
        self._turn(member, State.LEAVING)
        child.terminate()
        await trio.sleep(_LEAVE_S)
        member.problem = f"it did not leave within {_LEAVE_S:g} s, and was killed"
        await child.kill()

    def _said(self, member: Member, line: bytes) -> None:
        fields = _fields(line)
        event = fields.get("event")
        if event == "serving":
            member.bookie_id = str(fields.get("bookie", ""))
            member.address = ", ".join(fields.get("listen", ()))
            self._turn(member, State.SERVING)
        elif event == "failed":
            member.problem = str(fields.get("problem", ""))
        elif fields.get("level") in ("error", "critical"):
            self._turn(member, member.state, str(fields.get("problem", event)))
        elif not fields and line.startswith(b"replog: "):
            member.problem = line[len(b"replog: ") :].decode(errors="replace")


@asynccontextmanager
async def local_cluster(plan: Plan) -> AsyncIterator[Members]:
    """The bookies of a plan, as a context manager, once all of them serve; when the body ends well, they leave in order.

    The body is cancelled if they end before. Raises as `Members.run`."""
    members = Members(plan, lambda member: None)
    left = trio.Event()

    async def run() -> None:
        await members.run()
        left.set()

    async with open_service_nursery() as nursery:
        nursery.start_soon(run)
        await members.served()
        yield members
        members.leave()
        await left.wait()  # `run` kills bookies that take too long


def _fields(line: bytes) -> dict[str, Any]:
    try:
        found: Any = json.loads(line)
    except ValueError:
        # A line of the interpreter, for example: it is in the log.
        return {}
    return found if isinstance(found, dict) else {}


def _ending(status: int) -> str:
    return f"it was killed by signal {-status}" if status < 0 else f"it ended with status {status}"
