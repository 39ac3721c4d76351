"""Errors about cursors: durable, named places of readers in a log."""

from __future__ import annotations

from replog.errors.logs import LogError


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
    """A log was not trimmed as far as was asked for, because a cursor still needs what would go. Has `needed_from`, the first
    position that the cursor has not committed, and `begins_at`, where the log begins now. Retry: once the cursor has committed
    more, or was moved or deleted. Outcome: what is before `begins_at` was trimmed, and nothing else."""

    def __init__(self, log_name: str, cursor_name: str, message: str, needed_from: object, begins_at: object) -> None:
        super().__init__(log_name, cursor_name, message)
        self.needed_from = needed_from
        self.begins_at = begins_at
