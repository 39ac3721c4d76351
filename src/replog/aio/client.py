"""A client for asyncio, and the ways to it."""

from __future__ import annotations

from replog import api
from replog.aio.faces import Face, face_of, function_of
from replog.bookie.serving import ServedBookie as TrioServedBookie
from replog.client.administration import RemoteBookie as TrioRemoteBookie

connect = function_of(api.connect)
embed = function_of(api.embed)
served_bookie = function_of(api.served_bookie)
serve_bookie = function_of(api.serve_bookie)


@face_of(api.Client)
class Client(Face):
    """A way to ledgers and logs. Made by `connect` and `embed`; belongs to the event loop that made it.

    Every verb is that of `replog.Client`, with the same arguments, results and errors. After its block it raises
    `ClosedError`."""

    __slots__ = ()


@face_of(TrioServedBookie)
class ServedBookie(Face):
    """A bookie that is served inside this app."""

    __slots__ = ()


@face_of(TrioRemoteBookie)
class RemoteBookie(Face):
    """A bookie that is announced somewhere."""

    __slots__ = ()
