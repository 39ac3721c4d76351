"""Where to measure: three bookie processes, which stay for all measurements."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import trio

import replog
from benchmarks.figures import Meter
from benchmarks.loads import LOG, warm_up
from replog.config import ClientOptions

BOOKIES = 3
SPARE_FILES = 8  # journal files of 64 MiB that each bookie keeps: what a second of appends needs


class RemotePlace:
    """Bookie processes, and the clients of this one. `slow_fsync_s` emulates a disk that takes so long for each sync."""

    def __init__(self, processes: list[subprocess.Popen[str]], metastore: str, transports: tuple[str, ...]) -> None:
        self._processes = processes
        self._metastore = metastore
        self._transports = transports

    def meter(self) -> Meter:
        """Time and CPU time from now on, the bookies' included."""
        return Meter(*(process.pid for process in self._processes))

    @asynccontextmanager
    async def client(self, options: ClientOptions | None = None) -> AsyncIterator[replog.Client]:
        """A client of these bookies; at the end nothing but spare files is left of what was written."""
        given = options or ClientOptions()
        chosen = attrs.evolve(given, transports=self._transports)
        async with replog.connect(self._metastore, options=chosen) as client:
            yield client
            if LOG in await client.logs():
                await client.delete_log(LOG)
            for ledger_id in await client.ledgers():
                await client.delete_ledger(ledger_id)
            await trio.to_thread.run_sync(self.recycle)

    def warm_up(self) -> None:
        """Writes as much as the spare files hold, so that all of them exist."""
        trio.run(warm_up, self, SPARE_FILES)

    def recycle(self) -> None:
        """Waits until the bookies have dropped what was deleted."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("recycle\n")
            process.stdin.flush()
        for process in self._processes:
            assert process.stdout is not None
            if process.stdout.readline() != "recycled\n":
                raise RuntimeError("a bookie process has ended early")


@contextmanager
def bookie_processes(
    directory: Path,
    *,
    storage: str,
    listen: str = "tcp:127.0.0.1:0",
    transports: tuple[str, ...] = (),
    slow_s: float = 0.0,
) -> Iterator[RemotePlace]:
    """Starts the bookies; they end when this is left."""
    metastore = f"lmdb:{directory / 'metadata'}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "SLOW_FSYNC_S": str(slow_s)}
    with ExitStack() as stack:
        processes = []
        for number in range(BOOKIES):
            command = [
                sys.executable,
                "-m",
                "benchmarks.remote.bookie",
                str(directory / f"{number}"),
                metastore,
                storage,
                listen,
            ]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            )
            stack.callback(process.stdin.close)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a bookie process did not start")
        yield RemotePlace(processes, metastore, transports)
