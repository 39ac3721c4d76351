"""A client for every thread, and the way to one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime, timedelta

from replog import api
from replog.blocking import writers as _writers  # noqa: F401 - loaded before the first append
from replog.blocking.contexts import Opened, Opening
from replog.blocking.faces import FACES
from replog.blocking.readers import LogReader
from replog.log.log_reader import LogReader as TrioLogReader
from replog.protocol.model import Position

connect = FACES.function_of(api.connect)


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
