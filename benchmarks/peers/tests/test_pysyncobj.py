"""PySyncObj as a system of the comparison: its client counts what is confirmed, and its members survive what is done to them."""

import json
import queue
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.system import Load, NotMeasured
from benchmarks.peers.systems.pysyncobj import SYSTEM
from benchmarks.peers.systems.pysyncobj import Member as Process
from tests.servers.processes import HOST, free_port

pytest.importorskip("pysyncobj", reason="no pysyncobj: it comes with the extra bench")


STAND_IN = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"error": line} if "none" in line else json.loads(line)), flush=True)
    if "end" in line:
        sys.exit("no memory")
"""


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    """A cluster of one member, in this process."""
    from benchmarks.peers.systems.pysyncobj_member import Member

    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    member = Member(tmp_path, f"{HOST}:{free_port()}", [], requests, is_tuned=True)
    yield member
    member._counter.destroy()
    member._counter.doTick()  # in which it does so


def test_load_counts_confirmed_entries(alone: Any) -> None:
    found = alone.append([], entry_bytes=100, in_flight=10, seconds=0.05)
    assert found["entries"] > 0
    assert found["client_cpu_us"] == 0
    assert found["server_cpu_us"] > 0
    seen = alone.look()
    assert seen["entries"] == seen["confirmed"] >= found["entries"], "nothing is left in flight"
    assert alone._counter.bytes == 100 * seen["entries"]


def test_a_load_ends_when_so_many_are_confirmed(alone: Any) -> None:
    found = alone.append([], entry_bytes=100, in_flight=10, seconds=60.0, entries_max=25)
    assert 25 <= found["entries"] < 35


def test_entries_one_by_one_are_seen_where_they_are_applied(alone: Any) -> None:
    alone.confirm_one(10)
    alone.watch()
    called_s = alone.append_each(10, 5)
    seen_s = alone.seen(5)
    assert len(called_s) == len(seen_s) == 5
    assert all(called <= seen for called, seen in zip(called_s, seen_s, strict=True))
    assert alone.seen_s is None


def test_a_log_is_compacted_and_the_counter_stays(alone: Any) -> None:
    alone.append_each(10, 3)
    for _ in range(2000):
        alone._put(b"more")
    alone._tick_until(lambda: alone.look()["confirmed"] == 2003, "all are confirmed")
    assert alone.look()["log_length"] > 2000
    assert alone.compact()["log_length"] < 1000
    assert alone.look()["entries"] == 2003


def test_a_refused_entry_is_not_measured(alone: Any) -> None:
    alone.confirm_one(10)
    alone._answered(None, 5)
    with pytest.raises(NotMeasured, match="reason 5"):
        alone.append_each(10, 1)


def test_words_and_end_of_a_member_are_reported(tmp_path: Path) -> None:
    """With a program that speaks as it does."""
    member = Process(tmp_path, "here", [])
    member._command = [*member._command[:1], "-c", STAND_IN]
    member.start()
    try:
        assert member.ask("count", entries=1) == {"do": "count", "entries": 1}
        with pytest.raises(NotMeasured, match="none"):
            member.ask("none")
        member.tell("one")
        member.tell("last")
        assert member.answer() == {"do": "one"}
        while b"\n" not in member._received:
            member._receive(10)
        assert member.last_answer() == {"do": "last"}
        member.start()
        assert member.ask("end") == {"do": "end"}
        with pytest.raises(NotMeasured, match="here has ended: no memory"):
            member.answer()
    finally:
        member.kill()
    member.kill()


@pytest.mark.slow
def test_pysyncobj_supports_every_request_of_the_runner(tmp_path: Path) -> None:
    assert SYSTEM.missing() is None
    with SYSTEM.running(tmp_path) as running:
        assert len(running.process_ids) == 3
        found = running.append(Load(100, 10, 0.05))
        assert json.dumps(found)
        assert found["entries"] > 0
        assert running.tail(100, 5)["p50_us"] > 0
        assert running.take_over(100)["takeover_s"] > 0
        assert running.restart()["held_bytes"] > 0
        assert running.append(Load(100, 1, 0.05))["entries"] > 0
        with pytest.raises(NotMeasured):
            running.scan(100, 1)
