"""Draws the layers of import-linter's contract in pyproject.toml: `python -m tests.layers` writes them.

The picture is `docs/figures/layers.svg`. The table of rooms is in `docs/concepts/architecture.md`, between a pair of comments;
what a room is for is the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "figures" / "layers.svg"
PAGE = ROOT / "docs" / "concepts" / "architecture.md"
DRAWN = re.compile(r"(?<=<!-- drawn: rooms -->\n).*?(?=<!-- end -->)", re.DOTALL)

_WIDTH, _LEFT, _TOP, _STEP, _HEIGHT = 760, 120, 16, 40, 28
_GAPS = {":": 4, "|": 24}  # between rooms that may import each other, and between rooms that may not


@attrs.frozen
class Layer:
    """Rooms that stand beside each other. `separator` is ":" if they may import each other, else "|"."""

    rooms: tuple[str, ...]
    separator: str


def layers() -> list[Layer]:
    """Those of the contract, the highest one first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (
        each for each in settings["tool"]["importlinter"]["contracts"] if each["name"].startswith("Layers (")
    )
    return [
        Layer(tuple(re.findall(r"\w+", line)), "|" if "|" in line or ":" not in line else ":")
        for line in contract["layers"]
    ]


def purpose_of(room: str) -> str:
    """The first sentence of its docstring."""
    place = ROOT / "src" / "replog" / room
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
    assert docstring, room
    sentence, *_ = re.split(r"(?<=\.)\s", docstring.partition("\n\n")[0].replace("\n", " "))
    return sentence


def table() -> str:
    """A row for each room, the highest layer first."""
    rows = [
        f"| {number} | `{room}` | {purpose_of(room)} |"
        for number, layer in zip(range(len(layers()), 0, -1), layers(), strict=True)
        for room in layer.rooms
    ]
    return "\n".join(["", "| layer | room | what is in it |", "|---|---|---|", *rows, "", ""])


def picture() -> str:
    """An SVG with a row for each layer."""
    found = layers()
    height = _TOP + _STEP * len(found) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        'font-family="system-ui, DejaVu Sans, sans-serif" font-size="14">',
        "<title>The layers of replog: each imports only layers below it</title>",
        "<style>@media (prefers-color-scheme: dark) {svg {filter: invert(0.9) hue-rotate(180deg)}}</style>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<line x1="60" y1="24" x2="60" y2="{height - 20}" stroke="#52606d" stroke-width="2"/>',
        f'<polyline points="54,{height - 32} 60,{height - 20} 66,{height - 32}" fill="none" stroke="#52606d" stroke-width="2"/>',
        f'<g transform="translate(46 {height / 2:g}) rotate(-90)"><text text-anchor="middle" fill="#52606d">imports</text></g>',
    ]
    for row, layer in enumerate(found):
        gap = _GAPS[layer.separator]
        width = (_WIDTH - _LEFT - 16 - gap * (len(layer.rooms) - 1)) / len(layer.rooms)
        y = _TOP + row * _STEP
        for column, room in enumerate(layer.rooms):
            x = _LEFT + column * (width + gap)
            parts.append(
                f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{_HEIGHT}" rx="4" fill="#e3f2f1" stroke="#0b7a75"/>'
                f'<text x="{x + width / 2:g}" y="{y + 19}" text-anchor="middle" fill="#1f2933">{room}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Rewrites both."""
    PICTURE.write_text(picture(), encoding="utf-8")
    PAGE.write_text(DRAWN.sub(lambda _: table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
