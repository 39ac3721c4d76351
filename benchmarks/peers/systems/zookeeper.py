"""ZooKeeper, three servers: an entry is a node of its own below the log's node, with a sequential name, created by the leader.

What one session asks for is done in its order; what several ask for is not. A log's writer needs the order, and ZooKeeper is
faster with several sessions: so both are measured, `System` with as many as are fastest, `zookeeper_session` with one.

Its servers come with PySpark. They are started as long-lived ones are (with all of the JVM's compilers), and warmed up before
anything is measured. What an earlier load has written is deleted when the next one begins.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

from benchmarks.figures import Figures, Meter, clock
from benchmarks.peers import system
from benchmarks.peers.children import held_bytes
from benchmarks.peers.following import follow
from benchmarks.peers.pump import cpu_figures, pump
from benchmarks.peers.system import Load, NotMeasured, Promise
from benchmarks.peers.systems import zookeeper_jute as jute
from tests.servers import zookeeper as servers
from tests.servers.processes import HOST, STARTING_S, ServerFailedError

TICK_MS = 2000  # the default; so are the limits in ticks
HEAP_MB = 2048
OUTSTANDING_MAX = 100_000  # requests that wait in a server before it reads no more; the default is 1000
LOG_BYTES = 1 << 30  # after which a snapshot is made, if not earlier for its 100 000 changes; the default is 4 GiB
SNAPSHOTS_KEPT = 3
SETTINGS = servers.Settings(
    tick_ms=TICK_MS,
    is_synced=True,
    heap_mb=HEAP_MB,
    java_options=(),
    more={"globalOutstandingLimit": str(OUTSTANDING_MAX), "snapSizeLimitInKb": str(LOG_BYTES >> 10)},
)
# A server reads one request at a time from each connection: with 1 000 in flight 32 of them were a third faster than one
# (Netty's connections as well), with 100 in flight it was five that were.
CONNECTIONS_MAX, IN_FLIGHT_OF_EACH = 32, 20
ANSWER_S = 30.0
RETRY_S = 0.2  # after which another server is tried while there is no leader
WARM_UP = Load(1024, 1000, 1.0)  # again and again
WARM_UP_ENTRIES = 100_000
DELETED_AT_ONCE, DELETES = 500, 8  # nodes in one request, and requests in flight
IN_FLIGHT = 1000  # of a scan
_RECEIVE_BYTES = 1 << 18
_PROMISED = (
    "Zab: two servers have synced it to their logs, the leader has applied it to its tree (one node for an entry). "
    f"Heaps of {HEAP_MB >> 10} GiB, globalOutstandingLimit {OUTSTANDING_MAX}, snapshots after 1 GiB of log; else defaults."
)


class Session:
    """A blocking connection. Everything raises `NotMeasured`, or OSError if there is nobody."""

    def __init__(self, port: int, within_s: float = ANSWER_S) -> None:
        self.answers = jute.Answers()
        self.stream = socket.create_connection((HOST, port), within_s)
        try:
            self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._begin()
        except BaseException:
            self.stream.close()
            raise

    def _begin(self) -> None:
        self.stream.sendall(jute.connect(20 * TICK_MS))
        received = b""
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            received += self._received()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def _received(self) -> bytes:
        data = self.stream.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("ZooKeeper hung up")
        return data

    def receive(self) -> None:
        """Waits for anything; it is in `answers` then."""
        self.answers.receive(self._received())

    def ask(self, request: bytes) -> bytes:
        """One request from its beginning to its end."""
        self.stream.sendall(request)
        while not self.answers.bodies:
            self.receive()
        return self.answers.bodies.pop(0)

    def pipeline(self, requests: Iterator[bytes], in_flight: int) -> Iterator[bytes]:
        """Keeps so many of them in flight; the answers, in their order."""
        asked = 0
        while True:
            more = list(islice(requests, in_flight - asked))
            self.stream.sendall(b"".join(more))
            asked += len(more)
            if not asked:
                return
            self.receive()
            asked -= len(self.answers.bodies)
            yield from self.answers.bodies
            self.answers.bodies.clear()


def connections_for(in_flight: int, most: int = CONNECTIONS_MAX) -> int:
    """How many of them share what is in flight, if there may be so many."""
    return min(most, max(1, in_flight // IN_FLIGHT_OF_EACH))


class RunningZooKeeper:
    """Three servers. Its methods are those of `Running`."""

    def __init__(self, ensemble: servers.Ensemble, connections_max: int) -> None:
        self._ensemble = ensemble
        self._connections_max = connections_max  # of a load; each is a session
        self._logs: list[bytes] = []  # nodes that hold entries
        self._made = 0
        self._is_warm = False

    @property
    def process_ids(self) -> Sequence[int]:
        return [each.pid for each in self._ensemble.servers if each.is_running]

    # --- appends ---------------------------------------------------------------------------------------------------------

    def append(self, load: Load) -> Figures:
        if load.entries_per_call != 1:
            raise NotMeasured("an entry is one node")
        self._warm_up()
        self._delete(self._logs)
        for each in self._ensemble.servers:
            purge(each.data_directory / "version-2")
        return self._append(load)

    def _append(self, load: Load) -> Figures:
        log, port, entry = self._new_log(), self._leader().port, os.urandom(load.entry_bytes)
        with ExitStack() as stack:
            connections = connections_for(load.in_flight, self._connections_max)
            sessions = [stack.enter_context(Session(port)) for _ in range(connections)]
            pairs = [(session.stream, jute.Creates(log, entry)) for session in sessions]
            return pump(pairs, load, lambda: Meter(*self.process_ids))

    def _warm_up(self) -> None:
        """After a start: until the JVMs have compiled what is used often, or have had time enough for it."""
        before, entries, deadline = len(self._logs), 0.0, clock() + ANSWER_S
        while not self._is_warm:
            entries += self._append(WARM_UP)["entries"]
            self._is_warm = entries >= WARM_UP_ENTRIES or clock() > deadline
        self._delete(self._logs[before:])

    def _new_log(self) -> bytes:
        self._made += 1
        log = b"/log-%06d" % self._made
        with Session(self._leader().port) as session:
            session.ask(jute.create(log, b""))
        self._logs.append(log)
        return log

    def _delete(self, logs: Sequence[bytes]) -> None:
        with Session(self._leader().port) as session:
            for log in list(logs):
                names = sorted(jute.texts(session.ask(jute.get_children(log))))
                groups = (names[first : first + DELETED_AT_ONCE] for first in range(0, len(names), DELETED_AT_ONCE))
                requests = (jute.delete(log + b"/" + name for name in group) for group in groups)
                for _ in session.pipeline(requests, DELETES):
                    pass
                session.ask(jute.delete([log]))
                self._logs.remove(log)

    def _leader(self) -> servers.ZooKeeper:
        try:
            return self._ensemble.leader()
        except ServerFailedError as error:
            raise NotMeasured(str(error)) from error

    # --- reads -----------------------------------------------------------------------------------------------------------

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        self._warm_up()
        log, entry = self._new_log(), os.urandom(entry_bytes)
        with Session(self._leader().port) as session:
            requests = (jute.create(log + b"/", entry, jute.SEQUENTIAL) for _ in range(entries))
            written = sum(1 for _ in session.pipeline(requests, IN_FLIGHT))
            measured = Meter(*self.process_ids)
            names = sorted(jute.texts(session.ask(jute.get_children(log))))
            bodies = session.pipeline((jute.get_data(log + b"/" + name) for name in names), IN_FLIGHT)
            found = [jute.text_at(body, 0) for body in bodies]
            figures = measured.figures(entries)
        if not written == len(found) == entries or found[-1] != entry:
            raise NotMeasured(f"{len(found)} entries were read of {entries}")
        return cpu_figures(figures)

    def tail(self, entry_bytes: int, entries: int) -> Figures:
        self._warm_up()
        log, port, entry = self._new_log(), self._leader().port, os.urandom(entry_bytes)
        with Session(port) as watch, Session(port) as session:
            watch.ask(jute.add_watch(log))
            return follow(
                entries,
                lambda: session.ask(jute.create(log + b"/", entry, jute.SEQUENTIAL)),
                lambda: _read_what_is_new(watch),
            )

    # --- failures --------------------------------------------------------------------------------------------------------

    def take_over(self, entry_bytes: int) -> Figures:
        self._warm_up()
        leader, log, entry = self._leader(), self._new_log(), os.urandom(entry_bytes)
        confirmed = 0
        with Session(leader.port) as session:
            while confirmed < 100:
                session.ask(jute.create(b"%b/%d" % (log, confirmed), entry))
                confirmed += 1
            session.stream.sendall(jute.create(b"%b/%d" % (log, confirmed), entry))
            leader.kill()
        killed = clock()
        others = [each for each in self._ensemble.servers if each is not leader]
        self._confirm(others, jute.create(b"%b/%d" % (log, confirmed), entry))
        took_s = clock() - killed
        self._is_warm = False
        self._heal()
        with Session(leader.port) as session:
            found = len(jute.texts(session.ask(jute.get_children(log))))
        if found != confirmed + 1:
            raise NotMeasured(f"{found} entries are left of {confirmed + 1} that were confirmed")
        return {"takeover_s": took_s}

    def restart(self) -> Figures:
        self._ensemble.kill()
        held = held_bytes(*(each.data_directory for each in self._ensemble.servers))
        started = clock()
        for each in self._ensemble.servers:
            each.launch()
        self._made += 1
        log = b"/log-%06d" % self._made
        self._confirm(self._ensemble.servers, jute.create(log, b"restarted"))
        took_s = clock() - started
        self._logs.append(log)
        self._is_warm = False
        self._heal()
        return {"restart_s": took_s, "held_bytes": float(held)}

    def _confirm(self, nodes: Sequence[servers.ZooKeeper], create: bytes) -> None:
        """One entry, by whichever server: the next one is tried when one has not answered after a while. If it is there already
        then an earlier try has had no answer."""
        deadline = clock() + STARTING_S
        while clock() < deadline:
            for each in nodes:
                begun = clock()
                try:
                    with Session(each.port, RETRY_S) as session:
                        session.ask(create)
                    return
                except jute.Refused as refused:
                    if refused.error == jute.NODE_EXISTS:
                        return
                    raise
                except OSError:
                    _pause(begun + RETRY_S / 10 - clock())  # a refused connection takes no time
        raise NotMeasured(f"no entry was confirmed within {STARTING_S:.0f} s")

    def _heal(self) -> None:
        try:
            self._ensemble.heal_blocking()
        except ServerFailedError as error:
            raise NotMeasured(str(error)) from error


def purge(directory: Path) -> None:
    """Removes what is older than the latest snapshots, as ZooKeeper's own PurgeTxnLog does: the log in which the oldest kept
    snapshot was begun stays, with all after it."""

    def of(kind: str) -> list[tuple[int, Path]]:
        return sorted((int(path.suffix[1:], 16), path) for path in directory.glob(f"{kind}.*"))

    snapshots, logs = of("snapshot"), of("log")
    if len(snapshots) <= SNAPSHOTS_KEPT:
        return
    oldest = snapshots[-SNAPSHOTS_KEPT][0]
    first_kept = max((zxid for zxid, _ in logs if zxid <= oldest), default=0)
    for zxid, path in snapshots:
        if zxid < oldest:
            path.unlink()
    for zxid, path in logs:
        if zxid < first_kept:
            path.unlink()


def _pause(seconds: float) -> None:
    if seconds > 0:
        threading.Event().wait(seconds)


def _read_what_is_new(watch: Session) -> int:
    """Entries that have come into its hand, that is read after the watch told their names."""
    answers = watch.answers
    while not answers.bodies:
        watch.stream.sendall(b"".join(map(jute.get_data, answers.created)))
        answers.created.clear()
        watch.receive()
    count = len(answers.bodies)
    answers.bodies.clear()
    return count


class System:
    """ZooKeeper, of which a load has so many sessions at most."""

    is_replicated = True

    def __init__(self, name: str, title: str, connections_max: int, words: str) -> None:
        self.name = name
        self.title = title
        self.promise = Promise(copies=3, confirmed_by=2, is_synced=True, words=f"{words} {_PROMISED}")
        self._connections_max = connections_max

    def missing(self) -> str | None:
        """Its servers are those of the tests."""
        return servers.missing()

    def version(self) -> str:
        """As the name of the servers' jar has it."""
        found = re.search(r"/zookeeper-(\d[\d.]*\d)\.jar", servers.class_path(SETTINGS))
        assert found, servers.class_path(SETTINGS)
        return found[1]

    @contextmanager
    def running(self, directory: Path) -> Iterator[RunningZooKeeper]:
        """Three servers."""
        ensemble = servers.Ensemble(directory, SETTINGS)
        try:
            _start(ensemble.start_blocking)
            yield RunningZooKeeper(ensemble, self._connections_max)
        finally:
            ensemble.kill()


def _start(start: Callable[[], None]) -> None:
    try:
        start()
    except ServerFailedError as error:
        raise NotMeasured(str(error)) from error


SYSTEM: system.System = System(
    "zookeeper",
    "ZooKeeper",
    CONNECTIONS_MAX,
    f"Up to {CONNECTIONS_MAX} sessions share what is in flight, which is faster than one; entries of different sessions overtake "
    "each other, so this is not the order of one writer.",
)
