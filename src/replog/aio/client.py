"""A client for asyncio, and the way to one."""

from __future__ import annotations

from replog import api
from replog.aio import readers as _readers  # noqa: F401 - loaded before the first append, as are writers
from replog.aio import writers as _writers  # noqa: F401
from replog.aio.contexts import Opened
from replog.aio.faces import FACES

connect = FACES.function_of(api.connect)


@FACES.face_of(api.Client)
class Client(Opened):
    """A way to ledgers and logs. Made by `connect` and `embed`; belongs to the event loop that made it.

    Every verb works like that of `replog.Client`, with the same arguments, results and errors. After its block it
    raises `ClosedError`."""
