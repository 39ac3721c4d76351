"""Work in the background: its rate, its ends, and that it lets others run."""

import threading
import time

import pytest

from replog.backends.files.background_pace import Closing, Pace


class Clock:
    """Time that passes only by waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.rests = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.rests += 1


class Event(threading.Event):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._clock.wait(timeout)
        return self.is_set()


def test_the_rate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = Pace(1 << 20, Event(clock), lambda: 0)
    for _ in range(40):
        pace.spend(256 << 10)
    assert clock.now_s - 100.0 == pytest.approx(10.0, abs=0.01)


def test_pace_makes_no_burst_after_a_long_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = Pace(1 << 20, Event(clock), lambda: 0)
    clock.now_s += 60.0
    pace.spend(1)
    began_s = clock.now_s
    for _ in range(10):
        pace.spend(1 << 20)
    assert clock.now_s - began_s == pytest.approx(10.0, abs=0.2)


def test_pace_rests_while_there_are_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    commits = 0
    pace = Pace(0, Event(clock), lambda: commits)
    for _ in range(1000):
        pace.spend(100)
        clock.now_s += 0.00005
    assert clock.rests == 0
    for commits in range(1000):  # noqa: B007 - the lambda looks at it
        pace.spend(100)
        clock.now_s += 0.00005
    assert 200 <= clock.rests <= 500


def test_compaction_rests_longer_than_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    commits = 0
    pace = Pace(0, Event(clock), lambda: commits, rests=8.0)
    for commits in range(1000):  # noqa: B007 - the lambda looks at it
        pace.spend(100)
        clock.now_s += 0.0002
    assert clock.now_s - 100.0 == pytest.approx(1000 * 0.0002 * 9, rel=0.02)
    clock.now_s += 10.0  # it waited for the disk: appends need no more than a moment
    commits += 1
    before_s = clock.now_s
    pace.spend(100)
    assert clock.now_s - before_s <= 0.005


def test_slow_compaction_rests_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage of many small batches would come faster than it goes."""
    clock = Clock(monkeypatch)
    commits = 0
    pace = Pace(0, Event(clock), lambda: commits, rests=8.0)
    clock.now_s += 601.0
    began_s = clock.now_s
    for commits in range(1000):  # noqa: B007 - the lambda looks at it
        pace.spend(100)
        clock.now_s += 0.0002
    assert clock.now_s - began_s < 1000 * 0.0002 * 2


def test_pace_reports_each_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(0, Event(Clock(monkeypatch)), lambda: 0)
    told = [pace.spend(1 << 20) for _ in range(32)]
    assert sum(told) == 4
    short = Pace(0, Event(Clock(monkeypatch)), lambda: 0)
    assert [number for number in range(1, 3001) if short.spend(100)] == [1000, 2000, 3000]


def test_pace_raises_when_storage_closes() -> None:
    closing = threading.Event()
    pace = Pace(1, closing, lambda: 0)
    threading.Timer(0.05, closing.set).start()
    began_s = time.monotonic()
    with pytest.raises(Closing):
        pace.spend(1000)
    assert time.monotonic() - began_s < 30
    with pytest.raises(Closing):
        pace.spend(0)
