"""How verbs are called under asyncio."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from replog.aio.contexts import Opening
from replog.aio.host import Host
from replog.runtime.faces import Face, Faces, Verb, closed, gives_context, without_trio


class AsyncioFaces(Faces):
    """A verb that waits is a coroutine function; all else is called at once, since both loops share one thread."""

    def opening(self, way: Host | None, make: Callable[[], Any]) -> Opening:
        """For `async with`."""
        return Opening(make, self.given, way)

    def immediate(self, way: Host, function: Callable[[], Any]) -> Any:
        """Calls it here."""
        if way.is_forked:
            raise way.forked()
        try:
            return function()
        except RuntimeError as error:
            # Some verbs ask trio for the time, which it has only while it runs.
            if way.has_ended:
                raise closed() from error
            raise
        except Exception as error:
            raise without_trio(error)  # noqa: B904 - it has its cause

    def waiting_verb(self, name: str) -> Verb:
        """Waits for a task of the trio run."""

        async def wait(self: Face, *args: Any, **kwargs: Any) -> Any:
            found = await self._way.call(lambda: getattr(self._inner, name)(*args, **kwargs))
            return self._kind.given(self._way, found)

        return wait

    def function_of(self, source: Verb) -> Verb:
        """The face of a function of the package: one that gives a context, or waits."""
        if gives_context(source):
            return functools.wraps(source)(lambda *args, **kwargs: self.opening(None, lambda: source(*args, **kwargs)))

        async def wait(*args: Any, **kwargs: Any) -> Any:
            host = await Host.join()
            try:
                for each in (*args, *kwargs.values()):
                    if isinstance(each, Face):
                        each._way.check_loop()
                args = tuple(map(_inner, args))
                kwargs = {name: _inner(each) for name, each in kwargs.items()}
                return self.given(host, await host.call(lambda: source(*args, **kwargs)))
            finally:
                await host.part()

        return functools.wraps(source)(wait)


def _inner(argument: Any) -> Any:
    return argument._inner if isinstance(argument, Face) else argument


FACES = AsyncioFaces(
    {
        "replog.api.admin": "replog.aio.administration",
        "replog.api.client": "replog.aio.client",
        "replog.api.cursors": "replog.aio.administration",
        "replog.api.jobs": "replog.aio.administration",
        "replog.bookie.serving": "replog.aio.bookies",
        "replog.client.administration": "replog.aio.administration",
        "replog.client.ledger_reader": "replog.aio.readers",
        "replog.client.ledger_writer": "replog.aio.writers",
        "replog.log.cursor": "replog.aio.readers",
        "replog.log.log_reader": "replog.aio.readers",
        "replog.log.log_writer": "replog.aio.writers",
        "replog.machine.running": "replog.aio.machines",
    }
)
