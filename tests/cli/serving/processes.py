"""Real processes of `replog bookie`, whose words are read as they come."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.forks import Forked, run

COMMAND = [sys.executable, "-m", "replog.cli", "bookie"]
_WAIT_S = 60  # for a process on a busy machine: never the length of a test


class BookieProcess:
    """One that runs. Each line that it says must be a JSON object."""

    def __init__(self, process: Forked) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._is_read = False
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            found = json.loads(line)
            with self._changed:
                self.lines.append(found)
                self._changed.notify_all()
        with self._changed:
            self._is_read = True
            self._changed.notify_all()

    def wait_for(self, event: str) -> dict[str, Any]:
        """The first line that says this. Fails if the process ends without it."""

        def said() -> list[dict[str, Any]]:
            return [line for line in self.lines if line["event"] == event]

        with self._changed:
            assert self._changed.wait_for(lambda: said() or self._is_read, _WAIT_S), f"never said {event}"
            assert said(), f"ended without {event}: {self.lines}"
            return said()[0]

    @property
    def address(self) -> str:
        """HOST:PORT of the first place where it listens."""
        return str(self.wait_for("serving")["listen"][0]).removeprefix("tcp:")

    @property
    def bookie_id(self) -> str:
        return str(self.wait_for("serving")["bookie"])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends it a signal and waits for its end: the exit status."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        status = self.process.wait(_WAIT_S)
        self._reader.join(_WAIT_S)
        return status


@contextmanager
def bookie_process(
    directory: Path,
    *arguments: str,
    until: str = "serving",
    name: str = "bookie",
    notified: socket.socket | None = None,
    listen: str = "127.0.0.1:0",
) -> Iterator[BookieProcess]:
    """A bookie in this directory, whose metastore is there too. It has said that it serves, and is gone afterwards. `notified`
    is told as systemd would be."""
    command = [*COMMAND, "--metastore", f"lmdb:{directory / 'metadata'}", "--data", str(directory / name)]
    command += ["--listen", listen, "--set", "bookie.read_only_below_bytes=0", *arguments]
    environment = dict(os.environ)
    if notified is not None:
        notified.bind(str(directory / "notify"))
        environment["NOTIFY_SOCKET"] = str(directory / "notify")
    process = Forked(command, stderr=subprocess.PIPE, text=True, env=environment)
    bookie = BookieProcess(process)
    try:
        bookie.wait_for(until)
        yield bookie
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        bookie.ended()
        assert process.stderr is not None
        process.stderr.close()


def failed(*arguments: str) -> tuple[int, str]:
    """The exit status and the words of a process that does not come to serve."""
    done = run([*COMMAND, *arguments], timeout=_WAIT_S)
    return done.returncode, done.stderr
