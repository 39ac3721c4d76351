"""Apache BookKeeper: three bookies, and a writer by its own Java client.

The client is a process of its own, which lives as long as the bookies: before the first load all of them have had time to
compile what is hot. An entry is sent by `asyncAddEntry`, which is what `WriteHandle.appendAsync` is built on, without an
object for each entry; measured, this is some three times as fast as BookKeeper's own benchmark tool (which is cold when it
begins, and has the default wire protocol). `python -m
benchmarks.peers.systems.bookkeeper SECONDS ENTRY_BYTES IN_FLIGHT` runs on the same bookies.

BookKeeper has no leader. What is measured as a takeover is what replaces one: a second client, which runs already, opens the
ledger of the first one, which was killed (this fences it and recovers its end), makes a ledger of its own and appends to it. How
somebody finds out that the first one is dead is not part of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.figures import Figures, clock
from benchmarks.peers import programs
from benchmarks.peers.children import held_bytes
from benchmarks.peers.system import Load, NotMeasured, Promise, System
from benchmarks.peers.systems.bookkeeper_client import Client
from benchmarks.peers.systems.bookkeeper_servers import COUNT, TUNED, Bookies, Java, metadata_service
from tests.servers import zookeeper
from tests.servers.processes import ServerFailedError

_SOURCES = Path(__file__).parent.parent / "bookkeeper"
_CLIENT_FLAGS = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")
_WARM_ENTRIES = 400_000  # until an entry costs no less CPU time than it will later
_WARMING_S = 20.0  # but no longer: on a busy machine
_PATIENCE_S = 120.0
_PRACTICE_ENTRIES = 200


class BookKeeper:
    """Bookies that run, and a client that is warm."""

    def __init__(self, java: Java, metadata: str, bookies: Bookies) -> None:
        self._java = java
        self._metadata = metadata
        self._bookies = bookies
        self._resources = ExitStack()
        self._clients = 0
        self._is_warm = False
        self._client = self._new_client()

    def _new_client(self) -> Client:
        self._clients += 1
        command = self._java.command(*_CLIENT_FLAGS, "peer.Client", self._metadata)
        client = Client(command, self._java.directory / f"client-{self._clients}.log")
        self._resources.callback(client.close)
        return client

    def start(self) -> None:
        """Bookies and client, until neither is cold any more."""
        self._client.ask("format", _PATIENCE_S)
        self._bookies.start()
        self._warm_up()

    def _warm_up(self) -> None:
        """Four times less CPU time is what this makes of an entry's: Java compiles what is hot while it runs."""
        entries, deadline = 0.0, clock() + _WARMING_S
        while entries < _WARM_ENTRIES and clock() < deadline:
            entries += self._append(Load(100, 1000, 3.0))["entries"]
        self._append(Load(100, 1, 1.0))
        self._is_warm = True

    def stop(self) -> None:
        """Kills all of them. Idempotent."""
        self._resources.close()
        self._bookies.kill()

    @property
    def process_ids(self) -> Sequence[int]:
        """Of the three bookies; ZooKeeper has no part in an append."""
        return [each.pid for each in self._bookies.servers]

    def append(self, load: Load) -> Figures:
        """Into a ledger of its own, which is deleted then."""
        if load.entries_per_call > 1:
            raise NotMeasured("BookKeeper adds one entry at a time")
        if not self._is_warm:
            self._warm_up()
        return self._append(load)

    def _append(self, load: Load) -> Figures:
        found = self._client.measure(
            self.process_ids,
            "append",
            _PATIENCE_S + load.seconds,
            entry_bytes=load.entry_bytes,
            in_flight=load.in_flight,
            warm_up_s=load.warm_up_s,
            seconds=load.seconds,
            entries_max=load.entries_max,
        )
        return {name: float(value) for name, value in found.items()}

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        """A closed ledger, by its client's batches; read once before, so that the way there is compiled."""
        ledger = self._client.ask("fill", _PATIENCE_S, entry_bytes=entry_bytes, entries=entries)["ledger"]
        self._client.measure(self.process_ids, "read", _PATIENCE_S, ledger=ledger)
        found = self._client.measure(self.process_ids, "read", _PATIENCE_S, ledger=ledger)
        if (found["entries"], found["bytes"]) != (entries, entries * entry_bytes):
            raise NotMeasured(f"read {found['entries']} entries of {found['bytes']} bytes, instead of {entries}")
        return {name: float(found[name]) for name in ("entries_per_s", "client_cpu_us", "server_cpu_us")}

    def tail(self, entry_bytes: int, entries: int) -> Figures:
        """By long polls over connections of their own, in a thread of the writer's process."""
        found: Mapping[str, float] = {}
        for count in (_PRACTICE_ENTRIES, entries):  # first to connect, and to have it compiled
            found = self._client.ask("tail", _PATIENCE_S, entry_bytes=entry_bytes, entries=count)
        return {name: float(found[name]) for name in ("p50_us", "p99_us")}

    def take_over(self, entry_bytes: int) -> Figures:
        """The client that takes over is connected and warm when the other one dies."""
        first, second = self._new_client(), self._client
        for _ in range(2):
            second.ask("practise", _PATIENCE_S, entry_bytes=entry_bytes)
        first.tell("write", entry_bytes=entry_bytes)
        ledger = first.said(_PATIENCE_S)["ledger"]
        confirmed = -1
        while confirmed < _PRACTICE_ENTRIES:
            confirmed = first.said(_PATIENCE_S)["confirmed"]
        started = clock()
        first.kill()
        last = second.ask("take_over", _PATIENCE_S, ledger=ledger, entry_bytes=entry_bytes)["last"]
        took = clock() - started
        confirmed = max([confirmed, *(line.get("confirmed", -1) for line in first.remaining())])
        first.close()
        if last < confirmed:
            raise NotMeasured(f"entry {confirmed} was confirmed, and the recovered ledger ends with {last}")
        return {"takeover_s": took}

    def restart(self) -> Figures:
        """ZooKeeper stays. That three Javas start is most of it, as long as little has to be replayed."""
        started = clock()
        self._bookies.kill()
        try:
            self._bookies.start()
        except ServerFailedError as error:
            raise NotMeasured(str(error)) from error
        self._confirm_one(started + _PATIENCE_S)
        took, self._is_warm = clock() - started, False
        return {"restart_s": took, "held_bytes": float(held_bytes(*self._bookies.directory.glob("bookie-*/*")))}

    def own_benchmark(self, seconds: int, entry_bytes: int, in_flight: int) -> str:
        """What BookKeeper's own tool says, with the default wire protocol: it has no option for another. What it takes as the
        number in flight is its bound of entries per second, too."""
        tool = "org.apache.bookkeeper.benchmark.BenchThroughputLatency"
        zookeeper_address = self._metadata.split("/")[2]
        options = {"zookeeper": zookeeper_address, "ensemble": COUNT, "quorum": COUNT, "ackQuorum": 2, "ledgers": 1}
        options |= {"time": seconds, "entrysize": entry_bytes, "throttle": in_flight, "latencyFile": os.devnull}
        command = self._java.command(
            "-Xmx2g", tool, *(str(x) for name in options for x in (f"--{name}", options[name]))
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S + 10 * seconds, check=False)
        found = [line for line in done.stderr.splitlines() if "completions in" in line or "percentile" in line]
        if done.returncode or not found:
            raise NotMeasured(f"BookKeeper's own benchmark failed:\n{done.stderr[-2000:]}")
        return "\n".join(found)

    def _confirm_one(self, deadline: float) -> None:
        """Until the client knows its bookies again; a try that fails takes as long as one that does not."""
        while True:
            try:
                self._client.ask("append_one", _PATIENCE_S, entry_bytes=1)
            except NotMeasured:
                if clock() > deadline:
                    raise
            else:
                return


class _BookKeeperSystem:
    name = "bookkeeper"
    title = "Apache BookKeeper"
    is_replicated = True
    promise = Promise(
        copies=3,
        confirmed_by=2,
        is_synced=True,
        words="Three bookies, ensemble and write quorum 3, ack quorum 2; each syncs its journal before it answers "
        "(`journalSyncData`). DbLedgerStorage and the settings of Pulsar's distribution, the journal flushed as soon as "
        "nothing waits (`journalFlushWhenQueueEmpty`) and answered by the thread that syncs (`numJournalCallbackThreads=0`), "
        "CRC-32C, wire protocol 2.",
    )

    def missing(self) -> str | None:
        if lacking := zookeeper.missing():
            return lacking
        if not list(programs.jars("bookkeeper").glob("bookkeeper-server-*.jar")):
            return "no jars of BookKeeper; with Maven, type: python -m benchmarks.peers.programs"
        if not programs.find("java") or not programs.find("javac"):
            return (
                "no java, or no javac, which compiles BookKeeper's client: install a JDK (Debian: default-jdk-headless)"
            )
        return None

    def version(self) -> str:
        (server,) = programs.jars("bookkeeper").glob("bookkeeper-server-*.jar")
        return server.stem.removeprefix("bookkeeper-server-")

    @contextmanager
    def running(self, directory: Path, settings: Mapping[str, object] = TUNED) -> Iterator[BookKeeper]:
        java = Java(f"{compiled()}{os.pathsep}{programs.jars('bookkeeper')}/*", directory)
        with metadata_service(directory) as metadata:
            system = BookKeeper(java, metadata, Bookies(java, directory, metadata, settings))
            try:
                system.start()
                yield system
            except ServerFailedError as error:
                raise NotMeasured(str(error)) from error
            finally:
                system.stop()


def compiled() -> Path:
    """The directory with the client's classes, compiled if they are older than their sources."""
    classes, sources = programs.jars("bookkeeper").parent / "classes", sorted(_SOURCES.glob("*.java"))
    stamp = classes / "compiled"
    if not stamp.exists() or any(path.stat().st_mtime > stamp.stat().st_mtime for path in sources):
        command = [str(programs.find("javac")), "-proc:none", "-d", str(classes)]
        command += ["-cp", f"{programs.jars('bookkeeper')}/*", *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise NotMeasured(f"BookKeeper's client does not compile:\n{done.stderr}")
        stamp.touch()
    return classes


SYSTEM: System = _BookKeeperSystem()


def main(seconds: int, entry_bytes: int, in_flight: int) -> None:
    """Prints what this adapter measures, and then what BookKeeper's own tool does with the same bookies."""
    with (
        tempfile.TemporaryDirectory(prefix="bookkeeper-", dir=Path.cwd()) as place,
        _BookKeeperSystem().running(Path(place)) as system,
    ):
        for _ in range(2):
            print(f"this adapter: {system.append(Load(entry_bytes, in_flight, seconds))}", flush=True)
            print(system.own_benchmark(seconds, entry_bytes, in_flight), flush=True)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:4]))
