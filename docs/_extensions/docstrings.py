"""Sphinx extension: the reference shows what is public, as docstrings have it.

- A name is public if it does not begin with an underscore. Objects that verbs give show no way to make one by hand.
- Indented lines of a docstring are code.
- Names that a module imports when they are first used are there, like the others.
- Each option of an options class has an anchor, its default and its line of explanation.
"""

import enum
import importlib
import re
from typing import Any

import attrs
from sphinx.application import Sphinx

MODULES = [
    importlib.import_module(name)
    for name in (
        "replog",
        "replog.abc",
        "replog.aio",
        "replog.blocking",
        "replog.metrics",
        "replog.results",
        "replog.spark",
        "replog.testing",
    )
]

# Classes whose objects verbs give: programs do not make them. Nor do they make parts of results, which have no short name.
GIVEN = {
    *("Admin", "Client", "Cursor", "Cursors", "DigestType", "Jobs", "LedgerReader", "LedgerWriter", "LogReader"),
    *("Entry", "EntryBatch", "LedgerMetadata", "LogMetadata", "LogWriter", "Record", "RecordBatch", "RunningMachine"),
    *("RemoteBookie", "ServedBookie", *importlib.import_module("replog.results").__all__),
}

# What reStructuredText would take for markup, if an even number of backticks follows in the line.
OUTSIDE_OF_CODE = re.compile(r"(?:[*|]|_(?=\W|$))(?=(?:[^`]*`[^`]*`)*[^`]*$)")

# How the source of an `__init__` made by attrs names a default.
WRITTEN_BY_ATTRS = re.compile(r"attr_dict\['(\w+)'\]\.default")

# What Python says of each field of a named tuple.
NO_DOCSTRING = re.compile(r"Alias for field number \d+")


def show_signature(
    app: Sphinx, kind: str, name: str, found: object, options: Any, arguments: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Sphinx's event `autodoc-process-signature`."""
    if kind == "class" and (name.rpartition(".")[2] in GIVEN or name.count(".") > 2):
        return "", None
    if arguments:
        arguments = WRITTEN_BY_ATTRS.sub(lambda default: shown_default(found, default[1]), arguments)
        arguments = arguments.replace(" = NOTHING", " = ...")
    return arguments, returns


def shown_default(of: Any, field: str) -> str:
    """The default of this field of an attrs class: as written, or `...` if a function makes it."""
    default = getattr(attrs.fields(of), field).default
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    return "..." if hasattr(default, "factory") else repr(default)


def shown_docstring(app: Sphinx, kind: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Sphinx's event `autodoc-process-docstring`: puts a directive before code. Nothing but backticks is markup."""
    marked: list[str] = []
    for line in lines:
        begins = line.startswith("    ") and (not marked or not marked[-1].strip())
        before = next((each for each in reversed(marked) if each.strip()), "")
        if begins and not before.startswith((" ", ".. ", "- ")):
            marked += [".. code-block:: python", ""]
        marked.append(line if line.startswith("    ") else marked_up(line))
    lines[:] = [line for line in marked if not NO_DOCSTRING.fullmatch(line)]
    if kind == "class" and attrs.has(found):
        for field in attrs.fields(found):
            if "doc" in field.metadata:
                lines += ["", f".. py:attribute:: {field.name}", f"   :value: {field.default!r}", ""]
                lines += [f"   {marked_up(field.metadata['doc'])}", ""]


def marked_up(line: str) -> str:
    """The line, with a backslash before what is not meant as markup."""
    return OUTSIDE_OF_CODE.sub(r"\\\g<0>", line)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    for module in MODULES:
        for name in module.__all__:
            vars(module).setdefault(name, getattr(module, name))
    app.connect("autodoc-process-signature", show_signature)
    app.connect("autodoc-process-docstring", shown_docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
