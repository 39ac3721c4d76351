"""The program: what it is asked for, where results go, and how it ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as program
from benchmarks.peers.plan import Scale
from benchmarks.peers.results import from_json
from benchmarks.peers.tests.fakes import TINY, FakeEnvironment, FakeSystem


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "ThisMachine", lambda directory: FakeEnvironment())
    monkeypatch.setattr(program, "QUICK", TINY)


def run(known: Sequence[FakeSystem], directory: Path, *arguments: str) -> None:
    program.main([*arguments, "--dir", str(directory), "--quick", "--rounds", "1"], known)


def test_everything_is_written_where_it_was_asked_for(tmp_path: Path) -> None:
    known = [FakeSystem("replog"), FakeSystem("etcd", entries_per_s=10.0), FakeSystem("redis", lacks="no redis-server")]
    outputs = (
        "--json",
        f"{tmp_path}/out/r.json",
        "--markdown",
        f"{tmp_path}/out/r.md",
        "--charts",
        f"{tmp_path}/out/charts",
    )

    run(known, tmp_path, "--case", "append", "--case", "restart", *outputs)

    results = from_json((tmp_path / "out" / "r.json").read_text())
    assert {(each.system, each.task.case) for each in results.measurements} == {
        (name, case) for name in ("replog", "etcd") for case in ("append", "restart")
    }
    page = (tmp_path / "out" / "r.md").read_text()
    assert "Redis was skipped: no redis-server." in page
    assert "](charts/peers-throughput.svg)" in page
    assert (tmp_path / "out" / "charts" / "peers-throughput.svg").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_without_a_file_the_tables_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run([FakeSystem("replog")], tmp_path, "--case", "append")

    printed = capsys.readouterr()
    assert "1 000 in flight" in printed.out
    assert "round 1: replog: append, 1 KiB, 1000 in flight" in printed.err


def test_only_the_systems_asked_for_are_measured(tmp_path: Path) -> None:
    one, two = known = FakeSystem("one"), FakeSystem("two")

    run(known, tmp_path, "--system", "two", "--case", "restart")

    assert (one.asked, two.asked) == ([], ["start", "restart", "stop"])


def test_failure_is_reported_in_the_end_with_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(words: str) -> None:
        if words == "restart":
            raise OSError("no disk")

    with pytest.raises(SystemExit) as ended:
        run([FakeSystem("one", doing=fail), FakeSystem("two")], tmp_path, "--case", "restart")

    assert ended.value.code == 1
    assert "failed: One, round 1, restart: OSError: no disk" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_writes_its_results(number: signal.Signals, tmp_path: Path) -> None:
    def interrupt(words: str) -> None:
        if words == "restart":
            os.kill(os.getpid(), number)
            signal.pause()

    known = [FakeSystem("one"), FakeSystem("two", doing=interrupt), FakeSystem("three")]
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit):
            run(known, tmp_path, "--case", "restart", "--json", f"{tmp_path}/r.json")
    finally:
        signal.signal(signal.SIGTERM, before)

    results = from_json((tmp_path / "r.json").read_text())
    assert results.is_interrupted
    assert [each.system for each in results.measurements] == ["one"]
    assert known[2].asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_report_is_remade_from_the_measurements(tmp_path: Path) -> None:
    run(
        [FakeSystem("replog")],
        tmp_path,
        "--case",
        "append",
        "--json",
        f"{tmp_path}/r.json",
        "--markdown",
        f"{tmp_path}/r.md",
    )

    program.main(["report", f"{tmp_path}/r.json", "--markdown", f"{tmp_path}/again.md"])

    assert (tmp_path / "again.md").read_text() == (tmp_path / "r.md").read_text()


def test_publishing_writes_to_the_documentation(tmp_path: Path) -> None:
    options = program.parse(["--publish"], ["replog"])

    assert options.json == program.ROOT / "docs" / "figures" / "peers.json"
    assert options.markdown == program.ROOT / "docs" / "concepts" / "peers-results.md"
    assert program._images(["cpu"], options.charts, options.markdown.parent) == {"cpu": "../figures/peers-cpu.svg"}
    assert (options.rounds, options.seconds, Scale().seconds) == (3, None, 1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        ("--rounds", "0"),
        ("--seconds", "0"),
        ("--sustained-seconds", "-1"),
        ("--system", "nobody"),
        ("--case", "nothing"),
    ],
)
def test_nonsense_is_refused(wrong: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.parse(wrong, ["replog"])
    assert ended.value.code == 2


def test_systems_come_from_modules_and_broken_ones_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zebra.py").write_text(
        "from benchmarks.peers.tests.fakes import FakeSystem\nSYSTEM = FakeSystem('zebra')\n"
    )
    (tmp_path / "zebra_helper.py").write_text("")
    (tmp_path / "replog.py").write_text(
        "from benchmarks.peers.tests.fakes import FakeSystem\nSYSTEM = FakeSystem('replog')\n"
    )
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    package = type(sys)("benchmarks_peers_fakes")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setattr(program, "found_here", package)

    found, broken = program.systems()

    assert [each.name for each in found] == ["replog", "zebra"]
    assert broken == ["broken cannot be imported: ModuleNotFoundError: No module named 'nothing_of_this_name'"]


def test_our_own_systems_can_be_imported() -> None:
    found, broken = program.systems()

    assert broken == []
    assert found[0].name == "replog"
