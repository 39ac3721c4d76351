"""A client's groups of verbs, bookies that are administered, and repairs, for asyncio."""

from __future__ import annotations

from replog import api
from replog.aio.faces import FACES
from replog.client.administration import RemoteBookie as TrioRemoteBookie
from replog.runtime.faces import Face

serve_repairs = FACES.function_of(api.serve_repairs)


@FACES.face_of(api.Admin)
class Admin(Face):
    """Administers a cluster: its bookies, their copies, and back-ups."""


@FACES.face_of(api.Jobs)
class Jobs(Face):
    """Adds ledgers that jobs wrote to logs, and retires what logs remember of transactions and producers."""


@FACES.face_of(api.Cursors)
class Cursors(Face):
    """Lists, moves and deletes the cursors of logs."""


@FACES.face_of(TrioRemoteBookie)
class RemoteBookie(Face):
    """A bookie that is announced somewhere."""
