"""Documented or red: hooks, errors and options are on a page, signatures are as they are in the code, and the code marked as
runnable runs."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import replog
import replog.blocking
import replog.metrics
import replog.testing
from replog import config, errors, hookspecs
from replog.bookie.serving import ServedBookie
from replog.client.administration import RemoteBookie
from tests import forks

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
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
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", *(ROOT / "plugins").glob("*/README.md")]:
        for link in LINK.finditer(without_code(page)):
            target = page.parent / link["path"] if link["path"] else page
            if not target.exists() or (link["anchor"] and link["anchor"] not in anchors_of(target)):
                dead.append(f"{page.relative_to(ROOT)}: {link[0]}")
    assert dead == []


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
    shown = part_of((ROOT / "docs" / "how-to" / "plugins.md").read_text(encoding="utf-8"))[path]
    assert without_empty_lines(shown) == without_empty_lines((ROOT / "plugins" / path).read_text(encoding="utf-8"))


# -- signatures on docs/reference/api.md ------------------------------------------------------------------------------------

# Classes that have no public name of their own, by the heading under which the page shows their methods.
UNNAMED_CLASSES = {"Bookies, wherever they run": RemoteBookie, "Embedded bookies": ServedBookie}

# Trio's own way to tell that a task has started: `nursery.start` passes it, callers never do.
PASSED_BY_TRIO = {"task_status"}

HEADING = re.compile(r"^#+ (?:`(?P<shown>[^`]+)`|(?P<words>.*))$")
FIRST_CELL = re.compile(r"^\|(?P<cell>(?: *`[^`|]+`,?)+) *\|")
SHOWN_CALL = re.compile(r"(?P<awaits>await )?(?P<path>[\w.]+)(?P<arguments>\(.*\))?")


@attrs.frozen
class Shown:
    """A call as the page shows it, and what it names."""

    text: str
    awaits: bool
    arguments: str
    target: object


def named(path: str) -> object:
    found: object = replog
    for word in path.split(".")[1:]:
        found = getattr(found, word)
    return found


def shown_calls() -> Iterator[Shown]:
    owner: object = None
    for line in (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8").splitlines():
        if heading := HEADING.match(line):
            spans = [heading["shown"]] if heading["shown"] else []
            owner = UNNAMED_CLASSES.get(heading["words"], owner)
        else:
            row = FIRST_CELL.match(line)
            spans = re.findall(r"`([^`]+)`", row["cell"]) if row else []
        for span in spans:
            call = SHOWN_CALL.fullmatch(span)
            assert call, span
            target = named(call["path"]) if call["path"].startswith("replog.") else None
            if heading and inspect.isclass(target):
                owner = target
            if call["arguments"] and call["arguments"] != "(...)":
                found = target or inspect.getattr_static(owner, call["path"])
                yield Shown(span, bool(call["awaits"]), call["arguments"], found)


SHOWN_CALLS = list(shown_calls())


def documented_parameters(arguments: str) -> list[tuple[str, str, object]]:
    """Name, kind and default of each parameter; `...` stands for any default, EMPTY for none."""
    parsed = ast.parse(f"def shown{arguments}: pass").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    spelled = parsed.args

    def value(default: ast.expr | None) -> object:
        names = {"__builtins__": {}, **{name: getattr(replog, name) for name in replog.__all__}}
        return inspect.Parameter.empty if default is None else eval(ast.unparse(default), names)

    positional = [*spelled.posonlyargs, *spelled.args]
    defaults = [None] * (len(positional) - len(spelled.defaults)) + list(spelled.defaults)
    found = [(each.arg, "positional", value(default)) for each, default in zip(positional, defaults, strict=True)]
    keywords = zip(spelled.kwonlyargs, spelled.kw_defaults, strict=True)
    return found + [(each.arg, "keyword", value(default)) for each, default in keywords]


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


def test_the_page_shows_calls() -> None:
    targets = {shown.target for shown in SHOWN_CALLS}
    assert {replog.embed, replog.connect, replog.Quorum, vars(replog.Client)["write_log"]} <= targets


def test_signatures_on_the_page_are_those_of_the_code() -> None:
    """Names, order, kinds and defaults."""
    wrong = []
    for shown in SHOWN_CALLS:
        documented, real = documented_parameters(shown.arguments), real_parameters(shown.target)
        agreed = len(documented) == len(real) and all(
            there[:2] == here[:2] and (there[2] is ... or there[2] == here[2])
            for there, here in zip(documented, real, strict=True)
        )
        if not agreed:
            wrong.append(f"{shown.text}: the code has {real}")
    assert wrong == []


def test_calls_on_the_page_are_awaited_if_the_code_is_async() -> None:
    wrong = [shown.text for shown in SHOWN_CALLS if inspect.iscoroutinefunction(shown.target) is not shown.awaits]
    assert wrong == []


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
