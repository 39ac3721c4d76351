"""Answers of bookies become states, rates and latencies."""

from __future__ import annotations

import pytest

from replog.cli.top import model
from replog.cli.top.model import Cluster, Row, State
from replog.client.administration import BookieStatistics
from replog.runtime.latencies import LatencyHistogram

A, B = "bookie-a", "bookie-b"


def statistics(bookie_id: str = A, commits_s: tuple[float, ...] = (), **numbers: float) -> BookieStatistics:
    histogram = LatencyHistogram()
    for each in commits_s:
        histogram.observe(each)
    return BookieStatistics(bookie_id, "1.2", {"uptime_s": 100.0, **numbers}, {"commit": histogram})


def cluster(*bookie_ids: str) -> Cluster:
    made = Cluster()
    made.announced({each: (["tcp:host:1"], False) for each in bookie_ids or (A,)}, 0.0)
    return made


def row(made: Cluster, now_s: float, bookie_id: str = A) -> Row:
    (found,) = (each for each in made.rows(now_s) if each.bookie_id == bookie_id)
    return found


def test_bookie_is_connecting_until_it_answers() -> None:
    found = row(cluster(), 0.0)
    assert (found.state, found.endpoints, found.figures) == (State.UNKNOWN, ("tcp:host:1",), model.Figures())


def test_rates_are_differences_of_the_last_two_answers() -> None:
    made = cluster()
    made.sampled(statistics(added_entries=1000, added_bytes=1e6, added_batches=10, free_bytes=7), 1.0)
    assert row(made, 1.0).figures.entries_rate is None
    assert row(made, 1.0).figures.free_bytes == 7
    made.sampled(statistics(added_entries=1500, added_bytes=3e6, added_batches=20, commits=4), 3.0)
    figures = row(made, 3.0).figures
    assert (figures.entries_rate, figures.added_bytes_rate, figures.adds_rate) == (250, 1e6, 5)
    assert figures.commits_rate is None  # the first answer did not tell
    made.sampled(statistics(added_entries=1500, added_bytes=3e6, added_batches=20, commits=4), 4.0)
    assert row(made, 4.0).figures.entries_rate == 0


def test_second_answer_of_the_same_moment_changes_nothing() -> None:
    made = cluster()
    made.sampled(statistics(added_entries=1), 1.0)
    made.sampled(statistics(added_entries=2), 1.0)
    assert row(made, 1.0).figures.entries_rate is None


def test_restarted_bookie_has_no_rates_at_first() -> None:
    made = cluster()
    made.sampled(statistics(added_entries=1000, commits=5), 1.0)
    made.sampled(statistics(added_entries=3000, commits=9), 2.0)
    made.sampled(statistics(added_entries=5000, commits=9, uptime_s=0.5), 3.0)
    assert row(made, 3.0).figures.entries_rate is None
    assert row(made, 3.0).history == ()
    made.sampled(statistics(added_entries=5100, commits=9, uptime_s=1.5), 4.0)
    assert row(made, 4.0).figures.entries_rate == 100


def test_states() -> None:
    made = cluster()
    made.sampled(statistics(), 1.0)
    assert row(made, 1.0).state is State.WRITABLE
    made.sampled(statistics(read_only=1.0), 2.0)
    assert row(made, 2.0).state is State.READ_ONLY
    made.sampled(statistics(read_only=1.0, storage_failed=1.0), 3.0)
    assert row(made, 3.0).state is State.FAILED
    assert row(made, 3.0).version == "1.2"


def test_silent_bookie_is_listed_with_duration_and_reason() -> None:
    made = cluster()
    made.sampled(statistics(added_entries=1), 10.0)
    made.failed(A, "no answer", 12.0)
    made.failed(A, "still no answer", 14.0)
    found = row(made, 15.0)
    assert (found.state, found.since_s, found.problem) == (State.UNREACHABLE, 5.0, "still no answer")
    assert found.figures == model.Figures()
    made.sampled(statistics(added_entries=61), 16.0)
    found = row(made, 16.0)
    assert (found.state, found.since_s, found.problem) == (State.WRITABLE, None, "")
    assert found.figures.entries_rate == 10


def test_absent_bookie_is_forgotten_after_an_hour() -> None:
    made = cluster(A)
    made.announced({B: ([], True)}, 5.0)
    assert list(made.bookie_ids) == [A, B]
    made.failed(A, "it is not announced", 6.0)
    made.announced({B: ([], True)}, model.FORGET_AFTER_S - 1)
    assert list(made.bookie_ids) == [A, B]
    made.announced({B: ([], True)}, model.FORGET_AFTER_S + 1)
    assert list(made.bookie_ids) == [B]
    made.failed(A, "too late", 1.0)
    made.sampled(statistics(), 1.0)
    assert list(made.bookie_ids) == [B]


def test_announced_bookie_is_never_forgotten() -> None:
    made = cluster(A)
    made.failed(A, "it hangs", 1.0)
    made.announced({A: ([], False)}, 10 * model.FORGET_AFTER_S)
    assert list(made.bookie_ids) == [A]


def test_quantiles_are_those_of_the_last_seconds() -> None:
    made = cluster()
    slow, fast = (5.0,) * 50, (0.001,) * 100
    made.sampled(statistics(commits_s=slow), 1.0)
    assert row(made, 1.0).commit.p50_s is None
    made.sampled(statistics(commits_s=slow + fast), 2.0)
    made.sampled(statistics(commits_s=slow + fast + (0.1,) * 5), 2.0 + model.LATENCY_WINDOW_S - 0.5)
    found = row(made, 2.0 + model.LATENCY_WINDOW_S - 0.5).commit
    assert found.p50_s == pytest.approx(0.1, rel=0.35)  # the fast ones were told before the window
    assert row(made, 3.0 + 2 * model.LATENCY_WINDOW_S).commit.p50_s is None


def test_bookie_of_another_version_may_report_no_latencies() -> None:
    made = cluster()
    for now_s in (1.0, 2.0):
        made.sampled(BookieStatistics(A, "", {"added_entries": now_s}, {}), now_s)
    assert row(made, 2.0).commit == model.Latencies()
    assert row(made, 2.0).figures.entries_rate == 1


def test_totals_sum_over_answering_bookies() -> None:
    made = cluster(A, B)
    for now_s in (1.0, 2.0):
        for bookie_id, pace in ((A, 100.0), (B, 11.0)):
            numbers = {"added_entries": pace * now_s, "ledgers": 5.0}
            made.sampled(statistics(bookie_id, (0.001,) * int(now_s * 10), **numbers), now_s)
    total = made.total(2.0)
    assert (total.figures.entries_rate, total.history, total.figures.ledgers) == (111, (111,), None)
    assert total.commit.p50_s == pytest.approx(0.001, rel=0.3)
    made.failed(B, "gone", 2.5)
    assert made.total(3.0).figures.entries_rate == 100
    assert cluster().total(0.0).figures.entries_rate is None


def test_samples_are_bounded() -> None:
    made = cluster()
    for number in range(2000):
        made.sampled(statistics(added_entries=number), number * 0.01)
    assert len(made._bookies[A]._samples) == model._SAMPLES_MAX
    for number in range(100):
        made.sampled(statistics(added_entries=2000), 100.0 + number)
    assert len(made._bookies[A]._samples) <= model.HISTORY_S + 1


def test_the_history_has_a_point_at_every_other_second() -> None:
    made = cluster(A, B)
    for second in range(11):
        made.sampled(statistics(A, added_entries=100.0 * second + (900 if second > 8 else 0)), float(second))
    assert row(made, 10.0).history == (100, 100, 100, 100, 100)
    assert row(made, 10.5).history == (100, 100, 100, 100, 1000, 100)
    for second in range(4):
        made.sampled(statistics(B, added_entries=7.0 * second), float(second))
    made.failed(B, "gone", 4.0)
    assert made.total(10.0).history == (107, 100, 100, 100, 100)
    assert row(made, 10.0, B).history == ()
    made.sampled(statistics(A, added_entries=5000), 200.0)
    assert row(made, 200.0).history == ()


def test_metastore_problem_is_shown_until_it_works() -> None:
    made = cluster()
    made.metastore_failed("no answer")
    assert (made.problem, made.bookie_ids) == ("no answer", (A,))
    made.announced({}, 1.0)
    assert made.problem == ""
