"""Who leads is killed, others are asked until one confirms, and what was confirmed must be there; of servers that are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import crashing
from benchmarks.peers.crashing import CONFIRMED, Crashing, started
from benchmarks.peers.system import NotMeasured
from tests.servers.processes import ServerFailedError


class FakeServer:
    """Runs or doesn't."""

    def __init__(self, number: int) -> None:
        self.pid = 100 + number
        self.is_running = False

    def launch(self) -> None:
        assert not self.is_running
        self.is_running = True

    def kill(self) -> None:
        self.is_running = False

    def wait_until(self, is_so: Callable[[], bool], what: str, within_s: float) -> None:
        if not is_so():
            raise ServerFailedError(f"not within {within_s:.0f} s: {what}")


class FakeCluster(Crashing):
    """Its leader is the last of those that run, after so many refusals. It loses so many entries whenever a server dies."""

    attempt_s = 0.5
    loses = 0
    refusals = 0
    starts = True

    def __init__(self, directory: Path) -> None:
        self.fakes = [FakeServer(number) for number in range(3)]
        self.entries = 0
        self.asked: list[tuple[int, float]] = []
        self.watched = 0
        super().__init__(directory, self.fakes)  # type: ignore[arg-type]

    def _writer(self, number: int, within_s: float) -> Any:
        self.asked.append((number, within_s))
        if not self.fakes[number].is_running or any(each.is_running for each in self.fakes[number + 1 :]):
            raise ConnectionRefusedError
        return FakeWriter(self)

    def _wait_for_all(self) -> None:
        if not self.starts:
            raise ServerFailedError("not within 60 s: a leader; its log ends so: no disk")
        assert all(each.is_running for each in self.fakes)
        self._leader = 2

    def _forget(self) -> None:
        self.entries = 0

    def _count(self) -> int:
        return self.entries

    @contextmanager
    def _watched(self) -> Iterator[None]:
        self.watched += 1
        yield

    def _launch(self) -> None:
        self.entries = max(0, self.entries - self.loses)
        super()._launch()


class FakeWriter:
    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def __enter__(self) -> FakeWriter:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def append(self, payload: bytes) -> None:
        if self._cluster.entries >= CONFIRMED and self._cluster.refusals:
            self._cluster.refusals -= 1
            raise NotMeasured("nobody leads")
        self._cluster.entries += 1


def test_a_dead_leader_is_succeeded_and_comes_back(tmp_path: Path) -> None:
    with started(FakeCluster, tmp_path) as cluster:
        cluster.refusals = 2

        assert cluster.take_over(10)["takeover_s"] > 0

        assert cluster.asked == [(2, crashing.ANSWER_S), *[(0, 0.5), (1, 0.5)] * 3], "the dead one is not asked"
        assert cluster.entries == CONFIRMED + 1
        assert cluster.process_ids == [100, 101, 102]
        assert all(each.is_running for each in cluster.fakes)
        assert cluster.watched == 1


def test_all_die_and_their_holdings_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with started(FakeCluster, tmp_path) as cluster:
        cluster.entries = 7

        found = cluster.restart()

        assert found["restart_s"] > 0
        assert found["held_bytes"] == 4096
        assert cluster.entries == 8


@pytest.mark.parametrize("what", ["restart", "take_over"])
def test_lost_confirmed_entry_invalidates_the_figure(what: str, tmp_path: Path) -> None:
    with started(FakeCluster, tmp_path) as cluster:
        cluster.entries, cluster.loses = 20, 1
        with pytest.raises(NotMeasured, match=r"of (21|101) entries that were confirmed, (20|100) are there"):
            cluster.restart() if what == "restart" else cluster.take_over(10)


def test_no_figure_without_a_confirmation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashing, "TAKEOVER_S", 0.02)
    with started(FakeCluster, tmp_path) as cluster:
        cluster.refusals = 1 << 60
        with pytest.raises(NotMeasured, match="no entry was confirmed"):
            cluster.take_over(10)


def test_servers_failing_to_start_are_stopped_and_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeCluster] = []

    def make(directory: Path) -> FakeCluster:
        made.append(FakeCluster(directory))
        return made[0]

    monkeypatch.setattr(FakeCluster, "starts", False)
    with pytest.raises(NotMeasured, match="no disk"), started(make, tmp_path):
        raise AssertionError("it did not start")
    assert not any(each.is_running for each in made[0].fakes)


def test_servers_are_stopped_in_any_case(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), started(FakeCluster, tmp_path) as cluster:
        raise ZeroDivisionError
    assert not any(each.is_running for each in cluster.fakes)
