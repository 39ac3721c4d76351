"""Child processes that are watched while they run, and that never outlive their parent, however it ends.

`running_child` is for programs that use trio: it reads what the child writes, waits for it with deadlines, and quotes
its last words in errors. `ChildProcess` is the process alone, for blocking callers.

How a child dies with its parent: the parent holds the write end of a pipe (the lifeline), and writes nothing to it. The child
holds the read end, and the kernel sends it SIGKILL as soon as no process has the write end open any more. This needs no thread
and no polling, and it works while the child is stopped. The parent asks the kernel for it right after it has started the
child; a child that is started by `python_module` also asks by itself, in case the parent dies before it gets there. Where
no kernel does that (`runtime/platform.py`), such a child watches its lifeline in a thread, and other children may outlive it.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import trio

from replog.errors import ReplogError
from replog.runtime.nursery import open_service_nursery
from replog.runtime.platform import exit_descriptor, is_stopped, kill_when_closed, watch_until_closed

_STANDARD_INPUT = 0
_EXIT_S = 15.0  # a killed process whose disk hangs cannot die before the disk answers
_STOPPED_S = 10.0
_LOOK_EVERY_S = 0.001
_READ_BYTES = 1 << 16
_LINE_BYTES_MAX = 1 << 20
_TAIL_BYTES = 6000
LOG_BYTES_MAX = 16 << 20

Found = TypeVar("Found")


class ChildFailedError(ReplogError):
    """A child process ended by itself, did not do in time what it must, or did not end when asked. The message quotes
    what it wrote last. Retry: after the cause is fixed."""


# -- dying with the parent ------------------------------------------------------------------------------------------------


def end_with_parent() -> None:
    """Kill this process (SIGKILL) once no process holds the other end of its standard input.

    Raises OSError if standard input is not a pipe or a socket."""
    if not kill_when_closed(_STANDARD_INPUT, os.getpid()):
        watch_until_closed(_STANDARD_INPUT)
    watch = select.poll()
    watch.register(_STANDARD_INPUT, 0)
    # The parent was gone before the kernel was asked, which then says nothing.
    if watch.poll(0):
        os.kill(os.getpid(), signal.SIGKILL)


def python_module(module: str, *arguments: str) -> list[str]:
    """The command line of `python -m MODULE ARGUMENT...` for a child that dies with its parent from its first moment on."""
    # Without -P, files of the current directory would hide modules.
    return [sys.executable, "-P", "-m", __name__, module, *arguments]


def main() -> None:
    """The process of `python_module`."""
    end_with_parent()
    # The kernel is asked before anything is imported: the parent may die during the import.
    module, *sys.argv[1:] = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


# -- one process ----------------------------------------------------------------------------------------------------------


class ChildProcess:
    """A child process that dies with this one: its pipes, its signals and its end. Raises OSError if it cannot be started.

    It is in a session of its own, so that a Ctrl-C reaches its parent only. Its standard input is the lifeline, or with
    `takes_input` a pipe to write to (`stdin`). `output` and `errors` mean what `stdout` and `stderr` mean to `subprocess`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: int | IO[bytes] | None = None,
        errors: int | IO[bytes] | None = None,
        takes_input: bool = False,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        read_end, self._lifeline = os.pipe()
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if takes_input else read_end,
                stdout=output,
                stderr=errors,
                pass_fds=[read_end] if takes_input else [],
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
            # The parent asks, too: a program that is not Python, or is still starting, can't ask by itself.
            kill_when_closed(read_end, self._popen.pid)
        except BaseException:
            os.close(self._lifeline)  # also kills a child that was started
            raise
        finally:
            os.close(read_end)
        self.pid = self._popen.pid
        self.stdin, self.stdout, self.stderr = self._popen.stdin, self._popen.stdout, self._popen.stderr

    @property
    def status(self) -> int | None:
        """The exit status, negative for the signal that ended the process; None while it runs or is stopped."""
        return self._popen.poll()

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.status is None:
            os.kill(self.pid, number)

    @property
    def is_stopped(self) -> bool:
        """True from SIGSTOP to SIGCONT."""
        return self.status is None and is_stopped(self.pid)

    def wait(self, within_s: float) -> int:
        """Block until it has ended; return the exit status. Raises `subprocess.TimeoutExpired`."""
        return self._popen.wait(within_s)

    def end(self, within_s: float = _EXIT_S) -> None:
        """Kill it (SIGKILL) if it runs, block until it is dead, close its pipes. Idempotent.

        Raises `subprocess.TimeoutExpired`."""
        self.signal(signal.SIGKILL)
        try:
            self._popen.wait(within_s)
        finally:
            self.close()

    def close(self) -> None:
        """Close the pipes. A child that still runs dies of it."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # something was still to be written, to a child that is gone
                    pipe.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
        self._lifeline = -1

    async def ended(self) -> int:
        """Wait until it has ended, without a deadline; return the exit status."""
        while self.status is None:
            # A thread that waits, or a signal handler for SIGCHLD, would be the whole program's concern; a descriptor is
            # this call's.
            descriptor = exit_descriptor(self.pid)
            if descriptor is None:
                await trio.sleep(_LOOK_EVERY_S)
                continue
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)
        return self.status


# -- a process that is watched --------------------------------------------------------------------------------------------


class Child:
    """A child process whose output is read all the time, and waited for with deadlines. Made by `running_child`."""

    def __init__(self, name: str, process: ChildProcess, hear: Callable[[bytes], object], log: Path | None) -> None:
        self.name = f"{name} (process {process.pid})"
        self.pid = process.pid
        self.started_s = time.monotonic()
        self.process = process
        self.input: trio.lowlevel.FdStream | None = None  # of a child that takes input
        self._hear = hear
        self._log = log
        self._line = b""
        self._tail = b""
        self._news = trio.Event()
        self._all_heard = trio.Event()
        self._may_end = False

    # -- what it says -----------------------------------------------------------------------------------------------------

    async def watch(self, *, may_end: bool, may_fail: bool) -> None:
        """Read what it writes until it has ended. Raises `ChildFailedError` if it ended by itself and may not."""
        # The end of the process is the end of its output. The end of the pipe is not waited for: a grandchild may hold it.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_ended, nursery.cancel_scope)
            assert self.process.stdout is not None
            while self._read() != b"":
                await trio.lowlevel.wait_readable(self.process.stdout)
            await self.process.ended()
        while self._read():
            pass
        self._all_heard.set()
        self._tell()
        is_allowed = self._may_end or may_fail or (may_end and self.process.status == 0)
        if not is_allowed:
            raise self.failed()

    async def _cancel_when_ended(self, scope: trio.CancelScope) -> None:
        await self.process.ended()
        scope.cancel()

    def _read(self) -> bytes | None:
        """Take the bytes in the pipe; return them: None if there is nothing now, b"" if there will be nothing more."""
        assert self.process.stdout is not None
        try:
            data = os.read(self.process.stdout.fileno(), _READ_BYTES)
        except BlockingIOError:
            return None
        if self._log is not None:
            with self._log.open("ab") as file:
                if file.tell() < LOG_BYTES_MAX:
                    file.write(data)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._hear(line)
        # A child that writes without an end of line must not fill this process's memory.
        if len(self._line) > _LINE_BYTES_MAX:
            self._line = b""
        self._tell()
        return data

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    @property
    def tail(self) -> str:
        """The end of its output."""
        return self._tail.decode(errors="replace").strip()

    @property
    def last_words(self) -> str:
        """The last line that it wrote; if that is a line of a log for programs, the problem that it names."""
        lines = self.tail.splitlines()
        if not lines:
            return "it wrote nothing"
        try:
            fields: Any = json.loads(lines[-1])
        except ValueError:
            return lines[-1]
        return str(fields.get("problem", lines[-1])) if isinstance(fields, dict) else lines[-1]

    def failed(self, what: str = "") -> ChildFailedError:
        """An error that says how it ended, or what else went wrong, with its last words."""
        what = what or f"ended by itself with status {self.process.status}"
        return ChildFailedError(f"{self.name} {what}: {self.last_words}")

    # -- waiting ----------------------------------------------------------------------------------------------------------

    async def until(self, found: Callable[[], Found], what: str, within_s: float) -> Found:
        """Call `found` after each line, until it returns something true; return that.

        Raises `ChildFailedError` if the child has ended without it, or if it takes too long: `what` is what was awaited."""
        with trio.move_on_after(within_s):
            while True:
                news = self._news
                if result := found():
                    return result
                if self._all_heard.is_set():
                    raise self.failed()
                await news.wait()
        raise self.failed(f"did not come within {within_s:g} s to this: {what}")

    async def ended(self, within_s: float = _EXIT_S) -> int:
        """Wait until it has ended and all that it wrote is heard; return the exit status. Raises `ChildFailedError`."""
        with trio.move_on_after(within_s):
            await self._all_heard.wait()
        if (status := self.process.status) is None or not self._all_heard.is_set():
            raise self.failed(f"did not end within {within_s:g} s")
        return status

    # -- signals ----------------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True until it has ended, while it is stopped too."""
        return self.process.status is None

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._may_end = True
        self.process.signal(signal.SIGTERM)

    async def leave(self, within_s: float = _EXIT_S) -> None:
        """Ask it to end, and wait until it has. Raises `ChildFailedError` if its status is not 0, or if it had to be killed."""
        self.terminate()
        try:
            if await self.ended(within_s) != 0:
                raise self.failed(f"was asked to end, and ended with status {self.process.status}")
        except ChildFailedError:
            await self.kill()
            raise

    async def kill(self) -> None:
        """Kill it (SIGKILL), and wait until it is dead."""
        self._may_end = True
        self.process.signal(signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await self.ended()

    async def stop(self) -> None:
        """Stop it (SIGSTOP), and wait until it does nothing any more: its memory and its connections stay."""
        self.process.signal(signal.SIGSTOP)
        with trio.move_on_after(_STOPPED_S):
            while not self.process.is_stopped:  # noqa: ASYNC110 - the kernel tells nobody
                await trio.sleep(_LOOK_EVERY_S)
            return
        raise self.failed(f"did not stop within {_STOPPED_S:g} s")

    def wake(self) -> None:
        """Let it go on (SIGCONT)."""
        self.process.signal(signal.SIGCONT)


@asynccontextmanager
async def running_child(
    name: str,
    command: Sequence[str],
    hear: Callable[[bytes], object],
    *,
    may_end: bool = False,
    may_fail: bool = False,
    log: Path | None = None,
    takes_input: bool = False,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Child]:
    """A child that runs this command, as a context manager: it is dead when the context is left in any way.

    Each line that it writes, to standard output or standard error, is given to `hear`, and appended to the file `log` up to
    `LOG_BYTES_MAX`. The body is cancelled and `ChildFailedError` raised if the child ends by itself, unless it `may_end` (with
    status 0) or `may_fail` (with any status). Raises `ChildFailedError`, too, if it cannot be started."""
    try:
        process = ChildProcess(
            command,
            output=subprocess.PIPE,
            errors=subprocess.STDOUT,
            takes_input=takes_input,
            directory=directory,
            environment=environment,
        )
    except OSError as error:
        raise ChildFailedError(f"{name} cannot be started: {command[0]}: {error.strerror}") from error
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    child = Child(name, process, hear, log)
    if process.stdin is not None:
        # A descriptor of its own: both ends close what they have, in any order.
        child.input = trio.lowlevel.FdStream(os.dup(process.stdin.fileno()))
        process.stdin.close()
    try:
        async with open_service_nursery() as nursery:
            nursery.start_soon(partial(child.watch, may_end=may_end, may_fail=may_fail))
            yield child
    finally:
        process.signal(signal.SIGKILL)
        with trio.CancelScope(shield=True), trio.move_on_after(_EXIT_S):
            await process.ended()
        try:
            if child.input is not None:
                await child.input.aclose()
        finally:
            # Closing the input may be cancelled, and the output's pipe would stay open.
            process.close()


if __name__ == "__main__":
    main()
