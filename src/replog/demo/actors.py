"""The processes of leaders and of the follower, as seen by the process that watches them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs

from replog.demo.processes import Task
from replog.errors import ReplogError
from replog.runtime.children import Child, python_module, running_child

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
