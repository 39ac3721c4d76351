"""The charts of a run, as PNG and SVG: replog in one colour, everything else in others, what doesn't sync hatched. The same
results make the same files, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.peers.markdown import cpu, grouped, micros, seconds
from benchmarks.peers.plan import REFERENCE, Task, size
from benchmarks.peers.results import Candidate, Results

_OURS, _THEIRS = "#0072B2", "#B8B8B8"  # the colours of Okabe and Ito, which differ for every eye
_LINES = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933", "#882255")
_MARKERS = "osD^vP*X"
_INK, _PALE = "#222222", "#E4E4E4"
_RAW = "#D55E00"
_HATCH = "///"
_STYLE: Mapping[str, object] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine draws the same
    "font.size": 10,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": _INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": _PALE,
    "hatch.color": "#FFFFFF",
    "hatch.linewidth": 1.5,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "svg.hashsalt": "replog",
}
_DOTS_PER_INCH = 130
_WIDTH = 9.0  # inches
_NOT_SYNCED = "hatched, *: not on the disk when it is confirmed"


@attrs.frozen
class Bar:
    """One system in a bar chart."""

    candidate: Candidate
    value: float
    told: str
    more: float = 0.0  # on top of it, in a lighter colour
    mark: float | None = None  # a tick beyond it


def draw(results: Results, directory: Path) -> list[str]:
    """Draws those charts of which there are figures: DIRECTORY/peers-NAME.png and .svg. Returns their names."""
    directory.mkdir(parents=True, exist_ok=True)
    found = []
    with mpl.rc_context(dict(_STYLE)):
        for name, make in _CHARTS.items():
            if figure := make(results):
                FigureCanvasSVG(figure).print_svg(directory / f"peers-{name}.svg", metadata={"Date": None})
                figure.set_dpi(_DOTS_PER_INCH)
                FigureCanvasAgg(figure).print_png(directory / f"peers-{name}.png", metadata={"Software": None})
                found.append(name)
    return found


def _throughput(results: Results) -> Figure | None:
    """1000 in flight: a panel for each size."""
    panels = []
    for entry_bytes in (100, 1024, 64 * 1024):
        bars = _rates(results, Task("append", entry_bytes, 1_000), is_replicated=True)
        panels += [(f"{size(entry_bytes)} each", bars)] if bars else []
    title = "Entries confirmed per second, three nodes, 1 000 in flight"
    return _bars(title, panels, results, is_sorted=True) if panels else None


def _alone(results: Results) -> Figure | None:
    """1 KiB in one node: a panel for each number of entries in a call."""
    panels = []
    for calls in (1, 100, 1_000):
        bars = _rates(results, Task("append", 1024, 1, calls), is_replicated=False)
        panels += [("one per call" if calls == 1 else f"{grouped(calls)} per call", bars)] if bars else []
    title = "One node as a write-ahead log: entries of 1 KiB per second, each call synced"
    return _bars(title, panels, results, is_sorted=True) if panels else None


def _rates(results: Results, task: Task, *, is_replicated: bool) -> list[Bar]:
    ours = results.figures(REFERENCE[is_replicated], task).get("entries_per_s")
    found = []
    for each in results.measured(is_replicated=is_replicated):
        if rate := results.figures(each.name, task).get("entries_per_s"):
            share = f"  (1/{ours / rate:.2g})" if ours and ours > rate * 1.05 else ""
            found.append(Bar(each, rate, f"{grouped(rate)}{share}"))
    return found


def _latency(results: Results) -> Figure | None:
    """One in flight: p50 as a bar, p99 as a tick."""
    panels = []
    for entry_bytes in (100, 1024):
        bars = []
        for each in results.measured(is_replicated=True):
            if figures := results.figures(each.name, Task("append", entry_bytes, 1)):
                told = f"{micros(figures['p50_us'])}, p99 {micros(figures['p99_us'])}"
                bars.append(Bar(each, figures["p50_us"], told, mark=figures["p99_us"]))
        panels += [(f"{size(entry_bytes)} each", bars)] if bars else []
    if not panels:
        return None
    title = "One entry in flight, three nodes: from sending until it is confirmed, p50 (bar) and p99 (tick)"
    return _bars(title, panels, results, is_sorted=True, is_smaller_better=True, line=results.raw_p50_us())


def _cpu(results: Results) -> Figure | None:
    """1000 in flight: the client's and the servers' on top of each other."""
    panels = []
    for entry_bytes in (100, 1024):
        bars = []
        for each in results.measured(is_replicated=True):
            if figures := results.figures(each.name, Task("append", entry_bytes, 1_000)):
                client, server = figures["client_cpu_us"], figures["server_cpu_us"]
                bars.append(Bar(each, server, f"{cpu(server)} + {cpu(client)}", more=client))
        panels += [(f"{size(entry_bytes)} each", bars)] if bars else []
    title = "CPU time for an entry, 1 000 in flight: all three servers (dark) + client (light)"
    return _bars(title, panels, results, is_sorted=True, is_smaller_better=True) if panels else None


def _other(results: Results) -> Figure | None:
    """Reading, following, taking over, restarting: a panel each."""
    kinds: list[tuple[str, str, str, Callable[[float], str]]] = [
        ("scan", "entries_per_s", "entries of {} read per second", grouped),
        ("tail", "p50_us", "append until a follower has it, {}, p50", micros),
        ("take-over", "takeover_s", "leader killed until an entry is confirmed", seconds),
        ("restart", "restart_s", "all killed until an entry is confirmed", seconds),
    ]
    panels = []
    for case, figure, words, tell in kinds:
        for task in results.tasks(case)[-1:]:  # of scans the larger entries
            values = [
                (each, value)
                for each in results.measured(is_replicated=True)
                if (value := results.figures(each.name, task).get(figure)) is not None
            ]
            bars = [Bar(each, value, tell(value)) for each, value in values]
            panels += [(words.format(size(task.entry_bytes)), bars)] if bars else []
    return _bars("Reading, taking over, restarting: three nodes", panels, results) if panels else None


def _bars(
    title: str,
    panels: Sequence[tuple[str, Sequence[Bar]]],
    results: Results,
    *,
    is_sorted: bool = False,
    is_smaller_better: bool = False,
    line: float | None = None,
) -> Figure:
    """Panels below each other, with an axis from zero each: bars are only honest so."""
    heights = [len(bars) + 1.6 for _, bars in panels]
    figure = Figure(figsize=(_WIDTH, 0.27 * sum(heights) + 0.9), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (words, bars) in zip(all_axes, panels, strict=True):
        ordered = sorted(bars, key=lambda bar: bar.value + bar.more, reverse=not is_smaller_better)
        _panel(axes, words, ordered if is_sorted else bars, line)
    _foot(figure, results, [bar.candidate for _, bars in panels for bar in bars])
    return figure


def _panel(axes: Axes, words: str, bars: Sequence[Bar], line: float | None) -> None:
    for place, bar in enumerate(bars):
        colour = _OURS if bar.candidate.name in REFERENCE.values() else _THEIRS
        hatch = "" if bar.candidate.promise.is_synced else _HATCH
        axes.barh(place, bar.value, color=colour, hatch=hatch, height=0.72)
        axes.barh(place, bar.more, left=bar.value, color=colour, alpha=0.45, hatch=hatch, height=0.72)
        if bar.mark is not None:
            axes.plot([bar.mark, bar.mark], [place - 0.36, place + 0.36], color=_INK, linewidth=1.5)
            axes.plot([bar.value, bar.mark], [place, place], color=_INK, linewidth=0.8)
        end = max(bar.value + bar.more, bar.mark or 0.0)
        axes.annotate(bar.told, (end, place), (5, 0), textcoords="offset points", va="center", fontsize=9)
    longest = max(max(bar.value + bar.more, bar.mark or 0.0) for bar in bars)
    axes.set_xlim(0, longest * 1.3)  # room for what is told at the end of the longest
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_yticks(range(len(bars)), [_name(bar.candidate) for bar in bars])
    for label, bar in zip(axes.get_yticklabels(), bars, strict=True):
        label.set_fontweight("bold" if bar.candidate.name in REFERENCE.values() else "normal")
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}".replace(",", " ")))
    if longest < 10:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="x")
    axes.set_title(words)
    if line is not None:
        axes.axvline(line, color=_RAW, linewidth=1.2, linestyle="--", label=f"fdatasync of 4 KiB alone: {micros(line)}")
        axes.legend(loc="lower right", fontsize=8, frameon=False)


def _in_flight(results: Results) -> Figure | None:
    """Curves, a panel for each size. Both axes grow by factors: the systems differ by a hundred times."""
    sizes = [each for each in (100, 1024, 64 * 1024) if _curves(results, each)]
    if not sizes:
        return None
    figure = Figure(figsize=(_WIDTH, 4.6), layout="constrained")
    figure.suptitle("Entries confirmed per second over entries in flight (logarithmic)", x=0.01, ha="left", fontsize=13)
    candidates = results.measured(is_replicated=True)
    looks = _looks(candidates)
    all_axes = figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
    handles = {}
    for axes, entry_bytes in zip(all_axes, sizes, strict=True):
        for name, points in _curves(results, entry_bytes).items():
            (handles[name],) = axes.loglog(*zip(*points, strict=True), **looks[name])
        axes.set_title(f"{size(entry_bytes)} each")
        axes.set_xlabel("entries in flight")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}".replace(",", " ")))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}".replace(",", " ")))
        axes.grid()
    shown = [each for each in candidates if each.name in handles]
    figure.legend(
        [handles[each.name] for each in shown],
        [_name(each) for each in shown],
        loc="outside right center",
        frameon=False,
    )
    _foot(figure, results, shown)
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
            found[each.name] = {"color": _OURS, "marker": "o", "linewidth": 3.0, "markersize": 7, "zorder": 5}
            continue
        colour, marker = next(others)
        style = "-" if each.promise.is_synced else ":"
        found[each.name] = {"color": colour, "marker": marker, "linewidth": 1.3, "markersize": 5, "linestyle": style}
    return found


def _foot(figure: Figure, results: Results, shown: Sequence[Candidate]) -> None:
    """Where it was measured, and what the marks mean."""
    words = f"{results.machine.processors} processors for everything, loopback, medians of {results.rounds} rounds."
    if not all(each.promise.is_synced for each in shown):
        words += f" {_NOT_SYNCED.capitalize()}."
    figure.supxlabel(words, x=0.01, ha="left", fontsize=8, color="#555555")


def _name(candidate: Candidate) -> str:
    return candidate.title + ("" if candidate.promise.is_synced else " *")


_CHARTS: Mapping[str, Callable[[Results], Figure | None]] = {
    "throughput": _throughput,
    "in-flight": _in_flight,
    "latency": _latency,
    "cpu": _cpu,
    "other": _other,
    "alone": _alone,
}
