"""State machines for asyncio."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from replog.aio.contexts import Opened
from replog.aio.faces import FACES
from replog.machine.running import RunningMachine as TrioRunningMachine


@FACES.face_of(TrioRunningMachine)
class RunningMachine(Opened):
    """A state machine in this process, for any number of tasks. Made by `Client.run_machine`; each command is a method."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self.call, self._inner._command_named(name))
