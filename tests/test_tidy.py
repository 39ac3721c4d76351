"""The house rules that no linter knows, checked on the sources themselves.

One test for each rule: it looks at every file, and lists all that break the rule.
"""

import ast
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = {path.relative_to(ROOT / "src").as_posix(): path for path in sorted((ROOT / "src").rglob("*.py"))}
SOURCES |= {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.glob("plugins/*/src/**/*.py"))}
PLUGIN_SOURCES = [path for path in sorted((ROOT / "plugins").rglob("*.py")) if "tests" not in path.parts]

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
ABBREVIATIONS = {"lac", "lap", "qw", "qa", "aq", "wq"}

# What speaks to people on standard output.
MAY_PRINT = ("replog/cli", "replog/demo")

# Where any error at all is caught without being raised again, and why that is right there.
MAY_CATCH_EVERYTHING: dict[str, str] = {
    "replog/aio/host.py": "whatever a call raises is raised again in the task that called",
    "replog/backends/files/maintenance.py": "its thread must not die unheard: the storage stops, and says why",
    "replog/blocking/portal.py": "whatever a call raises is raised again in the thread that called",
    "replog/metastores/zookeeper/driver.py": "kazoo's thread must not die unheard: the session ends, says why, and is begun anew",
    "replog/runtime/nursery.py": "the body's own exception is raised again, once the nursery is left",
    "replog/registry.py": "an observer is somebody else's code: it is warned of and left out, and must not stop a log",
    "replog/testing/storage_exam/background.py": "whatever a call raises is raised again where its result is asked for",
}

# What a plugin may know of replog; `testing` for its exams.
SEAMS = {"replog.errors", "replog.protocol", "replog.abc", "replog.hookspecs", "replog.testing"}

PUBLIC_MODULES = (
    "replog",
    "replog.abc",
    "replog.aio",
    "replog.blocking",
    "replog.config",
    "replog.errors",
    "replog.hookspecs",
    "replog.metrics",
    "replog.spark",
    "replog.testing",
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(text_of(name), filename=name)


@cache
def text_of(name: str) -> str:
    return SOURCES[name].read_text(encoding="utf-8")


def assert_none(offenders: Iterable[str]) -> None:
    """Fail with all of them, one a line: pytest would shorten a list."""
    found = sorted(offenders)
    assert not found, "\n".join(["these break the rule:", *found])


def test_there_are_sources() -> None:
    assert "replog/__init__.py" in SOURCES
    assert "plugins/replog-sqlite/src/replog_sqlite/__init__.py" in SOURCES
    assert PLUGIN_SOURCES


def test_files_are_short() -> None:
    lengths = {name: len(text_of(name).splitlines()) for name in SOURCES}
    assert_none(f"{name} has {lines} lines" for name, lines in lengths.items() if lines > FILE_LINES_MAX)


def test_functions_fit_on_a_screen() -> None:
    too_long = []
    for name in SOURCES:
        for each in ast.walk(parsed(name)):
            if isinstance(each, Function):
                lines = (each.end_lineno or each.lineno) - each.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    too_long.append(f"{name}:{each.lineno}: {each.name} has {lines} lines")
    assert_none(too_long)


def test_the_library_does_not_print() -> None:
    prints = [
        f"{name}:{call.lineno}"
        for name in SOURCES
        if not name.removesuffix(".py").startswith(MAY_PRINT)
        for call in ast.walk(parsed(name))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
    ]
    assert_none(prints)


def catches_everything(handler: ast.ExceptHandler) -> bool:
    """True if the handler takes any error and may go on. Cleaning up and raising again is not that."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    broad = any(
        each is None or (isinstance(each, ast.Name) and each.id in {"Exception", "BaseException"}) for each in caught
    )
    return broad and not isinstance(handler.body[-1], ast.Raise)


def test_errors_are_caught_by_name() -> None:
    found: dict[str, list[int]] = {}
    for name in SOURCES:
        for each in ast.walk(parsed(name)):
            if isinstance(each, ast.ExceptHandler) and catches_everything(each):
                found.setdefault(name, []).append(each.lineno)
    assert_none(f"{name}: lines {lines}" for name, lines in found.items() if name not in MAY_CATCH_EVERYTHING)
    no_longer = MAY_CATCH_EVERYTHING.keys() - found.keys()
    assert no_longer == set(), "these no longer catch everything: take them off MAY_CATCH_EVERYTHING"


def named_in(tree: ast.Module) -> Iterator[str]:
    """The names of classes, functions and their arguments, attributes, class variables and module variables."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
                if not name.startswith("_") or name == "__init__":
                    yield from (each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg))
        if isinstance(node, ast.Module | ast.ClassDef):
            assigned = (each for each in node.body if isinstance(each, ast.Assign | ast.AnnAssign))
            targets = (target for each in assigned for target in ast.walk(each))
            yield from (t.id for t in targets if isinstance(t, ast.Name) and isinstance(t.ctx, ast.Store))


def test_public_names_are_spelled_out() -> None:
    abbreviated = [
        f"{name}: {each}"
        for name in SOURCES
        for each in sorted(set(named_in(parsed(name))))
        if not each.startswith("_") and ABBREVIATIONS & set(each.lower().split("_"))
    ]
    assert_none(abbreviated)


def test_modules_have_docstrings() -> None:
    assert_none(name for name in SOURCES if not ast.get_docstring(parsed(name)))


def public_members(owner: object) -> Iterator[tuple[str, Callable[..., object]]]:
    for name, member in vars(owner).items():
        target = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not name.startswith("_") and (inspect.isclass(target) or inspect.isfunction(target)):
            yield name, target


def without_docstrings(module_name: str) -> Iterator[str]:
    """The public names of the module, and the public methods of its classes, that have no docstring."""
    for name, member in public_members(importlib.import_module(module_name)):
        if not member.__module__.startswith("replog"):
            continue
        if not member.__doc__:
            yield f"{module_name}.{name}"
        if inspect.isclass(member):
            for method, _ in public_members(member):
                if not inspect.getdoc(getattr(member, method)):
                    yield f"{module_name}.{name}.{method}"


def test_the_public_api_has_docstrings() -> None:
    assert_none(each for module in PUBLIC_MODULES for each in without_docstrings(module))


def replog_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module="replog", names=names):
                yield from (f"replog.{each.name}" for each in names)
            case ast.ImportFrom(module=str(module)):
                yield module


def test_plugins_know_only_the_seams() -> None:
    beyond = []
    for path in PLUGIN_SOURCES:
        imported = replog_imports(ast.parse(path.read_text(encoding="utf-8")))
        of_replog = {".".join(each.split(".")[:2]) for each in imported if each.split(".")[0] == "replog"}
        beyond += [f"{path.relative_to(ROOT)}: {each}" for each in sorted(of_replog - SEAMS)]
    assert_none(beyond)
