"""The comparison with other systems (benchmarks/peers) still starts; its own tests are there, outside the gate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as program
from benchmarks.peers.results import from_json
from benchmarks.peers.tests.fakes import TINY, FakeEnvironment

ROOT = Path(__file__).parents[2]


@pytest.mark.long(is_sampled=False)  # make check has seen that they import what there is
def test_peers_are_measured_beside_replog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems that run within this process: they need no server."""
    monkeypatch.setattr(program, "ThisMachine", lambda directory: FakeEnvironment())
    monkeypatch.setattr(program, "QUICK", TINY)
    systems = ("replog-local", "sqlite")
    chosen = [word for name in systems for word in ("--system", name)]
    outputs = ["--json", f"{tmp_path}/r.json", "--markdown", f"{tmp_path}/r.md"]

    program.main([*chosen, "--case", "append", "--quick", "--rounds", "1", "--dir", str(tmp_path), *outputs])

    measured = from_json((tmp_path / "r.json").read_text()).measurements
    assert {each.system for each in measured} == set(systems)
    assert all(each.figures["entries_per_s"] > 0 for each in measured)


@pytest.mark.long(is_sampled=False)  # make check has seen that they import what there is
def test_tests_of_peers_can_be_collected() -> None:
    """A file that they import may have moved."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "benchmarks/peers/tests",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_published_results_can_be_read() -> None:
    assert from_json(program.PUBLISHED_JSON.read_text()).measurements
