"""Sphinx extension: the reference shows what is public, as docstrings have it.

- Of clients, writers and readers it shows the members that `reference/api.md` lists, and no way to make one by hand.
- Indented lines of a docstring are code.
- Names that a module imports when they are first used are there, like the others.
- The names of `replog` come in the order in which `reference/api.md` has them.
"""

import importlib
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

API_PAGE = (Path(__file__).parents[1] / "reference" / "api.md").read_text(encoding="utf-8")

# A name by which the page calls a method or an attribute: `await append(data)`, `last_add_confirmed`.
LISTED = set(re.findall(r"`(?:await |async |with |for )*(?:\w+\.)*(\w+)[`(]", API_PAGE))

# A heading without arguments: "### `replog.LogWriter`". Such objects are given, not made.
GIVEN = set(re.findall(r"^#+ `replog\.([A-Z]\w+)`$", API_PAGE, re.MULTILINE))
MODULES = [
    importlib.import_module(name)
    for name in (
        "replog",
        "replog.abc",
        "replog.aio",
        "replog.blocking",
        "replog.metrics",
        "replog.spark",
        "replog.testing",
    )
]


# What reStructuredText would take for markup, if an even number of backticks follows in the line.
OUTSIDE_OF_CODE = re.compile(r"(?:[*|]|_(?=\W|$))(?=(?:[^`]*`[^`]*`)*[^`]*$)")


def place_of(name: str) -> int:
    """Where the page tells of a name of `replog`."""
    found = re.search(rf"`(?:await )?replog\.{name}[`(\[]", API_PAGE)
    return found.start() if found else len(API_PAGE)


def skip_inner_members(app: Sphinx, kind: str, name: str, member: object, skip: bool, options: Any) -> bool | None:
    """Sphinx's event `autodoc-skip-member`, which has no class: inner names of one are inner names of all of them."""
    of_class = getattr(member, "__qualname__", "") or getattr(getattr(member, "fget", None), "__qualname__", "")
    return True if of_class.partition(".")[0] in GIVEN and "." in of_class and name not in LISTED else None


def show_signature(
    app: Sphinx, kind: str, name: str, found: object, options: Any, arguments: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Sphinx's event `autodoc-process-signature`."""
    if kind == "class" and name.rpartition(".")[2] in GIVEN:
        return "", None
    return (arguments.replace(" = NOTHING", " = ...") if arguments else arguments), returns


def mark_code(app: Sphinx, kind: str, name: str, found: object, options: Any, lines: list[str]) -> None:
    """Sphinx's event `autodoc-process-docstring`: puts a directive before code. Nothing but backticks is markup."""
    marked: list[str] = []
    for line in lines:
        begins = line.startswith("    ") and (not marked or not marked[-1].strip())
        before = next((each for each in reversed(marked) if each.strip()), "")
        if begins and not before.startswith((" ", ".. ", "- ")):
            marked += [".. code-block:: python", ""]
        marked.append(line if line.startswith("    ") else OUTSIDE_OF_CODE.sub(r"\\\g<0>", line))
    lines[:] = marked


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    for module in MODULES:
        for name in module.__all__:
            vars(module).setdefault(name, getattr(module, name))
    MODULES[0].__all__ = sorted(MODULES[0].__all__, key=place_of)  # type: ignore[attr-defined]
    app.connect("autodoc-skip-member", skip_inner_members)
    app.connect("autodoc-process-signature", show_signature)
    app.connect("autodoc-process-docstring", mark_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
