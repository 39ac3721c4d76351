"""Documented or red: hooks, errors and options are on a page, and the code marked as runnable runs."""

import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest

import replog
import replog.blocking
import replog.metrics
import replog.testing
from replog import config, errors, hookspecs
from tests import forks, kit, reference
from tests.servers.processes import free_port

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOR_CONTRIBUTORS = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted(ROOT.glob("tests/**/README.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)

# What is written as code: fenced blocks and `spans`.
CODE = "\n".join(re.findall(r"^```.*?^```|`[^`\n]+`", TEXT, re.MULTILINE | re.DOTALL))

# A block below the comment `<!-- run -->` is a whole script.
RUNNABLE = re.compile(r"^<!-- run -->\n+```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

HOOKS = [name for name, _ in inspect.getmembers(hookspecs, inspect.isfunction) if name.startswith("replog_")]
ERRORS = [name for name, _ in inspect.getmembers(errors, inspect.isclass) if name.endswith("Error")]
OPTIONS = [
    f"{name}.{field.name}"
    for name, each in inspect.getmembers(config, attrs.has)
    if each.__module__.startswith(f"{config.__name__}.")
    for field in attrs.fields(each)
]
SCRIPTS = [
    pytest.param(found[1], id=f"{page.name}:{page.read_text(encoding='utf-8').count(chr(10), 0, found.start()) + 1}")
    for page in PAGES
    for found in RUNNABLE.finditer(page.read_text(encoding="utf-8"))
]


def is_documented(name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", CODE) is not None


def test_the_page_on_stability_names_every_public_module() -> None:
    """And only names that exist."""
    page = (ROOT / "docs" / "reference" / "stability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(replog(?:\.\w+)*)`", page))
    public = {
        f"replog.{each.name}"
        for each in pkgutil.iter_modules(replog.__path__)
        if hasattr(importlib.import_module(f"replog.{each.name}"), "__all__")
    }
    assert {"replog", "replog.errors", "replog.abc", "replog.results", "replog.testing"} <= named
    assert {name for name in named if importlib.util.find_spec(name) is None} == set()
    assert named <= public | {"replog", "replog.hookspecs"}


def test_there_is_something_to_document() -> None:
    assert HOOKS
    assert ERRORS
    assert OPTIONS
    assert SCRIPTS, "no page has a ```python block below `<!-- run -->`"


def test_hooks_are_documented() -> None:
    assert [name for name in HOOKS if not is_documented(name)] == []


def test_errors_are_documented() -> None:
    assert [name for name in ERRORS if not is_documented(name)] == []


def test_options_are_documented() -> None:
    assert [name for name in OPTIONS if not is_documented(name.rpartition(".")[2])] == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_code_on_a_page_runs(script: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    done = forks.run([sys.executable, "script.py"], cwd=tmp_path, stderr=subprocess.STDOUT, timeout=120)
    assert done.returncode == 0, done.stdout


async def test_code_on_a_page_runs_as_three_copies(tmp_path: Path) -> None:
    """The README's fail-over: the copy that leads is killed, and another one goes on from what was confirmed."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(
        r"^<!-- run three copies as numbers.py -->\n+```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    assert found is not None
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    here = iter(addresses)
    (tmp_path / "numbers.py").write_text(
        re.sub(r'(?<=")localhost:\d+', lambda _: next(here), found[1]), encoding="utf-8"
    )
    outputs = [tmp_path / f"output-{each}" for each in range(3)]
    with ExitStack() as stack:
        copies = []
        for number, output in enumerate(outputs):
            command = [sys.executable, "numbers.py", str(number)]
            file = stack.enter_context(output.open("w"))
            copies.append(forks.Forked(command, cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT))
            stack.callback(copies[-1].wait)
            stack.callback(copies[-1].kill)
        first = await _leader(outputs)
        assert first.count == 0
        metastore = f"quorum:{','.join(addresses)}"
        async with replog.connect(metastore) as client, client.read_log("numbers", follow=True) as reader:
            assert await anext(aiter(reader))
        copies[first.copy].kill()
        second = await _leader([each for each in outputs if each != outputs[first.copy]])
        assert second.count > 0


@attrs.frozen
class _Leader:
    """A copy that leads, and how many entries there were before."""

    copy: int
    count: int


async def _leader(outputs: list[Path]) -> _Leader:
    def leading() -> list[tuple[Path, re.Match[str]]]:
        said = [(each, re.search(r"leads, and goes on from (\d+)\n", each.read_text())) for each in outputs]
        return [(each, match) for each, match in said if match is not None]

    await kit.until(lambda: bool(leading()), within_s=90)
    [(output, match)] = leading()
    return _Leader(int(output.name.rpartition("-")[2]), int(match[1]))


LINK = re.compile(r"\]\((?!\w+:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)]*))?\)")


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """Of its headings, as GitHub and Sphinx make them."""
    headings = re.findall(r"^#+ +(.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_files_lead_somewhere() -> None:
    """Also where Sphinx doesn't look: in README files and CONTRIBUTING.md."""
    dead = []
    for page in [*PAGES, *FOR_CONTRIBUTORS]:
        for link in LINK.finditer(without_code(page)):
            target = page.parent / link["path"] if link["path"] else page
            if not target.exists() or (link["anchor"] and link["anchor"] not in anchors_of(target)):
                dead.append(f"{page.relative_to(ROOT)}: {link[0]}")
    assert dead == []


CELL_MAX = 200


def cells_of(page: Path) -> Iterator[tuple[int, str]]:
    """Each table cell with the number of its line."""
    is_code = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        is_code ^= line.startswith("```")
        if line.startswith("|") and not is_code:
            for cell in re.split(r"(?<!\\)\|", line.strip("| ")):
                yield number, cell.strip()


def test_table_cells_are_short() -> None:
    """A long cell is a text: it belongs above or below the table."""
    pages = {page.relative_to(ROOT).as_posix(): page for page in [*PAGES, *FOR_CONTRIBUTORS]}
    long_cells = [
        f"{name}:{number} has {len(cell)} characters: {cell[:50]}"
        for name, page in pages.items()
        for number, cell in cells_of(page)
        if len(cell) > CELL_MAX
    ]
    assert not long_cells, "\n".join(long_cells)


# A test that a page names, as `failures/test_x.py::test_y`: below `tests/`.
NAMED_TESTS = sorted(set(re.findall(r"`(?:tests/)?([\w/]+\.py)::(\w+)`", TEXT)))


def test_pages_name_tests() -> None:
    assert NAMED_TESTS


def has_test(path: Path, name: str) -> bool:
    return path.is_file() and bool(
        re.search(rf"^(?:async )?def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_tests_named_on_pages_exist() -> None:
    missing = [f"{path}::{name}" for path, name in NAMED_TESTS if not has_test(ROOT / "tests" / path, name)]
    assert missing == []


def part_of(page: str) -> dict[str, str]:
    """What the page shows of each file below `plugins/`, in its order."""
    shown: dict[str, list[str]] = {}
    for name, part in re.findall(r"^<!-- part of (\S+) -->\n+```\w+\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        shown.setdefault(name, []).append(part)
    return {name: "\n".join(parts) for name, parts in shown.items()}


def without_empty_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize(
    "name",
    ["src/replog_sqlite/__init__.py", "src/replog_sqlite/database.py", "pyproject.toml", "tests/test_conformance.py"],
)
def test_the_tutorial_shows_the_plugin_as_it_is_and_all_of_it(name: str) -> None:
    """Empty lines apart, of which there are fewer between the parts."""
    path = f"replog-sqlite/{name}"
    shown = part_of((ROOT / "docs" / "how-to" / "plugins.md").read_text(encoding="utf-8"))[path]
    assert without_empty_lines(shown) == without_empty_lines((ROOT / "plugins" / path).read_text(encoding="utf-8"))


# -- docs/reference/python ----------------------------------------------------------------------------------------------

NOUNS = sorted(page for page in reference.PAGES.glob("*.md") if page.stem != "index")


@pytest.mark.parametrize("page", NOUNS, ids=lambda page: page.stem)
def test_a_page_of_the_reference_begins_with_sentences_and_an_example(page: Path) -> None:
    heading, words, *_ = page.read_text(encoding="utf-8").split("\n\n")
    assert heading.startswith("# ")
    assert 2 <= len(re.findall(r"\.(?=\s|$)", words)) <= 4, words
    assert "<!-- run -->" in page.read_text(encoding="utf-8").partition(words)[2].partition("```{eval-rst}")[0]


def test_pages_of_the_reference_have_no_table_by_hand() -> None:
    """What a name means is written in its docstring, and nowhere else."""
    assert [page.stem for page in NOUNS if any(cells_of(page))] == []


# Trio's own way to tell that a task has started: `nursery.start` passes it, callers never do.
PASSED_BY_TRIO = {"task_status"}


def real_parameters(target: object) -> list[tuple[str, str, object]]:
    assert callable(target)
    fields: dict[str, Any] = attrs.fields_dict(target) if inspect.isclass(target) and attrs.has(target) else {}
    made = {name: field.default.factory() for name, field in fields.items() if hasattr(field.default, "factory")}
    kinds: dict[object, str] = {
        inspect.Parameter.KEYWORD_ONLY: "keyword",
        inspect.Parameter.POSITIONAL_ONLY: "positional",
        inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
    }
    return [
        (each.name, kinds[each.kind], made.get(each.name, each.default))
        for each in inspect.signature(target).parameters.values()
        if each.name != "self" and each.name not in PASSED_BY_TRIO and each.kind in kinds
    ]


@pytest.mark.parametrize("name", ["Client", "LogWriter", "LedgerWriter", "LogReader", "LedgerReader"])
def test_blocking_methods_have_the_arguments_of_the_async_ones(name: str) -> None:
    """But for `timeout_s`, where a caller without trio has no other way to stop waiting."""
    wrong = []
    blocking, asynchronous = getattr(replog.blocking, name), getattr(replog, name)
    for method, function in inspect.getmembers(blocking, inspect.isfunction):
        if method.startswith("_") or not hasattr(asynchronous, method):
            continue
        here = [each for each in real_parameters(function) if each[0] != "timeout_s"]
        if here != real_parameters(getattr(asynchronous, method)):
            wrong.append(f"{name}.{method}{inspect.signature(function)}")
    assert wrong == []


def test_figures_are_dark_on_dark_pages() -> None:
    figures = sorted((ROOT / "docs" / "figures").rglob("*.svg"))
    bright = [each.name for each in figures if "prefers-color-scheme: dark" not in each.read_text(encoding="utf-8")]
    assert (bool(figures), bright) == (True, [])
