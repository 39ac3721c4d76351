"""The benchmarks run, count what they should, and judge by their goals. No figure is tested: machines differ."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks import __main__ as program
from benchmarks import floor
from benchmarks.against import yardstick
from benchmarks.cases import ALONE, CASES, COMPARISONS, GROUPS, _quiet
from benchmarks.figures import medians
from benchmarks.metastore import stores as metastores
from benchmarks.remote import cases as remote_cases
from benchmarks.setting import KIB, MIB, NotMeasured, Round, Scale, Setting
from benchmarks.spark import cases as spark_cases
from benchmarks.spark import cpu
from benchmarks.spark import place as spark_place
from benchmarks.storage import cases as storage_cases
from benchmarks.storage import stores as storages

SECONDS = 0.01
TINY = Scale(
    write_bytes=4 * MIB,
    ledgers=4,
    turns=10,
    ledger_bytes=300 * KIB,
    replay_bytes=2 * MIB,
    batches=20,
    points=100,
    scattered_bytes=8 * MIB,
    latency_bytes=8 * MIB,
    quiet_s=0.0,
    file_bytes=MIB,
    metastore_ledgers=(5, 400),
    metastore_segments=(2, 250),
    metastore_times=3,
    small_ledgers=10,
    small_logs=10,
    footprint=10,
    shapes_ledgers=(1, 5),
    shapes_remote_ledgers=(1, 5),
    shapes_entries=50,
    shapes_segments=(2, 250),
    shapes_ledger_entries=(100, 1_000),
    shapes_bookies=(1, 3),
    shapes_remote_bookies=(3,),
    shapes_in_flight_bytes=(KIB, MIB),
    shapes_ledger_bytes=(KIB, 64 * KIB),
    shapes_times=1,
    archived_segments=20,
    repair_bytes=2 * MIB,
    repair_ledgers=20,
    repair_window_s=0.05,
    upkeep_window_s=0.05,
    upkeep_ledgers=20,
    idle_followers=5,
    idle_s=0.05,
    killed_bytes=4 * MIB,
    trimmed_s=0.1,
    spark_rows=5_000,
    spark_job_rows=5_000,
)
REMOTE_SHAPES = {
    "shapes-ledgers-remote",
    "shapes-bookies-remote",
    "shapes-take-over-in-flight",
    "shapes-take-over-length",
}
SHARED = {
    *remote_cases.CASES,
    *REMOTE_SHAPES,
    "remote-bursts",
    "remote-open-loop",
    "trimmed",
    "idle",
    "killed",
    *spark_cases.CASES,
}  # several of these in one run: processes are started once


# Seconds each, even when there is next to nothing to measure.
DEAR = {
    "repair",
    "shapes-ensembles",
}
# Much like `push` or `metastore-lmdb`, which run among all tests, or like those above.
ALIKE = {
    "asyncio",
    "compression",
    "memory",
    "storage-index",
    "storage-point",
    "extend",
    "footprint",
    "scan",
    "shapes-segments",
    "tasks",
    "upkeep",
}
ALIKE |= {"metastore-etcd", "metastore-quorum", "metastore-zookeeper"}


def lane_of(case: str) -> Sequence[pytest.MarkDecorator]:
    if case in ALIKE:
        return [pytest.mark.long(is_sampled=False)]
    return [pytest.mark.long] if case in DEAR else []


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    program.main([*arguments, "--json", "--runs", "1", "--seconds", str(SECONDS)], spare_files=0, scale=TINY)
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=lane_of(name)) for name in CASES if name != "latency" and name not in SHARED],
)
def test_each_case_runs_and_compares(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "--case", case, "--dir", str(tmp_path), "--memory-mib", "2")
    compared = {each["title"] for each in found["compared"]}
    assert compared | set(found["skipped"]) == {each.title for each in COMPARISONS if each.case == case}
    missing = {**storages.missing(), **metastores.missing()}
    assert all(title.partition(":")[0] in missing for title in found["skipped"])
    # What so few batches take in memory is less than what else comes and goes.
    assert case in ("storage-index", "footprint") or all(each["ratio"] > 0 for each in found["compared"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long(is_sampled=False)
def test_the_remote_cases_run_and_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of each kind of bookies one, in one run: processes are started once. The others only carry other loads there."""
    cases = {"remote-push-100", "remote-slow-disk", "remote-tls", "remote-bursts", "shapes-ledgers-remote"}
    cases |= {"shapes-take-over-in-flight", "remote-open-loop", "trimmed", "idle", "killed"}
    found = run(capsys, *(word for case in cases for word in ("--case", case)), "--dir", str(tmp_path))
    titles = {each.title for each in COMPARISONS if each.case in cases}
    assert {each["title"] for each in found["compared"]} == titles
    # Nothing is trimmed in so short a time, and the disks have nothing beside what is live.
    assert all(each["ratio"] > 0 for each in found["compared"] if each["figure"] != "beside_live_mib")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long(is_sampled=False)
@pytest.mark.needs_spark
def test_the_cases_of_spark_run_and_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "--case", "spark", "--dir", str(tmp_path))
    titles = {each.title for each in spark_cases.COMPARISONS}
    compared = {each["title"] for each in found["compared"]}
    assert compared == (set() if spark_place.missing() else titles)
    assert titles <= compared | set(found["skipped"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", list(spark_cases.CASES))
def test_without_spark_nothing_is_begun(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_cases, "missing", lambda: {"Spark": "no java"})
    found = run(capsys, "--case", case, "--dir", str(tmp_path))
    assert {each.title for each in spark_cases.COMPARISONS if each.case == case} <= set(found["skipped"])
    assert found["compared"] == []


STAND_IN = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["job"] == "die":
        sys.exit("no memory")
    answers = {"count": {"figures": {"total_s": request.get("rows")}}, "write": {"error": "refused"}}
    print(json.dumps(answers[request["job"]]), flush=True)
"""


def test_job_is_not_measured_when_spark_fails_it(tmp_path: Path) -> None:
    """With a program instead of Spark's driver, which speaks as it does."""
    program = tmp_path / "stand_in.py"
    program.write_text(STAND_IN)
    with closing(spark_place.SparkDriver(tmp_path / "spark", [sys.executable, str(program)])) as driver:
        with pytest.raises(NotMeasured, match="write: refused"):
            driver("write", rows=1)
        assert driver("count", rows=10) == {"total_s": 10}
        with pytest.raises(NotMeasured, match="die: Spark's driver has ended: no memory"):
            driver("die")
        assert driver("count", rows=11) == {"total_s": 11}, "one that has died is replaced"


BUSY_S, TICK_S = 0.2, 0.03  # of user and system time, each rounded down


def test_cpu_time_of_ended_processes_is_counted() -> None:
    script = "import subprocess, sys, time\n" + f"while time.process_time() < {BUSY_S}: pass\n"
    before_s = cpu.tree_cpu_s([os.getpid()])
    subprocess.run([sys.executable, "-c", script], check=True)
    assert cpu.tree_cpu_s([os.getpid()]) - before_s >= BUSY_S - TICK_S
    with subprocess.Popen([sys.executable, "-c", f"{script}print(flush=True); input()"], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n"
        assert cpu.tree_cpu_s([os.getpid()]) - before_s >= 2 * (BUSY_S - TICK_S)
        assert cpu.tree_cpu_s([child.pid]) >= BUSY_S - TICK_S
        child.communicate(b"\n")


def test_round_is_discarded_when_the_machine_is_busy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.cases.QUIET_RAW_P50_US", 0.0)
    found = run(capsys, "--case", "latency", "--dir", str(tmp_path))
    assert found["discarded"] == {"latency": 3}
    assert found["compared"] == []


@pytest.mark.long(is_sampled=False)
def test_round_counts_when_the_machine_is_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.cases.QUIET_RAW_P50_US", 1e9)
    found = run(capsys, "--case", "latency", "--dir", str(tmp_path))
    assert found["discarded"] == {}
    assert {each["measured"] for each in found["compared"]} == {"one", "three"}


def test_missing_figure_of_a_round_is_taken_from_the_others() -> None:
    """As when results of short loads and of long ones are merged: only the long ones have a worst second."""
    assert medians([{"rate": 1.0}, {"rate": 3.0, "lowest": 2.0}]) == {"rate": 2.0, "lowest": 2.0}
    assert medians([{"rate": 3.0, "lowest": 2.0}, {"rate": 1.0}]) == {"rate": 2.0, "lowest": 2.0}
    assert medians([]) == {}


def test_the_middle_of_three_rounds_decides() -> None:
    assert medians([{"rate": 1.0}, {"rate": 9.0}, {"rate": 2.0}]) == {"rate": 2.0}
    comparison = next(each for each in COMPARISONS if each.case == "push" and each.goal is not None)
    figures = [{"three": {"entries_per_s": rate}, "against": {"entries_per_s": 1.0}} for rate in (0.1, 0.7, 0.7)]
    assert comparison.is_met(comparison.median(figures)) is True
    assert comparison.is_met(comparison.median(figures[:1])) is False
    assert attrs.evolve(comparison, at_least=False).is_met(0.7) is False
    assert attrs.evolve(comparison, goal=None).is_met(0.7) is None


def test_slices_between_quiet_moments_count() -> None:
    quiet, noisy = [90e-6] * 3, [4e-3] * 3
    slices = [(quiet, [1.0]), (quiet, [2.0]), (noisy, [3.0]), (quiet, [4.0]), (quiet, [])]
    assert [durations for _, durations in _quiet(slices)] == [[1.0], [4.0]]
    assert _quiet([(noisy, [1.0]), (quiet, [])]) == []


def test_a_yardstick_may_be_given(tmp_path: Path) -> None:
    file = tmp_path / "given.py"
    file.write_text(
        "CRC32_SOURCE, JOURNAL_BYTES = 'here', 1 << 20\n"
        "CASES = {'scan-100': lambda journals, seconds: {'entries_per_s': len(journals) / seconds}}\n"
    )
    given = yardstick(file, tmp_path)
    assert given.name == "yardstick (here)"
    assert given.measure("scan-100", 0.5) == {"entries_per_s": 6.0}
    with pytest.raises(SystemExit, match="no Python file"):
        yardstick(tmp_path / "missing.py", tmp_path)


def test_floor_is_not_measured_when_its_frame_is_damaged() -> None:
    frame = floor._pack(0, [b"a", b"bc"])
    assert floor._unpack(frame) == [b"a", b"bc"]
    with pytest.raises(ValueError, match="checksum"):
        floor._unpack(frame[:-1] + b"x")


def test_a_group_stands_for_its_cases() -> None:
    assert program.parse(["--case", "storage", "--case", "push"]).case == ["push", *storage_cases.CASES]
    assert program.parse(["--case", "all"]).case == list(CASES)


def test_default_cases_take_minutes() -> None:
    assert program.parse([]).case == [name for name in CASES if name not in ALONE or name in GROUPS["remote"]]
    assert {"latency", "sqlite", "remote-latency"} <= set(program.parse([]).case)


def test_case_without_a_figure_is_named_and_not_judged() -> None:
    comparisons = [each for each in COMPARISONS if each.case == "storage-ledgers"]
    figures = {"seconds": 1.0, "cpu_us": 1.0}
    rounds: list[Round] = [{each.measured: figures, each.against: figures} for each in comparisons[:1]]
    assert [each.is_there(rounds) for each in comparisons[:3]] == [True, True, False]
    verdicts = [
        str(cell) for cell in program.table(program.Results({"storage-ledgers": rounds}), "floor").columns[-1].cells
    ]
    assert verdicts[0] == "[green]met[/]"
    assert all("not there" in verdict for verdict in verdicts[2:])


def test_a_case_with_a_wrong_measurement_fails_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(setting: Setting) -> Round:
        raise NotMeasured("nothing was compacted")

    monkeypatch.setitem(CASES, "storage-latency", wrong)
    with pytest.raises(SystemExit):
        program.main(
            ["--case", "storage-ledgers", "--case", "storage-latency", "--runs", "1", "--dir", str(tmp_path)],
            scale=TINY,
        )
    shown = capsys.readouterr().out
    assert "storage-latency failed: nothing was compacted" in shown
    assert "files: many ledgers in turn" in shown


class Turns:
    """A case whose rounds do one of these after another."""

    def __init__(self, *turns: BaseException | None) -> None:
        self._turns = iter(turns)

    def __call__(self, setting: Setting) -> Round:
        error = next(self._turns)
        if error is not None:
            raise error
        return {each: {"seconds": 1.0, "cpu_us": 1.0} for each in self.names()}

    def names(self) -> set[str]:
        """Of what a round has figures of."""
        compared = [each for each in COMPARISONS if each.case == "storage-ledgers"]
        return {each.measured for each in compared} | {each.against for each in compared}


def rounds_of(turns: Turns, monkeypatch: pytest.MonkeyPatch, directory: Path) -> int:
    """Measures the case three times; returns with which code the program ended."""
    monkeypatch.setitem(CASES, "storage-ledgers", turns)
    with pytest.raises(SystemExit) as ended:
        program.main(["--case", "storage-ledgers", "--runs", "3", "--dir", str(directory)], scale=TINY)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_unexpected_error_keeps_the_other_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rounds_of(Turns(RuntimeError("what"), None, NotMeasured("no room")), monkeypatch, tmp_path) == 1
    shown = capsys.readouterr()
    assert "storage-ledgers failed: RuntimeError: what" in shown.out
    assert "storage-ledgers failed: no room" in shown.out
    assert "1.00-1.00" in shown.out
    assert "met 2 failed" in shown.out
    assert "Traceback" in shown.err


def test_case_is_reported_when_it_fails_in_each_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rounds_of(Turns(*[RuntimeError("what")] * 3), monkeypatch, tmp_path) == 1
    shown = capsys.readouterr().out
    assert shown.count("storage-ledgers failed: RuntimeError: what") == 1
    assert "met" not in shown


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BaseExceptionGroup("tasks", [KeyboardInterrupt()])])
def test_ctrl_c_prints_the_rounds_measured_so_far(
    error: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rounds_of(Turns(None, error), monkeypatch, tmp_path) == 130
    shown = capsys.readouterr().out
    assert "interrupted" in shown
    assert "1.00-1.00" in shown
