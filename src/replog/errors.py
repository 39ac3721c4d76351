"""Every error that replog raises on purpose.

Each class says whether to *retry* and what is known of the *outcome*: not written, written, or unknown. Messages
name the ledger, bookie or key, and the next step. Exceptions of other packages never leave replog by themselves: they
are chained to one of these. Closed writers, readers and clients raise `trio.ClosedResourceError`; a full byte budget
raises `trio.WouldBlock`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class ReplogError(Exception):
    """The base class of all errors of replog. Never raised itself."""


class TransientError(ReplogError):
    """The base class of errors that may pass by waiting: bookies or the metastore are away, or other clients win. Never raised
    itself.

    Retry: wait, and *open again* the writer or reader that raised it; never append the same entries again, because some of
    them may be in the log. `FencedError` is not one: a deposed writer asks for its turn first. Outcome: as each class says."""


# -- configuration ------------------------------------------------------------------------------------------------


class ConfigError(ReplogError):
    """An argument is invalid or impossible: a quorum, an option, a URL. Retry: no, correct it. Outcome: not written."""


class PluginNotFoundError(ConfigError):
    """No loaded plugin serves the URL's scheme. Retry: after installing it. Outcome: not written."""


class PluginConflictError(ConfigError):
    """Two plugins claim one scheme, or a plugin is misspelt or broken. Retry: no, remove one. Outcome: not written."""


class PayloadTooLargeError(ConfigError, ValueError):
    """An entry is longer than a batch can hold. Retry: no, split it. Outcome: not written, nothing was sent."""


class PositionError(ConfigError, ValueError):
    """A position does not parse, or is not one of this log's. Retry: no. Outcome: nothing was read or trimmed."""


class WrongEventLoopError(ReplogError):
    """A verb was called under another event loop than its own: one of trio's under asyncio, one of `replog.aio` under trio, or in
    another loop than the one that its client was opened in. Retry: no, mend it. Outcome: not written, nothing was touched."""


class ClosedError(ReplogError):
    """A client, writer or reader of `replog.aio` or `replog.blocking` was used after it was left. Retry: no, open another one.
    Outcome: not written, or unknown for what was under way when it was left."""


class WouldBlockError(ReplogError):
    """A `..._nowait` of `replog.aio` or `replog.blocking` would have to wait: the byte budget is used up, or no batch is there
    yet. Retry: yes, or use the verb that waits. Outcome: not written, nothing was pushed."""


class EndOfLogError(ReplogError):
    """`receive` of a reader that does not follow, at the end of its log. Retry: no, open a reader after the last position.
    Outcome: nothing was read."""


class ForkedError(ReplogError):
    """A client of `replog.blocking` or `replog.aio`, or one of its objects, was used in a fork of its process, where neither its
    thread nor its event loop exists.

    Retry: no, open a client of its own in each process, after the fork: in gunicorn's `post_fork`, uWSGI's `postfork` or Celery's
    `worker_process_init`. Outcome: not written, nothing was touched."""


# -- ledgers and logs ---------------------------------------------------------------------------------------------


class LedgerError(ReplogError):
    """The base class of errors about one ledger, `ledger_id`."""

    def __init__(self, ledger_id: int, message: str) -> None:
        super().__init__(f"ledger {ledger_id}: {message}")
        self.ledger_id = ledger_id


class LedgerNotFoundError(LedgerError):
    """The metastore has no such ledger: it was never created, or was deleted. Retry: no. Outcome: not written."""


class FencedError(LedgerError):
    """Another client recovers this ledger, or has taken it over: the writer is deposed (T1, W4, L5).

    Retry: no; stop writing, and take over again if you are still elected. Outcome: unknown for the entry ids in
    `unconfirmed`: the recovery keeps or drops each of them, and this writer never learns which. `term` is the one that fenced
    it, or None if that is not known. The writer of a log also sets `positions`, the same entries as positions in the log.
    """

    positions: Sequence[object] = ()
    term: int | None = None

    def __init__(self, ledger_id: int, message: str, unconfirmed: range = range(0)) -> None:
        super().__init__(ledger_id, message)
        self.unconfirmed = unconfirmed


class LedgerClosedError(FencedError):
    """Another client has already recovered and closed this ledger (C4, R1): a `FencedError` that comes late.

    Retry: no, open a new ledger. Outcome: unknown for `unconfirmed`; those with ids up to `last_entry_id` in the
    ledger's metadata survive.
    """


class LedgerDeletedError(FencedError, LedgerNotFoundError):
    """The ledger was deleted while this client wrote or recovered it: a bookie keeps its fence for ever (B6).

    Retry: no; whoever leads a log goes on as after any `FencedError`. Outcome: unknown for `unconfirmed`; none of the ledger's
    entries can be read any more.
    """


class LedgerFinishedError(LedgerError):
    """The ledger was finished: nobody can take it over. Retry: no, create another ledger. Outcome: not written."""


class LedgerTrimmedError(LedgerError):
    """The entry was trimmed away. Has `entry_id`, and `first_available`, where the ledger begins now. Retry: from there."""

    def __init__(self, ledger_id: int, entry_id: int, first_available: int) -> None:
        super().__init__(ledger_id, f"entry {entry_id} was trimmed away: the first that is left is {first_available}")
        self.entry_id, self.first_available = entry_id, first_available


class LedgerRolledBackError(LedgerError):
    """The metadata is older than what bookies know, as after a restore from an old back-up (T1); `term` is the highest that is
    known. Retry: no; an operator raises the term, if nothing newer is left. Outcome: unknown for what was under way."""

    def __init__(self, ledger_id: int, message: str, term: int) -> None:
        super().__init__(ledger_id, message)
        self.term = term


class RecoveryUndecidedError(LedgerError, TransientError):
    """The end of the ledger is unknown: too many bookies were silent, damaged, unreachable or in doubt (R4, R10).

    `bookies` are those whose answers are needed. Retry: yes, when they are back or were declared lost. The ledger stays in
    recovery, and no entry was cut off. Outcome: unknown.
    """

    def __init__(self, ledger_id: int, message: str, bookies: Iterable[str] = ()) -> None:
        super().__init__(ledger_id, message)
        self.bookies = tuple(bookies)


class EntryNotFoundError(LedgerError):
    """No bookie of the write set has this entry, or the entry is past the ledger's end (R7).

    Retry: no, unless bookies of the write set come back."""

    def __init__(self, ledger_id: int, entry_id: int, message: str) -> None:
        super().__init__(ledger_id, f"entry {entry_id}: {message}")
        self.entry_id = entry_id


class EntryUnreadableError(EntryNotFoundError, TransientError):
    """No bookie of the write set returned an intact copy, and at least one was silent or has a damaged copy (D2).

    Retry: yes, when bookies are back."""


class UnauthorizedError(LedgerError):
    """Wrong password for this ledger (B7). Retry: with the right one. Outcome: not written."""


class LedgerRefusedError(LedgerError):
    """The ledger cannot be added to the log: it is not closed, was made for another log or job, is in the log already, or has
    another password. The message says which. Retry: after correcting that. Outcome: not written, the log is unchanged."""


class AddTimeoutError(LedgerError, TransientError):
    """Entries were not confirmed within the deadline (W6). Retry: take over the log again. Outcome: unknown for the ids in
    `unconfirmed`."""

    def __init__(self, ledger_id: int, message: str, unconfirmed: range = range(0)) -> None:
        super().__init__(ledger_id, message)
        self.unconfirmed = unconfirmed


class LogError(ReplogError):
    """The base class of errors about one log, `log_name`."""

    def __init__(self, log_name: str, message: str) -> None:
        super().__init__(f"log {log_name!r}: {message}")
        self.log_name = log_name


class LogNotFoundError(LogError):
    """The metastore has no such log. Retry: after a client has written to it. Outcome: not written."""


class TrimmedError(LogError):
    """The position was trimmed away. Has `first_available`, or None for an empty log. Retry: from there."""

    def __init__(self, log_name: str, message: str, first_available: object = None) -> None:
        super().__init__(log_name, message)
        self.first_available = first_available


class SchemaMismatchError(LogError):
    """Rows do not fit the log's schema (Spark): columns differ, or an entry contains something else. Names the
    columns. Retry: no, select and cast as the message says. Outcome: not written by an append; a reader has read nothing."""


class TakeoverFailedError(LogError, TransientError):
    """Other clients kept taking over this log until the deadline. Retry: yes, if still elected. Outcome: not written."""


class JobAbandonedError(LogError):
    """A sweep gave up the job: its ledgers are being deleted, and can never be added. Has `job`, and `ledger_id`, or None.

    Retry: the whole job, with new ledgers. Outcome: not written; this job can never commit."""

    def __init__(self, log_name: str, message: str, job: str, ledger_id: int | None) -> None:
        super().__init__(log_name, message)
        self.job = job
        self.ledger_id = ledger_id


class CustomMismatchError(LogError):
    """The log's custom metadata differs from the requested. Has `names`, the keys that differ. Retry: no,
    correct the request, or write to another log. Outcome: not written."""

    def __init__(self, log_name: str, message: str, names: Sequence[str]) -> None:
        super().__init__(log_name, message)
        self.names = tuple(names)


class TooManyLedgersError(LogError):
    """Too many ledgers for one record of the log. Has `ledgers_max`, how many fit.

    Retry: no, write fewer, larger ledgers. Outcome: not written, the log is unchanged."""

    def __init__(self, log_name: str, message: str, ledgers_max: int) -> None:
        super().__init__(log_name, message)
        self.ledgers_max = ledgers_max


class TransactionTableFullError(LogError):
    """The log remembers as many ids of transactions as it can, and this one is new. Has `oldest`, the ids that were committed
    longest ago.

    Retry: after an operator has retired some (`replog log transactions`). Outcome: not written, the log is unchanged."""

    def __init__(self, log_name: str, message: str, oldest: Iterable[str]) -> None:
        super().__init__(log_name, message)
        self.oldest = tuple(oldest)


# -- state machines and cursors ---------------------------------------------------------------------------------------


class MachineError(ReplogError):
    """The base class of errors of replicated state machines. Never raised itself."""


class SessionExpiredError(MachineError):
    """The caller's session has ended, because nothing was heard of the caller for `session_timeout_s`, or it never began.

    Retry: a new call has a session of its own, but the failed command may have been applied before. Outcome: unknown for a
    command that was repeated or whose session is of an earlier run; it is not applied from now on."""


class CommandFailedError(MachineError):
    """The command raised an exception, in every process alike. `kind` is the name of its class. It counts as applied: what it
    changed before it raised stays changed. Retry: no. Outcome: applied."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class CommandRefusedError(MachineError):
    """The leader does not know this command, or not in this version. Retry: after upgrading the leader. Outcome: not written."""


class CommandTimeoutError(MachineError, TransientError):
    """No leader confirmed the request in time. Retry: yes for a read; a command may be repeated only with an id that was taken by
    `next_id`. Outcome: unknown for a command."""


class UnknownCommandError(MachineError):
    """An entry of the machine's log, or a snapshot, is not of this program's version: this member stops, so as not to diverge.
    Retry: after upgrading the program. Outcome: the log is unchanged."""


class StateDivergedError(MachineError):
    """The state of this member differs from the leader's at the same position: this member stops. A command depends on more than
    its arguments and the state, such as the clock or the order of a set.

    Retry: no, correct the command; a member that starts again begins with the last snapshot. Outcome: the log is unchanged."""


# -- bookies ------------------------------------------------------------------------------------------------------


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
    """A file of a back-up, `path`, is not as it was written. Retry: no; take another copy of the file."""


class LossNotAcceptedError(ReplogError):
    """Bookies were to be declared lost with which confirmed entries may be gone. `at_risk` lists these, each with `ledger_id`,
    `first_entry_id`, `last_entry_id` and `lost`. Retry: with the loss accepted. Outcome: nothing was declared."""

    def __init__(self, message: str, at_risk: Sequence[object]) -> None:
        super().__init__(message)
        self.at_risk = tuple(at_risk)


class AuthenticationError(ReplogError):
    """Authentication failed: of a client to a bookie, or of a bookie to a client. Raised by authenticators; what
    connects raises `BookieRefusedError` with the same words. `detail` is for the log of who judged, and told to nobody else.
    Retry: no, mend the credentials. Outcome: not written."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


# -- metastore ----------------------------------------------------------------------------------------------------


class MetastoreError(ReplogError):
    """The metastore failed, or refused: a value is too large, a password is wrong, its space is used up. Retry: after correcting
    the cause, unless a subclass says otherwise. Outcome: not written, unless it says otherwise."""


class MetastoreUnavailableError(MetastoreError, TransientError):
    """The metastore cannot be reached, did not answer in time, or could not do it just now. Retry: yes. Outcome: not written."""


class MetastoreUncertainError(MetastoreError, TransientError):
    """A change was sent and its answer lost (M1). Retry: only after reading back. Outcome: unknown."""


class MetastoreCorruptError(MetastoreError):
    """A record has an unknown format or does not parse. Names the key. Retry: no. Outcome: not written."""


class MetastoreKeyError(MetastoreError):
    """Something about one key. Has `key`."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"key {key!r}: {message}")
        self.key = key


class KeyExistsError(MetastoreKeyError):
    """The key exists already. Retry: no. Outcome: not written."""


class KeyNotFoundError(MetastoreKeyError):
    """The key does not exist. Retry: no. Outcome: not written."""


class VersionConflictError(MetastoreKeyError):
    """The key has another version than expected: somebody else changed it. Retry: after rereading. Outcome: not written."""

    def __init__(self, key: str, expected: int, actual: int | None = None) -> None:
        found = "another" if actual is None else str(actual)
        super().__init__(key, f"expected version {expected}, found {found}: reread it, then decide again")
        self.expected = expected


# -- storage ------------------------------------------------------------------------------------------------------


class StorageError(ReplogError):
    """A bookie's storage failed. Has `hint`, what to do. Retry: as the hint says. Outcome: unknown for what was under way."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.hint = hint


class StorageFailedError(StorageError):
    """A write or a sync failed: the storage has stopped for good (B1). Retry: restart the bookie. Outcome: unknown."""


class StorageUncertainError(StorageError):
    """What was asked for may be there, but cannot be read: damage or an I/O error (R4). Never means absence.
    Retry: another bookie."""


class StorageFullError(StorageError):
    """No space for a write; nothing of it was kept, reads go on (B5). Retry: after space was made. Outcome: not written."""


class StorageDamagedError(StorageError):
    """A file is damaged before its tail (B3). Names file and offset. Retry: no: recover this bookie's copies from the others."""


class StorageInUseError(StorageError):
    """Another process has this directory open, or serves a copy of it. Retry: when it is gone. Outcome: not written."""


class StorageIdentityError(StorageError):
    """A directory holds another version, format or identity than expected (B4). Retry: no. Outcome: nothing was touched."""


# -- protocol -----------------------------------------------------------------------------------------------------


class ProtocolError(ReplogError):
    """Somebody broke the protocol. Never raised itself."""

    def __init__(self, message: str) -> None:
        if type(self) is ProtocolError:
            raise TypeError("ProtocolError is abstract: raise LocalProtocolError or RemoteProtocolError")
        super().__init__(message)


class LocalProtocolError(ProtocolError):
    """This side broke it: a bug in the caller. Retry: no. Outcome: not written."""


class RemoteProtocolError(ProtocolError):
    """The other side, or a disk, gave bytes that are no batch or message. Retry: another bookie. Outcome: unknown."""


class BookieAnswerError(BookieError, RemoteProtocolError):
    """A bookie's answer can't be one: it does not fit the question, or its proof proves nothing (R11). The bookie is damaged,
    of another version, or hostile. Retry: another bookie. Outcome: unknown, as if it had not answered."""
