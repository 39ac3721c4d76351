"""NATS' adapter: its conversation against bytes as the protocol describes them, and all of it against real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.system import Load, NotMeasured
from benchmarks.peers.systems import nats_synced
from benchmarks.peers.systems.nats import SYSTEM, System
from benchmarks.peers.systems.nats_protocol import Appends, Deliveries

ACK = b'MSG _INBOX.a 1 26\r\n{"stream":"log", "seq":17}\r\n'
REFUSAL = b'{"error":{"code":503,"description":"insufficient resources"},"stream":"log","seq":0}'
ENTRY = b"MSG entries 3 $JS.ACK.log.c.1.1.1.1.0 3\r\n%b\r\n"
FLOW = b"HMSG _INBOX.d 3 $JS.FC.log.c.x 36 36\r\nNATS/1.0 100 FlowControl Request\r\n\r\n\r\n"
HEARTBEAT = b"HMSG _INBOX.d 3 31 31\r\nNATS/1.0 100 Idle Heartbeat\r\n\r\n\r\n"


def _in_steps(data: bytes, step: int) -> list[bytes]:
    return [data[start : start + step] for start in range(0, len(data), step)]


def test_an_entry_is_a_message_with_a_subject_to_answer_to() -> None:
    assert Appends(b"abc", "_INBOX.a").requests(2) == b"PUB entries _INBOX.a 3\r\nabc\r\n" * 2


@pytest.mark.parametrize("step", [1, 2, 7, 40, 1000])
def test_each_acknowledgement_counts_once_wherever_it_is_cut(step: int) -> None:
    talk = Appends(b"abc", "_INBOX.a")
    found = [talk.receive(part) for part in _in_steps(ACK + ACK + b"PING\r\n" + ACK, step)]

    assert sum(count for count, _ in found) == 3
    assert b"".join(answer for _, answer in found) == b"PONG\r\n"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"MSG _INBOX.a 1 84\r\n" + REFUSAL + b"\r\n", "insufficient resources"),
        (b"HMSG _INBOX.a 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", "NATS/1.0 503"),
        (b"-ERR 'Maximum Payload Violation'\r\n", "Maximum Payload"),
    ],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_refusal_is_reported_in_its_own_words(answer: bytes, words: str, step: int) -> None:
    talk = Appends(b"abc", "_INBOX.a")

    with pytest.raises(NotMeasured, match=words):
        for part in _in_steps(ACK + answer, step):
            talk.receive(part)


class _Wire:
    def __init__(self, data: bytes, step: int) -> None:
        self.parts = _in_steps(data, step)
        self.sent: list[bytes] = []

    def recv(self, size: int) -> bytes:
        return self.parts.pop(0) if self.parts else b""

    def sendall(self, data: bytes) -> None:
        self.sent.append(data)


@pytest.mark.parametrize("step", [1, 2, 13, 50, 1000])
def test_entries_cut_anywhere_are_delivered(step: int) -> None:
    entries = [b"abc", b"\r\nM", b"MSG", b"PIN"]
    data = (
        ENTRY % entries[0]
        + FLOW
        + ENTRY % entries[1]
        + HEARTBEAT
        + ENTRY % entries[2]
        + b"PING\r\n"
        + ENTRY % entries[3]
    )
    wire = _Wire(data, step)
    deliveries = Deliveries(wire, 3)
    found = []
    while wire.parts:
        found.extend(deliveries.receive())

    assert found == entries
    assert wire.sent == [b"PUB $JS.FC.log.c.x 0\r\n\r\n", b"PONG\r\n"]


def test_unrequested_message_is_not_an_entry() -> None:
    with pytest.raises(NotMeasured, match="instead of an entry"):
        Deliveries(_Wire(ENTRY.replace(b" 3\r", b" 4\r") % b"abcd", 1000), 3).receive()


def test_disconnecting_server_is_not_an_end() -> None:
    with pytest.raises(ConnectionError):
        Deliveries(_Wire(b"", 1), 3).receive()


def test_an_old_server_cannot_be_measured_as_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.programs.missing", lambda program: None)
    monkeypatch.setattr(System, "version", lambda self: "2.9.10")

    assert SYSTEM.missing() is None
    assert "2.9.10 can't sync" in str(nats_synced.SYSTEM.missing())

    monkeypatch.setattr(System, "version", lambda self: "2.10.0")
    assert nats_synced.SYSTEM.missing() is None


@pytest.mark.slow
@pytest.mark.skipif(nats_synced.SYSTEM.missing() is not None, reason=str(nats_synced.SYSTEM.missing()))
def test_real_servers_sync_when_asked_to(tmp_path: Path) -> None:
    with nats_synced.SYSTEM.running(tmp_path) as nats:
        assert "sync_interval: always" in (tmp_path / "nats-0" / "nats.conf").read_text()
        assert nats.append(Load(entry_bytes=100, in_flight=100, seconds=0.2))["entries"] >= 100
        assert nats.restart()["held_bytes"] > 100


@pytest.mark.slow
@pytest.mark.skipif(SYSTEM.missing() is not None, reason=str(SYSTEM.missing()))
def test_real_servers_confirm_scan_follow_elect_and_restart(tmp_path: Path) -> None:
    with SYSTEM.running(tmp_path) as nats:
        figures = nats.append(Load(entry_bytes=100, in_flight=100, seconds=0.2))
        assert figures["entries"] >= 100
        assert figures["server_cpu_us"] > 0
        assert nats.scan(1024, 5000)["entries_per_s"] > 0
        assert nats.tail(100, 20)["p50_us"] > 0
        assert nats.take_over(100)["takeover_s"] > 0
        assert nats.restart()["held_bytes"] > 100
        assert nats.append(Load(entry_bytes=100, in_flight=1, seconds=0.1))["entries"] >= 1
