"""Errors about bookies: too few, unreachable, refusing; back-ups of their entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replog.errors.base import ReplogError, TransientError


class NotEnoughBookiesError(TransientError):
    """Fewer usable bookies than the quorum needs. Retry: when bookies are back. Outcome: not written if raised by a
    creation; unknown for unconfirmed entries if it ends a writer (then `unconfirmed` has their ids)."""

    def __init__(
        self,
        message: str,
        needed: int,
        usable: Iterable[str],
        excluded: Iterable[str] = (),
        unconfirmed: range = range(0),
    ) -> None:
        super().__init__(message)
        self.needed = needed
        self.usable = tuple(usable)
        self.excluded = tuple(excluded)
        self.unconfirmed = unconfirmed


class PlacementUnmetError(NotEnoughBookiesError):
    """A strict placement policy found no bookies that meet its wishes. Retry: when there are bookies with other labels.
    Outcome: as of `NotEnoughBookiesError`."""


class BookieError(ReplogError):
    """The base class of errors about one bookie, `bookie_id`."""

    def __init__(self, bookie_id: str, message: str) -> None:
        super().__init__(f"bookie {bookie_id}: {message}")
        self.bookie_id = bookie_id


class BookieUnreachableError(BookieError, TransientError):
    """No connection to the bookie, or it was lost. Retry: yes. Outcome: unknown for calls under way."""


class BookieRefusedError(BookieUnreachableError):
    """The bookie refused the connection, or is another bookie than expected. The message says why: another identity (B4), no
    common version, failed TLS or authentication, too many connections.

    Retry: after correcting the cause; later, if the bookie had too many connections. Outcome: not written."""


class BookieReadOnlyError(BookieError):
    """The bookie's disk is full or failed: it refuses new entries. Retry: another bookie. Outcome: not written."""


class BookieTooBusyError(BookieError, TransientError):
    """Too many bytes wait for this bookie. Retry: later. Outcome: not written."""


class AdministrationError(BookieError):
    """The bookie could not carry out an administrator's command, or not for this client.

    Retry: as the message says. Outcome: no existing ledger was dropped."""


class BackupError(ReplogError):
    """A directory cannot be used for this back-up or restore. `path` is the file or directory. Retry: as the message says.
    Outcome: the back-up that was there stays; of a restore, no part of a log can be seen."""

    def __init__(self, path: object, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = str(path)


class BackupDamagedError(BackupError):
    """A file of a back-up, `path`, is not as it was written. Retry: no; take another copy of the file. Of a restore it says
    which logs were restored before, and which are left."""


class ArchiveError(ReplogError):
    """An archive cannot be used: its store refuses or does not answer, this program lacks its plugin or credentials, it is
    another cluster's, or an object there is missing or damaged. `archive` is its URL, without credentials. Retry: as the message
    says. Outcome: bookies keep what they had; at most an object was written that nobody names, and `collect_archives` deletes."""

    def __init__(self, archive: object, message: str) -> None:
        super().__init__(f"archive {archive}: {message}")
        self.archive = str(archive)


class LossNotAcceptedError(ReplogError):
    """Bookies were to be declared lost with which confirmed entries may be gone. `at_risk` lists these, each with `ledger_id`,
    `first_entry_id`, `last_entry_id` and `lost`. Retry: with the loss accepted. Outcome: nothing was declared."""

    def __init__(self, message: str, at_risk: Sequence[object]) -> None:
        super().__init__(message)
        self.at_risk = tuple(at_risk)


class AuthenticationError(ReplogError):
    """Authentication failed: of a client to a bookie, or of a bookie to a client. Raised by authenticators; connections
    raise `BookieRefusedError` with the same words. `detail` is for the log of the checking side only. Retry: no,
    correct the credentials. Outcome: not written."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail
