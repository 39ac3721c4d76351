"""BookKeeper's adapter: what passes between it and its client, against a program of our own; all of it against real bookies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from benchmarks.figures import Figures
from benchmarks.peers.system import Load, NotMeasured
from benchmarks.peers.systems import bookkeeper_client
from benchmarks.peers.systems.bookkeeper import SYSTEM, BookKeeper
from benchmarks.peers.systems.bookkeeper_client import Client, Lines
from benchmarks.peers.systems.bookkeeper_servers import TUNED, Bookies, Java

ANSWERS = b'{"measuring": true}\n{"done": {"entries": 3}}\n'
# Answers each command in the way that it names.
PROGRAM = """
import json, sys
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "measured":
        print('{"measuring": true}', flush=True)
        print('{"measured": true}', flush=True)
    if command["do"] == "end":
        print("its last words", file=sys.stderr)
        break
    if command["do"] == "fail":
        print('{"error": "no bookies"}', flush=True)
    elif command["do"] != "nothing":
        print(json.dumps({"done": command}), flush=True)
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    client = Client([sys.executable, "-c", PROGRAM], tmp_path / "client.log")
    yield client
    client.close()


@pytest.mark.parametrize("step", [1, 2, 19, 20, 21, 1000])
def test_lines_are_whole_wherever_they_are_cut(step: int) -> None:
    lines = Lines()
    found = [line for start in range(0, len(ANSWERS), step) for line in lines.feed(ANSWERS[start : start + step])]

    assert found == [{"measuring": True}, {"done": {"entries": 3}}]


def test_a_line_without_its_end_is_none() -> None:
    assert Lines().feed(ANSWERS[:-1]) == [{"measuring": True}]


def test_a_command_goes_with_its_details_and_comes_back(client: Client) -> None:
    assert client.ask("echo", 30, entries=3) == {"do": "echo", "entries": 3}


@attrs.frozen
class FakeMeter:
    """Ours is a tenth of what is metered; the servers' is the most."""

    process_ids: tuple[int, ...]

    def figures(self, entries: int) -> Figures:
        return {"total_cpu_us": 100.0 * len(self.process_ids) / entries, "client_cpu_us": 10.0 / entries}


def test_cpu_time_is_counted_apart_for_each_entry(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeMeter] = []

    def meter(*process_ids: int) -> FakeMeter:
        made.append(FakeMeter(process_ids))
        return made[-1]

    monkeypatch.setattr(bookkeeper_client, "Meter", meter)
    found = client.measure([1, 2, 3], "measured", 30, entries=2)

    assert [each.process_ids for each in made] == [(client.pid,), (1, 2, 3)]
    assert (found["client_cpu_us"], found["server_cpu_us"]) == ((100 - 10) / 2, (300 - 10) / 2)


def test_measurement_must_be_reported_by_the_client(client: Client) -> None:
    with pytest.raises(NotMeasured, match="instead of measuring"):
        client.measure([1, 2, 3], "echo", 30, entries=2)


def test_error_is_reported_in_its_own_words(client: Client) -> None:
    with pytest.raises(NotMeasured, match="no bookies"):
        client.ask("fail", 30)
    assert client.ask("echo", 30)


def test_ending_client_shows_its_log(client: Client) -> None:
    with pytest.raises(NotMeasured, match=r"(?s)ended.*its last words"):
        client.ask("end", 30)


def test_silent_client_is_not_awaited(client: Client) -> None:
    with pytest.raises(NotMeasured, match="said nothing"):
        client.ask("nothing", 0.05)


def test_lines_before_a_kill_are_not_lost(client: Client) -> None:
    client.tell("echo")
    client.tell("echo")
    first = client.said(30)
    client.said(30)
    client.kill()

    assert first == {"done": {"do": "echo"}}
    assert list(client.remaining()) == []
    with pytest.raises(NotMeasured, match="did not take"):
        client.tell("echo")


def test_bookies_sync_confirmed_entries_to_the_directory(tmp_path: Path) -> None:
    bookies = Bookies(Java("", tmp_path), tmp_path, "zk+hierarchical://127.0.0.1:1/ledgers", TUNED)
    settings = [
        dict(line.split("=", 1) for line in path.read_text().split()) for path in tmp_path.glob("*/bookie.conf")
    ]

    assert len(settings) == len(bookies.servers) == 3
    assert len({each["bookiePort"] for each in settings}) == 3
    for each in settings:
        assert not {"journalSyncData", "journalWriteData"} & each.keys()  # both are on by default
        assert {tmp_path} == {Path(each[f"{kind}Directories"]).parents[1] for kind in ("journal", "ledger")}


@pytest.mark.slow
def test_it_is_measured(tmp_path: Path) -> None:
    if lacking := SYSTEM.missing():
        pytest.skip(lacking)
    with SYSTEM.running(tmp_path) as running:
        assert isinstance(running, BookKeeper)
        found = running.append(Load(1024, 100, 1.0))
        assert 0 < found["p50_us"] <= found["p99_us"] <= found["p999_us"] < 1e8
        assert found["entries_per_s"] == pytest.approx(found["entries"], rel=0.5)
        assert found["client_cpu_us"] > 0 < found["server_cpu_us"]
        assert running.scan(100, 5000)["entries_per_s"] > 0
        assert 0 < running.tail(100, 50)["p50_us"] < 1e8
        assert 0 < running.take_over(100)["takeover_s"] < 60
        restarted = running.restart()
        assert restarted["restart_s"] > 0
        assert restarted["held_bytes"] > 5000 * 100 * 3
        short = running.append(Load(1024, 100, 60.0, entries_max=2000))
        assert 2000 <= short["entries"] < 2000 + 60_000
        longer = running.append(Load(1024, 100, 2.5, is_sustained=True))
        assert 0 < longer["lowest_per_s"] < 2 * longer["entries_per_s"]
        with pytest.raises(NotMeasured, match="one entry at a time"):
            running.append(Load(100, 1, 1.0, entries_per_call=10))
