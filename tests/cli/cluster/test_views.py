"""What `replog cluster` shows of its bookies."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from replog.cli.cluster.bookie_processes import Member, Plan, State
from replog.cli.cluster.command import load_between
from replog.cli.cluster.views import JSONView, LineView, LiveView, Load, examples
from replog.client.administration import BookieStatistics
from replog.config import BackendURL
from replog.runtime.latencies import LatencyHistogram

PLAN = Plan(Path("/somewhere/with a space?"), 2)
MEMBER = Member("bookie-0", Path("/x"), State.SERVING, "bookie-abc", "tcp:127.0.0.1:1", 17, 2)


def test_the_metastore_of_any_directory_reads_back() -> None:
    assert BackendURL.parse(PLAN.metastore) == BackendURL("lmdb", "/somewhere/with a space?/metadata")
    assert examples(PLAN)[0] == "export REPLOG_METASTORE=lmdb:/somewhere/with%20a%20space%3F/metadata"


def test_small_clusters_need_a_small_quorum() -> None:
    assert "--quorum 2,2,2" in examples(PLAN)[1]
    assert "--quorum" not in examples(Plan(Path("/x"), 3))[1]


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    view = LineView(PLAN)
    view.changed(MEMBER)
    view.changed(Member("bookie-1", Path("/x"), State.WAITING, problem="it was killed by signal 9"))
    view.ready()
    first, second, *ready = capsys.readouterr().out.splitlines()
    assert first == "bookie-0  serving  tcp:127.0.0.1:1  pid 17"
    assert second == "bookie-1  waiting  it was killed by signal 9"
    assert ready[1:] == [f"  {each}" for each in examples(PLAN)]


def test_objects(capsys: pytest.CaptureFixture[str]) -> None:
    view = JSONView(PLAN)
    view.changed(MEMBER)
    view.ready()
    bookie, cluster = map(json.loads, capsys.readouterr().out.splitlines())
    assert bookie == {
        "kind": "bookie",
        "name": "bookie-0",
        "state": "serving",
        "bookie": "bookie-abc",
        "address": "tcp:127.0.0.1:1",
        "pid": 17,
        "restarts": 2,
        "problem": "",
    }
    assert (cluster["kind"], cluster["metastore"], cluster["bookies"]) == ("cluster", PLAN.metastore, 2)


def test_the_table() -> None:
    target = io.StringIO()
    dead = Member("bookie-1", Path("/x"), State.DEAD, "bookie-def", problem="it was killed by signal 9")
    with LiveView(PLAN, Console(file=target, force_terminal=True, width=160, height=40)) as view:
        view.loads([MEMBER, dead], {"bookie-abc": Load(1234.5, 5 << 20, 1024, 0.0025), "bookie-def": Load(77777.0)})
        view.ready()
    last = target.getvalue().rpartition("╭")[2]
    row = next(line for line in last.splitlines() if "bookie-0" in line)
    for shown in ("serving", "tcp:127.0.0.1:1", "17", "1234", "5.0 MiB", "1.0 KiB", "2.5 ms"):
        assert shown in row
    row = next(line for line in last.splitlines() if "bookie-1" in line)
    assert "it was killed by signal 9" in row
    assert "77777" not in row
    assert "replog top" in last


def statistics(uptime_s: float, entries: int, commits: int = 0) -> BookieStatistics:
    histogram = LatencyHistogram()
    for _ in range(commits):
        histogram.observe(0.002)
    numbers = {"uptime_s": uptime_s, "added_entries": entries, "added_bytes": 100 * entries, "queued_bytes": 5}
    return BookieStatistics("bookie-abc", "1", numbers, {"commit": histogram})


def test_load_is_the_difference_between_two_looks() -> None:
    assert load_between(None, statistics(10, 1000)) == Load(queued_bytes=5)
    load = load_between(statistics(10, 1000, 5), statistics(12, 1500, 9))
    assert (load.entries_per_s, load.bytes_per_s) == (250, 25_000)
    assert load.commit_p99_s == pytest.approx(0.002, rel=0.5)
    again = load_between(statistics(100, 1000, 5), statistics(2, 30, 1))
    assert (again.entries_per_s, again.bytes_per_s) == (15, 1500), "it was started again in between"
    assert load_between(statistics(2, 30), statistics(2, 30)).entries_per_s == 15
