"""Examples as programs: each runs as a user would start it, is watched, and is gone at the end of its block."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from tests.forks import Forked

ROOT = Path(__file__).parent.parent.parent
WAIT_S = 90  # on a busy machine: never the length of a test


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose name leaves room for the name of a socket: that of `tmp_path` may not."""
    with tempfile.TemporaryDirectory(prefix="replog-", ignore_cleanup_errors=True) as name:
        yield Path(name)


class Program:
    """A process and its children, and what they say on standard output and standard error."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.lines: list[str] = []
        self._said = threading.Condition()
        self._is_silent = False
        self.popen = Forked(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=_environment(environment),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)  # workers, too
        self.popen.wait(WAIT_S)
        self._reader.join(WAIT_S)
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.close()
        self.popen.stdout.close()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._said:
                self.lines.append(line.rstrip("\n"))
                self._said.notify_all()
        with self._said:
            self._is_silent = True
            self._said.notify_all()

    def wait_for(self, pattern: str, times: int = 1) -> re.Match[str]:
        """The first line with this, once it was said so many times. Fails if the program ends before."""

        def found() -> list[re.Match[str]]:
            return [match for match in (re.search(pattern, line) for line in self.lines) if match]

        with self._said:
            enough = self._said.wait_for(lambda: len(found()) >= times or self._is_silent, WAIT_S)
            assert enough, f"{pattern!r} was not said in time: {self.lines}"
            assert len(found()) >= times, f"it ended without {pattern!r}: {self.lines}"
            return found()[0]

    def say(self, line: str) -> None:
        """Writes a line to its standard input."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()

    def kill(self) -> None:
        """kill -9, of it and of what it has started."""
        os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(WAIT_S)

    def stop(self, number: signal.Signals) -> int:
        """Sends it a signal as Ctrl-C or a supervisor would, and returns its exit status."""
        self.popen.send_signal(number)
        return self.popen.wait(WAIT_S)


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", **more}
