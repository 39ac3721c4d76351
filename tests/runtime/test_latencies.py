"""Histograms of latencies: quantiles, differences, sums, and what others are told of them."""

import math
import random

import pytest

from replog.runtime.latencies import BOUNDS_S, LatencyHistogram


def observed(*latencies_s: float) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for each in latencies_s:
        histogram.observe(each)
    return histogram


def test_the_bounds_ascend_and_are_round() -> None:
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))
    assert BOUNDS_S[0] == 0.00001
    assert {0.001, 0.0015, 0.1, 7.0} < set(BOUNDS_S)


@pytest.mark.parametrize("share", [0.001, 0.5, 0.99, 0.999, 1.0])
def test_a_quantile_is_in_the_bucket_of_the_true_one(share: float) -> None:
    chooser = random.Random(1)
    latencies = sorted(chooser.lognormvariate(-7, 1.5) for _ in range(5000))
    found = observed(*latencies).quantile(share)
    true = latencies[max(0, math.ceil(share * len(latencies)) - 1)]
    assert found is not None
    assert found == pytest.approx(true, rel=0.5)


def test_bucket_holds_values_up_to_its_bound() -> None:
    assert observed(0.001).quantile(1.0) == 0.001
    assert dict(observed(0.001, 0.0011).cumulative())[0.001] == 1
    assert observed(0.001, 0.0011).cumulative()[-1] == (math.inf, 2)


def test_excessive_duration_counts_as_the_last_bound() -> None:
    histogram = observed(1e6)
    assert (histogram.quantile(0.5), histogram.count, histogram.total_s) == (BOUNDS_S[-1], 1, 1e6)
    assert observed(0.0).quantile(0.5) == pytest.approx(0.000005)


def test_nothing_has_no_quantile() -> None:
    assert LatencyHistogram().quantile(0.5) is None


def test_later_counts_are_the_difference() -> None:
    histogram = observed(0.01, 0.02)
    before = histogram.copy()
    histogram.observe(4.0)
    assert histogram.since(before).quantile(0.01) == pytest.approx(3.0, rel=0.1)
    assert histogram.since(before).count == 1
    assert before == observed(0.01, 0.02)


def test_after_a_restart_everything_came_since() -> None:
    restarted = observed(0.5)
    assert restarted.since(observed(0.01, 0.02)) == restarted


def test_merging_adds() -> None:
    assert LatencyHistogram.merged([observed(0.25), observed(0.5, 0.25)]) == observed(0.25, 0.25, 0.5)
    assert LatencyHistogram.merged([]) == LatencyHistogram()


def test_it_survives_json() -> None:
    histogram = observed(0.0001, 0.3, 1e9)
    assert LatencyHistogram.from_json(histogram.to_json()) == histogram


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"buckets": [], "total_s": 0},
        {"buckets": {"999": 1}, "total_s": 0},
        {"buckets": {"-1": 1}, "total_s": 0},
        {"buckets": {"1": -1}, "total_s": 0},
        {"buckets": {"x": 1}, "total_s": 0},
        {"buckets": {"1": 1}, "total_s": "x"},
        [],
    ],
)
def test_invalid_histogram_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="no histogram"):
        LatencyHistogram.from_json(value)  # type: ignore[arg-type]
