"""Redis' adapter: its conversation against bytes as RESP describes them, and all of it against real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.system import Load, NotMeasured
from benchmarks.peers.systems.redis import SYSTEM, connections_for
from benchmarks.peers.systems.redis_protocol import Appends, Pages, encode

XADD = b"*5\r\n$4\r\nXADD\r\n$3\r\nlog\r\n$1\r\n*\r\n$1\r\nd\r\n$3\r\nabc\r\n"
WAIT = b"*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$5\r\n30000\r\n"
ADDED = b"$15\r\n1700000000000-0\r\n"


def test_a_command_is_an_array_of_counted_words() -> None:
    assert encode("WAIT", "1", b"30000") == WAIT


def test_a_group_of_entries_ends_with_its_wait() -> None:
    talk = Appends(b"abc")

    assert talk.requests(2) == XADD + XADD + WAIT


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_a_group_is_confirmed_by_its_wait_when_answers_are_cut(step: int) -> None:
    talk = Appends(b"abc")
    talk.requests(2)
    talk.requests(3)
    answers = ADDED * 2 + b":1\r\n" + ADDED * 3 + b":2\r\n"
    confirmed = [talk.receive(answers[start : start + step]) for start in range(0, len(answers), step)]

    assert sum(count for count, _ in confirmed) == 5
    assert all(answer == b"" for _, answer in confirmed)
    assert confirmed[0] == (5 if step == 1000 else 0, b"")


def test_answers_of_xadd_alone_confirm_nothing() -> None:
    talk = Appends(b"abc")
    talk.requests(2)

    assert talk.receive(ADDED * 2) == (0, b"")
    assert talk.receive(b":1\r\n") == (2, b"")


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_wait_with_too_few_replicas_is_refused(step: int) -> None:
    talk = Appends(b"abc", replicas=2)
    talk.requests(1)
    answers = ADDED + b":1\r\n"

    with pytest.raises(NotMeasured, match="too few replicas: :1"):
        for start in range(0, len(answers), step):
            talk.receive(answers[start : start + step])


def test_refusal_is_reported_in_its_own_words() -> None:
    talk = Appends(b"abc")
    talk.requests(2)

    with pytest.raises(NotMeasured, match="-MISCONF errors writing to the AOF"):
        talk.receive(ADDED + b"-MISCONF errors writing to the AOF file\r\n")


def test_a_refusal_comes_first() -> None:
    with pytest.raises(NotMeasured, match="-NOAUTH"):
        Appends(b"abc").receive(b"-NOAUTH Authentication required.\r\n")


def _page(*entries: bytes) -> bytes:
    body = (
        b"*2\r\n$4\r\n%d-10\r\n*2\r\n$1\r\nd\r\n$3\r\n%b\r\n" % (number, each) for number, each in enumerate(entries)
    )
    return b"*%d\r\n" % len(entries) + b"".join(body)


class _Cut:
    """Receives so many bytes at once."""

    def __init__(self, data: bytes, step: int) -> None:
        self.parts = [data[start : start + step] for start in range(0, len(data), step)]

    def recv_into(self, into: memoryview) -> int:
        part = self.parts.pop(0)
        into[: len(part)] = part
        return len(part)


@pytest.mark.parametrize("step", [1, 5, 20, 1000])
def test_a_page_is_read_wherever_it_is_cut(step: int) -> None:
    stream = _Cut(_page(b"abc", b"\r\n*", b"$3\r"), step)

    assert Pages(3).read(stream) == ([b"abc", b"\r\n*", b"$3\r"], b"2-10")
    assert not stream.parts


@pytest.mark.parametrize("answer", [b"-LOADING Redis is loading\r\n"])
def test_refused_page_is_reported(answer: bytes) -> None:
    with pytest.raises(NotMeasured, match="LOADING"):
        Pages(3).read(_Cut(answer, 1000))


def test_an_empty_page_is_the_end() -> None:
    assert Pages(3).read(_Cut(b"*0\r\n", 1000)) == ([], b"")


def test_connections_grow_with_calls_in_flight() -> None:
    assert [connections_for(Load(1024, in_flight, 1.0)) for in_flight in (1, 32, 1000)] == [1, 2, 50]
    assert connections_for(Load(100, 1000, 1.0)) == 6
    assert connections_for(Load(1 << 16, 3, 1.0)) == 3


@pytest.mark.slow
@pytest.mark.skipif(SYSTEM.missing() is not None, reason=str(SYSTEM.missing()))
def test_real_servers_confirm_scan_follow_fail_over_and_restart(tmp_path: Path) -> None:
    with SYSTEM.running(tmp_path) as redis:
        figures = redis.append(Load(entry_bytes=100, in_flight=100, seconds=0.2))
        assert figures["entries"] >= 100
        assert figures["server_cpu_us"] > 0
        assert redis.append(Load(1024, 100, 0.1, entries_max=50, is_sustained=True))["entries"] >= 50
        assert redis.scan(1024, 5000)["entries_per_s"] > 0
        assert redis.tail(100, 20)["p50_us"] > 0
        assert redis.take_over(100)["takeover_s"] > 0
        assert redis.restart()["held_bytes"] > 5000 * 1024
        assert redis.append(Load(entry_bytes=100, in_flight=1, seconds=0.1))["entries"] >= 1
