"""Kafka, three brokers in KRaft mode: a topic of one partition with three replicas, appended to with acks=all.

An entry is confirmed when all replicas that are in sync have it: three of three here, and at least two (`min.insync.replicas`)
when one has died. By default nobody syncs: the kernel writes when it likes, and a broker that crashed takes from the others what
it lost. `System` measures this, and, as `kafka_synced`, the same with `flush.messages=1`, by which each broker syncs each batch
before it counts. Its brokers are JVMs, warmed up before anything is measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.figures import Figures, Meter, clock
from benchmarks.peers import programs, system
from benchmarks.peers.crashing import TAKEOVER_S, Crashing, started
from benchmarks.peers.following import follow
from benchmarks.peers.pump import cpu_figures
from benchmarks.peers.system import Load, NotMeasured, Promise
from benchmarks.peers.systems.kafka_client import ANSWER_S, COMMON, Reader, Writer
from benchmarks.peers.systems.kafka_servers import COUNT, Brokers, Settings

STARTING_S = 150.0  # three JVMs on a busy machine
_ASKING_S = 5.0  # for what a broker knows
WARM_UP = Load(1024, 1000, 1.0)  # again and again
WARM_UP_ENTRIES = 200_000  # until an entry costs no less CPU time than it will later
WARMING_S = 8.0  # but no longer: on a busy machine
_IN_FLIGHT = 1000  # while entries are appended that are to be read
_MIN_IN_SYNC = 2


class Kafka(Crashing):
    """Three brokers that run. Each load has a topic of its own; the one before is deleted then."""

    attempt_s = TAKEOVER_S  # librdkafka itself asks one broker after the other who leads now

    def __init__(self, directory: Path, settings: Settings) -> None:
        self._settings = settings
        self._brokers = Brokers(directory, settings)
        self._made = 0
        self._is_warm = False
        self._all = ",".join(self._brokers.addresses)
        self._admin = AdminClient({**COMMON, "bootstrap.servers": self._all})
        super().__init__(directory, self._brokers.servers)

    def start(self) -> None:
        """All three, until the topic has its replicas."""
        self._brokers.format()
        self._launch()
        for server in self._servers:
            server.wait_until(self._are_registered, "all brokers are registered", STARTING_S)
        self._create()
        self._wait_for_all()

    def append(self, load: Load) -> Figures:
        """By one producer."""
        if load.entries_per_call > 1:
            raise NotMeasured("librdkafka puts entries together by itself")
        self._warm_up()
        self._forget()
        return self._append(load)

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        """From the first to the last, by a consumer of its own."""
        self._warm_up()
        self._forget()
        with Writer(self._all, self._topic, in_flight=_IN_FLIGHT) as writer:
            writer.append_all(os.urandom(entry_bytes), entries, _IN_FLIGHT)
        count = read_bytes = 0
        meter = Meter(*self.process_ids)
        with Reader(self._all, self._topic, 0) as reader:
            while count < entries:
                found = reader.some()
                count += len(found)
                read_bytes += sum(map(len, found))
            figures = meter.figures(count)
        if (count, read_bytes) != (entries, entries * entry_bytes):
            raise NotMeasured(f"read {count} entries of {read_bytes} bytes, instead of {entries}")
        return cpu_figures(figures)

    def tail(self, entry_bytes: int, entries: int) -> Figures:
        """By a consumer that has read one entry before. It is told of what all replicas in sync have."""
        self._warm_up()
        self._forget()
        payload = os.urandom(entry_bytes)
        with Writer(self._all, self._topic) as writer, Reader(self._all, self._topic, 0) as reader:
            writer.append(payload)
            reader.next()
            return follow(entries, partial(writer.append, payload), lambda: len(reader.some()))

    def take_over(self, entry_bytes: int) -> Figures:
        """Brokers that come back are cold."""
        self._warm_up()
        try:
            return super().take_over(entry_bytes)
        finally:
            self._is_warm = False

    def restart(self) -> Figures:
        """Brokers that come back are cold."""
        try:
            return super().restart()
        finally:
            self._is_warm = False

    @property
    def _topic(self) -> str:
        return f"log-{self._made}"

    def _append(self, load: Load) -> Figures:
        with Writer(self._all, self._topic, in_flight=load.in_flight) as writer:
            return writer.pump(load, lambda: Meter(*self.process_ids))

    def _warm_up(self) -> None:
        entries, deadline = 0.0, clock() + WARMING_S
        while not self._is_warm:
            entries += self._append(WARM_UP)["entries"]
            self._is_warm = entries >= WARM_UP_ENTRIES or clock() > deadline

    def _writer(self, number: int, within_s: float) -> Writer:
        """To whichever broker leads: the client finds it."""
        return Writer(self._all, self._topic, within_s=within_s)

    def _are_registered(self) -> bool:
        try:
            return len(self._admin.list_topics(timeout=_ASKING_S).brokers) == COUNT
        except KafkaException:  # nobody serves yet
            return False

    def _create(self) -> None:
        self._made += 1
        config = {"min.insync.replicas": str(_MIN_IN_SYNC)}
        config |= {"flush.messages": "1"} if self._settings.is_synced else {}
        topic = NewTopic(self._topic, num_partitions=1, replication_factor=COUNT, config=config)
        _done(self._admin.create_topics([topic])[self._topic])

    def _wait_for_all(self) -> None:
        """Until all replicas are in sync; then it is known who leads."""
        self._servers[0].wait_until(self._is_whole, "all replicas are in sync", STARTING_S)

    def _is_whole(self) -> bool:
        try:
            topic = self._admin.list_topics(self._topic, timeout=_ASKING_S).topics[self._topic]
        except KafkaException:  # nobody serves yet
            return False
        partition = topic.partitions.get(0)
        if topic.error is not None or partition is None or partition.error is not None:
            return False
        self._leader = partition.leader - 1
        return self._leader >= 0 and len(partition.isrs) == COUNT

    def _forget(self) -> None:
        """The topic of an earlier load."""
        _done(self._admin.delete_topics([self._topic])[self._topic])
        self._create()
        self._wait_for_all()

    def _count(self) -> int:
        try:
            with Reader(self._all, self._topic, 0) as reader:
                return reader.end()
        except KafkaException as error:
            raise NotMeasured(f"Kafka does not say how many entries there are: {error}") from error


def _done(asked: Future[None]) -> None:
    try:
        asked.result(ANSWER_S)
    except KafkaException as error:
        raise NotMeasured(f"Kafka refused what its administrator asked for: {error}") from error


class System:
    """Kafka with these settings."""

    is_replicated = True

    def __init__(self, name: str, title: str, settings: Settings, words: str) -> None:
        self.name = name
        self.title = title
        self.promise = Promise(copies=COUNT, confirmed_by=COUNT, is_synced=settings.is_synced, words=words)
        self.settings = settings

    def missing(self) -> str | None:
        """Its jars are fetched by Maven."""
        if not list(programs.jars("kafka").glob("kafka-server-4*.jar")):
            return "no jars of Kafka; with Maven, type: python -m benchmarks.peers.programs"
        return None if programs.find("java") else "no java: install a JDK (Debian: default-jdk-headless)"

    def version(self) -> str:
        """As the name of the broker's jar has it."""
        (server,) = programs.jars("kafka").glob("kafka_2*.jar")
        return server.stem.rpartition("-")[2]

    @contextmanager
    def running(self, directory: Path) -> Iterator[Kafka]:
        """Three brokers."""
        with started(partial(Kafka, settings=self.settings), directory) as kafka:
            yield kafka


WORDS = (
    "Three KRaft brokers that are controllers too, a topic of one partition: replication factor 3, `min.insync.replicas=2`, an "
    "idempotent producer with acks=all: all replicas in sync have the entry, {how}. Else defaults, heaps of 1 GiB; the client is "
    "librdkafka (confluent-kafka), `linger.ms` 0 with one in flight and 5 with more."
)
UNSYNCED, SYNCED = Settings(is_synced=False), Settings(is_synced=True)
SYSTEM: system.System = System(
    "kafka",
    "Kafka",
    UNSYNCED,
    WORDS.format(how="in the page cache. Not synced: the kernel writes when it likes (the default)"),
)
