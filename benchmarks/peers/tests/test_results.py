"""Results survive their file; medians, ratios and goals are those of what counts."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from benchmarks.peers.plan import Task
from benchmarks.peers.quiet import Noise
from benchmarks.peers.results import GOALS, Goal, Measurement, Results, failed, from_json, judge, merged, to_json, write
from benchmarks.peers.tests.fakes import MACHINE, QUIET, candidate, empty_results, good

LOAD = Task("append", 1024, 1_000)
LONE = Task("append", 1024, 1)


@pytest.fixture
def results() -> Results:
    found = empty_results(rounds=3)
    found.candidates = [candidate("replog"), candidate("etcd"), candidate("sqlite", is_replicated=False)]
    for number, (ours, theirs) in enumerate(((300.0, 100.0), (100.0, 10.0), (200.0, 200.0))):
        found.measurements += [
            good("replog", number, LOAD, entries_per_s=ours, p50_us=5.0),
            good("etcd", number, LOAD, entries_per_s=theirs, p50_us=20.0),
        ]
    return found


def test_a_file_has_all_of_it_with_a_line_for_each_measurement(results: Results) -> None:
    results.measurements.append(Measurement("etcd", 0, LONE, "not quiet", {"p50_us": 1.23456789}, None, "busy"))
    results.failures.append("etcd: a sentence")
    text = to_json(results)

    again = from_json(text)

    assert again.measurements[-1].figures == {"p50_us": 1.23457}
    results.measurements[-1] = again.measurements[-1]
    assert again == results
    assert len([line for line in text.splitlines() if line.startswith('{"system"')]) == 7


@pytest.mark.parametrize("text", ["{}", "[]", '{"machine": 1}', "no json"])
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json has its own words
        from_json(text)


def test_writing_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    write(path, "first")
    write(path, "second")

    assert path.read_text() == "second"
    assert list(path.parent.iterdir()) == [path]


def test_figures_are_medians_of_the_rounds(results: Results) -> None:
    assert results.figures("replog", LOAD) == {"entries_per_s": 200.0, "p50_us": 5.0}
    assert results.figures("replog", LONE) == {}


def test_ratios_are_of_the_same_round(results: Results) -> None:
    """Not those of medians, which would be 2."""
    assert results.ratios("etcd", "replog", LOAD, "entries_per_s") == [3.0, 10.0, 1.0]


def test_round_without_one_system_has_no_ratio(results: Results) -> None:
    results.measurements[2] = attrs.evolve(results.measurements[2], verdict="not quiet")

    assert results.ratios("etcd", "replog", LOAD, "entries_per_s") == [3.0, 1.0]


def test_disturbed_rounds_count_for_nothing_but_are_counted(results: Results) -> None:
    results.measurements.append(
        Measurement("etcd", 0, LONE, "not quiet", {"p50_us": 1.0}, Noise(9000.0, 9000.0, 0.0), "busy")
    )

    assert results.figures("etcd", LONE) == {}
    assert results.why_not("etcd", LONE) == ("not quiet", "busy")
    assert results.count("not quiet") == 1
    assert results.raw_p50_us() == QUIET.raw_us == 105.0


def test_a_goal_is_judged_by_the_median_of_ratios(results: Results) -> None:
    [met] = judge(results, [Goal("etcd", LOAD, 3.0)])
    [missed] = judge(results, [Goal("etcd", LOAD, 3.1)])

    assert (met.ratio, met.least, met.most, met.is_met) == (3.0, 1.0, 10.0, True)
    assert not missed.is_met


def test_of_latencies_less_is_better(results: Results) -> None:
    [judged] = judge(results, [Goal("etcd", LOAD, 4.0, "p50_us")])

    assert judged.ratio == 4.0
    assert judged.is_met


def test_a_ratio_without_a_goal_is_neither_met_nor_missed(results: Results) -> None:
    [judged] = judge(results, [Goal("etcd", LOAD, None)])

    assert judged.ratio == 3.0
    assert judged.is_met is None


def test_unmeasured_case_is_not_judged(results: Results) -> None:
    assert judge(results, [Goal("redis", LOAD, 1.0), Goal("sqlite", LOAD, 1.0), Goal("etcd", LONE, 1.0)]) == []


def test_a_single_node_is_compared_with_replog_as_one(results: Results) -> None:
    results.measurements += [
        good("sqlite", 0, LOAD, entries_per_s=10.0),
        good("replog-local", 0, LOAD, entries_per_s=40.0),
    ]

    [judged] = judge(results, [Goal("sqlite", LOAD, 3.0)])

    assert judged.ratio == 4.0


def test_the_goals_are_those_of_the_issue() -> None:
    found = {(each.system, each.task.entry_bytes, each.figure): each.at_least for each in GOALS}

    assert found == {
        ("bookkeeper", 1024, "entries_per_s"): 2.0,
        ("bookkeeper", 100, "entries_per_s"): 5.0,
        **{(name, each, "entries_per_s"): None for name in ("kafka-synced", "kafka") for each in (1024, 100)},
        ("etcd", 1024, "entries_per_s"): 15.0,
        ("redis", 1024, "entries_per_s"): 5.0,
        ("nats", 1024, "entries_per_s"): 8.0,
        ("zookeeper-session", 100, "entries_per_s"): 50.0,
        ("zookeeper", 100, "entries_per_s"): None,
        ("rabbitmq", 100, "entries_per_s"): 20.0,
        ("rabbitmq", 1024, "entries_per_s"): None,
        ("pysyncobj", 1024, "entries_per_s"): 12.0,
        **{(name, each, "p50_us"): 1.0 for name in ("redis", "etcd") for each in (1024, 100)},
        **{("sqlite", each, "entries_per_s"): 3.0 for each in (1024, 100)},
        **{("lmdb", each, "entries_per_s"): 1.0 for each in (1024, 100)},
    }


def test_runs_are_put_together_with_their_rounds_apart(results: Results) -> None:
    other = empty_results(rounds=1)
    other.candidates = [attrs.evolve(candidate("etcd"), version="9"), candidate("nats")]
    other.measurements = [good("etcd", 0, LOAD, entries_per_s=1.0, p50_us=1.0)]

    both = merged([results, other])

    assert both.rounds == 3  # of most loads: one system had another
    assert [(each.name, each.version) for each in both.candidates] == [
        *(("replog", "1.2.3"), ("etcd", "9"), ("sqlite", "1.2.3"), ("nats", "1.2.3")),
    ]
    assert both.measurements[-1].round == 3
    assert both.ratios("etcd", "replog", LOAD, "entries_per_s") == [3.0, 10.0, 1.0]
    assert len(results.measurements) == 6


def test_runs_of_different_machines_are_not(results: Results) -> None:
    other = attrs.evolve(empty_results(), machine=attrs.evolve(MACHINE, processors=64))

    with pytest.raises(ValueError, match="different machines"):
        merged([results, other])


def test_a_run_fails_by_its_failures_and_by_an_interrupt(results: Results) -> None:
    results.measurements.append(Measurement("etcd", 0, LONE, "not measured", words="it has no such thing"))
    assert list(failed(results)) == []

    results.failures.append("etcd: it broke")
    results.is_interrupted = True
    assert list(failed(results)) == ["etcd: it broke", "the run was interrupted"]
