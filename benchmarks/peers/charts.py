"""The charts of a run, as PNG and SVG: replog in one colour, everything else in others, what doesn't sync hatched. The same
results make the same files, byte for byte."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.drawing import (
    DARK,
    OURS,
    RAW,
    THEIRS,
    TITLE,
    WIDTH,
    foot,
    in_our_style,
    latencies,
    save,
    stacked,
    write_behind,
)
from benchmarks.figures import Figures
from benchmarks.peers.markdown import counted, cpu, grouped, micros, ratio, seconds
from benchmarks.peers.plan import REFERENCE, SIZES_BYTES, Task, size
from benchmarks.peers.results import Candidate, Results

_LINES = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933", "#882255", "#44AA99")
_MARKERS = "osD^vP*X"
_HATCH = "///"

Tell = Callable[[float], str]


@attrs.frozen
class Bar:
    """One system in a panel of bars."""

    candidate: Candidate
    value: float
    told: str
    more: float = 0.0  # on top of it, in a lighter colour

    @property
    def end(self) -> float:
        """Where it ends."""
        return self.value + self.more


@attrs.frozen
class Panel:
    """Bars below each other, the best one first."""

    title: str
    bars: Sequence[Bar]
    tick: Tell  # what stands at the axis
    is_smaller_better: bool = False


def draw(results: Results, directory: Path) -> list[str]:
    """Draws those charts of which there are figures: DIRECTORY/peers-NAME.png and .svg. Returns their names."""
    directory.mkdir(parents=True, exist_ok=True)
    found = []
    with in_our_style():
        for name, make in _CHARTS.items():
            if figure := make(results):
                save(figure, directory / f"peers-{name}")
                found.append(name)
    return found


def _throughput(results: Results) -> Figure | None:
    """1000 in flight: a panel for each size."""
    panels = [
        Panel(f"{size(each)} each", _rates(results, Task("append", each, 1_000), is_replicated=True), grouped)
        for each in SIZES_BYTES
    ]
    return _bars("Entries confirmed per second, 1 000 in flight (and their share of replog's)", panels, results)


def _short(results: Results) -> Figure | None:
    """What README.md shows: one panel of `_throughput`."""
    bars = _rates(results, Task("append", 1024, 1_000), is_replicated=True)
    title = "Entries of 1 KiB confirmed per second, 1 000 in flight (and their share of replog's)"
    return _bars(title, [Panel("three nodes, confirmed by two", bars, grouped)], results)


def _alone(results: Results) -> Figure | None:
    """1 KiB in one node: a panel for each number of entries in a call."""
    panels = []
    for calls in (1, 100, 1_000):
        bars = _rates(results, Task("append", 1024, 1, calls), is_replicated=False)
        panels.append(Panel("one per call" if calls == 1 else f"{grouped(calls)} per call", bars, grouped))
    return _bars("One node: entries of 1 KiB per second, each call synced (and share of replog's)", panels, results)


def _rates(results: Results, task: Task, *, is_replicated: bool) -> list[Bar]:
    ours = results.figures(REFERENCE[is_replicated], task).get("entries_per_s")
    found = []
    for each in results.measured(is_replicated=is_replicated):
        if rate := results.figures(each.name, task).get("entries_per_s"):
            share = f"  ({_share(rate / ours)})" if ours and each.name not in REFERENCE.values() else ""
            found.append(Bar(each, rate, f"{grouped(rate)}{share}"))
    return found


def _share(value: float) -> str:
    return f"1/{ratio(1 / value)}" if value < 1 else f"{ratio(value)} times"


def _cpu(results: Results) -> Figure | None:
    """1000 in flight: the client's and the servers' on top of each other."""
    panels = []
    for entry_bytes in SIZES_BYTES[:2]:
        bars = []
        for each in results.measured(is_replicated=True):
            if figures := results.figures(each.name, Task("append", entry_bytes, 1_000)):
                client, server = figures["client_cpu_us"], figures["server_cpu_us"]
                bars.append(Bar(each, server, f"{cpu(server)} + {cpu(client)}", more=client))
        panels.append(Panel(f"{size(entry_bytes)} each", bars, cpu, is_smaller_better=True))
    return _bars("CPU time for an entry, 1 000 in flight: all servers (dark) + client (light)", panels, results)


def _sustained(results: Results) -> Figure | None:
    """The rate over all of its time, and in words that of its worst second."""
    panels = []
    for task in results.tasks("sustained"):
        bars = []
        for bar in _rates(results, task, is_replicated=True):
            lowest = results.figures(bar.candidate.name, task).get("lowest_per_s")
            words = f"; {grouped(lowest)}" if lowest is not None else ""
            bars.append(attrs.evolve(bar, told=bar.told + words))
        panels.append(Panel(f"{size(task.entry_bytes)} each, {grouped(task.in_flight)} in flight", bars, grouped))
    title = "Entries per second over a longer time (share of replog's); in the worst second"
    return _bars(title, panels, results, rounds=results.rounds_of("sustained"))


def _other(results: Results) -> Figure | None:
    """Reading, following, taking over, restarting: a panel each."""
    kinds: list[tuple[str, str, str, Tell]] = [
        ("scan", "entries_per_s", "entries of {} read per second", grouped),
        ("tail", "p50_us", "append until a follower has it, {}, p50", micros),
        ("take-over", "takeover_s", "leader killed until an entry is confirmed", seconds),
        ("restart", "restart_s", "all killed until an entry is confirmed", seconds),
    ]
    panels = []
    for case, figure, words, tell in kinds:
        for task in results.tasks(case)[-1:]:  # of scans the larger entries
            values = ((each, results.figures(each.name, task)) for each in results.measured(is_replicated=True))
            bars = [Bar(each, found[figure], tell(found[figure])) for each, found in values if found]
            panels.append(Panel(words.format(size(task.entry_bytes)), bars, tell, is_smaller_better=case != "scan"))
    return _bars("Reading, following, taking over, restarting", panels, results)


def _bars(title: str, panels: Sequence[Panel], results: Results, rounds: int | None = None) -> Figure | None:
    """Panels below each other, with an axis from zero each: bars are only honest so. None if there is not one bar."""
    panels = [each for each in panels if each.bars]
    if not panels:
        return None
    figure, all_axes = stacked(title, [len(each.bars) for each in panels])
    for axes, panel in zip(all_axes, panels, strict=True):
        bars = sorted(panel.bars, key=lambda bar: bar.end, reverse=not panel.is_smaller_better)
        for place, bar in enumerate(bars):
            colour = OURS if bar.candidate.name in REFERENCE.values() else THEIRS
            hatch = "" if bar.candidate.promise.is_synced else _HATCH
            axes.barh(place, bar.value, color=colour, hatch=hatch, height=0.72)
            axes.barh(place, bar.more, left=bar.value, color=colour, alpha=0.45, hatch=hatch, height=0.72)
            write_behind(axes, bar.told, bar.end, place)
        axes.set_xlim(0, max(bar.end for bar in bars) * 1.3)  # room for what is told at the end of the longest
        _rows(axes, panel.title, [bar.candidate for bar in bars])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _, panel=panel: panel.tick(value) if value else "0"))
    _foot(figure, results, [bar.candidate for panel in panels for bar in panel.bars], "Hatched", rounds)
    return figure


def _latency(results: Results) -> Figure | None:
    """One in flight: p50, p99 and p99.9, beside the disk alone. By factors, for they reach over three orders of magnitude."""
    panels = {}
    for entry_bytes in SIZES_BYTES[:2]:
        task = Task("append", entry_bytes, 1)
        found = [(each, results.figures(each.name, task)) for each in results.measured(is_replicated=True)]
        panels[entry_bytes] = sorted((each for each in found if each[1]), key=lambda each: each[1]["p50_us"])
    panels = {entry_bytes: rows for entry_bytes, rows in panels.items() if rows}
    if not panels:
        return None
    title = "One entry in flight: until it is confirmed. p50 (dot), p99, p99.9 (ticks); logarithmic"
    figure, all_axes = stacked(title, [len(rows) for rows in panels.values()])
    raw_us = results.raw_p50_us()
    for axes, (entry_bytes, rows) in zip(all_axes, panels.items(), strict=True):
        for place, (candidate, figures) in enumerate(rows):
            _latency_row(axes, place, candidate, figures)
        least_us = min(raw_us or math.inf, *(figures["p50_us"] for _, figures in rows))
        axes.set_xscale("log")
        axes.set_xlim(least_us * 0.7, max(figures["p999_us"] for _, figures in rows) * 3)
        _rows(axes, f"{size(entry_bytes)} each", [each for each, _ in rows])
        axes.set_ylim(len(rows) + 0.3, -0.6)  # room for what is said of the disk
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: micros(value)))
        if raw_us is not None:
            axes.axvline(raw_us, color=RAW, linewidth=1.2, linestyle="--")
            words = f"fdatasync of 4 KiB alone: {micros(raw_us)}"
            axes.annotate(words, (raw_us, 0), (4, 5), ("data", "axes fraction"), "offset points", color=RAW, fontsize=8)
    _foot(figure, results, [each for rows in panels.values() for each, _ in rows], "Hollow")
    return figure


def _latency_row(axes: Axes, place: int, candidate: Candidate, figures: Figures) -> None:
    p50_us, p99_us, p999_us = (figures[name] for name in ("p50_us", "p99_us", "p999_us"))
    colour = OURS if candidate.name in REFERENCE.values() else DARK
    latencies(axes, place, figures, colour, colour if candidate.promise.is_synced else "white")
    write_behind(axes, f"{micros(p50_us)}, p99 {micros(p99_us)}", p999_us, place)


def _rows(axes: Axes, title: str, candidates: Sequence[Candidate]) -> None:
    """A row for each, the first one above."""
    axes.set_title(title)
    axes.set_ylim(len(candidates) - 0.4, -0.6)
    axes.set_yticks(range(len(candidates)), [_name(each) for each in candidates])
    for label, each in zip(axes.get_yticklabels(), candidates, strict=True):
        label.set_fontweight("bold" if each.name in REFERENCE.values() else "normal")
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x")


def _in_flight(results: Results) -> Figure | None:
    """Curves, a panel for each size. Both axes grow by factors: the systems differ by a hundred times."""
    sizes = [each for each in SIZES_BYTES if _curves(results, each)]
    if not sizes:
        return None
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    figure.suptitle("Entries confirmed per second over entries in flight; logarithmic", **TITLE)
    candidates = results.measured(is_replicated=True)
    looks, handles = _looks(candidates), {}
    all_axes = figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
    for axes, entry_bytes in zip(all_axes, sizes, strict=True):
        curves = _curves(results, entry_bytes)
        for name, points in curves.items():
            (handles[name],) = axes.loglog(*zip(*points, strict=True), **looks[name])
        axes.set_title(f"{size(entry_bytes)} each")
        axes.set_xlabel("entries in flight")
        asked = sorted({in_flight for points in curves.values() for in_flight, _ in points})
        axes.set_xticks(asked, [grouped(each) for each in asked], fontsize=8)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: grouped(value)))
        axes.grid()
    shown = [each for each in candidates if each.name in handles]
    names = [_name(each) for each in shown]
    figure.legend([handles[each.name] for each in shown], names, loc="outside right center", frameon=False)
    _foot(figure, results, shown, "Dotted")
    return figure


def _curves(results: Results, entry_bytes: int) -> dict[str, list[tuple[int, float]]]:
    """By system: (in flight, entries per second), ascending."""
    tasks = [each for each in results.tasks("append") if each.entry_bytes == entry_bytes and each.entries_per_call == 1]
    found: dict[str, list[tuple[int, float]]] = {}
    for candidate in results.measured(is_replicated=True):
        for task in sorted(tasks, key=lambda each: each.in_flight):
            if figures := results.figures(candidate.name, task):
                found.setdefault(candidate.name, []).append((task.in_flight, figures["entries_per_s"]))
    return found


def _looks(candidates: Sequence[Candidate]) -> dict[str, dict[str, object]]:
    """How each line is drawn: ours thick, and each with a colour and a mark of its own."""
    others = iter(zip(_LINES * 2, _MARKERS * 2, strict=False))
    found: dict[str, dict[str, object]] = {}
    for each in candidates:
        if each.name in REFERENCE.values():
            found[each.name] = {"color": OURS, "marker": "o", "linewidth": 3.0, "markersize": 7, "zorder": 5}
            continue
        colour, marker = next(others)
        style = "-" if each.promise.is_synced else ":"
        found[each.name] = {"color": colour, "marker": marker, "linewidth": 1.3, "markersize": 5, "linestyle": style}
    return found


def _foot(figure: Figure, results: Results, shown: Sequence[Candidate], mark: str, rounds: int | None = None) -> None:
    """Where it was measured, and what the mark means. `rounds`: as many as those of the run, if nothing is said."""
    processors, told = results.machine.processors, counted(rounds or results.rounds, "round")
    words = f"{processors} processors for clients and servers, loopback, {'medians of ' * (rounds != 1)}{told}."
    if not all(each.promise.is_synced for each in shown):
        words += f" {mark}, *: not on the disk when it is confirmed."
    foot(figure, words)


def _name(candidate: Candidate) -> str:
    return candidate.title + ("" if candidate.promise.is_synced else " *")


_CHARTS: Mapping[str, Callable[[Results], Figure | None]] = {
    "throughput": _throughput,
    "short": _short,
    "in-flight": _in_flight,
    "latency": _latency,
    "cpu": _cpu,
    "sustained": _sustained,
    "other": _other,
    "alone": _alone,
}
