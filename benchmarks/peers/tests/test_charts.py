"""Charts are drawn of what there is, the same ones of the same results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.drawing import labels
from benchmarks.peers import __main__ as program
from benchmarks.peers.charts import draw
from benchmarks.peers.markdown import page
from benchmarks.peers.plan import Task
from benchmarks.peers.results import Results, from_json
from benchmarks.peers.tests.fakes import append_figures, candidate, empty_results, good


@pytest.fixture
def results() -> Results:
    found = empty_results()
    found.candidates = [
        candidate("replog"),
        candidate("nats", is_synced=False),
        candidate("replog-local", is_replicated=False),
    ]
    for in_flight in (1, 1_000):
        load = Task("append", 1024, in_flight)
        found.measurements += [good(name, 0, load, **append_figures(100.0 * in_flight)) for name in ("replog", "nats")]
    sustained = Task("sustained", 1024, 1_000)
    found.measurements += [
        good("replog", 0, sustained, **append_figures(100.0), lowest_per_s=70.0),
        good("nats", 0, sustained, **append_figures(50.0)),
        good("replog-local", 0, Task("append", 1024, 1), **append_figures(50.0)),
        good("nats", 0, Task("restart"), restart_s=1.0, held_bytes=1.0),
    ]
    return found


def test_a_chart_is_drawn_twice_alike_as_png_and_svg(results: Results, tmp_path: Path) -> None:
    """Otherwise each publishing would change all of them."""
    names = draw(results, tmp_path / "one")
    draw(results, tmp_path / "two")

    assert names == ["throughput", "short", "in-flight", "latency", "cpu", "sustained", "other", "alone"]
    found = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert set(found) == {f"peers-{name}.{kind}" for name in names for kind in ("png", "svg")}
    for name, data in found.items():
        assert data.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
        assert data == (tmp_path / "two" / name).read_bytes(), name


def test_unmeasured_case_is_not_drawn(results: Results, tmp_path: Path) -> None:
    results.measurements = [each for each in results.measurements if each.task.case == "restart"]

    assert draw(results, tmp_path) == ["other"]
    assert draw(empty_results(), tmp_path) == []


def test_published_charts_and_tables_match_published_figures(tmp_path: Path) -> None:
    """If this fails, type: make charts"""
    results = from_json(program.PUBLISHED_JSON.read_text(encoding="utf-8"))
    names = draw(results, tmp_path)
    images = program._images(names, program.PUBLISHED_CHARTS.resolve(), program.PUBLISHED_MARKDOWN.resolve().parent)

    assert page(results, images) == program.PUBLISHED_MARKDOWN.read_text(encoding="utf-8")
    for name in names:
        made, shown = (each / f"peers-{name}.svg" for each in (tmp_path, program.PUBLISHED_CHARTS))
        assert labels(made.read_text(encoding="utf-8")) == labels(shown.read_text(encoding="utf-8")), name
