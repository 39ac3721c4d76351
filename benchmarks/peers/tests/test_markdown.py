"""The page of results has each figure once, and says what is missing and why."""

from __future__ import annotations

import attrs
import pytest

from benchmarks.peers import markdown
from benchmarks.peers.markdown import page
from benchmarks.peers.plan import Task
from benchmarks.peers.quiet import Limits, Noise
from benchmarks.peers.results import Measurement, Results
from benchmarks.peers.tests.fakes import append_figures, candidate, empty_results, good

LOAD, LONE = Task("append", 1024, 1_000), Task("append", 1024, 1)
SUSTAINED = Task("sustained", 1024, 1_000)
SCAN = Task("scan", 1024, entries=50_000)


@pytest.fixture
def results() -> Results:
    found = empty_results(rounds=2)
    found.candidates = [
        candidate("replog"),
        candidate("etcd"),
        candidate("nats", is_synced=False),
        candidate("redis", missing="no redis-server: install it"),
        candidate("replog-local", is_replicated=False),
        candidate("sqlite", is_replicated=False),
    ]
    rates = {"replog": 345_678.0, "etcd": 23_456.0, "nats": 40_000.0, "replog-local": 1_234.0, "sqlite": 617.0}
    for number in range(2):
        for name, rate in rates.items():
            load = Task("append", 1024, 1, 1_000) if name in ("replog-local", "sqlite") else LOAD
            found.measurements.append(good(name, number, load, **append_figures(rate)))
    found.measurements += [
        good("replog", 0, LONE, **append_figures(4_000.0)),
        good("replog", 0, SUSTAINED, **sustained_figures(300_000.0), lowest_per_s=123_456.0),
        good("nats", 0, SUSTAINED, **sustained_figures(30_000.0)),
        Measurement("etcd", 0, SUSTAINED, "not quiet", words="busy"),
        good("replog", 0, SCAN, entries_per_s=2.5e6),
        Measurement("etcd", 0, SCAN, "not measured", words="etcd is no log\nand more"),
        Measurement("nats", 0, SCAN, "failed", words="OSError: gone"),
        Measurement("etcd", 0, LONE, "not quiet", words="busy"),
        good("replog", 0, Task("tail", 1024, entries=500), p50_us=300.0, p99_us=1_250.0),
        good("replog", 0, Task("take-over", 1024), takeover_s=0.0421),
        good("replog", 0, Task("restart"), restart_s=1.234, held_bytes=3.5 * 1024**2),
    ]
    return found


def sustained_figures(entries_per_s: float) -> dict[str, float]:
    return {**append_figures(entries_per_s), "entries": 15 * entries_per_s, "held_bytes": 3.5 * 1024**3}


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]


def test_figures_stand_in_tables(results: Results) -> None:
    text = page(results, {})
    found = rows(text)

    assert ["**Replog**", "4 000", "346 000"] in found
    assert ["Etcd", "*not quiet*", "23 500"] in found
    assert ["Nats\\*", "", "40 000"] in found
    assert ["Etcd", "", "15"] in found
    assert ["**Replog**", "250 µs", "500 µs", "1 ms"] in found
    assert ["Etcd", "1 µs", "3 µs", "4 µs"] in found
    assert ["**Replog**", "2 500 000/s", "300 µs", "1.25 ms", "42.1 ms", "1.23 s", "3.5 MiB"] in found
    assert ["Sqlite", "617/s", "", ""] in found


def test_sustained_results_name_their_rounds(results: Results) -> None:
    text = page(results, {})
    found = rows(text)

    assert "nothing is deleted meanwhile; 1 round of it" in text
    heading = ["1 KiB, 1 000 in flight, 15 s", "per second", "replog's", "of the short load", "worst second", "p99.9"]
    assert [*heading, "CPU", "held"] in found
    assert ["**Replog**", "300 000", "", "87 %", "123 000", "13.3 µs", "4 µs", "3.5 GiB"] in found
    assert ["Nats\\*", "30 000", "10", "75 %", "", "133 µs", "4 µs", "3.5 GiB"] in found
    assert ["Etcd", "*not quiet*", "", "", "", "", "", ""] in found
    results.measurements.append(good("nats", 1, SUSTAINED, **sustained_figures(300_000.0)))
    assert "nothing is deleted meanwhile; 2 rounds of it" in page(results, {})


def test_a_goal_stands_with_its_ratio_and_spread(results: Results) -> None:
    found = rows(page(results, {}))

    assert [
        "Etcd",
        "1 KiB, 1 000 in flight",
        "entries per second",
        "**15**",
        "15 to 15",
        "≥ 15",
        "**not met**",
    ] in found
    assert ["Nats", "1 KiB, 1 000 in flight", "entries per second", "**8.6**", "8.6 to 8.6", "≥ 8", "met"] in found
    assert ["Sqlite", "1 KiB, 1000 per call", "entries per second", "**2**", "2 to 2", "≥ 3", "**not met**"] in found


def test_a_ratio_without_a_goal_is_listed_with_the_others(results: Results) -> None:
    results.candidates.append(candidate("rabbitmq"))
    results.measurements.append(good("rabbitmq", 0, LOAD, **append_figures(20_000.0)))

    text = page(results, {})

    assert ["Rabbitmq", "1 KiB, 1 000 in flight", "entries per second", "**17**", "17 to 17", "-", ""] in rows(text)
    assert "*Rabbitmq*: the goal was set by a measurement at 100 B" in text


def test_skipped_cases_have_no_row(results: Results) -> None:
    assert "as many sessions as are fastest" not in page(results, {})
    results.candidates += [candidate("zookeeper"), candidate("zookeeper-session")]
    results.measurements += [
        good("zookeeper", 0, LOAD, **append_figures(20_000.0)),
        good("zookeeper-session", 0, LOAD, **append_figures(10_000.0)),
        good("zookeeper", 0, SCAN, entries_per_s=1e4),
    ]

    text = page(results, {})
    found = [each for each in rows(text) if each[0].startswith("Zookeeper")]

    assert ["Zookeeper-session", "", "10 000"] in found
    assert ["Zookeeper", "10 000/s", "", "", "", "", ""] in found
    assert not [each for each in found if not any(each[1:])]
    assert "as many sessions as are fastest" in text


def test_each_system_states_its_promise(results: Results) -> None:
    text = page(results, {})
    found = rows(text)

    assert ["Etcd", "1.2.3", "2 of 3", "yes"] in found
    assert ["Nats", "1.2.3", "2 of 3", "**no**"] in found
    assert "- **Etcd**: all | of it" in text.splitlines()
    assert not [each for each in found if each[0] == "Redis"]


def test_missing_figure_has_a_reason(results: Results) -> None:
    text = page(results, {})

    assert "- Redis was skipped: no redis-server: install it." in text
    assert "- Etcd: scan, 1 KiB, 50000 entries: etcd is no log." in text
    assert "- Nats: scan, 1 KiB, 50000 entries: failed: OSError: gone." in text
    assert ", 2 thrown away: fdatasync" in text


def test_where_and_how_it_was_measured(results: Results) -> None:
    text = page(results, {})

    for words in (
        "a processor, 2 processors",
        "8 GiB of memory",
        "replog abc1234",
        "2026-11-20",
        "make bench-peers",
        "105 µs",
    ):
        assert words in text
    assert "interrupted" not in text
    results.is_interrupted = True
    assert "**The run was interrupted**" in page(results, {})


def test_a_short_or_noisy_run_is_called_so(results: Results) -> None:
    assert "**These figures show that it works, not how well**: there were few rounds." in page(results, {})
    results.rounds = 3
    assert "not how well" not in page(results, {})
    results.limits, results.seconds = Limits(foreign_cpus=2), 0.2
    assert "not how well**: other things went on beside and the loads were short." in page(results, {})
    slow = Noise(raw_before_us=400.0, raw_after_us=400.0, foreign_cpus=0.0)
    results.measurements = [attrs.evolve(each, noise=slow) for each in results.measurements]
    assert "not how well**: other things went on beside, the disk was slow and the loads were short." in page(
        results, {}
    )


def test_charts_stand_where_they_are(results: Results) -> None:
    text = page(results, {"throughput": "figures/peers-throughput.svg"})

    assert text.count("![") == 1
    assert "](figures/peers-throughput.svg)" in text


def test_a_run_without_any_figure_is_a_page_too() -> None:
    results = empty_results()
    results.candidates = [candidate("redis", missing="no redis-server")]

    assert "Redis was skipped" in page(results, {})
    assert "## Throughput" not in page(results, {})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (markdown.grouped(1_234_567), "1 230 000"),
        (markdown.grouped(999.9), "1 000"),
        (markdown.grouped(0.4567), "0.457"),
        (markdown.grouped(0), "0"),
        (markdown.micros(99.94), "99.9 µs"),
        (markdown.micros(1_000), "1 ms"),
        (markdown.micros(2_500_000), "2.5 s"),
        (markdown.seconds(0.01234), "12.3 ms"),
        (markdown.cpu(123.4), "120 µs"),
        (markdown.cpu(0.0456), "0.046 µs"),
        (markdown.ratio(14.73), "15"),
        (markdown.ratio(0.953), "0.95"),
        (markdown.ratio(1_234), "1 230"),
    ],
)
def test_numbers_have_as_many_digits_as_can_be_measured(found: str, expected: str) -> None:
    assert found == expected
