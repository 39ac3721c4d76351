"""A client for asyncio, the ways to it, and its other objects beside readers and writers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from replog import api
from replog.aio.contexts import Opened
from replog.aio.faces import FACES
from replog.bookie.serving import ServedBookie as TrioServedBookie
from replog.client.administration import RemoteBookie as TrioRemoteBookie
from replog.machine.running import RunningMachine as TrioRunningMachine
from replog.runtime.faces import Face

connect = FACES.function_of(api.connect)
embed = FACES.function_of(api.embed)
serve_bookie = FACES.function_of(api.serve_bookie)
serve_repairs = FACES.function_of(api.serve_repairs)


@FACES.face_of(api.Client)
class Client(Opened):
    """A way to ledgers and logs. Made by `connect` and `embed`; belongs to the event loop that made it.

    Every verb works like that of `replog.Client`, with the same arguments, results and errors. After its block it
    raises `ClosedError`."""


@FACES.face_of(api.Admin)
class Admin(Face):
    """Administers a cluster: its bookies, their copies, and back-ups."""


@FACES.face_of(api.Jobs)
class Jobs(Face):
    """Adds ledgers that jobs wrote to logs, and retires what logs remember of transactions and producers."""


@FACES.face_of(api.Cursors)
class Cursors(Face):
    """Lists, moves and deletes the cursors of logs."""


@FACES.face_of(TrioServedBookie)
class ServedBookie(Opened):
    """A bookie that is served inside this app."""


@FACES.face_of(TrioRemoteBookie)
class RemoteBookie(Face):
    """A bookie that is announced somewhere."""


@FACES.face_of(TrioRunningMachine)
class RunningMachine(Opened):
    """A state machine in this process, for any number of tasks. Made by `Client.run_machine`; each command is a method."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self.call, self._inner._command_named(name))
