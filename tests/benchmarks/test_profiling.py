"""`make profile` draws what it should, or says why it can't and writes a table instead."""

import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import floor, profiling
from benchmarks.against import yardstick

BUSY = "def busy():\n    return sum(number * number for number in range(1_500_000))\n\nfor _ in range(2):\n    busy()\n"


@pytest.fixture
def busy(tmp_path: Path) -> list[str]:
    """One that is busy in a function of that name."""
    file = tmp_path / "program.py"
    file.write_text(BUSY)
    return [str(file)]


def stand_in(directory: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """A program instead of py-spy."""
    file = directory / "py-spy"
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(shutil, "which", lambda name, path: str(file))


def test_a_flame_graph_shows_where_the_time_went(busy: list[str], tmp_path: Path) -> None:
    file = tmp_path / "program.svg"
    try:
        profiling.record(busy, file, 100)
    except profiling.Forbidden as problem:
        pytest.skip(f"py-spy: {problem}")
    drawn = file.read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert "busy (" in drawn


def test_a_table_says_where_the_time_went(busy: list[str], tmp_path: Path) -> None:
    file = tmp_path / "program.txt"
    profiling.tabulate(busy, file)
    assert "(busy)" in file.read_text()


def test_table_is_written_when_py_spy_is_not_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(
        tmp_path, monkeypatch, "echo 'Permission Denied: Try running again with elevated permissions' >&2", "exit 1"
    )
    monkeypatch.setattr(profiling, "command_of", lambda case, seconds: busy)
    assert profiling.main(["push", "--into", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "--cap-add SYS_PTRACE" in shown
    assert f"profile: {tmp_path / 'push.txt'}" in shown
    assert "(busy)" in (tmp_path / "push.txt").read_text()


def test_error_tells_how_to_install_py_spy_when_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    monkeypatch.setattr(profiling, "command_of", lambda case, seconds: busy)
    assert profiling.main(["push", "--into", str(tmp_path)]) == 0
    assert "pip install 'replog[bench]'" in capsys.readouterr().out


def test_no_profile_is_written_when_the_case_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "push.svg").write_text("of an earlier run")
    stand_in(tmp_path, monkeypatch, "echo no disk", "exit 3")
    assert profiling.main(["push", "--into", str(tmp_path)]) == 1
    assert "no disk\nprofile: push ended with exit code 3" in capsys.readouterr().out
    assert not (tmp_path / "push.svg").exists()


def test_all_processes_and_threads_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/arguments', f"echo drawn > {tmp_path}/push.svg")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python")
    assert profiling.profile("push", 2.0, tmp_path, 50, ["--dir", "/mnt"]) == tmp_path / "push.svg"
    given = (tmp_path / "arguments").read_text().split()
    assert {"--subprocesses", "--threads"} <= set(given)
    assert given[given.index("--") + 1] == "/usr/bin/python"
    assert given[-2:] == ["--dir", "/mnt"]


@pytest.mark.parametrize("case", ["push", "remote-push-100", "peers:append", "peers:redis:append"])
def test_profile_is_of_one_run_of_the_case(case: str) -> None:
    command = profiling.command_of(case, 1.5)
    assert command[command.index("--case") + 1] == case.split(":")[-1]
    assert command[command.index("--seconds") + 1] == "1.5"
    if case.startswith("peers"):
        assert command[command.index("--system") + 1] == (case.split(":")[1] if case.count(":") > 1 else "replog")


@pytest.mark.parametrize("case", ["nothing", "peers:nothing", "peers:", "redis:append"])
def test_an_unknown_case_is_refused(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert profiling.main([case]) == 2
    assert "there are latency, push" in capsys.readouterr().out


def test_profiled_program_measures_only_replog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[tuple[Sequence[str], int]] = []
    monkeypatch.setattr(program, "main", lambda arguments, spare_files: run.append((arguments, spare_files)))
    assert profiling.main(profiling.command_of("push", 0.01)[2:]) == 0
    ((arguments, spare_files),) = run
    assert spare_files < 12
    options = program.parse(arguments)
    assert (options.case, options.runs) == (["push"], 1)
    against = yardstick(options.yardstick, tmp_path)
    assert all(set(against.measure(case, 60.0)) >= {"entries_per_s", "p50_us"} for case in floor.CASES)
