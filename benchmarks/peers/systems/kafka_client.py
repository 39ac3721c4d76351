"""Kafka's clients: librdkafka, which is written in C, as `confluent-kafka` brings it.

A producer is idempotent (`enable.idempotence`, the default of Kafka's own Java client, with acks=all): entries keep their
order, and one that was sent again is there once. A thread of librdkafka puts together what was handed in one by one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from benchmarks.figures import Figures, Meter, clock
from benchmarks.peers.pump import SILENCE_S, cpu_figures
from benchmarks.peers.system import Latencies, Load, NotMeasured

ANSWER_S = 30.0
# With an entry in flight nobody must wait for a second one. With many, librdkafka's default (5 ms) makes larger batches.
_LINGER_MS = {True: 0, False: 5}
_READ_AT_ONCE = 10_000
COMMON: Mapping[str, Any] = {
    "log_level": 0,  # a broker that was killed is no news: what fails is told by exceptions
    "socket.nagle.disable": True,
    "reconnect.backoff.max.ms": 200,
}


class Writer:
    """A producer for the only partition of a topic."""

    def __init__(self, servers: str, topic: str, *, in_flight: int = 1, within_s: float = ANSWER_S) -> None:
        self._topic = topic
        self._within_s = within_s
        self._confirmed = 0
        self._error: KafkaError | None = None
        self._producer = Producer(
            {
                **COMMON,
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": _LINGER_MS[in_flight == 1],
                "message.timeout.ms": int(within_s * 1000),
                "on_delivery": self._delivered,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.purge()  # nothing unless an error is on its way
        self._producer.close()

    def append(self, payload: bytes) -> None:
        """Returns when it is confirmed. Raises `NotMeasured` if it isn't in time."""
        self._confirmed = 0
        self._producer.produce(self._topic, payload, partition=0)
        if not self._wait(self._within_s + ANSWER_S):
            raise NotMeasured("Kafka did not say what became of an entry")

    def append_all(self, payload: bytes, entries: int, in_flight: int) -> None:
        """So many of the same, until all are confirmed."""
        sent = confirmed = 0
        while confirmed < entries:
            more = min(entries - sent, in_flight - (sent - confirmed))
            for _ in range(more):
                self._producer.produce(self._topic, payload, partition=0)
            sent += more
            confirmed += self.wait_for_some(sent - confirmed)

    def pump(self, load: Load, meter: Callable[[], Meter]) -> Figures:
        """As `benchmarks.peers.pump.pump` does with sockets."""
        pumping = _Pumping(self, load)
        pumping.run_for(load.warm_up_s)
        pumping.latencies.forget()
        before, measured_by = pumping.confirmed, meter()
        pumping.run_for(load.seconds)
        entries = pumping.confirmed - before
        found = measured_by.figures(max(1, entries))
        lowest = pumping.latencies.lowest_per_s()
        pumping.drain()
        return {"entries": float(entries), **cpu_figures(found), **lowest, **pumping.latencies.figures()}

    def send(self, payload: bytes, count: int) -> None:
        """So many of the same, each handed in by itself."""
        produce, topic = self._producer.produce, self._topic
        for _ in range(count):
            produce(topic, payload, partition=0)

    def wait_for_some(self, in_flight: int) -> int:
        """How many were confirmed, one at least."""
        self._confirmed = 0
        if not self._wait(SILENCE_S):
            raise NotMeasured(f"no answer within {SILENCE_S:.0f} s, with {in_flight} entries in flight")
        return self._confirmed

    def _wait(self, within_s: float) -> bool:
        """Whether something was confirmed. What comes that is not about an entry doesn't count."""
        deadline = clock() + within_s
        while not self._confirmed and self._error is None and clock() < deadline:
            self._producer.poll(max(0.0, deadline - clock()))
        if self._error is not None:
            raise NotMeasured(f"Kafka refused an entry: {self._error}")
        return bool(self._confirmed)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._confirmed += 1
        else:
            self._error = error


class _Pumping:
    def __init__(self, writer: Writer, load: Load) -> None:
        self.latencies = Latencies()
        self.confirmed = 0
        self._writer = writer
        self._load = load
        self._payload = os.urandom(load.entry_bytes)
        self._in_flight = 0
        self._send(load.in_flight)

    def run_for(self, seconds: float) -> None:
        """Sends another entry for each that is confirmed, and returns with as much in flight as before."""
        deadline = clock() + seconds
        before, most = self.confirmed, self.confirmed + self._load.entries_max
        while (clock() < deadline and self.confirmed < most) or self.confirmed == before:
            self._send(self._take())

    def drain(self) -> None:
        """Until nothing is in flight."""
        while self._in_flight:
            self._take()

    def _send(self, count: int) -> None:
        self.latencies.sent(count)
        self._in_flight += count
        self._writer.send(self._payload, count)

    def _take(self) -> int:
        count = self._writer.wait_for_some(self._in_flight)
        self.latencies.confirmed(count)
        self.confirmed += count
        self._in_flight -= count
        return count


class Reader:
    """Reads the only partition of a topic from this offset on, with checksums looked at; belongs to no group."""

    def __init__(self, servers: str, topic: str, offset: int) -> None:
        self._partition = TopicPartition(topic, 0, offset)
        self._consumer = Consumer(
            {
                **COMMON,
                "bootstrap.servers": servers,
                "group.id": "peers",
                "enable.auto.commit": False,
                "check.crcs": True,
                "queued.min.messages": 1_000_000,  # it goes on fetching while it is read
            }
        )
        self._consumer.assign([self._partition])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def next(self) -> bytes:
        """Waits for an entry."""
        message = self._consumer.poll(ANSWER_S)
        if message is None:
            raise NotMeasured(f"no entry came within {ANSWER_S:.0f} s")
        return _value(message)

    def some(self) -> list[bytes]:
        """What there is already, or else the next one."""
        messages = self._consumer.consume(_READ_AT_ONCE, 0)
        return [_value(each) for each in messages] or [self.next()]

    def end(self) -> int:
        """The offset after the last entry that is confirmed."""
        _, high = self._consumer.get_watermark_offsets(self._partition, ANSWER_S)
        return int(high)


def _value(message: Message) -> bytes:
    error, value = message.error(), message.value()
    if error is not None or not isinstance(value, bytes):
        raise NotMeasured(f"Kafka has no entry to read: {error}")
    return value
