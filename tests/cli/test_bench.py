"""`replog bench`: what it prints, what it refuses, how it ends, and that its ledger is gone afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest
import trio.testing

import replog.blocking
from replog import cli
from replog.cli.bench import CUSTOM, Load, run_in_new_ledger
from replog.cli.connecting import Stop
from replog.errors import NotEnoughBookiesError, ReplogError
from replog.protocol.messages import AddRequest
from replog.runtime.latencies import LatencyHistogram
from replog.testing import Fault
from tests.forks import Forked
from tests.kit import Cluster, cluster

Capture = pytest.CaptureFixture[str]
DEADLINE_S = 30.0


def bench(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["replog", "bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def ledgers(directory: Path) -> list[int]:
    with replog.blocking.embed(directory) as client:
        return client.ledgers()


def load(seconds: float = 0.2, tasks: int = 5, size_bytes: int = 10, batch_entries: int = 1) -> Load:
    return Load(size_bytes, tasks, batch_entries, seconds)


def slow(world: Cluster) -> None:
    for bookie in world.bookies:
        bookie.wire.delay_s = 0.01


# -- the command --------------------------------------------------------------------------------------------------


def test_json_has_the_load_and_its_measurements(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    where = ("--dir", str(tmp_path / "wal"))
    assert bench(monkeypatch, *where, "--seconds", "0.2", "--size", "1KB", "--tasks", "7", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["size_bytes"], found["tasks"], found["batch_entries"]) == (1000, 7, 1)
    assert found["quorum"] == {"ensemble": 1, "write": 1, "ack": 1}
    assert found["entries"] > 0
    assert found["entries_rate"] == pytest.approx(found["entries"] / found["elapsed_s"])
    assert list(found["latency_s"]) == ["p50", "p90", "p99", "p99.9"]
    assert list(found["latency_s"].values()) == sorted(found["latency_s"].values())
    assert ledgers(tmp_path / "wal") == []


def test_table_names_load_and_measurements(monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path / "wal"))
    assert bench(monkeypatch, *where, "--seconds", "0.1", "--tasks", "2", "--batch", "10") == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for text in ("2 tasks, 1.0 KiB entries, 10 in a call", "quorum 1,1,1", "entries/s", "p99.9"):
        assert text in shown


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--size", "17MiB"], "from 0 to"),
        (["--size", "x"], "64KiB"),
        (["--quorum", "3,2"], "5,3,2"),
        (["--quorum", "2,3,2"], "ensemble"),
    ],
)
def test_invalid_loads_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path, arguments: list[str], match: str
) -> None:
    assert bench(monkeypatch, "--dir", str(tmp_path / "wal"), *arguments) == 2
    assert match in capsys.readouterr().err


def test_quorum_larger_than_the_cluster_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    assert bench(monkeypatch, "--dir", str(tmp_path / "wal"), "--quorum", "3/3/2") == 1
    assert "3" in capsys.readouterr().err


def test_ctrl_c_prints_the_measurements_and_leaves_nothing(tmp_path: Path) -> None:
    options = ["--dir", str(tmp_path / "wal"), "--seconds", "600", "--json"]
    command = [sys.executable, "-m", "replog.cli", "bench", *options]
    with Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not _is_written(tmp_path / "wal" / "bookie-0" / "journal"):
                assert time.monotonic() < deadline
                assert process.poll() is None, process.stderr and process.stderr.read()
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            shown, errors = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGINT, errors
    found = json.loads(shown)
    assert found["entries"] > 0
    assert found["elapsed_s"] < 2 * DEADLINE_S
    assert ledgers(tmp_path / "wal") == []


def _is_written(journal: Path) -> bool:
    """Whether a journal file has bytes far behind its header: many entries, and not only the first."""
    for path in journal.glob("*"):
        with path.open("rb") as file:
            file.seek(1 << 20)
            if any(file.read(4096)):
                return True
    return False


# -- the load -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted", [load(), load(tasks=1), load(batch_entries=30), load(size_bytes=0), load(size_bytes=1234)]
)
async def test_confirmed_entries_are_counted(wanted: Load) -> None:
    async with cluster(3) as world, world.client() as client, client.create_ledger() as writer:
        slow(world)
        await wanted.run(writer)
        # One before the clock was started.
        assert writer.last_add_confirmed == wanted.entries
        assert wanted.calls.count * wanted.batch_entries == wanted.entries > 0
        assert wanted.elapsed_s >= wanted.seconds
        adds = [each for each in world.bookies[0].wire.seen if isinstance(each, AddRequest)]
        assert {len(payload) for each in adds for payload in each.batch.payloads()} == {wanted.size_bytes}


async def test_ledger_is_marked_and_deleted(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        marks = []

        @attrs.define
        class Looking(Load):
            async def run(self, writer: object) -> None:
                (ledger_id,) = await client.ledgers()
                marks.append(dict((await client.ledger_metadata(ledger_id)).custom))

        await run_in_new_ledger(Stop(), client, Looking(10, 1, 1, 0.1, 0, 0.0, LatencyHistogram()))
        assert marks == [CUSTOM]
        assert await client.ledgers() == []


async def test_cancelled_load_keeps_counters_and_deletes_its_ledger(autojump_clock: trio.testing.MockClock) -> None:
    wanted = load(seconds=3600)
    async with cluster(3) as world, world.client() as client:
        slow(world)
        with trio.move_on_after(0.3) as scope:
            await run_in_new_ledger(Stop(), client, wanted)
        assert scope.cancelled_caught
        assert wanted.entries > 0
        assert wanted.elapsed_s > 0
        assert await client.ledgers() == []


async def test_failing_cluster_ends_the_load_and_the_ledger_is_deleted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wanted = load(seconds=3600)
    async with cluster(3) as world, world.client() as client:
        slow(world)

        async def fail() -> None:
            await trio.sleep(0.2)
            for bookie in world.bookies[:2]:
                await bookie.kill()

        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                with pytest.raises(ReplogError):
                    await run_in_new_ledger(Stop(), client, wanted)
        assert await client.ledgers() == []


async def test_too_few_bookies_leave_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client() as client:
        with pytest.raises(NotEnoughBookiesError):
            await run_in_new_ledger(Stop(), client, load())
        assert await client.ledgers() == []


async def test_undeletable_ledger_is_named(capsys: Capture, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        slow(world)
        world.metastore.fail_next("delete", Fault.UNAVAILABLE, times=1000)
        await run_in_new_ledger(Stop(), client, load(seconds=0.1))
        (left,) = await client.ledgers()
        assert f"ledger {left} of this bench could not be deleted" in capsys.readouterr().err
