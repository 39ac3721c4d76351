"""Errors about one ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from replog.errors.base import ReplogError, TransientError


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
    """The ledger was deleted while this client wrote or recovered it: a bookie keeps its fence permanently (B6).

    Retry: no; the leader of a log goes on as after any `FencedError`. Outcome: unknown for `unconfirmed`; none of the ledger's
    entries can be read any more.
    """


class LedgerFinishedError(LedgerError):
    """The ledger was finished: no client can take it over. Retry: no, create another ledger. Outcome: not written."""


class LedgerTrimmedError(LedgerError):
    """The entry was trimmed away. Has `entry_id`, and `first_available`, where the ledger begins now. Retry: from there."""

    def __init__(self, ledger_id: int, entry_id: int, first_available: int) -> None:
        super().__init__(ledger_id, f"entry {entry_id} was trimmed away: the first that is left is {first_available}")
        self.entry_id, self.first_available = entry_id, first_available


class LedgerRolledBackError(LedgerError):
    """The metadata is older than what bookies know, as after a restore from an old back-up (T1); `term` is the highest
    that is known. Retry: no; an operator raises the term, if nothing newer is left. Outcome: unknown for entries under
    way."""

    def __init__(self, ledger_id: int, message: str, term: int) -> None:
        super().__init__(ledger_id, message)
        self.term = term


class LedgerRecordLostError(LedgerError):
    """The metastore no longer has the record of the ledger that this client writes, or has an older one: it was
    emptied, or went back (W9). `confirmed` are the entries that were confirmed since the record was last seen to be
    right: perhaps no reader can read them. Retry: once the right metastore is back; of a log, by taking it over again.
    Outcome: unknown for `confirmed` and `unconfirmed`."""

    def __init__(self, ledger_id: int, message: str, confirmed: range = range(0)) -> None:
        unreadable = f"entries {confirmed[0]} to {confirmed[-1]} were confirmed since" if confirmed else "no entry was"
        super().__init__(
            ledger_id,
            f"{message}. Since the record was last seen to be right, {unreadable}: perhaps no reader can read them. Put the "
            "right metastore back",
        )
        self.confirmed = confirmed
        self.unconfirmed: range = range(0)


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


class ArchiveUnreadableError(EntryUnreadableError):
    """The entry is in an archive, and cannot be read there: the archive cannot be reached, this program lacks its plugin or
    credentials, or an object is missing or damaged. The message names the archive, the object and what to do.

    Retry: yes, after correcting that."""


class UnauthorizedError(LedgerError):
    """Wrong password for this ledger (B7), or the bookies hold another creation of its id, as after a restore of older metadata
    (M5). Retry: with the right password. Outcome: not written."""


class LedgerRefusedError(LedgerError):
    """The ledger cannot be added to the log: it is not closed, was made for another log or job, is in the log already, or has
    another password. The message says which. Retry: after correcting that. Outcome: not written, the log is unchanged."""


class WriteQuorumError(LedgerError, TransientError):
    """Bookies still lack copies after 20 seconds, of a ledger whose write quorum is guaranteed (W8).
    `lacking` has the missing copies of each bookie, and the reasons.

    Retry: when the bookies are back or there are others: close, roll or take over; `recover_ledger` for a closed
    ledger. Outcome: written. The call that raised this has happened: the ledger is closed at `last_entry_id`, or that
    is None, and its fragment was rolled or its term opened. Every confirmed entry is at its ack quorum, and only copies
    are missing."""

    def __init__(self, ledger_id: int, message: str, lacking: Mapping[str, str], last_entry_id: int | None) -> None:
        super().__init__(ledger_id, message)
        self.lacking = dict(lacking)
        self.last_entry_id = last_entry_id


class AddTimeoutError(LedgerError, TransientError):
    """Entries were not confirmed within the deadline (W6). Retry: take over the log again. Outcome: unknown for the ids in
    `unconfirmed`."""

    def __init__(self, ledger_id: int, message: str, unconfirmed: range = range(0)) -> None:
        super().__init__(ledger_id, message)
        self.unconfirmed = unconfirmed
