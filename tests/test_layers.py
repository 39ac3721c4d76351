"""The picture of the layers and the table of rooms say what import-linter's contract says."""

from __future__ import annotations

import re

from tests.layers import DRAWN, PAGE, PICTURE, ROOT, layers, picture, table


def test_the_picture_is_that_of_the_contract() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), "run: python -m tests.layers"


def test_the_table_of_rooms_is_that_of_the_contract() -> None:
    (drawn,) = DRAWN.findall(PAGE.read_text(encoding="utf-8"))
    assert drawn == table(), "run: python -m tests.layers"


def test_the_contract_names_each_room_once() -> None:
    rooms = [room for layer in layers() for room in layer.rooms]
    source = ROOT / "src" / "replog"
    found = {each.stem for each in source.iterdir() if each.suffix == ".py" or (each / "__init__.py").exists()}
    assert sorted(rooms) == sorted(found - {"__init__", "__main__"})


def test_the_table_for_contributors_keeps_the_order_of_layers() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.split("\n## Layers\n")[1].split("\n## ")[0]
    rows = [re.findall(r"`(\w+)`", line.split("|")[2]) for line in section.splitlines() if line.startswith("| ")]
    height = {room: number for number, layer in enumerate(layers()) for room in layer.rooms}
    named = [room for row in rows for room in row if room in height]
    assert sorted(named) == sorted(height)
    heights = [height[room] for room in named]
    assert heights == sorted(heights)
