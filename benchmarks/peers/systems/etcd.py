"""etcd, three nodes: an entry is one Put of a key of its own, by gRPC to the leader. Keys are numbered, so that they sort as they
were written; what an earlier load has written is deleted and compacted when the next one begins.

Entries are not put together in transactions: each one is confirmed by itself, as those of the other systems.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import attrs

from benchmarks.figures import Figures, Meter, clock
from benchmarks.peers import programs
from benchmarks.peers.children import held_bytes
from benchmarks.peers.following import follow
from benchmarks.peers.pump import cpu_figures, pump
from benchmarks.peers.system import Load, NotMeasured, Promise, System
from benchmarks.peers.systems import etcd_messages as messages
from benchmarks.peers.systems.etcd_grpc import Calls
from tests.servers.processes import HOST, STARTING_S, Server, ServerFailedError, free_port

SNAPSHOT_ENTRIES = 10_000  # 3.6's default. 3.4's is 100 000, all in memory: 6.5 GB of entries of 64 KiB
QUOTA_BYTES = 8 << 30
CONNECTIONS = 4
SENT_MAX = (
    4000  # with 5000 that are not applied yet etcd refuses others ("too many requests"): those wait in the client
)
ANSWER_S = 30.0
RETRY_S = 0.1  # after which another node is tried while there is no leader
PAGE_ENTRIES, PAGES = 500, 4  # of a scan: in one request, and requests in flight
SCAN_IN_FLIGHT = 1000
_RECEIVE_BYTES = 1 << 18
_NUMBER = struct.Struct(">Q")
_LOGS = b"log/"  # prefix of all keys


class Puts:
    """A `Conversation`: each entry has the next key."""

    def __init__(self, calls: Calls, prefix: bytes, entry: bytes) -> None:
        self._calls = calls
        self._next = 0
        empty = messages.put(prefix + bytes(_NUMBER.size), entry)
        self._before, self._behind = empty[: 2 + len(prefix)], empty[2 + len(prefix) + _NUMBER.size :]
        self.receive = calls.receive

    def requests(self, count: int) -> bytes:
        numbers = range(self._next, self._next + count)
        self._next += count
        before, behind, number = self._before, self._behind, _NUMBER.pack
        return self._calls.call([b"".join((before, number(each), behind)) for each in numbers])


class Channel:
    """A blocking connection, for one method. Everything raises `NotMeasured`, or OSError if there is nobody."""

    def __init__(self, port: int, method: str, *, within_s: float = ANSWER_S, is_streaming: bool = False) -> None:
        self.calls = Calls(f"{HOST}:{port}", method, is_collecting=True, is_streaming=is_streaming)
        self.stream = socket.create_connection((HOST, port), within_s)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream.sendall(self.calls.greeting())

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def begin(self, message: bytes) -> None:
        """A call, the answer of which is waited for by `next_message`."""
        self.stream.sendall(self.calls.call([message]))

    def receive(self) -> int:
        """Waits for anything, and returns how many calls have ended by it."""
        data = self.stream.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("etcd hung up")
        ended, answer = self.calls.receive(data)
        if answer:
            self.stream.sendall(answer)
        return ended

    def next_message(self) -> bytes:
        """The next one that is answered, of whichever call."""
        while not self.calls.messages:
            self.receive()
        return self.calls.messages.pop(0)

    def ask(self, message: bytes) -> bytes:
        """One call from its beginning to its end."""
        self.begin(message)
        while not self.receive():
            pass
        return self.calls.messages.pop()


def ask(port: int, method: str, message: bytes, within_s: float = ANSWER_S) -> bytes:
    """One call, on a connection of its own."""
    with Channel(port, method, within_s=within_s) as channel:
        return channel.ask(message)


@attrs.frozen
class Node:
    server: Server
    port: int
    directory: Path

    def status(self) -> bytes:
        """What it tells of itself; empty if it doesn't serve."""
        try:
            return ask(self.port, messages.STATUS, b"", RETRY_S * 10)
        except (OSError, NotMeasured):
            return b""

    def has_applied(self, index: int) -> bool:
        """Whether its store has all up to this place in Raft's log."""
        return messages.applied(self.status()) >= index


def _launched(directory: Path) -> list[Node]:
    program = programs.find("etcd")
    assert program, programs.missing("etcd")
    names, ports = [f"etcd-{number}" for number in (1, 2, 3)], [(free_port(), free_port()) for _ in range(3)]
    cluster = ",".join(f"{name}=http://{HOST}:{peer}" for name, (_, peer) in zip(names, ports, strict=True))
    nodes = []
    for name, (port, peer) in zip(names, ports, strict=True):
        command = [str(program), "--name", name, "--data-dir", str(directory / name)]
        command += [
            word for which in ("listen", "advertise") for word in (f"--{which}-client-urls", f"http://{HOST}:{port}")
        ]
        command += [
            "--listen-peer-urls",
            f"http://{HOST}:{peer}",
            "--initial-advertise-peer-urls",
            f"http://{HOST}:{peer}",
        ]
        command += ["--initial-cluster", cluster, "--snapshot-count", str(SNAPSHOT_ENTRIES)]
        command += ["--quota-backend-bytes", str(QUOTA_BYTES), "--auto-compaction-mode", "revision"]
        command += ["--auto-compaction-retention", "10000", "--logger", "zap", "--log-level", "error"]
        nodes.append(Node(Server(name, command, directory, programs.environment()), port, directory / name))
    return nodes


class RunningEtcd:
    """Three servers. Its methods are those of `Running`."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._loads = 0

    @property
    def process_ids(self) -> Sequence[int]:
        return [each.server.pid for each in self._nodes if each.server.is_running]

    # --- appends ---------------------------------------------------------------------------------------------------------

    def append(self, load: Load) -> Figures:
        if load.entries_per_call != 1:
            raise NotMeasured("an entry is one Put")
        self._trim()
        return self._append(load, min(CONNECTIONS, load.in_flight))

    def _append(self, load: Load, connections: int) -> Figures:
        leader, entry = self.leader(), os.urandom(load.entry_bytes)
        with ExitStack() as stack:
            pairs = []
            for _ in range(connections):
                calls = Calls(f"{HOST}:{leader.port}", messages.PUT, open_max=SENT_MAX // connections)
                stream = stack.enter_context(socket.create_connection((HOST, leader.port), ANSWER_S))
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream.sendall(calls.greeting())
                pairs.append((stream, Puts(calls, self._new_prefix(), entry)))
            return pump(pairs, load, lambda: Meter(*self.process_ids))

    def _new_prefix(self) -> bytes:
        self._loads += 1
        return _LOGS + b"%06d/" % self._loads

    def _trim(self) -> None:
        """Deletes what there is, and waits until its place can be used anew."""
        port = self.leader().port
        everything = messages.key_range(_LOGS, messages.after(_LOGS))
        revision = messages.revision(ask(port, messages.DELETE, everything))
        ask(port, messages.COMPACT, messages.compact(revision))

    # --- reads -----------------------------------------------------------------------------------------------------------

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        prefix, port, entry = self._new_prefix(), self.leader().port, os.urandom(entry_bytes)
        with Channel(port, messages.PUT) as channel:
            for first in range(0, entries, SCAN_IN_FLIGHT):
                numbers = range(first, min(entries, first + SCAN_IN_FLIGHT))
                channel.stream.sendall(channel.calls.call(messages.put(_key(prefix, each), entry) for each in numbers))
                left = len(numbers)
                while left:
                    left -= channel.receive()
        with Channel(port, messages.RANGE) as channel:
            measured = Meter(*self.process_ids)
            found = _scanned(channel, prefix, entries)
            figures = measured.figures(entries)
        if len(found) != entries or found[-1] != entry:
            raise NotMeasured(f"{len(found)} entries were read of {entries}")
        return cpu_figures(figures)

    def tail(self, entry_bytes: int, entries: int) -> Figures:
        prefix, port, entry = self._new_prefix(), self.leader().port, os.urandom(entry_bytes)
        with Channel(port, messages.WATCH, is_streaming=True) as watch, Channel(port, messages.PUT) as channel:
            watch.begin(messages.watch(prefix, messages.after(prefix)))
            while not messages.is_watching(watch.next_message()):
                pass
            numbers = itertools.count()
            return follow(
                entries,
                lambda: channel.ask(messages.put(_key(prefix, next(numbers)), entry)),
                lambda: len(messages.events(watch.next_message())),
            )

    # --- failures --------------------------------------------------------------------------------------------------------

    def take_over(self, entry_bytes: int) -> Figures:
        leader, prefix, entry = self.leader(), self._new_prefix(), os.urandom(entry_bytes)
        confirmed = 0
        with Channel(leader.port, messages.PUT) as channel:
            while confirmed < 100:
                channel.ask(messages.put(_key(prefix, confirmed), entry))
                confirmed += 1
            channel.begin(messages.put(_key(prefix, confirmed), entry))
            leader.server.kill()
        killed = clock()
        self._confirm(
            [each for each in self._nodes if each is not leader], messages.put(_key(prefix, confirmed), entry)
        )
        took_s = clock() - killed
        leader.server.launch()
        self._wait_whole()
        found = messages.count(ask(leader.port, messages.RANGE, messages.count_of(prefix, messages.after(prefix))))
        if found != confirmed + 1:
            raise NotMeasured(f"{found} entries are left of {confirmed + 1} that were confirmed")
        return {"takeover_s": took_s}

    def restart(self) -> Figures:
        for each in self._nodes:
            each.server.kill()
        held = held_bytes(*(each.directory for each in self._nodes))
        started = clock()
        for each in self._nodes:
            each.server.launch()
        self._confirm(self._nodes, messages.put(_key(self._new_prefix(), 0), b"restarted"))
        took_s = clock() - started
        self._wait_whole()
        return {"restart_s": took_s, "held_bytes": float(held)}

    def _confirm(self, nodes: Sequence[Node], put: bytes) -> None:
        """One entry, by whichever node: the next one is tried when one has not answered after a while. The key stays the same,
        so that an entry which was written twice is there once."""
        deadline = clock() + STARTING_S
        while clock() < deadline:
            for each in nodes:
                begun = clock()
                try:
                    ask(each.port, messages.PUT, put, RETRY_S)
                except (OSError, NotMeasured):
                    _pause(begun + RETRY_S / 10 - clock())  # a refused connection takes no time
                else:
                    return
        raise NotMeasured(f"no entry was confirmed within {STARTING_S:.0f} s")

    def leader(self) -> Node:
        """Waits until there is one."""
        found: list[Node] = []

        def is_there() -> bool:
            found[:] = [each for each in self._nodes if messages.is_leader(each.status())]
            return len(found) == 1

        _wait(self._nodes[0], is_there, "there is a leader")
        return found[0]

    def _wait_whole(self) -> None:
        """Until all have what the leader has."""
        target = messages.applied(self.leader().status())
        for each in self._nodes:
            _wait(each, partial(each.has_applied, target), "it has caught up")


def _wait(node: Node, is_so: Callable[[], bool], what: str) -> None:
    try:
        node.server.wait_until(is_so, what)
    except ServerFailedError as error:
        raise NotMeasured(str(error)) from error


def _pause(seconds: float) -> None:
    if seconds > 0:
        threading.Event().wait(seconds)


def _key(prefix: bytes, number: int) -> bytes:
    return prefix + _NUMBER.pack(number)


def _scanned(channel: Channel, prefix: bytes, entries: int) -> list[bytes]:
    """Pages are asked for before the ones ahead of them have come: which keys there are is known from their numbers."""
    asked, found = 0, list[bytes]()
    for page in range(-PAGES, -(-entries // PAGE_ENTRIES)):
        if asked < entries:
            first, asked = asked, asked + PAGE_ENTRIES
            channel.begin(messages.key_range(_key(prefix, first), _key(prefix, asked)))
        if page >= 0:
            found += messages.values(channel.next_message(), len(_key(prefix, 0)))
    return found


class _Etcd:
    name = "etcd"
    title = "etcd"
    is_replicated = True
    promise = Promise(
        copies=3,
        confirmed_by=2,
        is_synced=True,
        words="Raft: the leader and one follower have synced it, and it is applied to the store of keys (one Put for an entry). "
        f"Defaults but for snapshots after {SNAPSHOT_ENTRIES} entries (the default of 3.6), a quota of 8 GiB and compaction.",
    )

    def missing(self) -> str | None:
        return programs.missing("etcd")

    def version(self) -> str:
        said = subprocess.run(
            [str(programs.find("etcd")), "--version"], capture_output=True, text=True, timeout=ANSWER_S, check=True
        )
        found = re.search(r"Version: (\S+)", said.stdout)
        return found[1] if found else said.stdout.strip()

    @contextmanager
    def running(self, directory: Path) -> Iterator[RunningEtcd]:
        nodes = _launched(directory)
        try:
            for each in nodes:
                each.server.launch()
            running = RunningEtcd(nodes)
            running.leader()
            yield running
        finally:
            for each in nodes:
                each.server.kill()


SYSTEM: System = _Etcd()
