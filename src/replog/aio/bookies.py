"""Bookies of one's own, for asyncio."""

from __future__ import annotations

from replog import api
from replog.aio.contexts import Opened
from replog.aio.faces import FACES
from replog.bookie.serving import ServedBookie as TrioServedBookie

embed = FACES.function_of(api.embed)
serve_bookie = FACES.function_of(api.serve_bookie)


@FACES.face_of(TrioServedBookie)
class ServedBookie(Opened):
    """A bookie that is served inside this app."""
