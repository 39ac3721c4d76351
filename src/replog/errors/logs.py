"""Errors about one log, and about its cursors: durable, named places of readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replog.errors.base import ReplogError, TransientError


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


class ClockMismatchError(LogError):
    """Something was to be dropped or forgotten by age, and clocks contradict each other: bookies do not confirm this client's
    clock, it has jumped, or the times of a segment cannot be right. Has `bookies`, whose clocks differ or are unknown, and
    `segment`, or None.

    Retry: after correcting the clock; for a segment, as the message says. Outcome: nothing was dropped or forgotten by age."""

    def __init__(self, log_name: str, message: str, bookies: Iterable[str] = (), segment: int | None = None) -> None:
        super().__init__(log_name, message)
        self.bookies = tuple(bookies)
        self.segment = segment


class DuplicateError(LogError):
    """An id, of `producer` with `sequence`, is below what the log remembers of it: up to `forgotten`, it knows only that this
    sequence or a later one was written.

    Retry: no: this id will never be appended. Outcome: written, if the producer's sequences rise; read the log to see it."""

    def __init__(self, log_name: str, producer: str, sequence: int, forgotten: int) -> None:
        super().__init__(
            log_name,
            f"sequence {sequence} of producer {producer!r} is not above {forgotten}, up to which the log has forgotten where its "
            "entries are: it was written before, unless this producer's sequences do not rise; it was not appended again: go on "
            "with the next one, or read the log to find it",
        )
        self.producer = producer
        self.sequence = sequence
        self.forgotten = forgotten


class ProducersFullError(LogError):
    """The log remembers as many producers as it can, and this `producer` is new. Has `oldest`, some that were silent for longest.

    Retry: after an operator has retired some (`replog log producers`, `client.jobs.retire_producers`); or use names that stay,
    one for each place that entries come from. Outcome: not written."""

    def __init__(self, log_name: str, producer: str, producers_max: int, oldest: Sequence[str]) -> None:
        super().__init__(
            log_name,
            f"it remembers {producers_max} producers, and {producer!r} is new: nothing was written. Use names that stay the same "
            f"when a producer starts again, rather than new ones; or retire those that are not repeated any more, by "
            f"`replog log producers {log_name} --retire`: silent for longest are {', '.join(map(repr, oldest))}",
        )
        self.producer = producer
        self.oldest = tuple(oldest)


class TransactionTableFullError(LogError):
    """The log remembers as many ids of transactions as it can, and this one is new. Has `oldest`, the ids that were committed
    longest ago.

    Retry: after an operator has retired some (`replog log transactions`). Outcome: not written, the log is unchanged."""

    def __init__(self, log_name: str, message: str, oldest: Iterable[str]) -> None:
        super().__init__(log_name, message)
        self.oldest = tuple(oldest)


class CursorError(LogError):
    """The base class of errors about one cursor of a log, `cursor_name`."""

    def __init__(self, log_name: str, cursor_name: str, message: str) -> None:
        super().__init__(log_name, f"cursor {cursor_name!r}: {message}")
        self.cursor_name = cursor_name


class CursorNotFoundError(CursorError):
    """The log has no such cursor. Retry: after a client has acquired it. Outcome: nothing was moved or deleted."""


class CursorLostError(CursorError):
    """Another client has acquired or moved the cursor since, or it was deleted. Retry: no; stop working, or acquire it again and
    read from there. Outcome: unknown for commits since the last one that returned, if one of them was cancelled or an answer of
    the metastore was lost; otherwise they are not written. No later one will be."""


class TrimBlockedError(CursorError):
    """A log was not trimmed as far as was asked for, because a cursor still needs what would go. Has `needed_from`, the
    first position that the cursor has not committed, and `begins_at`, where the log begins now. Retry: once the cursor
    has committed more, or was moved or deleted. Outcome: segments before `begins_at` were trimmed, and nothing else."""

    def __init__(self, log_name: str, cursor_name: str, message: str, needed_from: object, begins_at: object) -> None:
        super().__init__(log_name, cursor_name, message)
        self.needed_from = needed_from
        self.begins_at = begins_at
