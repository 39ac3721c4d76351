"""Servers under test that are no Python: programs of their own, which die with the process that started them."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from replog.runtime.children import ChildProcess

HOST = "127.0.0.1"
STARTING_S = 60.0  # on a busy machine
ENDING_S = 15.0
LOG_SHOWN_BYTES = 6000
# Below those that the kernel gives to clients: a server that was killed gets its own again. Each worker of pytest-xdist has
# ports of its own.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_PORTS = range(20_000 + _WORKER, 30_000, _WORKERS)
_given: set[int] = set()  # nobody may listen yet at what was given to others, or not again
_LOOK_S = 0.01

running: list[Server] = []  # all that were started and not ended, so that a failing test can show what they said


class ServerFailedError(AssertionError):
    """A server did not do what its test needs. The message ends with its log."""


def free_port() -> int:
    """A port of the loopback on which nobody listens now, and that nobody here was given before."""
    while True:
        port = random.choice([port for port in _PORTS if port not in _given])
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
            _given.add(port)
            return port


class Server:
    """One process at a time, with the same command, directory and ports however often it dies. Its methods block for a short
    while: in trio, call those that wait (`start`, `stop`) by `trio.to_thread`, as the classes built on this do."""

    def __init__(self, name: str, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log_path = directory / f"{name}.log"
        self.is_frozen = False
        self._command = list(command)
        self._directory = directory
        self._environment = {**os.environ, **environment}
        self._child: ChildProcess | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._child is not None, f"{self.name} does not run"
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._child is not None and self._child.status is None

    def log(self) -> str:
        """The last of what it said."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[-LOG_SHOWN_BYTES:].decode(errors="replace")

    def failed(self, what: str) -> ServerFailedError:
        """An error that says what, and shows the log."""
        return ServerFailedError(f"{self.name}: {what}; its log {self.log_path} ends so:\n{self.log()}")

    def launch(self) -> None:
        """Starts the process; it does not serve yet."""
        assert self._child is None, f"{self.name} runs already"
        with self.log_path.open("ab") as log:
            self._child = ChildProcess(
                self._command,
                output=log,
                errors=subprocess.STDOUT,
                directory=self._directory,
                environment=self._environment,
            )
        running.append(self)

    def wait_until(self, is_so: Callable[[], bool], what: str, within_s: float = STARTING_S) -> None:
        """Looks again and again. Raises `ServerFailedError` if it isn't so in time, or if the process has ended."""
        deadline_s = time.monotonic() + within_s
        while not is_so():
            if not self.is_running:
                raise self.failed(f"it has ended, instead of: {what}")
            if time.monotonic() > deadline_s:
                raise self.failed(f"not within {within_s:.0f} s: {what}")
            time.sleep(_LOOK_S)

    def signal(self, number: signal.Signals) -> None:
        """Sends this to the process, if there is one."""
        if self._child is not None:
            self._child.signal(number)

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections, and does nothing any more when this returns."""
        child = self._child
        if child is not None:
            child.signal(signal.SIGSTOP)
            # Its threads stop one after the other, and until then may answer what comes.
            self.wait_until(lambda: child.is_stopped, "stopped")
        self.is_frozen = True

    def thaw(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)
        self.is_frozen = False

    def terminate(self) -> None:
        """SIGTERM, and waits until it has ended in peace; killed if it does not."""
        self.thaw()
        self.signal(signal.SIGTERM)
        try:
            if self._child is not None:
                self._child.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            raise self.failed(f"it did not end within {ENDING_S:.0f} s of SIGTERM") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, frozen or not, and waits for its death. Idempotent."""
        if self._child is not None:
            self._child.end(ENDING_S)
        self._child, self.is_frozen = None, False
        if self in running:
            running.remove(self)
