"""How commands end: the exit status, and one line on standard error."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import typer

from replog.cli.output import OutputClosed, flush, forget_output
from replog.errors import ConfigError, ReplogError, StorageDamagedError, StorageIdentityError


class InterruptedBySignal(Exception):
    """The command was stopped by this signal, and has cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def status_of(action: Callable[[], object]) -> int:
    """Run a command and print its error, if there is one; return the exit status."""
    try:
        try:
            action()
        finally:
            flush()
    except ReplogError as error:
        return _failed(str(error), status_for(error))
    # As a program ends that SIGPIPE kills, so that a shell's pipeline sees what it expects.
    except OutputClosed:
        forget_output()
        return 128 + signal.SIGPIPE
    except InterruptedBySignal as error:
        return _failed(f"stopped by {error}", 128 + error.number)
    except KeyboardInterrupt:
        return _failed("stopped by SIGINT", 128 + signal.SIGINT)
    except typer.Exit as ended:
        return int(ended.exit_code)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def status_for(error: ReplogError) -> int:
    """The exit status of a command that ends with this error."""
    return 2 if isinstance(error, ConfigError | StorageIdentityError) else 1


def _failed(problem: str, status: int) -> int:
    print(f"replog: {problem}", file=sys.stderr)
    return status


def survive(path: str, action: Callable[[], object]) -> None:
    """Run an action in a child process, which prints for itself: LMDB kills the process that reads a damaged file.

    Raises `StorageDamagedError` if that happened, `typer.Exit` with the child's status if that is not 0."""
    flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = status_of(action)
        finally:
            # Not sys.exit: the parent runs its exit handlers itself.
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    if os.WIFSIGNALED(ended):
        number = os.WTERMSIG(ended)
        # Damage: a page that is not in the file, an assertion of LMDB's, a pointer that leads nowhere.
        if number in (signal.SIGBUS, signal.SIGABRT, signal.SIGSEGV):
            raise StorageDamagedError(
                f"{path}/data.mdb is damaged: LMDB ended with {signal.Signals(number).name} on it",
                "Recover this bookie's copies from the others, into a new directory",
            )
        raise InterruptedBySignal(number)
    if os.WEXITSTATUS(ended):
        raise typer.Exit(os.WEXITSTATUS(ended))
