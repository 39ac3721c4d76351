"""The processes of the demonstration, seen by the one that watches them: start, read what they tell, kill, stop, wake, wait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import trio

from replog.demo.errors import DemoFailedError
from replog.demo.reports import Report, decode
from replog.runtime.children import python_module

SILENCE_S = 30.0  # a process that tells nothing for so long has failed
_EXIT_S = 15.0
_STOPPED_S = 10.0
_LOOK_EVERY_S = 0.001
_RECEIVED_BYTES = 1 << 16
_LAST_WORDS_BYTES = 2000

Kind = TypeVar("Kind", bound=Report)


class Process:
    """A process that tells things, a line each, on standard output. Made by `running`."""

    def __init__(self, name: str, process: trio.Process, errors: Path) -> None:
        self.name = f"{name} (process {process.pid})"
        self.pid = process.pid
        self.started_s = time.monotonic()
        self._process = process
        self._errors = errors
        self._buffer = bytearray()

    # -- what it tells ------------------------------------------------------------------------------------------------

    async def next_line(self, silence_s: float | None = SILENCE_S) -> bytes | None:
        """Its next line; None once it is dead and all that it wrote was read. If cancelled, nothing is lost.

        Raises `DemoFailedError` if it is silent for longer than this; None: it may be."""
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            received = None
            with trio.move_on_after(float("inf") if silence_s is None else silence_s):
                received = await self._process.stdout.receive_some(_RECEIVED_BYTES)
            if received is None:
                raise DemoFailedError(f"{self.name} told nothing for {silence_s:g} s")
            if not received:
                return None
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        return bytes(line)

    async def next_report(self, silence_s: float | None = SILENCE_S) -> Report | None:
        """The same, as a report."""
        line = await self.next_line(silence_s)
        return None if line is None else decode(line)

    async def expect(self, kind: type[Kind]) -> Kind:
        """Its next report, which must be of this kind. Raises `DemoFailedError`."""
        report = await self.next_report()
        if report is None:
            raise await self.ended_by_itself()
        if not isinstance(report, kind):
            raise DemoFailedError(f"{self.name} told {report} where {kind.__name__} was due")
        return report

    # -- what is done to it -------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL: no farewell, nothing flushed."""
        self._process.send_signal(signal.SIGKILL)

    async def stop(self) -> None:
        """SIGSTOP: it keeps its connections and its memory, and does nothing. Returns when it does nothing any more."""
        self._process.send_signal(signal.SIGSTOP)
        with trio.move_on_after(_STOPPED_S):
            while not self._has_stopped():  # noqa: ASYNC110 - the kernel tells nobody
                await trio.sleep(_LOOK_EVERY_S)
            return
        raise DemoFailedError(f"{self.name} did not stop within {_STOPPED_S:.0f} s")

    def _has_stopped(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None

    def wake(self) -> None:
        """SIGCONT: it goes on as if nothing had been."""
        self._process.send_signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    async def wait(self) -> int:
        """Its exit status; negative is the signal that ended it. Raises `DemoFailedError` if it doesn't end."""
        with trio.move_on_after(_EXIT_S):
            return await self._process.wait()
        raise DemoFailedError(f"{self.name} did not end within {_EXIT_S:.0f} s")

    async def ended_by_itself(self) -> DemoFailedError:
        """What to raise when it has ended, and should not have: with its last words."""
        status = await self.wait()
        words = self._errors.read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace").strip()
        last = _plain(words.splitlines()[-1]) if words else "it said nothing"
        return DemoFailedError(f"{self.name} ended by itself with status {status}: {last}")


def _plain(line: str) -> str:
    """What a line says to people, if it is one of a log for programs."""
    try:
        fields: Any = json.loads(line)
    except ValueError:
        return line
    return str(fields.get("problem", line)) if isinstance(fields, dict) else line


@asynccontextmanager
async def running(
    name: str, arguments: Sequence[str], errors: Path, *, tells_errors: bool = False
) -> AsyncIterator[Process]:
    """`python -m ARGUMENTS...`, as a context: whatever happens, it is dead when the context is left. Its standard error goes
    to this file; or it is told too, and who listens puts it there. Raises `DemoFailedError` if it can't be started."""
    async with AsyncExitStack() as stack:
        with errors.open("wb") as file:
            child = running_child(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT if tells_errors else file)
            try:
                process = await stack.enter_async_context(child)
            except OSError as error:
                raise DemoFailedError(f"{name}: cannot be started: {error.strerror}") from error
        yield Process(name, process, errors)


@asynccontextmanager
async def running_child(
    arguments: Sequence[str], *, stdout: int | IO[bytes] | None = None, stderr: int | IO[bytes] | None = None
) -> AsyncIterator[trio.Process]:
    """`python -m ARGUMENTS...` as a child, as a context manager: it is dead when the context is left."""
    process = await trio.lowlevel.open_process(
        python_module(*arguments), stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, start_new_session=True
    )
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            with trio.move_on_after(_EXIT_S):
                await process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    await pipe.aclose()
