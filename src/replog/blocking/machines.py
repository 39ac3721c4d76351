"""State machines for every thread."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

from replog.blocking.contexts import Opened
from replog.blocking.faces import FACES
from replog.machine.running import RunningMachine as TrioRunningMachine


@FACES.face_of(TrioRunningMachine)
class RunningMachine(Opened):
    """A state machine in this process, for every thread. Made by `Client.run_machine`; each command is a method."""

    @property
    def local(self) -> Any:
        # Without the copy, this thread would look at it while the trio thread applies the next command.
        return self._way.call_sync(lambda: copy.deepcopy(self._inner.local))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self.call, self._inner._command_named(name))
