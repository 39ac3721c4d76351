"""NATS JetStream: three servers, a stream of three replicas in files.

An acknowledgement is sent when two of three have the entry in their Raft logs. By default nothing is synced before it: a server
syncs its files every two minutes (`sync_interval`), so two machines that lose power lose entries that were confirmed. `System`
measures this, and, as `nats_synced`, the same with `sync_interval: always`, which versions from 2.10 on have.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Figures, Meter, clock
from benchmarks.peers import programs, system
from benchmarks.peers.crashing import Crashing, started
from benchmarks.peers.following import follow
from benchmarks.peers.pump import Conversation, append_all, cpu_figures, pump
from benchmarks.peers.system import Load, NotMeasured, Promise
from benchmarks.peers.systems.nats_protocol import ANSWER_S, STREAM, SUBJECT, Appends, Client, Deliveries
from tests.servers.processes import HOST, Server, free_port

STARTING_S = 60.0
ATTEMPT_S = 0.5  # for an answer, while a leader is looked for
STREAM_BYTES_MAX = 8 << 30  # a load must not fill the disk; older entries go then

_STREAM = {
    "name": STREAM,
    "subjects": [SUBJECT],
    "retention": "limits",
    "storage": "file",
    "num_replicas": 3,
    "max_bytes": STREAM_BYTES_MAX,
}
_SETTINGS = """\
server_name: {name}
listen: "{host}:{port}"
jetstream {{ store_dir: "{directory}/store", max_memory_store: 1GB, max_file_store: 64GB, sync_interval: {sync} }}
cluster {{ name: peers, listen: "{host}:{cluster_port}", routes: [{routes}] }}
"""


class Nats(Crashing):
    """Three servers that run."""

    attempt_s = ATTEMPT_S

    def __init__(self, directory: Path, *, is_synced: bool) -> None:
        self._is_synced = is_synced
        self._ports = [free_port() for _ in range(3)]
        self._cluster_ports = [free_port() for _ in range(3)]
        super().__init__(directory, [self._server(directory, number) for number in range(3)])

    def _server(self, directory: Path, number: int) -> Server:
        place = directory / f"nats-{number}"
        place.mkdir()
        settings = place / "nats.conf"
        settings.write_text(
            _SETTINGS.format(
                name=f"nats-{number}",
                host=HOST,
                port=self._ports[number],
                cluster_port=self._cluster_ports[number],
                directory=place,
                sync="always" if self._is_synced else "2m",
                routes=", ".join(f'"nats://{HOST}:{port}"' for port in self._cluster_ports),
            )
        )
        command = [str(programs.find("nats-server")), "--config", str(settings)]
        return Server(f"nats-{number}", command, place, programs.environment())

    def start(self) -> None:
        """All three, until the stream has a leader and two followers that are up to date."""
        self._launch()
        for number, server in enumerate(self._servers):
            server.wait_until(partial(self._is_ready, number), "it has a stream", STARTING_S)
        self._wait_for_all()

    def append(self, load: Load) -> Figures:
        """Messages by one connection to the stream's leader; those of an earlier load are purged before."""
        if load.entries_per_call > 1:
            raise NotMeasured("JetStream has no form for many at once")
        self._forget()
        with self._client() as client:
            talks: list[tuple[socket.socket, Conversation]] = [
                (client.stream, Appends(os.urandom(load.entry_bytes), client.acks))
            ]
            return pump(talks, load, lambda: Meter(*self.process_ids))

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        """By a push consumer with flow control, as NATS' clients make it for ordered reading."""
        self._forget()
        with self._client() as client:
            append_all(client.stream, Appends(os.urandom(entry_bytes), client.acks), entries, entry_bytes)
        count = 0
        with self._client() as client:
            meter = Meter(*self.process_ids)
            self._subscribe(client, "all")
            deliveries = Deliveries(client.stream, entry_bytes)
            came = clock()
            while count < entries and clock() - came < ANSWER_S:  # heartbeats come even if entries don't
                delivered = len(deliveries.receive())
                count, came = count + delivered, clock() if delivered else came
            found = meter.figures(count)
        if count != entries:
            raise NotMeasured(f"read {count} of {entries} entries")
        return cpu_figures(found)

    def tail(self, entry_bytes: int, entries: int) -> Figures:
        """By such a consumer, which begins with what comes now. It is told of an entry that the leader's Raft has committed."""
        self._forget()
        payload = os.urandom(entry_bytes)
        with self._client() as writer, self._client() as reader:
            self._subscribe(reader, "new")
            deliveries = Deliveries(reader.stream, entry_bytes)
            return follow(entries, partial(writer.append, payload), lambda: len(deliveries.receive()))

    def _client(self) -> Client:
        """To the leader."""
        return Client(self._ports[self._leader])

    def _writer(self, number: int, within_s: float) -> Client:
        client = Client(self._ports[number])
        client.stream.settimeout(within_s)
        return client

    def _is_ready(self, number: int) -> bool:
        try:
            with Client(self._ports[number]) as client:
                client.stream.settimeout(5.0)
                client.ask(f"STREAM.CREATE.{STREAM}", _STREAM)  # as often as one likes: it is the same stream
        except (OSError, NotMeasured):  # not there; or it has no leader, or not enough peers yet
            return False
        return True

    def _wait_for_all(self) -> None:
        """Until all replicas are up to date; then it is known who leads."""
        self._servers[0].wait_until(self._is_whole, "all replicas are up to date", STARTING_S)

    def _is_whole(self) -> bool:
        try:
            with Client(self._ports[0]) as client:
                client.stream.settimeout(5.0)
                cluster = client.ask(f"STREAM.INFO.{STREAM}")["cluster"]
        except (OSError, NotMeasured):  # no leader yet
            return False
        followers: list[dict[str, Any]] = cluster.get("replicas", [])
        if not cluster.get("leader") or len(followers) < 2:
            return False
        self._leader = int(cluster["leader"].removeprefix("nats-"))
        return all(each["current"] and not each.get("offline") for each in followers)

    def _forget(self) -> None:
        """The entries of an earlier load."""
        with self._client() as client:
            client.ask(f"STREAM.PURGE.{STREAM}")
        self._wait_for_all()

    def _subscribe(self, reader: Client, what: str) -> None:
        settings = {
            "deliver_subject": reader.delivered,
            "deliver_policy": what,
            "ack_policy": "none",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": 5_000_000_000,
            "num_replicas": 1,
            "mem_storage": True,
        }
        with self._client() as client:  # not the reader: entries may come before the answer
            client.ask(f"CONSUMER.CREATE.{STREAM}", {"stream_name": STREAM, "config": settings})

    def _count(self) -> int:
        with self._client() as client:
            found: int = client.ask(f"STREAM.INFO.{STREAM}")["state"]["messages"]
            return found


class System:
    """NATS that syncs, or does not."""

    is_replicated = True

    def __init__(self, name: str, title: str, promise: Promise) -> None:
        self.name = name
        self.title = title
        self.promise = promise

    def missing(self) -> str | None:
        """Old servers can't sync."""
        lacking = programs.missing("nats-server")
        if not lacking and self.promise.is_synced and _numbers(self.version()) < _SYNCING_SINCE:
            return f"nats-server {self.version()} can't sync before it acknowledges; versions from 2.10 on can"
        return lacking

    def version(self) -> str:
        """As the server says it."""
        command = [str(programs.find("nats-server")), "--version"]
        said = subprocess.run(command, env=programs.environment(), capture_output=True, text=True, check=True)
        return said.stdout.strip().rpartition(" ")[2].removeprefix("v")

    @contextmanager
    def running(self, directory: Path) -> Iterator[Nats]:
        """Three servers."""
        with started(partial(Nats, is_synced=self.promise.is_synced), directory) as nats:
            yield nats


def _numbers(version: str) -> list[int]:
    return [int(each) for each in version.split(".")[:2]]


_SYNCING_SINCE = [2, 10]
SYSTEM: system.System = System(
    "nats",
    "NATS JetStream",
    Promise(
        copies=3,
        confirmed_by=2,
        is_synced=False,
        words="R3 stream in files: two of three have the entry in their Raft logs, in memory or the page cache. Not synced: "
        "files are synced every two minutes (`sync_interval`, the default).",
    ),
)
