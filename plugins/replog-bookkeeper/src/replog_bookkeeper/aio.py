"""The same nouns and verbs for asyncio: `async with replog_bookkeeper.aio.connect(URI) as client`. See `replog.aio`."""

from __future__ import annotations

from replog.aio import readers as _readers  # noqa: F401 - loaded before the first append, as are writers
from replog.aio import writers as _writers  # noqa: F401
from replog.aio.contexts import Opened
from replog.aio.faces import FACES
from replog_bookkeeper import client as _client

connect = FACES.function_of(_client.connect)


@FACES.face_of(_client.Client)
class Client(Opened):
    """A way to the ledgers of a BookKeeper cluster. Made by `connect`; belongs to the event loop that made it.

    Every verb works like that of `replog_bookkeeper.Client`, with the same arguments, results and errors. After its block it
    raises `ClosedError`."""
