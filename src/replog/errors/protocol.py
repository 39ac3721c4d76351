"""Errors of a peer that breaks the protocol."""

from __future__ import annotations

from replog.errors.base import ReplogError
from replog.errors.bookies import BookieError


class ProtocolError(ReplogError):
    """Somebody broke the protocol. Never raised itself."""

    def __init__(self, message: str) -> None:
        if type(self) is ProtocolError:
            raise TypeError("ProtocolError is abstract: raise LocalProtocolError or RemoteProtocolError")
        super().__init__(message)


class LocalProtocolError(ProtocolError):
    """This side broke it: a bug in the caller. Retry: no. Outcome: not written."""


class RemoteProtocolError(ProtocolError):
    """The other side, or a disk, gave bytes that are not a batch or message. Retry: another bookie. Outcome: unknown."""


class EnvelopeError(RemoteProtocolError):
    """A stored entry is marked as an envelope (key, headers, id), and its bytes are none: the program that wrote it was
    broken or hostile, or is newer than this replog. Retry: no, every copy has these bytes; later entries can be read.
    Outcome: nothing was written."""


class BookieAnswerError(BookieError, RemoteProtocolError):
    """A bookie's answer can't be one: it does not fit the question, or its proof proves nothing (R11). The bookie is damaged,
    of another version, or hostile. Retry: another bookie. Outcome: unknown, as if it had not answered."""
