"""RabbitMQ: three nodes and a quorum queue, with persistent messages and publisher confirms.

A quorum queue's Raft log is synced before a node takes part in a majority (Ra's write-ahead log, `fdatasync` for each batch).
`System` measures streams too (`rabbitmq_stream`), which are a log and can be read again, but are never synced.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from benchmarks.figures import Figures, Meter, clock
from benchmarks.peers import programs, system
from benchmarks.peers.children import held_bytes
from benchmarks.peers.following import follow
from benchmarks.peers.pump import Conversation, cpu_figures, pump
from benchmarks.peers.system import Load, NotMeasured, Promise
from benchmarks.peers.systems.rabbitmq_protocol import Appends, Client, Deliveries, Value
from benchmarks.peers.systems.rabbitmq_server import Cluster, erlang, home
from tests.servers.processes import ServerFailedError

STARTING_S = 120.0  # one node after the other joins
TAKEOVER_S = 60.0
ATTEMPT_S = 1.0  # for an answer, while a leader is looked for
COUNTED_S = 30.0  # until a queue has said how many messages it has
AHEAD = 2000  # messages that a consumer has not answered
FILLED_BYTES = 1 << 20  # in flight while a scan's entries are appended


class RabbitMq:
    """Three nodes that run. The queue is declared anew for each load, by the first node, which leads it then."""

    def __init__(self, directory: Path, kind: str) -> None:
        self._kind = kind
        self._cluster = Cluster(directory)

    def start(self) -> None:
        """All nodes, until an entry can be confirmed."""
        self._cluster.launch()
        for number, server in enumerate(self._cluster.servers):
            server.wait_until(partial(self._serves, number, declares=False), "it serves", STARTING_S)
        with self._client() as client:
            client.declare(self._kind)
        self._wait_for_all()

    def stop(self) -> None:
        """Kills them. Idempotent."""
        self._cluster.stop()

    @property
    def process_ids(self) -> Sequence[int]:
        """Of the three nodes."""
        return [server.pid for server in self._cluster.servers]

    def append(self, load: Load) -> Figures:
        """Messages by one channel to the queue's leader."""
        if load.entries_per_call > 1:
            raise NotMeasured("AMQP has no form for many at once")
        self._forget()
        with self._client() as client:
            client.confirm()
            talks: list[tuple[socket.socket, Conversation]] = [(client.stream, Appends(os.urandom(load.entry_bytes)))]
            return pump(talks, load, lambda: Meter(*self.process_ids))

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        """A consumer from a stream's beginning."""
        if self._kind != "stream":
            raise NotMeasured("a queue is consumed, and can't be read again: see RabbitMQ's stream")
        self._forget()
        self._fill(entry_bytes, entries)
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
        with self._client() as writer, self._client() as reader:
            writer.confirm()
            receive = self._consumer(reader, {"x-stream-offset": "next"} if self._kind == "stream" else {})
            return follow(entries, partial(writer.append, payload), receive)

    def take_over(self, entry_bytes: int) -> Figures:
        """Kills the first node, which leads the queue. The others hear of it from the kernel, which closes its connections."""
        self._forget()
        payload = os.urandom(entry_bytes)
        confirmed = 100
        with self._client() as client:
            client.confirm()
            for _ in range(confirmed):
                client.append(payload)
            killed = clock()
            self._cluster.servers[0].kill()
            self._append_anywhere((1, 2), payload)
            took_s = clock() - killed
        self._cluster.launch()
        self._wait_for_all()
        self._check(confirmed + 1)
        return {"takeover_s": took_s}

    def restart(self) -> Figures:
        """All nodes at once, until an entry is confirmed by any of them."""
        confirmed = self._count()
        self._cluster.kill()
        held = held_bytes(self._cluster.directory)
        began = clock()
        self._cluster.launch()
        self._append_anywhere(range(3), bytes(100))
        took_s = clock() - began
        self._wait_for_all()
        self._check(confirmed + 1)
        return {"restart_s": took_s, "held_bytes": float(held)}

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

    def _fill(self, entry_bytes: int, entries: int) -> None:
        talk = Appends(os.urandom(entry_bytes))
        at_once = max(1, FILLED_BYTES // entry_bytes)
        with self._client() as client:
            client.confirm()
            for first in range(0, entries, at_once):
                missing = min(at_once, entries - first)
                client.stream.sendall(talk.requests(missing))
                while missing:
                    missing -= talk.receive(client.received())[0]

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

    def _append_anywhere(self, numbers: Sequence[int], payload: bytes) -> None:
        """Until one of these has it confirmed by whoever leads."""
        deadline = clock() + TAKEOVER_S
        while clock() < deadline:
            for number in numbers:
                with suppress(OSError, NotMeasured), Client(self._cluster.ports[number], ATTEMPT_S) as client:
                    client.confirm()
                    client.append(payload)
                    return
        raise NotMeasured(f"no entry was confirmed within {TAKEOVER_S:.0f} s")

    def _count(self) -> int:
        with self._client() as client:
            return client.declare(self._kind, is_passive=True)

    def _check(self, confirmed: int) -> None:
        """That so many are there. A stream's are not counted by its declaration."""
        if self._kind == "stream":
            return
        try:
            self._cluster.servers[0].wait_until(lambda: self._count() >= confirmed, "all entries are there", COUNTED_S)
        except ServerFailedError as error:
            raise NotMeasured(f"of {confirmed} entries that were confirmed, {self._count()} are there") from error


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
        rabbit = RabbitMq(directory, self._kind)
        try:
            try:
                rabbit.start()
            except ServerFailedError as error:  # a server's log is within
                raise NotMeasured(str(error)) from error
            yield rabbit
        finally:
            rabbit.stop()


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
