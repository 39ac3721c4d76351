"""The house rules that no linter knows, checked on the sources themselves."""

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = {path.relative_to(ROOT / "src").as_posix(): path for path in sorted((ROOT / "src").rglob("*.py"))}
SOURCES |= {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.glob("plugins/*/src/**/*.py"))}
PLUGIN_SOURCES = [path for path in sorted((ROOT / "plugins").rglob("*.py")) if "tests" not in path.parts]

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
ABBREVIATIONS = {"lac", "lap", "qw", "qa", "aq", "wq"}

# What speaks to people on standard output.
MAY_PRINT = ("replog/cli", "replog/demo", "replog/testing/simulation")

# Where any error at all is caught without being raised again, and why that is right there.
MAY_CATCH_EVERYTHING: dict[str, str] = {
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
    "replog.blocking",
    "replog.config",
    "replog.errors",
    "replog.hookspecs",
    "replog.metrics",
    "replog.spark",
    "replog.testing",
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
each_source = pytest.mark.parametrize("name", SOURCES)


def parsed(name: str) -> ast.Module:
    return ast.parse(SOURCES[name].read_text(encoding="utf-8"), filename=name)


def test_there_are_sources() -> None:
    assert "replog/__init__.py" in SOURCES
    assert "plugins/replog-sqlite/src/replog_sqlite/__init__.py" in SOURCES
    assert PLUGIN_SOURCES


@each_source
def test_a_file_fits_in_the_head(name: str) -> None:
    assert len(SOURCES[name].read_text(encoding="utf-8").splitlines()) <= FILE_LINES_MAX


@each_source
def test_a_function_fits_on_a_screen(name: str) -> None:
    functions = [node for node in ast.walk(parsed(name)) if isinstance(node, Function)]
    lengths = [(each.name, (each.end_lineno or each.lineno) - each.lineno + 1) for each in functions]
    assert [(function, lines) for function, lines in lengths if lines > FUNCTION_LINES_MAX] == []


@each_source
def test_a_library_does_not_print(name: str) -> None:
    if name.removesuffix(".py").startswith(MAY_PRINT):
        return
    calls = [node for node in ast.walk(parsed(name)) if isinstance(node, ast.Call)]
    assert [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"] == []


def catches_everything(handler: ast.ExceptHandler) -> bool:
    """Whether the handler takes any error and may go on; cleaning up and raising again is no such thing."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    broad = any(
        each is None or (isinstance(each, ast.Name) and each.id in {"Exception", "BaseException"}) for each in caught
    )
    return broad and not isinstance(handler.body[-1], ast.Raise)


@each_source
def test_errors_are_caught_by_name(name: str) -> None:
    handlers = [node for node in ast.walk(parsed(name)) if isinstance(node, ast.ExceptHandler)]
    found = [handler.lineno for handler in handlers if catches_everything(handler)]
    if name in MAY_CATCH_EVERYTHING:
        assert found, f"{name} no longer catches everything: take it off MAY_CATCH_EVERYTHING"
    else:
        assert found == []


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


@each_source
def test_public_names_are_spelled_out(name: str) -> None:
    public = {each for each in named_in(parsed(name)) if not each.startswith("_")}
    assert sorted(each for each in public if ABBREVIATIONS & set(each.lower().split("_"))) == []


@each_source
def test_a_module_says_what_it_is(name: str) -> None:
    assert ast.get_docstring(parsed(name))


def public_members(owner: object) -> Iterator[tuple[str, Callable[..., object]]]:
    for name, member in vars(owner).items():
        target = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not name.startswith("_") and (inspect.isclass(target) or inspect.isfunction(target)):
            yield name, target


@pytest.mark.parametrize("module_name", PUBLIC_MODULES)
def test_the_public_api_has_docstrings(module_name: str) -> None:
    module = importlib.import_module(module_name)
    silent = []
    for name, member in public_members(module):
        if not member.__module__.startswith("replog"):
            continue
        if not member.__doc__:
            silent.append(name)
        if inspect.isclass(member):
            methods = [method for method, _ in public_members(member)]
            silent += [f"{name}.{each}" for each in methods if not inspect.getdoc(getattr(member, each))]
    assert silent == []


def replog_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module="replog", names=names):
                yield from (f"replog.{each.name}" for each in names)
            case ast.ImportFrom(module=str(module)):
                yield module


@pytest.mark.parametrize("path", PLUGIN_SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_plugin_knows_only_the_seams(path: Path) -> None:
    imported = replog_imports(ast.parse(path.read_text(encoding="utf-8")))
    of_replog = {".".join(each.split(".")[:2]) for each in imported if each.split(".")[0] == "replog"}
    assert of_replog - SEAMS == set()
