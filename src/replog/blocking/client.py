"""A client for every thread, the ways to it, and its other objects beside readers and writers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from replog import api
from replog.blocking.contexts import Opened, Opening
from replog.blocking.faces import FACES
from replog.blocking.readers import LogReader
from replog.bookie.serving import ServedBookie as TrioServedBookie
from replog.client.administration import RemoteBookie as TrioRemoteBookie
from replog.log.log_reader import LogReader as TrioLogReader
from replog.machine.running import RunningMachine as TrioRunningMachine
from replog.protocol.model import Position
from replog.runtime.faces import Face

connect = FACES.function_of(api.connect)
embed = FACES.function_of(api.embed)
serve_bookie = FACES.function_of(api.serve_bookie)
serve_repairs = FACES.function_of(api.serve_repairs)


@FACES.face_of(api.Client)
class Client(Opened):
    """A way to ledgers and logs, for any number of threads. Made by `connect` and `embed`.

    Every method works like that of `replog.Client`, with the same arguments, results and errors. After it was left, it
    raises `ClosedError`; in a fork of its process, `ForkedError`."""

    def read_log(
        self,
        name: str,
        *,
        after: Position | str | None = None,
        since: datetime | timedelta | None = None,
        follow: bool = False,
        password: bytes = b"",
        timeout_s: float | None = None,
    ) -> Opening:
        """A reader of a log, as a context: from the beginning or `after` a position; with `follow` it waits for more, for
        `timeout_s` at a time.

        `since` a time, or since so long ago, all entries come that were sent then or later, by their writers' clocks, and maybe
        some earlier ones. Raises `LogNotFoundError` (with `follow` it waits for the log instead), `TrimmedError`,
        `PositionError`; `ConfigError` for a time without a zone, or `after` and `since` together; with `since`, also
        `EntryUnreadableError` (retry: yes)."""
        inner, portal = self._inner, self._way

        @contextmanager
        def enter(is_of_process: bool) -> Iterator[LogReader]:
            def make() -> AbstractAsyncContextManager[TrioLogReader]:
                return inner.read_log(  # type: ignore[no-any-return]
                    name, after=after, since=since, follow=follow, password=password
                )

            with portal.opened(make, is_of_process=is_of_process) as reader:
                yield LogReader(portal, reader, timeout_s)

        return Opening(enter)


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
    """A bookie as it was announced when this was made."""


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
