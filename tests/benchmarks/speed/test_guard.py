"""The hot paths stand at their lines; and the guard sees what makes them worse: a call, a pass, a copy more."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from benchmarks.speed import __main__ as program
from benchmarks.speed import lines as files
from benchmarks.speed import ratios
from benchmarks.speed.cases import CASES
from benchmarks.speed.lines import ANY_PYTHON, PYTHON, Line, judge
from benchmarks.speed.ratios import RATIOS
from benchmarks.speed.setting import Figures
from replog.client.backlog import Backlog
from replog.client.pacing import Pacing
from replog.protocol import batch
from replog.protocol.batch import Batch, build

LINES = files.read()
untraced = pytest.mark.skipif(
    sys.gettrace() is not None or sys.getprofile() is not None,
    reason="something traces this run: counts would be wrong",
)
at_home = pytest.mark.skipif(
    not all(PYTHON in LINES[name].figures for name in CASES), reason=f"no lines are drawn for {PYTHON}"
)


@untraced
@at_home
def test_no_hot_path_is_above_its_line() -> None:
    """After a change that is worth it: make check-speed ARGS='--move --because "what changed"'."""
    found = program.check(list(CASES), LINES)
    assert [str(each) for each in found.worse] == []
    assert found.undrawn == []


@untraced
@pytest.mark.parametrize(
    "name",
    [
        "push",
        "bookie-add-files",
        *(pytest.param(each, marks=pytest.mark.long(is_sampled=False)) for each in ("tasks", "scan", "wire-answer")),
    ],
)
def test_counts_are_the_same_each_time(name: str) -> None:
    first, second = program.measure(name), program.measure(name)
    assert second.pop("held", 0) == pytest.approx(first.pop("held", 0), rel=0.01)
    assert second == first
    assert first["instructions"] > first["calls"] > 0


def worse_than(before: Figures, name: str) -> set[str]:
    """Which figures of the case stand above a line that was drawn before."""
    line = Line(0.02, "now", {PYTHON: before})
    return {each.figure for each in judge(line, name, PYTHON, program.measure(name)) if each.is_worse}


@untraced
def test_one_more_call_for_each_entry_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before = program.measure("push")
    admit = Backlog.admit
    monkeypatch.setattr(Backlog, "admit", lambda self, data: admit(self, data))
    assert worse_than(before, "push") == {"calls", "instructions"}
    assert worse_than(program.measure("push"), "push") == set()


def slowed_build(monkeypatch: pytest.MonkeyPatch, wrap: Callable[[Sequence[bytes]], object]) -> None:
    """From now on, building a batch does something with its entries before."""

    def slower(*arguments: Any, payloads: Sequence[bytes], **others: Any) -> Batch:
        kept = wrap(payloads)
        built = build(*arguments, payloads=payloads, **others)
        del kept
        return built

    monkeypatch.setattr(batch, "build", slower)  # as the writing machine calls it


@untraced
def test_one_more_pass_over_the_entries_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before = program.measure("extend")
    slowed_build(monkeypatch, lambda payloads: [len(each) for each in payloads])
    assert "instructions" in worse_than(before, "extend")


@untraced
def test_one_more_copy_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before = program.measure("extend-large")
    slowed_build(monkeypatch, lambda payloads: b"".join(payloads))
    assert "held" in worse_than(before, "extend-large")


@untraced
def test_one_more_turn_of_a_task_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before = program.measure("append")
    lead = Pacing._lead

    async def slower(self: Pacing, entry_id: int, entries: int, *, is_now: bool) -> None:
        await trio.lowlevel.checkpoint()
        await lead(self, entry_id, entries, is_now=is_now)

    monkeypatch.setattr(Pacing, "_lead", slower)
    assert "steps" in worse_than(before, "append")


# -- lines ------------------------------------------------------------------------------------------------------------


def drawn(file: Path, **figures: float) -> list[str]:
    """Draws the line of wire-add; returns the arguments that compare with it, and nothing else."""
    files.write({"wire-add": Line(0.02, "2026-01-01: before", {PYTHON: figures, "python-2-7": {"calls": 1.0}})}, file)
    return ["wire-add", "--counts", "--lines", str(file)]


@untraced
def test_slower_path_fails_and_names_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = program.measure("wire-add")
    arguments = drawn(tmp_path / "lines.toml", **{**figures, "calls": figures["calls"] / 1.1})
    assert program.main(arguments) == 1
    shown = capsys.readouterr().out
    assert "WORSE   wire-add: " in shown
    assert "10.0% more than its line" in shown
    assert "--move --because" in shown


@untraced
def test_faster_path_asks_to_move_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = program.measure("wire-add")
    arguments = drawn(tmp_path / "lines.toml", **{**figures, "calls": figures["calls"] / 0.9})
    assert program.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "better  wire-add: " in shown
    assert "--move --because" in shown


@untraced
def test_moved_line_has_a_reason_and_only_this_python_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, figures = tmp_path / "lines.toml", program.measure("wire-add")
    arguments = drawn(file, **{**figures, "calls": 1.0})
    assert program.main([*arguments, "--move", "--because", 'it says "more"']) == 0
    assert "moved: wire-add" in capsys.readouterr().out
    line = files.read(file)["wire-add"]
    assert line.because.endswith(': it says "more"')
    assert line.figures["python-2-7"] == {"calls": 1.0}
    assert line.figures[PYTHON] == {name: round(value, 4) for name, value in figures.items()}
    assert program.main(arguments) == 0
    assert "figures stand at their lines" in capsys.readouterr().out
    assert program.main([*arguments, "--move"]) == 0
    assert "all lines stand where they should" in capsys.readouterr().out
    assert files.read(file)["wire-add"] == line


@untraced
def test_a_case_without_a_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["wire-add", "--counts", "--lines", str(tmp_path / "none.toml")]) == 0
    assert f"no line for {PYTHON.replace('-', ' ', 1)}: wire-add" in capsys.readouterr().out


def test_every_case_has_a_line_and_every_line_a_case() -> None:
    assert set(LINES) == {*CASES, *RATIOS}
    assert all(ANY_PYTHON in LINES[name].figures for name in RATIOS)
    assert all(0 < line.tolerance < 1 and line.because for line in LINES.values())


def test_a_line_without_a_reason_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lines.toml"
    file.write_text("[push]\ntolerance = 0.1\n")
    with pytest.raises(ValueError, match="push"):
        files.read(file)


def test_a_ratio_is_tried_again_before_it_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    name, measured = next(iter(RATIOS)), iter([9.0, 9.0, 1.1])
    monkeypatch.setattr(ratios, "measure", lambda ratio, directory: {"cpu": next(measured)})
    line = Line(0.5, "now", {ANY_PYTHON: {"cpu": 1.0}})
    assert program.check([name], {name: line}).worse == []
    measured = iter([9.0, 9.0, 9.0])
    assert [each.measured for each in program.check([name], {name: line}).worse] == [9.0]


@untraced
def test_the_ratios_are_ratios() -> None:
    assert all(0.05 < program.measure(name)["cpu"] < 100 for name in RATIOS)


def test_unknown_cases_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.parse(["nothing"])
    assert "no such case: nothing" in capsys.readouterr().err


def test_a_verdict_says_by_how_much() -> None:
    verdict = judge(Line(0.02, "", {PYTHON: {"calls": 10.0}}), "push", PYTHON, {"calls": 11.0, "held": 3.0})[0]
    assert str(verdict) == "push: 11.000 calls, 10.0% more than its line 10.000 (2% is allowed)"
    assert not attrs.evolve(verdict, measured=10.2).is_worse
    assert attrs.evolve(verdict, measured=10.3).is_worse
    assert attrs.evolve(verdict, measured=9.7).is_better
