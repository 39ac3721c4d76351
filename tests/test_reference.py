"""The reference that Sphinx makes of docstrings: every public name has an anchor, and an entry in `objects.inv`.

Other projects' documentation links to ours by that file.
"""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

import attrs
import pytest

import replog
from replog import errors
from tests.reference import documented, documented_attributes
from tests.test_exports import LOOKED_AT, public

pytestmark = pytest.mark.long(is_sampled=False)  # `make check` runs it: it takes half a minute of a processor
DOCS = Path(__file__).parents[1] / "docs"
FACES = ("aio", "blocking")
PAGES = DOCS / "reference" / "python"
MODULES = (
    "replog",
    "replog.abc",
    "replog.aio",
    "replog.blocking",
    "replog.metrics",
    "replog.results",
    "replog.spark",
    "replog.testing",
)


def inventory_of(directory: Path) -> dict[str, str]:
    """Each Python name in `objects.inv`, with the place it leads to. Four lines of text are followed by compressed ones."""
    data = (directory / "objects.inv").read_bytes().split(b"\n", 4)
    assert data[0] == b"# Sphinx inventory version 2"
    found = {}
    for line in zlib.decompress(data[4]).decode().splitlines():
        name, kind, _priority, place, _title = line.split(" ", 4)
        if kind.startswith("py:"):
            found[name] = place.replace("$", name)
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of names and docstrings alone, which takes a few seconds; `make docs` builds all of them."""
    directory = tmp_path_factory.mktemp("reference")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-D", "suppress_warnings=myst.xref_missing"]
    done = subprocess.run(
        [*command, "-c", str(DOCS), str(PAGES), str(directory)], timeout=300, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return directory


def test_every_public_name_has_an_entry_and_an_anchor(built: Path) -> None:
    names = {f"{module}.{name}" for module in MODULES for name in importlib.import_module(module).__all__}
    names |= {
        f"replog.errors.{name}" for name, _ in inspect.getmembers(errors, inspect.isclass) if name.endswith("Error")
    }
    inventory = inventory_of(built)
    assert names - inventory.keys() == set(), "add them to a page in docs/reference/python"
    anchors = Counter(
        anchor
        for page in built.glob("*.html")
        for anchor in re.findall(r'id="([^"]+)"', page.read_text(encoding="utf-8"))
    )
    assert {name: anchors[name] for name in names if anchors[name] != 1} == {}


@pytest.mark.parametrize("cls", LOOKED_AT, ids=lambda cls: cls.__name__)
def test_every_public_member_has_an_entry(cls: type, built: Path) -> None:
    name = next(name for name in documented() if name.split(".")[1] not in FACES and name.endswith(f".{cls.__name__}"))
    members = {f"{name}.{each}" for each in public(cls) | documented_attributes(cls)}
    assert members - inventory_of(built).keys() == set()


def test_verbs_have_entries_and_inner_methods_have_none(built: Path) -> None:
    inventory = inventory_of(built)
    for face in ("replog", "replog.aio", "replog.blocking"):
        assert {f"{face}.Client.write_log", f"{face}.LogWriter.append", f"{face}.LogReader.batches"} <= inventory.keys()
        assert f"{face}.LedgerWriter.abandon" not in inventory


@pytest.mark.parametrize("name", [name for name in replog.__all__ if attrs.has(getattr(replog, name))])
def test_every_field_has_an_entry(name: str, built: Path) -> None:
    """Options come with their defaults and what they mean."""
    fields = {f"replog.{name}.{each.name}" for each in attrs.fields(getattr(replog, name)) if each.name[0] != "_"}
    assert fields - inventory_of(built).keys() == set()


def test_pages_show_nothing_of_the_building_machine(built: Path) -> None:
    """A default like `os.environ` was once printed as it was there."""
    text = "".join(page.read_text(encoding="utf-8") for page in built.glob("*.html"))
    text = re.sub(r"<[^>]*>", "", text)
    assert "environ({" not in text
    assert "attr_dict" not in text  # of attrs, whose methods have a source of their own
    assert str(DOCS.parent) not in text
