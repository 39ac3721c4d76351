"""Redis: a primary and two replicas, all three with an append-only file that is synced before anything is answered; a stream
is the log, and WAIT the confirmation.

What WAIT says is that replicas have acknowledged the offset, and Redis' own documentation promises no more. It is more here:
with `appendfsync always` an event loop first writes and syncs its append-only file, then sends what it has to answer
(`beforeSleep`), on a replica its acknowledgement too. The primary likewise syncs before it sends entries to its replicas.

WAIT holds up what comes behind it on its connection. So entries go out in groups, each with its WAIT, over one or more
connections (`connections_for`), as the fastest clients do.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.figures import Figures, Meter
from benchmarks.peers import programs
from benchmarks.peers.crashing import Crashing, started
from benchmarks.peers.following import follow
from benchmarks.peers.pump import Conversation, append_all, cpu_figures, pump
from benchmarks.peers.system import Load, NotMeasured, Promise, System
from benchmarks.peers.systems.redis_protocol import ANSWER_S, PAGE_BYTES, STREAM, Appends, Client, Pages, encode
from tests.servers.processes import HOST, Server, free_port

STARTING_S = 60.0
DOWN_AFTER_MS = 1000
CONNECTIONS_MAX = 50
READ_BYTES = 16 << 10
REWRITTEN_FROM_BYTES = 256 << 20  # of an append-only file, between loads
REWRITTEN_BY_PERCENT = 100  # in a sustained load, the default: whenever the file has doubled, from 64 MB on

_SETTINGS = (
    *("--appendonly", "yes"),
    *("--appendfsync", "always"),
    *("--no-appendfsync-on-rewrite", "no"),
    *("--auto-aof-rewrite-percentage", "0"),  # a short load is not to be disturbed; we rewrite between loads
    *("--save", ""),
    *("--repl-diskless-sync-delay", "0"),  # else a replica waits for 5 s to be joined by others
    *("--repl-backlog-size", "256mb"),
    *("--client-output-buffer-limit", "replica 2gb 2gb 0"),
    *("--bind", HOST),
    *("--daemonize", "no"),
    *("--loglevel", "notice"),
)


def connections_for(load: Load) -> int:
    """Over how many connections a load is spread: each has in flight what an event loop reads of it at most, 16 KiB, so that
    one sync is for all. Measured with 1 to 100, this was within a tenth of the best for each load."""
    return max(1, min(CONNECTIONS_MAX, load.in_flight, load.in_flight * load.entry_bytes // READ_BYTES))


class Redis(Crashing):
    """Three servers that run. The primary is the leader."""

    attempt_s = ANSWER_S  # WAIT needs a replica of the new primary, and nobody else can become one meanwhile

    def __init__(self, directory: Path) -> None:
        self._ports = [free_port() for _ in range(3)]
        super().__init__(directory, [self._server(directory, number) for number in range(3)])

    def _server(self, directory: Path, number: int) -> Server:
        place = directory / f"redis-{number}"
        place.mkdir()
        program = programs.find("redis-server")
        command = [str(program), "--port", str(self._ports[number]), "--dir", str(place), *_SETTINGS]
        return Server(f"redis-{number}", command, place, programs.environment())

    def append(self, load: Load) -> Figures:
        """XADDs in groups, each with a WAIT; the stream of an earlier load is deleted before. In a sustained load append-only
        files are rewritten as they are by default."""
        if load.entries_per_call > 1:
            raise NotMeasured("XADD adds one entry; a group in flight is Redis' form for many")
        self._forget()
        payload = os.urandom(load.entry_bytes)
        with ExitStack() as clients:
            talks: list[tuple[socket.socket, Conversation]] = [
                (clients.enter_context(self._client()).stream, Appends(payload)) for _ in range(connections_for(load))
            ]
            if load.is_sustained:
                clients.callback(self._rewrite_by_percent, 0)
                self._rewrite_by_percent(REWRITTEN_BY_PERCENT)
            return pump(talks, load, lambda: Meter(*self.process_ids))

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        """XRANGE on the primary, a page after the other."""
        self._forget()
        with self._client() as client:
            append_all(client.stream, Appends(os.urandom(entry_bytes)), entries, entry_bytes)
        pages, at_once = Pages(entry_bytes), max(1, PAGE_BYTES // entry_bytes)
        count, start = 0, b"-"
        with self._client() as client:
            meter = Meter(*self.process_ids)
            while count < entries:
                client.stream.sendall(encode("XRANGE", STREAM, start, "+", "COUNT", str(at_once)))
                page, last = pages.read(client.stream)
                if not page:
                    break
                count, start = count + len(page), b"(" + last
            found = meter.figures(count)
        if count != entries:
            raise NotMeasured(f"read {count} of {entries} entries")
        return cpu_figures(found)

    def tail(self, entry_bytes: int, entries: int) -> Figures:
        """XREAD BLOCK on the primary, which hands an entry to readers before it is confirmed: the fastest that there is."""
        self._forget()
        payload = os.urandom(entry_bytes)
        last = "0-0"
        with self._client() as writer, self._client() as reader:

            def receive() -> int:
                nonlocal last
                answer = reader.ask("XREAD", "BLOCK", str(int(ANSWER_S * 500)), "STREAMS", STREAM, last)
                if not isinstance(answer, list):
                    raise NotMeasured("XREAD found no entry in time")
                (found,) = answer
                assert isinstance(found, list)
                records = found[1]
                assert isinstance(records, list)
                newest = records[-1]
                assert isinstance(newest, list)
                assert isinstance(newest[0], bytes)
                last = newest[0].decode()
                return len(records)

            return follow(entries, lambda: writer.append(payload), receive)

    def _writer(self, number: int, within_s: float) -> Client:
        client = self._client(number)
        try:
            if "role:master" not in client.text("INFO", "replication"):
                raise NotMeasured(f"server {number} does not lead")
        except BaseException:
            client.stream.close()
            raise
        client.stream.settimeout(within_s)
        return client

    def _launch(self) -> None:
        super()._launch()
        self._follow()

    def _client(self, number: int | None = None) -> Client:
        return Client(self._ports[self._leader if number is None else number])

    def _follow(self) -> None:
        """When the servers answer, has the replicas follow the primary."""
        for number, server in enumerate(self._servers):
            server.wait_until(partial(self._answers, number), "it answers", STARTING_S)
            if number != self._leader:
                with self._client(number) as client:
                    client.ask("REPLICAOF", HOST, str(self._ports[self._leader]))

    def _wait_for_all(self) -> None:
        """Until both have all that the primary has."""
        is_whole = re.compile(r"^slave\d+:.*state=online", re.MULTILINE)
        with self._client() as client:
            self._servers[self._leader].wait_until(
                lambda: len(is_whole.findall(client.text("INFO", "replication"))) == 2, "two replicas", STARTING_S
            )

    def _answers(self, number: int) -> bool:
        try:
            with self._client(number) as client:
                return client.ask("PING") == b"PONG"
        except (OSError, NotMeasured):  # not there, or it says that it loads
            return False

    def _forget(self) -> None:
        """The stream, and what append-only files still tell of earlier ones."""
        with self._client() as client:
            client.ask("DEL", STREAM)
            client.ask("WAIT", "2", str(int(ANSWER_S * 1000)))
        for number, server in enumerate(self._servers):
            with self._client(number) as client:
                if _persistence(client, "aof_current_size") > REWRITTEN_FROM_BYTES:
                    client.ask("BGREWRITEAOF")
                    is_done = partial(_is_rewritten, client)
                    server.wait_until(is_done, "its append-only file is rewritten", STARTING_S)

    def _rewrite_by_percent(self, percent: int) -> None:
        """That an append-only file has to have grown by until its server rewrites it; 0: it never does."""
        for number in range(3):
            with self._client(number) as client:
                client.ask("CONFIG", "SET", "auto-aof-rewrite-percentage", str(percent))

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """With three sentinels, which are there for this alone."""
        with ExitStack() as sentinels:
            self._watch(sentinels)
            yield

    def _watch(self, sentinels: ExitStack) -> None:
        """Starts three sentinels, until each knows both replicas and both others."""
        ports = [free_port() for _ in range(3)]
        started: list[Server] = []
        for number, port in enumerate(ports):
            place = self._directory / f"sentinel-{number}-{port}"
            place.mkdir()
            settings = place / "sentinel.conf"
            settings.write_text(
                f"port {port}\nbind {HOST}\ndir {place}\n"
                f"sentinel monitor main {HOST} {self._ports[self._leader]} 2\n"
                f"sentinel down-after-milliseconds main {DOWN_AFTER_MS}\nsentinel failover-timeout main 10000\n"
            )
            command = [str(programs.find("redis-server")), str(settings), "--sentinel"]
            server = Server(f"sentinel-{number}", command, place, programs.environment())
            server.launch()
            sentinels.callback(server.kill)
            started.append(server)
        for port, server in zip(ports, started, strict=True):
            server.wait_until(partial(_watches, port), "it knows all others", STARTING_S)

    def _count(self) -> int:
        with self._client() as client:
            found = client.ask("XLEN", STREAM)
        assert isinstance(found, int)
        return found


def _is_rewritten(client: Client) -> bool:
    return not _persistence(client, "aof_rewrite_in_progress") and not _persistence(client, "aof_rewrite_scheduled")


def _persistence(client: Client, name: str) -> int:
    found = re.search(rf"^{name}:(\d+)", client.text("INFO", "persistence"), re.MULTILINE)
    if found is None:
        raise NotMeasured(f"INFO tells nothing of {name}")
    return int(found[1])


def _watches(port: int) -> bool:
    try:
        with Client(port) as client:
            said = client.text("INFO", "sentinel")
    except OSError:
        return False
    return "status=ok" in said and "slaves=2,sentinels=3" in said


class _System:
    name = "redis"
    title = "Redis stream"
    is_replicated = True
    promise = Promise(
        copies=3,
        confirmed_by=2,
        is_synced=True,
        words=(
            "XADD, then WAIT 1 behind each group: the primary and one of two replicas have the entry in their append-only "
            "files, synced (`appendfsync always` on all three; a replica acknowledges after its sync). The primary syncs "
            "before it sends. Who takes over is found by three Sentinels (1 s until a primary counts as dead), without a "
            "consensus on entries: those that were confirmed are lost if the replica that has them can't be chosen."
        ),
    )

    def missing(self) -> str | None:
        return programs.missing("redis-server")

    def version(self) -> str:
        program = programs.find("redis-server")
        said = subprocess.run(
            [str(program), "--version"], env=programs.environment(), capture_output=True, text=True, check=True
        )
        found = re.search(r"v=(\S+)", said.stdout)
        return found[1] if found else said.stdout.strip()

    @contextmanager
    def running(self, directory: Path) -> Iterator[Redis]:
        """Three servers."""
        with started(Redis, directory) as redis:
            yield redis


SYSTEM: System = _System()
