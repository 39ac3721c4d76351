"""Documented or red: hooks, errors and options are on a page, and the code marked as runnable runs."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from replog import config, errors, hookspecs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
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
    if each.__module__ == config.__name__
    for field in attrs.fields(each)
]
SCRIPTS = [
    pytest.param(found[1], id=f"{page.name}:{page.read_text(encoding='utf-8').count(chr(10), 0, found.start()) + 1}")
    for page in PAGES
    for found in RUNNABLE.finditer(page.read_text(encoding="utf-8"))
]


def is_documented(name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", CODE) is not None


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
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        timeout=120,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr


# A test that a page names, as `failures/test_x.py::test_y`: below `tests/`.
NAMED_TESTS = sorted(set(re.findall(r"`(?:tests/)?([\w/]+\.py)::(\w+)`", TEXT)))


def test_pages_name_tests() -> None:
    assert NAMED_TESTS


def has_test(path: Path, name: str) -> bool:
    return path.is_file() and bool(
        re.search(rf"^(?:async )?def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_tests_that_pages_name_exist() -> None:
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
    ["src/replog_sqlite/__init__.py", "src/replog_sqlite/database.py", "pyproject.toml", "tests/test_exam.py"],
)
def test_the_tutorial_shows_the_plugin_as_it_is_and_all_of_it(name: str) -> None:
    """Empty lines apart, of which there are fewer between the parts."""
    path = f"replog-sqlite/{name}"
    shown = part_of((ROOT / "docs" / "plugins.md").read_text(encoding="utf-8"))[path]
    assert without_empty_lines(shown) == without_empty_lines((ROOT / "plugins" / path).read_text(encoding="utf-8"))
