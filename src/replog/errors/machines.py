"""Errors of replicated state machines."""

from __future__ import annotations

from replog.errors.base import ReplogError, TransientError


class MachineError(ReplogError):
    """The base class of errors of replicated state machines. Never raised itself."""


class SessionExpiredError(MachineError):
    """The caller's session has ended, because nothing was heard of the caller for `session_timeout_s`, or it never began. Or the
    command's id was answered long before, or given up since its member took too many later ones.

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


class CommandUnappliedError(MachineError):
    """A confirmed command ran out of memory or stack in this process (`MemoryError`, `RecursionError`).

    This member stops, because other members may have applied the command.
    Retry: with more memory or a higher recursion limit, or with a command that raises another error instead. Outcome: confirmed;
    it is applied when a member starts again."""


class CommandTimeoutError(MachineError, TransientError):
    """No leader confirmed the request in time, or its session stayed full of answers that its member did not confirm.

    Retry: yes for a read; a command may be repeated only with an id that was taken by `next_id`. Outcome: unknown for a
    command."""


class UnknownCommandError(MachineError):
    """An entry of the machine's log, or a snapshot, is not of this program's version: this member stops, so as not to diverge.
    Retry: after upgrading the program. Outcome: the log is unchanged."""


class StateDivergedError(MachineError):
    """The state of this member differs from the leader's at the same position: this member stops. A command depends on more than
    its arguments and the state, such as the clock or the order of a set.

    Retry: no, correct the command; a member that starts again begins with the last snapshot. Outcome: the log is unchanged."""


class UnsavableStateError(MachineError):
    """The state can't be written and read back equal, so no snapshot of it would restore it. Names the field.

    A machine of up to 1000 commands stops its leader with it; later the leader logs it, saves no snapshot and keeps the log.
    Retry: after correcting the type of the field, or the command that sets it. Outcome: the log is unchanged."""
