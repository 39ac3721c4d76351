"""Where to measure: bookie processes, three by default, which stay for all measurements of one case."""

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
from benchmarks.loads import warm_up
from replog.config import ClientOptions
from replog.protocol.quorum import Quorum

BOOKIES = 3
SPARE_FILES_MAX = 8  # journal files of 64 MiB that each bookie keeps: what a second of appends needs


@attrs.frozen
class Kind:
    """What kind of bookies: TLS or none, how long their disks take for a sync at least, and how many there are. `nearby`: as
    replog does by itself on one machine, where clients take Unix sockets; else TCP."""

    certificate: Path | None = None
    sync_s: float = 0.0
    bookies: int = BOOKIES
    nearby: bool = False

    @property
    def listen(self) -> str:
        """What the bookies listen at."""
        tls = f"?tls_certificate_file={self.certificate}" if self.certificate else ""
        return f"tcp:127.0.0.1:0{tls}"

    @property
    def transports(self) -> tuple[str, ...]:
        """How clients connect."""
        if self.certificate:
            return (f"tcp:?tls_ca_file={self.certificate}",)
        return () if self.nearby else ("tcp:?unix_nearby=no",)


class RemotePlace:
    """Bookie processes, and the clients of this one. `metastore` is the URL for those of others. Without another one, the
    quorum has all bookies, and most of them confirm."""

    def __init__(self, processes: list[subprocess.Popen[str]], metastore: str, transports: tuple[str, ...]) -> None:
        self._processes = processes
        self.metastore = metastore
        self._transports = transports
        self._quorum = Quorum(len(processes), len(processes), len(processes) // 2 + 1)

    @property
    def process_ids(self) -> list[int]:
        """Of the bookies."""
        return [process.pid for process in self._processes]

    @contextmanager
    def started_again(self, number: int) -> Iterator[None]:
        """Starts a bookie whose process has ended, and is left when it is to end. Returns when it serves."""
        command = self._processes[number].args
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
        ) as process:
            self._processes[number] = process
            _expect(process, "ready\n")
            yield

    def meter(self) -> Meter:
        """Time and CPU time from now on, the bookies' included."""
        return Meter(*self.process_ids)

    @asynccontextmanager
    async def client(self, options: ClientOptions | None = None) -> AsyncIterator[replog.Client]:
        """A client of these bookies; at the end nothing but spare files is left of what was written."""
        chosen = attrs.evolve(options or ClientOptions(), transports=self._transports)
        async with replog.connect(self.metastore, options=chosen, quorum=self._quorum) as client:
            yield client
            for name in await client.logs():
                await client.delete_log(name)
            for ledger_id in await client.ledgers():
                await client.delete_ledger(ledger_id)
            await trio.to_thread.run_sync(self._recycle)

    def _recycle(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("recycle\n")
            process.stdin.flush()
        for process in self._processes:
            _expect(process, "recycled\n")


class RemotePlaces:
    """The places of one run: started when they are asked for, and there until this is closed."""

    def __init__(self, directory: Path, spare_files: int | None) -> None:
        self.directory = directory
        self._spare_files = spare_files
        self._stack = ExitStack()
        self._places: dict[Kind, RemotePlace] = {}

    def __call__(self, kind: Kind) -> RemotePlace:
        """The place of this kind."""
        if kind not in self._places:
            directory = self.directory / f"remote-{len(self._places)}"
            started = remote_place(directory, self._spare_files, kind)
            self._places[kind] = self._stack.enter_context(started)
        return self._places[kind]

    def close(self) -> None:
        """Ends them all."""
        self._stack.close()


@contextmanager
def remote_place(directory: Path, spare_files: int | None, kind: Kind) -> Iterator[RemotePlace]:
    """Bookies in this directory; they end when this is left. Without `spare_files` they are as they are by default, and nothing
    was written before."""
    directory.mkdir()
    metastore, storage = f"lmdb:{directory / 'metadata'}", "slow-files" if kind.sync_s else "files"
    if spare_files is not None:
        spare_files = min(spare_files, SPARE_FILES_MAX)
        storage = f"{storage}?spare_files={spare_files}"
    with ExitStack() as stack:
        processes: list[subprocess.Popen[str]] = []
        for number in range(kind.bookies):
            arguments = [str(directory / f"{number}"), metastore, storage, kind.listen, str(kind.sync_s)]
            command = [sys.executable, "-m", "benchmarks.remote.bookie", *arguments]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
            )
            processes.append(stack.enter_context(process))  # which closes its standard input, and waits
        for process in processes:
            _expect(process, "ready\n")
        place = RemotePlace(processes, metastore, kind.transports)
        if not kind.sync_s and spare_files is not None:
            trio.run(warm_up, place, spare_files)
        yield place


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _expect(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != line:
        raise RuntimeError("a bookie process has ended early")
