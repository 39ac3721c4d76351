"""What is in the wheel and the sdist, and how a package index shows them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt
from packaging.metadata import Metadata

from hatch_build import description_of
from replog import aio, blocking
from tests.packaging.conftest import Built, Installed
from tests.packaging.sites import PROJECT, ROOT
from tests.test_exports import public

SOURCES = ROOT / "src"


def metadata_of(wheel: Path) -> Metadata:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Metadata.from_email(archive.read(name), validate=True)


def test_wheel_has_the_sources_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        packaged = {each for each in archive.namelist() if ".dist-info/" not in each}
        beside = {Path(each).name for each in archive.namelist() if ".dist-info/" in each}
    sources = {each.relative_to(SOURCES).as_posix() for each in SOURCES.rglob("*") if each.is_file()}
    assert packaged == {each for each in sources if "__pycache__" not in each and ".egg-info" not in each}
    assert packaged >= {"replog/py.typed", "replog/aio/__init__.pyi", "replog/blocking/__init__.pyi"}
    assert beside == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "LICENSE"}


@pytest.mark.parametrize("face", [aio, blocking], ids=lambda face: face.__name__)
def test_wheel_names_the_types_of_each_verb(face: ModuleType, built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        stub = ast.parse(archive.read(f"{face.__name__.replace('.', '/')}/__init__.pyi"))
    verbs = {each.name: each for each in stub.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    classes = {each.name: each for each in stub.body if isinstance(each, ast.ClassDef)}
    assert verbs.keys() | classes.keys() >= set(face.__all__)
    for name in classes.keys() & set(face.__all__):
        typed = {each.name for each in classes[name].body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert public(getattr(face, name)) - typed == set(), name


# Lines that mypy is to find fault with say so: it also reports those that it finds none with.
PROGRAM = """
import replog.aio
import replog.blocking
from replog import Position, Record

def by_threads() -> list[Record]:
    with replog.blocking.embed("wal") as client, client.write_log("orders") as log:
        position: Position = log.append(b"one", key=b"k")
        log.append("text")  # type: ignore[arg-type]
        log.append(b"two", tag=1)  # type: ignore[call-arg]
        client.admin.bookies()[0].statistics().numbers["added_entries"] + 1
        with client.read_log("orders", after=position) as reader:
            return list(reader)

async def by_asyncio() -> int:
    async with replog.aio.embed("wal") as client, client.write_log("orders") as log:
        log.append(b"not awaited") + 1  # type: ignore[operator]
        position: Position = await log.append(b"one")
        async with client.read_log("orders", after=position) as reader:
            return [record.data async for record in reader]  # type: ignore[return-value]
"""


def test_programs_are_type_checked_against_the_wheel(installed: Installed, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    python = str(installed.directory / "bin" / "python")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path / "cache")]
    variables = {name: value for name, value in os.environ.items() if name not in ("MYPYPATH", "PYTHONPATH")}
    done = subprocess.run(
        [*mypy, "--python-executable", python, str(program)],
        capture_output=True,
        text=True,
        timeout=300,
        env=variables,
        cwd=tmp_path,
    )
    assert (done.stdout.splitlines()[-1:], done.stderr) == (["Success: no issues found in 1 source file"], ""), (
        done.stdout
    )


def test_sdist_builds_the_same_wheel(built: Built) -> None:
    assert built.wheel_of_sdist.read_bytes() == built.wheel.read_bytes()
    with tarfile.open(built.sdist) as archive:
        places = {name.split("/")[1] for name in archive.getnames()}
    expected = {"src", "CHANGELOG.md", "LICENSE", "README.md", "hatch_build.py", "hatch_stubs.py", "pyproject.toml"}
    assert places == expected | {"PKG-INFO", ".gitignore"}


def test_metadata_is_valid_for_an_index(built: Built) -> None:
    metadata = metadata_of(built.wheel)  # raises if a field is invalid
    assert metadata.description_content_type == "text/markdown"
    assert metadata.license_expression == "Apache-2.0"
    assert str(metadata.requires_python) == PROJECT["requires-python"]
    assert set(metadata.provides_extra or []) == PROJECT["optional-dependencies"].keys()


def test_description_renders_and_its_links_lead_somewhere(built: Built) -> None:
    """An index shows the description alone: what is beside README.md is not there."""
    description = metadata_of(built.wheel).description or ""
    assert description.startswith("# replog")
    assert "\0" not in description
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(description)
    inline = [child for token in tokens for child in token.children or []]
    places = [str(each.attrGet("href") or each.attrGet("src")) for each in inline if each.tag in ("a", "img")]
    assert [each for each in places if not each.startswith(("https://", "http://", "#", "None"))] == []
    html = "".join(each.content for each in [*tokens, *inline] if each.type.startswith("html"))
    assert 'src="docs' not in html
    assert 'href="docs' not in html


README = """A [page](docs/a.md), `[not](a-link.md)`, [`code`](src/a.py) and [far](https://example.org).
![chart](docs/chart.svg)
<picture><source srcset="docs/dark.svg"><img src="docs/light.svg"></picture>
[![badge](https://example.org/b.svg)](LICENSE) <a href="docs/b.md">b</a>

```text
[stays](as-it-is.md)
```
"""


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (
            None,
            [
                "A page, `[not](a-link.md)`, `code` and [far](https://example.org).",
                *("", ""),
                "![badge](https://example.org/b.svg) b",
            ],
        ),
        (
            "https://example.org/replog",
            [
                "A [page](https://example.org/replog/blob/main/docs/a.md), `[not](a-link.md)`, "
                "[`code`](https://example.org/replog/blob/main/src/a.py) and [far](https://example.org).",
                "![chart](https://example.org/replog/raw/main/docs/chart.svg)",
                '<picture><source srcset="https://example.org/replog/raw/main/docs/dark.svg">'
                '<img src="https://example.org/replog/raw/main/docs/light.svg"></picture>',
                "[![badge](https://example.org/b.svg)](https://example.org/replog/blob/main/LICENSE) "
                '<a href="https://example.org/replog/blob/main/docs/b.md">b</a>',
            ],
        ),
    ],
    ids=["without a source", "with a source"],
)
def test_relative_links_become_absolute_or_text(source: str | None, lines: list[str]) -> None:
    assert description_of(README, source).splitlines() == [*lines, "", "```text", "[stays](as-it-is.md)", "```"]
