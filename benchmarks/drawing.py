"""How charts of this project look and are written: one version of matplotlib makes the same files of the same figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

OURS, THEIRS, DARK, RAW = "#0072B2", "#B8B8B8", "#707070", "#D55E00"  # of Okabe and Ito: they differ for every eye
WIDTH = 9.0  # inches
TITLE: Mapping[str, object] = {"x": 0.01, "ha": "left", "fontsize": 12, "fontweight": "bold"}
_DOTS_PER_INCH = 130
# White becomes nearly black, and colours keep their hue, where the reader's pages are dark.
DARK_PAGES = "@media (prefers-color-scheme: dark) {svg {filter: invert(0.9) hue-rotate(180deg)}}"
_INK, _PALE = "#222222", "#E4E4E4"
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


@contextmanager
def in_our_style() -> Iterator[None]:
    """Draws so, while the context is open."""
    with mpl.rc_context(dict(_STYLE)):
        yield


def save(figure: Figure, path: Path) -> None:
    """Writes a figure beside this path, as .svg and .png; without a date, so that it changes only with what it shows."""
    svg = path.with_suffix(".svg")
    FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})
    svg.write_text(svg.read_text("utf-8").replace("</style>", f" {DARK_PAGES}</style>", 1), "utf-8")
    figure.set_dpi(_DOTS_PER_INCH)
    FigureCanvasAgg(figure).print_png(path.with_suffix(".png"), metadata={"Software": None})


def stacked(title: str, rows: Sequence[int]) -> tuple[Figure, Sequence[Axes]]:
    """A figure of panels below each other, each as high as its rows want it."""
    heights = [each + 1.6 for each in rows]
    figure = Figure(figsize=(WIDTH, 0.27 * sum(heights) + 0.9), layout="constrained")
    figure.suptitle(title, **TITLE)
    return figure, list(figure.subplots(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0])


def foot(figure: Figure, words: str) -> None:
    """What is said below a figure."""
    figure.supxlabel(words, x=0.01, ha="left", fontsize=8, color="#555555")


def write_behind(axes: Axes, words: str, end: float, place: int) -> None:
    """Words behind the end of a row."""
    axes.annotate(words, (end, place), (6, 0), textcoords="offset points", va="center", fontsize=9)


def latencies(axes: Axes, place: int, figures: Mapping[str, float], colour: str, face: str) -> None:
    """A row of a panel of latencies: p50 as a dot, p99 and p99.9 as ticks, as far as there are figures."""
    found = [figures[name] for name in ("p50_us", "p99_us", "p999_us") if name in figures]
    p50_us, later = found[0], found[1:]
    if "p99_us" in figures:
        axes.plot(
            [p50_us, figures["p99_us"]], [place, place], color=colour, linewidth=4, alpha=0.45, solid_capstyle="butt"
        )
    axes.plot([p50_us, *later], [place] * len(found), color=colour, linewidth=1.2, alpha=0.6)
    axes.plot(later, [place] * len(later), color=colour, marker="|", markersize=10, linestyle="")
    axes.plot([p50_us], [place], color=colour, marker="o", markersize=8, markerfacecolor=face)


def labels(svg: str) -> list[str]:
    """All texts of a figure, in their order. They say whether it shows certain figures: coordinates differ by a hair between
    versions of matplotlib."""
    return [line.strip()[5:-4] for line in svg.splitlines() if line.strip().startswith("<!-- ")]
