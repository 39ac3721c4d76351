"""How verbs are called from any thread."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

from replog.blocking.contexts import Opening
from replog.blocking.portal import Portal
from replog.runtime.faces import Face, Faces, Verb, gives_context


class ThreadFaces(Faces):
    """Every verb is a call into the trio thread, and waits for its end."""

    def opening(self, way: Portal, make: Callable[[], AbstractAsyncContextManager[Any]]) -> Opening:
        """For `with`, or to be opened for the life of the process."""

        @contextmanager
        def enter(is_of_process: bool) -> Iterator[Any]:
            with way.opened(make, is_of_process=is_of_process) as inner:
                yield self.given(way, inner)

        return Opening(enter)

    def immediate(self, way: Portal, function: Callable[[], Any]) -> Any:
        """Calls it there."""
        return way.call_sync(function)

    def waiting_verb(self, name: str) -> Verb:
        """Waits for a task of the trio thread."""

        def wait(self: Face, *args: Any, **kwargs: Any) -> Any:
            return self._kind.given(self._way, self._way.call(getattr(self._inner, name), *args, **kwargs))

        return wait

    def function_of(self, source: Verb) -> Verb:
        """The face of a function of the package. One that gives a context gets a thread of its own; one that waits takes a face
        as its first argument, and waits in the thread of that."""
        if not gives_context(source):

            def wait(face: Face, *args: Any, **kwargs: Any) -> Any:
                return self.given(face._way, face._way.call(source, face._inner, *args, **kwargs))

            return functools.wraps(source)(wait)

        def open_context(*args: Any, **kwargs: Any) -> Opening:
            @contextmanager
            def enter(is_of_process: bool) -> Iterator[Any]:
                portal = Portal()
                with portal.running(lambda: source(*args, **kwargs), is_of_process=is_of_process) as inner:
                    yield self.given(portal, inner)

            return Opening(enter)

        return functools.wraps(source)(open_context)


FACES = ThreadFaces(
    {
        "replog.api.admin": "replog.blocking.administration",
        "replog.api.client": "replog.blocking.client",
        "replog.api.cursors": "replog.blocking.administration",
        "replog.api.jobs": "replog.blocking.administration",
        "replog.bookie.serving": "replog.blocking.bookies",
        "replog.client.administration": "replog.blocking.administration",
        "replog.client.ledger_reader": "replog.blocking.readers",
        "replog.client.ledger_writer": "replog.blocking.writers",
        "replog.log.cursor": "replog.blocking.readers",
        "replog.log.log_reader": "replog.blocking.readers",
        "replog.log.log_writer": "replog.blocking.writers",
        "replog.machine.running": "replog.blocking.machines",
    }
)
