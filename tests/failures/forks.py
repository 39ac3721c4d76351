"""Processes forked from one that has imported everything: each starts within milliseconds, and none outlives its parent.

The parent runs no event loop and no threads, so that a fork is safe. A child says things in lines of JSON over a socket; it
waits for a word of its parent's where it asks for one. Its output goes to a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import attrs
import trio

from replog.runtime.children import end_with_parent

STARTING_S = 60.0  # on a busy machine
_OPEN_FILES_MAX = 4096


@attrs.frozen
class Parent:
    """What a child has of its parent."""

    connection: socket.socket

    def say(self, **words: object) -> None:
        self.connection.sendall(json.dumps(words).encode() + b"\n")

    async def ask(self, **words: object) -> None:
        """Says this, and waits until the parent has said `go_on`."""
        self.say(**words)
        await trio.lowlevel.wait_readable(self.connection)
        self.connection.recv(1)


Role = Callable[[Parent], None]


class Child:
    """One forked process, as its parent sees it."""

    def __init__(self, name: str, pid: int, connection: socket.socket, lifeline: int, output: Path) -> None:
        self.name = name
        self.pid = pid
        self.said: list[dict[str, Any]] = []
        self.is_killed = False
        self._is_reaped = False
        self._connection = connection
        self._lifeline = lifeline
        self._output = output
        self._rest = b""
        self.is_silent = False  # its end of the connection is closed

    def output(self) -> str:
        """The last of all that it printed."""
        return self._output.read_text(errors="replace")[-4000:]

    def says(self, *words: str, within_s: float = STARTING_S) -> dict[str, Any] | None:
        """The first thing that it says with one of these words; None if it ended before. AssertionError if it says nothing."""
        deadline_s = time.monotonic() + within_s
        looked_at = 0
        while True:
            for each in self.said[looked_at:]:
                if any(word in each for word in words):
                    return each
            looked_at = len(self.said)
            if self.is_silent:
                return None
            if not self._hear(deadline_s - time.monotonic()):
                raise AssertionError(
                    f"{self.name} did not say {words} in {within_s} s: {self.said[-3:]} {self.output()}"
                )

    def _hear(self, within_s: float) -> bool:
        if within_s <= 0 or not select.select([self._connection], [], [], within_s)[0]:
            return False
        try:
            data = self._connection.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self.is_silent = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.said += map(json.loads, lines)
        return True

    def hear_now(self, within_s: float) -> list[dict[str, Any]]:
        """What it says within this time, and nothing that was heard before."""
        known = len(self.said)
        if not self.is_silent:
            self._hear(within_s)
        return self.said[known:]

    def go_on(self) -> None:
        """Lets it go on after it has asked."""
        self._connection.send(b".")

    def has_ended(self) -> bool:
        """Whether it is dead, by itself or killed."""
        if not self._is_reaped:
            self._is_reaped = os.waitpid(self.pid, os.WNOHANG) != (0, 0)
        return self._is_reaped

    def kill(self) -> None:
        """SIGKILL; what it has said is still heard. Idempotent."""
        if not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._is_reaped = True
        if not self.is_killed:
            self.is_killed = True
            while not self.is_silent and self._hear(1.0):
                pass
            self._connection.close()
            os.close(self._lifeline)

    def leave(self) -> int:
        """SIGTERM, and waits for its end; returns its status."""
        os.kill(self.pid, signal.SIGTERM)
        while not self.is_silent:
            if not self._hear(STARTING_S):
                raise AssertionError(f"{self.name} did not end in {STARTING_S} s: {self.output()}")
        _, status = os.waitpid(self.pid, 0)
        self._is_reaped = True
        self.kill()
        return os.waitstatus_to_exitcode(status)

    @contextlib.contextmanager
    def stopped(self) -> Any:
        """SIGSTOP, and SIGCONT in the end."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


def fork(name: str, role: Role, output: Path) -> Child:
    """Runs this in a child process, which ends when it returns, or when this process ends."""
    ours, theirs = socket.socketpair()
    lifeline, held = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _run(role, theirs, lifeline, output)
    theirs.close()
    os.close(lifeline)
    return Child(name, pid, ours, held, output)


def _run(role: Role, connection: socket.socket, lifeline: int, output: Path) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for target, source in ((0, lifeline), (1, log), (2, log)):
            os.dup2(source, target)
        kept = connection.fileno()
        os.closerange(3, kept)
        os.closerange(kept + 1, _OPEN_FILES_MAX)
        end_with_parent()
        role(Parent(connection))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
