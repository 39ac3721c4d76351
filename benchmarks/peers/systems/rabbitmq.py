"""RabbitMQ: three nodes and a quorum queue, with persistent messages and publisher confirms.

A quorum queue's Raft log is synced before a node takes part in a majority (Ra's write-ahead log, `fdatasync` for each batch).
`System` measures streams too (`rabbitmq_stream`), which are a log and can be read again, but are never synced.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.figures import Figures, Meter
from benchmarks.peers import programs, system
from benchmarks.peers.crashing import ANSWER_S, Crashing, started
from benchmarks.peers.following import follow
from benchmarks.peers.pump import Conversation, append_all, cpu_figures, pump
from benchmarks.peers.system import Load, NotMeasured, Promise
from benchmarks.peers.systems.rabbitmq_protocol import Appends, Client, Deliveries, Value
from benchmarks.peers.systems.rabbitmq_server import Cluster, erlang, home
from tests.servers.processes import ServerFailedError

STARTING_S = 120.0  # one node after the other joins
ATTEMPT_S = 1.0  # for an answer, while a leader is looked for
AHEAD = 2000  # messages that a consumer has not answered


class RabbitMq(Crashing):
    """Three nodes that run. The queue is declared anew for each load, by the first node, which leads it then; when it dies the
    others hear of it from the kernel, which closes its connections."""

    attempt_s = ATTEMPT_S

    def __init__(self, directory: Path, kind: str) -> None:
        self._kind = kind
        self._cluster = Cluster(directory)
        super().__init__(directory, self._cluster.servers)

    def start(self) -> None:
        """All nodes, until an entry can be confirmed."""
        self._launch()
        for number, server in enumerate(self._cluster.servers):
            server.wait_until(partial(self._serves, number, declares=False), "it serves", STARTING_S)
        with self._client() as client:
            client.declare(self._kind)
        self._wait_for_all()

    def stop(self) -> None:
        """Their port mapper as well."""
        self._cluster.stop()

    def append(self, load: Load) -> Figures:
        """Messages by one channel to the queue's leader."""
        if load.entries_per_call > 1:
            raise NotMeasured("AMQP has no form for many at once")
        self._forget()
        with self._writer(0, ANSWER_S) as client:
            talks: list[tuple[socket.socket, Conversation]] = [(client.stream, Appends(os.urandom(load.entry_bytes)))]
            return pump(talks, load, lambda: Meter(*self.process_ids))

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        """A consumer from a stream's beginning."""
        if self._kind != "stream":
            raise NotMeasured("a queue is consumed, and can't be read again: see RabbitMQ's stream")
        self._forget()
        with self._writer(0, ANSWER_S) as client:
            append_all(client.stream, Appends(os.urandom(entry_bytes)), entries, entry_bytes)
        count = 0
        with self._client() as client:
            meter = Meter(*self.process_ids)
            receive = self._consumer(client, {"x-stream-offset": "first"})
            while count < entries:
                count += receive()
            found = meter.figures(count)
        if count != entries:
            raise NotMeasured(f"read {count} of {entries} entries")
        return cpu_figures(found)

    def tail(self, entry_bytes: int, entries: int) -> Figures:
        """A consumer that answers what it gets."""
        self._forget()
        payload = os.urandom(entry_bytes)
        with self._writer(0, ANSWER_S) as writer, self._client() as reader:
            receive = self._consumer(reader, {"x-stream-offset": "next"} if self._kind == "stream" else {})
            return follow(entries, partial(writer.append, payload), receive)

    def _writer(self, number: int, within_s: float) -> Client:
        client = Client(self._cluster.ports[number], within_s)
        try:
            client.confirm()
        except BaseException:
            client.stream.close()
            raise
        return client

    def _launch(self) -> None:
        self._cluster.launch()

    def _client(self, number: int = 0) -> Client:
        return Client(self._cluster.ports[number])

    def _wait_for_all(self) -> None:
        """Until each node serves and knows the queue: then it is of the cluster."""
        for number, server in enumerate(self._cluster.servers):
            server.wait_until(partial(self._serves, number, declares=True), "it serves the queue", STARTING_S)

    def _serves(self, number: int, *, declares: bool) -> bool:
        try:
            with self._client(number) as client:
                if declares:
                    client.declare(self._kind, is_passive=True)
        except (OSError, NotMeasured):  # not there; or it says that it only starts, or looks for the queue's leader
            return False
        return True

    def _forget(self) -> None:
        """The messages of an earlier load, by a queue of the same name that is made anew. Nodes that are behind with their
        logs, after large messages, refuse that for a while ("cluster_not_formed")."""
        self._leader = 0
        with self._client() as client:
            client.delete()
        try:
            self._cluster.servers[0].wait_until(self._declares, "it makes the queue anew", STARTING_S)
        except ServerFailedError as error:
            raise NotMeasured(str(error)) from error

    def _declares(self) -> bool:
        try:
            with self._client() as client:
                client.declare(self._kind)
        except (OSError, NotMeasured):
            return False
        return True

    def _consumer(self, client: Client, arguments: dict[str, Value]) -> Callable[[], int]:
        """What waits for messages, and counts them."""
        client.consume(AHEAD, arguments)
        deliveries = Deliveries()

        def receive() -> int:
            entries, answer = deliveries.receive(client.received())
            if answer:
                client.stream.sendall(answer)
            return len(entries)

        return receive

    def _count(self) -> int:
        with self._client() as client:
            return client.declare(self._kind, is_passive=True)

    def _check(self, confirmed: int) -> None:
        """That so many are there. A stream's are not counted by its declaration."""
        if self._kind != "stream":
            super()._check(confirmed)


class System:
    """RabbitMQ with a queue of this kind."""

    is_replicated = True

    def __init__(self, name: str, title: str, kind: str, promise: Promise) -> None:
        self.name = name
        self.title = title
        self.promise = promise
        self._kind = kind

    def missing(self) -> str | None:
        """RabbitMQ comes with Erlang as a package of its own."""
        if home() and erlang():
            return None
        return programs.missing("rabbitmq-server") or "no Erlang beside rabbitmq-server: install Debian's erlang-base"

    def version(self) -> str:
        """As the directory's name has it."""
        place = home()
        return place.name.rpartition("-")[2] if place else "?"

    @contextmanager
    def running(self, directory: Path) -> Iterator[RabbitMq]:
        """Three nodes."""
        with started(partial(RabbitMq, kind=self._kind), directory) as rabbit:
            yield rabbit


SYSTEM: system.System = System(
    "rabbitmq",
    "RabbitMQ quorum queue",
    "quorum",
    Promise(
        copies=3,
        confirmed_by=2,
        is_synced=True,
        words=(
            "quorum queue, persistent messages, publisher confirms: two of three nodes have the entry in their Raft logs, "
            "synced (the default; one write-ahead log for each node). Erlang's schedulers don't wait busily (`+sbwt none`). "
            "A queue is consumed, and can't be read again."
        ),
    ),
)
