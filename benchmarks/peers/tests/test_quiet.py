"""Noise is told from what we do ourselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import quiet
from benchmarks.peers.quiet import Disk, Foreign, Limits, Noise, Process, descendants, parse

STAT = "17 (a) b (c) S 4 17 17 0 -1 4194560 1 2 3 4 50 7 20 3 20 0 1 0 100 1000 10 184467"


def test_a_process_has_a_parent_and_the_time_of_its_children_too() -> None:
    assert parse(STAT) == Process(parent_id=4, ticks=50 + 7 + 20 + 3)


def test_ours_are_all_our_descendants() -> None:
    parents = {1: 0, 10: 1, 11: 10, 12: 11, 13: 12, 20: 1, 21: 20}
    processes = {each: Process(parent, 1) for each, parent in parents.items()}

    assert descendants(10, processes) == {10, 11, 12, 13}
    assert descendants(99, processes) == set()


def test_processor_time_of_dead_children_is_counted() -> None:
    before, work = quiet.ours_s(), "import time\nwhile time.process_time() < 0.2: pass"
    with subprocess.Popen([sys.executable, "-c", work]) as child:
        child.wait()

    assert quiet.ours_s() - before >= 0.15


def test_foreign_time_is_the_machines_without_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, values in {"machine_s": (10.0, 15.0), "ours_s": (1.0, 3.0), "clock": (0.0, 2.0)}.items():
        monkeypatch.setattr(quiet, name, iter(values).__next__)

    assert Foreign().cpus() == pytest.approx(1.5)


def test_the_machine_did_more_than_we() -> None:
    assert quiet.machine_s() > quiet.ours_s() > 0


def test_limits_name_the_excess() -> None:
    limits = Limits(raw_p50_us=150, foreign_cpus=0.5)

    assert Noise(149, 150, 0.5).exceeds(limits) is None
    assert Noise(149, 151, 0.6).exceeds(limits) == "fdatasync alone took 151 us"
    assert Noise(152, 100, 0.0).exceeds(limits) == "fdatasync alone took 152 us"
    assert Noise(100, 100, 0.51).exceeds(limits) == "other processes used 0.5 processors"


def test_the_disk_alone_takes_some_time(tmp_path: Path) -> None:
    assert 0 < Disk(tmp_path).raw_p50_us() < 1e6
