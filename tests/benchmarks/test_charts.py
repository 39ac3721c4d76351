"""The charts on pages show the figures that are beside them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

# Each worker of pytest-xdist collects this file, and one of them runs it: so the tests import matplotlib.
pytestmark = pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the extra `bench`")

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
USERS = (FIGURES / "users.json").read_text(encoding="utf-8")


def labels_of(file: Path) -> list[str]:
    from benchmarks.drawing import labels

    return labels(file.read_text(encoding="utf-8"))


def drawn(text: str, directory: Path) -> list[str]:
    from benchmarks.charts import published, users
    from benchmarks.drawing import in_our_style, save

    with in_our_style():
        figure = users(published(text))
        assert figure is not None
        save(figure, directory / "users")
    return labels_of(directory / "users.svg")


def test_the_chart_of_users_is_up_to_date(tmp_path: Path) -> None:
    """If this fails, type: make charts"""
    assert drawn(USERS, tmp_path) == labels_of(FIGURES / "users.svg")


def test_the_chart_changes_when_a_figure_does(tmp_path: Path) -> None:
    found = json.loads(USERS)
    for each in found["rounds"]["open-loop"]:
        each["append"]["p50_us"] = 1234
    labels_now = drawn(json.dumps(found), tmp_path)
    assert labels_now != labels_of(FIGURES / "users.svg")
    assert any(each.startswith("1.23 ms") or each.startswith("1.2 ms") for each in labels_now)


def test_nothing_is_drawn_of_other_cases() -> None:
    from benchmarks.charts import published, users

    assert users(published(json.dumps({"date": "2026-11-25", "cpus": 2, "rounds": {"latency": [{}]}}))) is None


def test_rounds_make_medians() -> None:
    from benchmarks.charts import published

    rounds = [{"append": {"p50_us": value}} for value in (1.0, 5.0, 2.0)]
    found = published(json.dumps({"date": "2026-11-25", "cpus": 2, "rounds": {"open-loop": rounds}}))
    assert found.figures("open-loop") == {"append": {"p50_us": 2.0}}
    assert found.about == "2026-11-25: 2 processors, medians of 3 rounds."
