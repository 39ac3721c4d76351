"""Draws the charts of the documentation again, from the figures in `docs/figures`: `make charts`.

    python -m benchmarks.charts [DIRECTORY]     # into docs/figures, unless another directory is named

`users.json` is what `make -s bench ARGS='--case users --json'` prints, `peers.json` what `make bench-peers ARGS=--publish` has
written. A test compares what charts and tables say with these files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.drawing import OURS, foot, in_our_style, latencies, save, stacked, write_behind
from benchmarks.figures import Figures, medians
from benchmarks.peers import __main__ as peers
from benchmarks.peers.markdown import counted, micros

FIGURES = peers.PUBLISHED_CHARTS
_PANELS = {"open-loop": "in one process, three bookies", "remote-open-loop": "three bookie processes, over TCP"}


@attrs.frozen
class Published:
    """Rounds of `make bench`, and on what machine."""

    rounds: Mapping[str, Sequence[Mapping[str, Figures]]]
    about: str

    def figures(self, case: str) -> dict[str, Figures]:
        """The medians of each thing that was measured in a case."""
        rounds = self.rounds.get(case, ())
        names = dict.fromkeys(name for each in rounds for name in each)
        return {name: medians([each[name] for each in rounds if name in each]) for name in names}


def published(text: str) -> Published:
    """What `--json` has printed."""
    found: dict[str, Any] = json.loads(text)
    most = max(len(each) for each in found["rounds"].values())
    words = [f"{found['date'][:10]}: {counted(found['cpus'], 'processor')}"]
    words.append(found.get("about") or (f"medians of {most} rounds" if most > 1 else "one round"))
    if (load := found.get("load")) is not None:
        words.append(f"the machine's load was {load:.0f}")
    return Published(found["rounds"], ", ".join(words) + ".")


def users(results: Published) -> Figure | None:
    """How late entries are confirmed, by how they come: a panel for each place of the bookies."""
    panels = {}
    for case, title in _PANELS.items():
        found = {name: each for name, each in results.figures(case).items() if "p50_us" in each}
        if found:
            panels[title] = dict(sorted(found.items(), key=lambda each: _order(each[0])))
    if not panels:
        return None
    title = "From when an entry is due until it is confirmed: p50 (dot), p99, p99.9 (ticks)"
    figure, all_axes = stacked(title, [len(each) for each in panels.values()])
    every = [figures for rows in panels.values() for figures in rows.values()]
    least_us, most_us = min(each["p50_us"] for each in every), max(map(_last_us, every))
    for axes, (title, rows) in zip(all_axes, panels.items(), strict=True):
        for place, figures in enumerate(rows.values()):
            latencies(axes, place, figures, OURS, OURS)
            words = micros(figures["p50_us"]) + (f", p99 {micros(figures['p99_us'])}" if "p99_us" in figures else "")
            write_behind(axes, words, _last_us(figures), place)
        axes.set_title(title)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks(range(len(rows)), [_title(each) for each in rows])
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=8)
        axes.grid(axis="x")
        axes.set_xscale("log")
        axes.set_xlim(least_us * 0.7, most_us * 5)  # of all panels, to be compared; with room for words
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: micros(value)))
    foot(figure, results.about)
    return figure


def _last_us(figures: Figures) -> float:
    return max(value for name, value in figures.items() if name in ("p50_us", "p99_us", "p999_us"))


def _order(name: str) -> tuple[int, str]:
    """Lone appends first, then the slow trickle, then the shares of the highest rate."""
    return (["append", "every 20 ms"].index(name) if name in ("append", "every 20 ms") else 2), name


def _title(name: str) -> str:
    return {"append": "one after the other", "every 20 ms": "one every 20 ms"}.get(name, f"{name} of the highest rate")


def draw(data: Path, directory: Path) -> None:
    """Draws all charts of the figures in `data`, and writes the page of tables: the published one of the published charts."""
    directory.mkdir(parents=True, exist_ok=True)
    with in_our_style():
        if figure := users(published((data / "users.json").read_text(encoding="utf-8"))):
            save(figure, directory / "users")
    is_published = directory.resolve() == FIGURES.resolve()
    page = peers.PUBLISHED_MARKDOWN if is_published else directory / peers.PUBLISHED_MARKDOWN.name
    peers.main(["report", str(data / "peers.json"), "--markdown", str(page), "--charts", str(directory)])


if __name__ == "__main__":
    draw(FIGURES, Path(sys.argv[1]) if len(sys.argv) > 1 else FIGURES)
