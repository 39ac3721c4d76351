"""What docs/reference/python documents: from the directives on its pages, without building them.

A name is public if one of these pages has it. `tests/test_reference.py` builds them, and looks at what comes out.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

from sphinx.pycode import ModuleAnalyzer

PAGES = Path(__file__).parents[1] / "docs" / "reference" / "python"
_DIRECTIVE = re.compile(r"^\.\. (auto\w+|py:exception):: (\S+)$", re.MULTILINE)


def directives() -> list[tuple[str, str, str]]:
    """Page, directive and name of each."""
    return [
        (page.stem, directive, name)
        for page in sorted(PAGES.glob("*.md"))
        for directive, name in _DIRECTIVE.findall(page.read_text(encoding="utf-8"))
    ]


@cache
def documented() -> dict[str, set[str]]:
    """The pages of each public name: `{"replog.embed": {"contexts"}}`. A module stands for all that it exports."""
    found: dict[str, set[str]] = {}
    for page, directive, name in directives():
        names = getattr(importlib.import_module(name), "__all__", ()) if directive == "automodule" else None
        for each in [name] if names is None else [f"{name}.{each}" for each in names]:
            found.setdefault(each, set()).add(page)
    return found


def documented_attributes(cls: type) -> set[str]:
    """The attributes that the class, or one of its bases, sets in `__init__` and explains by a comment `#:`."""
    return {
        name
        for each in cls.__mro__
        if each.__module__.startswith("replog.")
        for owner, name in ModuleAnalyzer.for_module(each.__module__).find_attr_docs()
        if owner == each.__qualname__
    }
