"""Kafka's adapter: its clients against the brokers that librdkafka plays by itself, and all of it against real ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigResource

from benchmarks.figures import Meter
from benchmarks.peers import crashing
from benchmarks.peers.system import Load, NotMeasured
from benchmarks.peers.systems import kafka, kafka_synced
from benchmarks.peers.systems.kafka import Kafka, System
from benchmarks.peers.systems.kafka_client import Reader, Writer
from benchmarks.peers.systems.kafka_servers import Brokers, Settings
from tests.servers.processes import HOST, free_port

TOPIC = "log"


@pytest.fixture
def played() -> Iterator[str]:
    """Addresses of brokers within this process."""
    host = Producer({"test.mock.num.brokers": 3, "log_level": 0})
    yield ",".join(f"{each.host}:{each.port}" for each in host.list_topics(timeout=30).brokers.values())
    host.close()


def _read(servers: str, entries: int) -> list[bytes]:
    found: list[bytes] = []
    with Reader(servers, TOPIC, 0) as reader:
        while len(found) < entries:
            found += reader.some()
        assert reader.end() == len(found)
    return found


def test_an_append_returns_when_its_entry_can_be_read(played: str) -> None:
    payloads = [b"%d" % number for number in range(5)]
    with Writer(played, TOPIC) as writer:
        for count, payload in enumerate(payloads, 1):
            writer.append(payload)
            assert _read(played, count) == payloads[:count]


@pytest.mark.parametrize("in_flight", [1, 7, 1000])
def test_all_entries_are_confirmed_once_when_many_are_in_flight(played: str, in_flight: int) -> None:
    with Writer(played, TOPIC, in_flight=in_flight) as writer:
        writer.append_all(b"abc", 50, in_flight)

    assert _read(played, 50) == [b"abc"] * 50


@pytest.mark.parametrize("in_flight", [1, 100])
def test_load_counts_confirmed_entries_and_leaves_none_in_flight(played: str, in_flight: int) -> None:
    load = Load(100, in_flight, 0.2)
    with Writer(played, TOPIC, in_flight=in_flight) as writer:
        figures = writer.pump(load, lambda: Meter(os.getpid()))
        with Reader(played, TOPIC, 0) as reader:
            end = reader.end()

    assert 0 < figures["entries"] <= end - in_flight  # those of the warm-up and of the end don't count
    assert figures["p50_us"] <= figures["p99_us"] <= figures["p999_us"]
    assert {len(entry) for entry in _read(played, end)} == {100}


def test_a_load_ends_when_so_many_are_confirmed(played: str) -> None:
    with Writer(played, TOPIC, in_flight=1) as writer:
        assert writer.pump(Load(100, 1, 60.0, entries_max=3), lambda: Meter(os.getpid()))["entries"] == 3


def test_entry_is_refused_in_time_without_a_taker() -> None:
    with (
        Writer(f"{HOST}:{free_port()}", TOPIC, within_s=0.2) as writer,
        pytest.raises(NotMeasured, match="refused an entry"),
    ):
        writer.append(b"abc")


def test_brokers_know_each_other_and_keep_apart(tmp_path: Path) -> None:
    if kafka.SYSTEM.missing():
        pytest.skip(str(kafka.SYSTEM.missing()))
    brokers = Brokers(tmp_path, Settings(is_synced=True))
    texts = [(tmp_path / f"kafka-{number}" / "server.properties").read_text() for number in range(3)]
    found = [dict(line.split("=", 1) for line in text.splitlines()) for text in texts]

    assert len(set(brokers.addresses)) == 3
    assert len({each["controller.quorum.voters"] for each in found}) == 1
    for number, each in enumerate(found):
        public, controller = each["listeners"].split(",")
        assert public == f"PLAINTEXT://{brokers.addresses[number]}"
        voter = f"{each['node.id']}@{controller.removeprefix('CONTROLLER://')}"
        assert voter in each["controller.quorum.voters"].split(",")
    assert len({each["log.dirs"] for each in found}) == 3


def test_promise_states_whether_brokers_sync() -> None:
    default, synced = kafka.SYSTEM.promise, kafka_synced.SYSTEM.promise

    assert (default.is_synced, synced.is_synced) == (False, True)
    assert ("flush.messages=1" in default.words, "flush.messages=1" in synced.words) == (False, True)
    assert default.confirmed_by == synced.confirmed_by == 3


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes minutes to start three JVMs."""
    monkeypatch.setattr(kafka, "WARM_UP_ENTRIES", 1)
    monkeypatch.setattr(kafka, "STARTING_S", 400.0)
    monkeypatch.setattr(crashing, "TAKEOVER_S", 400.0)


def _small(system: object) -> System:
    """With heaps that a busy machine has room for."""
    assert isinstance(system, System)
    return System(system.name, system.title, attrs.evolve(system.settings, heap_mb=256), system.promise.words)


def _flushes_after(running: Kafka) -> str:
    resource = ConfigResource(ConfigResource.Type.TOPIC, running._topic)
    found = running._admin.describe_configs([resource])[resource].result(60)
    assert found["min.insync.replicas"].value == "2"
    value: str = found["flush.messages"].value
    return value


@pytest.mark.slow
@pytest.mark.usefixtures("patience")
@pytest.mark.skipif(kafka.SYSTEM.missing() is not None, reason=str(kafka.SYSTEM.missing()))
def test_real_brokers_confirm_scan_follow_elect_and_restart(tmp_path: Path) -> None:
    with _small(kafka.SYSTEM).running(tmp_path) as running:
        assert int(_flushes_after(running)) == 2**63 - 1
        figures = running.append(Load(entry_bytes=100, in_flight=100, seconds=0.2))
        assert figures["entries"] >= 100
        assert figures["server_cpu_us"] > 0
        assert running.scan(1024, 5000)["entries_per_s"] > 0
        assert running.tail(100, 20)["p50_us"] > 0
        assert running.take_over(100)["takeover_s"] > 0
        assert running.restart()["held_bytes"] > 100
        assert running.append(Load(entry_bytes=100, in_flight=1, seconds=0.1))["entries"] >= 1
        processes = running.process_ids
    assert not [each for each in processes if Path(f"/proc/{each}").exists()]


@pytest.mark.slow
@pytest.mark.usefixtures("patience")
@pytest.mark.skipif(kafka.SYSTEM.missing() is not None, reason=str(kafka.SYSTEM.missing()))
def test_a_synced_topic_is_flushed_after_each_batch(tmp_path: Path) -> None:
    with _small(kafka_synced.SYSTEM).running(tmp_path) as running:
        assert _flushes_after(running) == "1"
        assert running.append(Load(entry_bytes=100, in_flight=100, seconds=0.2))["entries"] >= 100
        assert _flushes_after(running) == "1"  # the load's topic, which was made anew
