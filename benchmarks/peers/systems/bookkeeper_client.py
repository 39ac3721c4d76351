"""BookKeeper's own client, in a process of its own (benchmarks/peers/bookkeeper): commands and answers are lines of JSON."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.figures import Figures, Meter, clock
from benchmarks.peers.system import NotMeasured

_READ_BYTES = 1 << 16
_ENDING_S = 15.0
_LOG_SHOWN_BYTES = 3000


class Lines:
    """Cuts what comes into lines, however it comes."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The lines that are whole now."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in whole]


class Client:
    """One process. It ends when its input is closed, which the kernel does if we die."""

    def __init__(self, command: Sequence[str], log_path: Path) -> None:
        self._log_path = log_path
        with log_path.open("ab") as log:
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._input, self._output = self._child.stdin, self._child.stdout
        self._lines = Lines()
        self._come: list[dict[str, Any]] = []

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    def tell(self, command: str, **details: object) -> None:
        """Sends a command."""
        try:
            self._input.write(json.dumps({"do": command, **details}).encode() + b"\n")
            self._input.flush()
        except BrokenPipeError:
            raise self._failed(f"did not take {command}") from None

    def said(self, within_s: float) -> dict[str, Any]:
        """The next line, of one name and its value. Raises `NotMeasured` for an error, with its words, and if there is none."""
        deadline = clock() + within_s
        while not self._come:
            ready, _, _ = select.select([self._output], [], [], max(0.0, deadline - clock()))
            if not ready:
                raise self._failed(f"said nothing for {within_s:.0f} s")
            data = os.read(self._output.fileno(), _READ_BYTES)
            if not data:
                raise self._failed("ended")
            self._come += self._lines.feed(data)
        line = self._come.pop(0)
        if "error" in line:
            raise NotMeasured(f"BookKeeper's client: {line['error']}")
        return line

    def ask(self, command: str, within_s: float, **details: object) -> Any:
        """A command with one line as its answer."""
        self.tell(command, **details)
        return self.said(within_s)["done"]

    def measure(self, servers: Sequence[int], command: str, within_s: float, **details: object) -> Mapping[str, Any]:
        """A command that says when it begins to measure and when it ends. What it answers, and client_cpu_us and server_cpu_us
        for each of its `entries`."""
        self.tell(command, **details)
        self._expect("measuring", within_s)
        meters = Meter(self.pid), Meter(*servers)
        self._expect("measured", within_s)
        client, server = (_others_cpu_us(meter) for meter in meters)
        found = self.said(within_s)["done"]
        entries = max(1, found["entries"])
        return {**found, "client_cpu_us": client / entries, "server_cpu_us": server / entries}

    def _expect(self, name: str, within_s: float) -> None:
        line = self.said(within_s)
        if name not in line:
            raise self._failed(f"said {line} instead of {name}")

    def remaining(self) -> Iterator[dict[str, Any]]:
        """What it had said before it was killed. Without an end where a line is cut."""
        while data := os.read(self._output.fileno(), _READ_BYTES):
            self._come += self._lines.feed(data)
        yield from self._come

    def kill(self) -> None:
        """SIGKILL, and waits for its death; what it said can still be read until `close`."""
        self._child.kill()
        self._child.wait(_ENDING_S)

    def close(self) -> None:
        """Kills it, and gives its pipes back. Idempotent."""
        self.kill()
        self._output.close()
        with suppress(BrokenPipeError):  # of a command that it did not read any more
            self._input.close()

    def _failed(self, what: str) -> NotMeasured:
        log = self._log_path.read_bytes()[-_LOG_SHOWN_BYTES:].decode(errors="replace")
        return NotMeasured(f"BookKeeper's client {what}; its log {self._log_path} ends so:\n{log}")


def _others_cpu_us(meter: Meter) -> float:
    found: Figures = meter.figures(1)
    return found["total_cpu_us"] - found["client_cpu_us"]  # ours, which only waits, is not theirs
