"""An hour's stream is judged by its first and its last quarter."""

from __future__ import annotations

import pytest

from benchmarks.spark.stream import Minute, failures

EVEN = Minute([0.2, 0.2, 0.2], [0.5, 0.5, 0.5], segments=3, packets=150)
SLOWER = Minute([0.3, 0.3, 0.3], [0.6, 0.6, 0.6], segments=3, packets=150)
DEARER = Minute([0.2, 0.2, 0.2], [0.5, 0.5, 0.5], segments=3, packets=200)


@pytest.mark.parametrize(
    ("last", "reasons"),
    [(EVEN, []), (SLOWER, ["commits take longer and longer"]), (DEARER, ["micro-batches need more and more"])],
)
def test_growth_is_found(last: Minute, reasons: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = list(failures([EVEN, EVEN, EVEN, last]))
    assert [each[: len(reason)] for each, reason in zip(found, reasons, strict=True)] == reasons
    assert "first and last quarter: commit 200 and" in capsys.readouterr().out
    assert "3 micro-batches: commit median" in last.shown()
