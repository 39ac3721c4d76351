"""Sphinx extension: shows Mermaid's state diagrams as tables of transitions.

GitHub draws such a block; a page of this documentation would need a script of somebody else's server to do so. Everything that a
diagram says is in its lines `FROM --> TO: why`, so the built page has these as rows.
"""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

TRANSITION = re.compile(r"^\s*(?P<before>\S+) --> (?P<after>[^\s:]+)(?:: (?P<why>.*))?$")


class DrawStateDiagrams(SphinxTransform):
    """Replaces each literal block in the language `mermaid` by a table."""

    default_priority = 400  # before code is highlighted: Pygments doesn't know this language

    def apply(self, **_: Any) -> None:
        for block in list(self.document.findall(nodes.literal_block)):
            if block.get("language") == "mermaid":
                block.replace_self(table_of(block.astext()))


def table_of(diagram: str) -> nodes.table:
    """A table with a row for each transition. Raises ValueError for a line that is none."""
    rows: list[tuple[str, str, str]] = []
    for line in diagram.splitlines()[1:]:
        found = TRANSITION.match(line)
        if not found:
            raise ValueError(f"not a transition of a state diagram: {line!r}")
        before, after = (
            name if found[group] == "[*]" else found[group] for group, name in (("before", "begin"), ("after", "end"))
        )
        rows.append((before, after, found["why"] or ""))
    group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in (25, 25, 50)), cols=3)
    group += nodes.thead("", row_of(("from", "to", "when"), is_code=False))
    group += nodes.tbody("", *(row_of(row, is_code=True) for row in rows))
    return nodes.table("", group, classes=["state-diagram"])


def row_of(cells: tuple[str, str, str], *, is_code: bool) -> nodes.row:
    row = nodes.row()
    for place, cell in enumerate(cells):
        text = nodes.literal(cell, cell) if is_code and place < 2 else nodes.Text(cell)
        row += nodes.entry("", nodes.paragraph("", "", text))
    return row


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_transform(DrawStateDiagrams)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
