"""The same nouns and verbs for any thread: `with replog_bookkeeper.blocking.connect(URI) as client`. See `replog.blocking`."""

from __future__ import annotations

from replog.blocking import writers as _writers  # noqa: F401 - loaded before the first append
from replog.blocking.contexts import Opened
from replog.blocking.faces import FACES
from replog_bookkeeper import client as _client

connect = FACES.function_of(_client.connect)


@FACES.face_of(_client.Client)
class Client(Opened):
    """A way to the ledgers of a BookKeeper cluster, for any number of threads. Made by `connect`.

    Every method works like that of `replog_bookkeeper.Client`, with the same arguments, results and errors. After it was left, it
    raises `ClosedError`; in a fork of its process, `ForkedError`."""
