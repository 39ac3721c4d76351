"""Durations of many calls."""

import random

import pytest

from replog.cli.bench import samples as module
from replog.cli.bench.samples import Samples


def test_quantiles_of_few_are_exact() -> None:
    samples = Samples()
    for number in random.Random(1).sample(range(1, 1001), 1000):
        samples.add(float(number))
    assert [samples.quantile(share) for share in (0.0, 0.5, 0.99, 0.999, 1.0)] == [1, 500, 990, 999, 1000]
    found = samples.to_json()
    assert found == {
        "count": 1000,
        "p50_s": 500,
        "p90_s": 900,
        "p99_s": 990,
        "p999_s": 999,
        "longest_s": 1000,
    }


def test_nothing_has_no_quantiles() -> None:
    assert set(Samples().to_json().values()) == {0, None}


def test_many_are_thinned_and_the_longest_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_MAX", 1000)
    samples = Samples()
    for number in random.Random(1).sample(range(100_000), 100_000):
        samples.add(float(number))
    assert len(samples._kept) <= 1000
    assert (samples.count, samples.longest_s) == (100_000, 99_999)
    for share in (0.1, 0.5, 0.9):
        assert samples.quantile(share) == pytest.approx(100_000 * share, abs=6000)
