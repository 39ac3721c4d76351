"""Bookies of one's own, for every thread."""

from __future__ import annotations

from replog import api
from replog.blocking.contexts import Opened
from replog.blocking.faces import FACES
from replog.bookie.serving import ServedBookie as TrioServedBookie

embed = FACES.function_of(api.embed)
serve_bookie = FACES.function_of(api.serve_bookie)


@FACES.face_of(TrioServedBookie)
class ServedBookie(Opened):
    """A bookie that is served inside this app."""
