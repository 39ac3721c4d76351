"""A leader's process, seen by the process that watches it: start, read its reports, kill, wait.

It never outlives its watcher: it is killed when the context is left, and ends by itself when its standard input does."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from replog.demo.errors import DemoFailedError
from replog.demo.leader import LeaderConfig
from replog.demo.reports import Report, decode

SILENCE_S = 30.0  # a leader that reports nothing for so long has failed
_EXIT_S = 15.0
_RECEIVED_BYTES = 1 << 16
_LAST_WORDS_BYTES = 2000

Kind = TypeVar("Kind", bound=Report)


class LeaderProcess:
    """A running leader. Made by `leading`."""

    def __init__(self, name: str, process: trio.Process, errors: Path) -> None:
        self.name = name
        self.pid = process.pid
        self.started = time.monotonic()
        self.reported = self.started  # when its last report came
        self._process = process
        self._errors = errors
        self._buffer = bytearray()

    async def next_report(self) -> Report | None:
        """Its next report; None once it is dead and all that it wrote was read. If cancelled, nothing is lost.

        Raises `DemoFailedError` if it is silent for too long."""
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            received = None
            with trio.move_on_after(SILENCE_S):
                received = await self._process.stdout.receive_some(_RECEIVED_BYTES)
            if received is None:
                raise DemoFailedError(f"{self.name} (process {self.pid}) told nothing for {SILENCE_S:g} s")
            if not received:
                return None
            self._buffer += received
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = rest
        self.reported = time.monotonic()
        return decode(bytes(line))

    async def expect(self, kind: type[Kind]) -> Kind:
        """Its next report, which must be of this kind. Raises `DemoFailedError`."""
        report = await self.next_report()
        if report is None:
            raise await self.ended_by_itself()
        if not isinstance(report, kind):
            raise DemoFailedError(f"{self.name} told {report} where {kind.__name__} was due")
        return report

    def kill(self) -> None:
        """SIGKILL: no farewell, nothing flushed."""
        self._process.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit status; negative is the signal that ended it. Raises `DemoFailedError` if it doesn't end."""
        with trio.move_on_after(_EXIT_S):
            return await self._process.wait()
        raise DemoFailedError(f"{self.name} (process {self.pid}) did not end within {_EXIT_S:.0f} s")

    async def ended_by_itself(self) -> DemoFailedError:
        """What to raise when it has ended, and should not have: with its last words."""
        status = await self.wait()
        words = self._errors.read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace").strip()
        return DemoFailedError(
            f"{self.name} (process {self.pid}) ended by itself with status {status}: "
            f"{words.splitlines()[-1] if words else 'it said nothing'}"
        )


@asynccontextmanager
async def leading(name: str, config: LeaderConfig, errors: Path) -> AsyncIterator[LeaderProcess]:
    """A leader's process, as a context: whatever happens, it is dead when the context is left.

    It is in a session of its own, so that a Ctrl-C comes to its watcher alone. Its standard error goes to this file."""
    with errors.open("wb") as stderr:
        try:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-m", "replog.demo.leader", config.encode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise DemoFailedError(f"{name}: cannot start {sys.executable}: {error.strerror}") from error
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield LeaderProcess(name, process, errors)
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            with trio.move_on_after(_EXIT_S):
                await process.wait()
            await process.stdin.aclose()
            await process.stdout.aclose()
