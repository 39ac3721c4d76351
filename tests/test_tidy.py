"""The house rules that no linter knows, checked on the sources themselves.

One test for each rule: it looks at every file, and lists all that break the rule.
"""

import ast
import importlib
import inspect
import subprocess
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import attrs
import pytest

from tests.reference import documented

ROOT = Path(__file__).parent.parent
COMMITTED_BYTES_MAX = 1 << 20
SOURCES = {path.relative_to(ROOT / "src").as_posix(): path for path in sorted((ROOT / "src").rglob("*.py"))}
SOURCES |= {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.glob("plugins/*/src/**/*.py"))}
PLUGIN_SOURCES = [
    path for path in sorted((ROOT / "plugins").rglob("*.py")) if "tests" not in path.relative_to(ROOT).parts
]

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600
ABBREVIATIONS = {"lac", "lap", "qw", "qa", "aq", "wq"}

# What speaks to people on standard output.
MAY_PRINT = ("replog/cli", "replog/demo")

# Where any error at all is caught without being raised again, and why that is right there.
MAY_CATCH_EVERYTHING: dict[str, str] = {
    "replog/runtime/loggers.py": "a handler of the program's, which is to harm nothing of replog's: shown as handlers show it",
    "replog/aio/call_soon.py": "whatever a call raises ends the run, and what is not an Exception the event loop, too",
    "replog/aio/host.py": "whatever a call raises is raised again in the task that called",
    "replog/backends/files/maintenance.py": "its thread must not die unheard: the storage stops, and says why",
    "replog/blocking/portal.py": "whatever a call raises is raised again in the thread that called",
    "replog/machine/states.py": "whatever the values of a field raise is the reason why it can't be saved",
    "replog/machine/core.py": "what a user's command raises is its result; a snapshot's fields are refused by name",
    "replog/metastores/zookeeper/driver.py": "kazoo's thread must not die unheard: the session ends, says why, and is begun anew",
    "replog/runtime/nursery.py": "the body's own exception is raised again, once the nursery is left",
    "replog/runtime/continued_call.py": "whatever a call raises is raised again in the task that waits for it",
    "replog/registry/registry.py": "an observer is other people's code: it is left out with a warning, and must not stop a log",
    "replog/testing/storage_conformance/background.py": "whatever a call raises is raised again where its result is asked for",
}

# What a plugin may know of replog; `testing` for its conformance suites.
CLIENTS = {"replog-bookkeeper"}
SHELLS = {
    f"replog.{each}"
    for each in ("aio", "blocking", "bookie", "cli", "client", "config", "metastores", "records", "registry", "runtime")
}
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
    "replog.results",
    "replog.spark",
    "replog.testing",
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(text_of(name), filename=name)


@cache
def nodes(name: str) -> list[ast.AST]:
    """All nodes of a source: to walk through all sources takes most of a second, and nearly each rule does."""
    return list(ast.walk(parsed(name)))


@pytest.fixture(scope="module", autouse=True)
def _sources_are_forgotten() -> Iterator[None]:
    """A million objects, which Python would look through for garbage as long as the process lives."""
    yield
    for each in (parsed, nodes):
        each.cache_clear()


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


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a clone knows what is committed")
def test_no_large_file_is_committed() -> None:
    """A benchmark that is killed leaves gigabytes behind."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    if listed.returncode:
        pytest.skip(f"git does not say what is committed: {listed.stderr}")
    sizes = {name: (ROOT / name).lstat().st_size for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
    assert "README.md" in sizes
    assert_none(f"{name} has {size} bytes" for name, size in sizes.items() if size > COMMITTED_BYTES_MAX)


def test_files_are_short() -> None:
    lengths = {name: len(text_of(name).splitlines()) for name in SOURCES}
    assert_none(f"{name} has {lines} lines" for name, lines in lengths.items() if lines > FILE_LINES_MAX)


def test_functions_fit_on_a_screen() -> None:
    too_long = []
    for name in SOURCES:
        for each in nodes(name):
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
        for call in nodes(name)
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


def test_only_loggers_of_replog_are_used() -> None:
    """A handler that appends to replog would otherwise hang it (`replog.runtime.loggers`). A command has no such handlers."""
    allowed = {"replog/runtime/loggers.py", "replog/cli/serving/log_lines.py"}
    found = {
        name
        for name in SOURCES
        for each in nodes(name)
        if isinstance(each, ast.Attribute) and each.attr == "getLogger" and name not in allowed
    }
    assert_none(found)


def test_errors_are_caught_by_name() -> None:
    found: dict[str, list[int]] = {}
    for name in SOURCES:
        for each in nodes(name):
            if isinstance(each, ast.ExceptHandler) and catches_everything(each):
                found.setdefault(name, []).append(each.lineno)
    assert_none(f"{name}: lines {lines}" for name, lines in found.items() if name not in MAY_CATCH_EVERYTHING)
    no_longer = MAY_CATCH_EVERYTHING.keys() - found.keys()
    assert no_longer == set(), "these no longer catch everything: take them off MAY_CATCH_EVERYTHING"


def named_in(found: Iterable[ast.AST]) -> Iterator[str]:
    """The names of classes, functions and their arguments, attributes, class variables and module variables."""
    for node in found:
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
        for each in sorted(set(named_in(nodes(name))))
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


def replog_imports(found: Iterable[ast.AST]) -> Iterator[str]:
    for node in found:
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module="replog", names=names):
                yield from (f"replog.{each.name}" for each in names)
            case ast.ImportFrom(module=str(module)):
                yield module


def test_plugins_know_only_the_seams() -> None:
    """A project that is a client of its own stands upon the shells, and still knows nothing of logs, bookies and the wiring."""
    beyond = []
    for path in PLUGIN_SOURCES:
        project = path.relative_to(ROOT).parts[1]
        allowed = SEAMS | SHELLS if project in CLIENTS else SEAMS
        imported = replog_imports(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        of_replog = {".".join(each.split(".")[:2]) for each in imported if each.split(".")[0] == "replog"}
        beyond += [f"{path.relative_to(ROOT)}: {each}" for each in sorted(of_replog - allowed)]
    assert_none(beyond)


# -- systems ------------------------------------------------------------------------------------------------------

# What not every Unix has, or what does less on another one: only these modules may name it.
OF_ONE_SYSTEM = {
    "os": "fdatasync fsync posix_fallocate posix_fadvise preadv RWF_NOWAIT O_DIRECT O_DSYNC O_NOATIME O_PATH O_TMPFILE "
    "pidfd_open waitid eventfd memfd_create copy_file_range sendfile splice sched_getaffinity setns unshare",
    "fcntl": "F_FULLFSYNC F_SETSIG F_OFD_SETLK F_OFD_SETLKW F_ADD_SEALS",
    "socket": "SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED SO_BUSY_POLL TCP_INFO TCP_QUICKACK TCP_USER_TIMEOUT",
    "errno": "EUCLEAN EREMOTEIO",
    "select": "epoll kqueue",
    "mmap": "MADV_HUGEPAGE MADV_POPULATE_READ MAP_POPULATE",
    "ctypes": "CDLL",
    "sys": "platform",
}
SEAMS_OF_SYSTEMS = ("replog/runtime/platform.py", "replog/runtime/kernel_sync.py")


def of_one_system(found: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in found:
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in OF_ONE_SYSTEM.get(module, "").split():
                yield node.lineno, f"{module}.{name}"
            case ast.ImportFrom(module=str(module), names=names):
                for each in names:
                    if each.name in OF_ONE_SYSTEM.get(module, "").split():
                        yield node.lineno, f"{module}.{each.name}"
            case ast.Constant(value=str(text)) if text.startswith(("/proc/", "/sys/")):
                yield node.lineno, text


def test_only_two_modules_name_system_specific_calls() -> None:
    assert all(list(of_one_system(nodes(name))) for name in SEAMS_OF_SYSTEMS), "the test sees nothing"
    found = [
        f"{name}:{line}: {what}"
        for name in SOURCES
        if name not in SEAMS_OF_SYSTEMS
        for line, what in of_one_system(nodes(name))
    ]
    assert_none(found)


# -- classes ------------------------------------------------------------------------------------------------------

METHODS_MAX = 20
ATTRIBUTES_MAX = 16

# Classes that are still too large, and where they get smaller. The test fails once an entry has become needless.
TOO_LARGE: dict[str, str] = {
    "replog.client.entry_writer.EntryWriter": "what ledgers, logs and Spark write with: how it ends can become a part of its own",
}

# Classes that inherit from the only other class that nobody else inherits from, and why.
INHERITS_ALONE: dict[str, str] = {}

# Classes whose public names docs/reference/python documents.
LISTED = {name.rpartition(".")[2] for name in documented()}


@attrs.frozen
class Class:
    """A class in the sources: its full name, the full names of its bases, what it defines and what it keeps.

    `is_record`: an attrs class without behaviour, which has only fields, and properties that follow from them."""

    name: str
    bases: tuple[str, ...]
    methods: tuple[str, ...]
    attributes: frozenset[str]
    is_abstract: bool
    is_record: bool

    @property
    def room(self) -> str:
        """The package of `replog` that it stands in."""
        return ".".join(self.name.split(".")[:2])


def module_name(path: str) -> str:
    words = path.split("/src/")[-1].removesuffix(".py").removesuffix("/__init__")
    return words.replace("/", ".")


def kept_by(node: ast.ClassDef) -> Iterator[str]:
    """Fields that are declared in the body, and what methods assign to `self`."""
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def is_record(node: ast.ClassDef) -> bool:
    """True if attrs makes the class of fields, and everything else in it is a property."""
    is_attrs = any(ast.unparse(each).startswith(("attrs.frozen", "attrs.define")) for each in node.decorator_list)
    functions = (each for each in node.body if isinstance(each, Function))
    return is_attrs and all([ast.unparse(mark) for mark in each.decorator_list] == ["property"] for each in functions)


def classes_in(path: str) -> Iterator[Class]:
    found, module = nodes(path), module_name(path)
    names = {node.name: f"{module}.{node.name}" for node in found if isinstance(node, ast.ClassDef)}
    for node in found:
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    for node in found:
        if isinstance(node, ast.ClassDef):
            spelled = [ast.unparse(base).split("[")[0] for base in node.bases]
            functions = [each for each in node.body if isinstance(each, Function)]
            decorators = {ast.unparse(mark) for function in functions for mark in function.decorator_list}
            yield Class(
                f"{module}.{node.name}",
                tuple(names.get(base, base) for base in spelled),
                tuple(each.name for each in functions if not each.name.startswith("__")),
                frozenset(kept_by(node)),
                "abstractmethod" in decorators or bool({"ABC", "Protocol"} & set(spelled)),
                is_record(node),
            )


@cache
def all_classes() -> dict[str, Class]:
    return {each.name: each for path in SOURCES for each in classes_in(path)}


def ancestors(of: Class) -> Iterator[Class]:
    for name in of.bases:
        base = all_classes().get(name) or seams().get(name)
        if base is not None:
            yield base
            yield from ancestors(base)


@cache
def seams() -> dict[str, Class]:
    """The classes of `replog.abc`, as others import them."""
    found = [each for each in all_classes().values() if each.name.startswith("replog.abc.")]
    return {f"replog.abc.{each.name.rpartition('.')[2]}": each for each in found}


def is_exception(of: Class) -> bool:
    return any(base.endswith(("Error", "Exception", "Interrupt")) for base in of.bases)


@cache
def called_or_passed() -> frozenset[str]:
    """Names that are called somewhere, or passed to a call: classes among them are used as they are."""
    calls = [node for path in SOURCES for node in nodes(path) if isinstance(node, ast.Call)]
    return frozenset(each.id for call in calls for each in (call.func, *call.args) if isinstance(each, ast.Name))


@cache
def seam_methods() -> frozenset[str]:
    return frozenset(method for seam in seams().values() for method in seam.methods if not method.startswith("_"))


def counted(of: Class) -> tuple[list[str], list[str]]:
    """The methods and attributes that count: not the public API, a seam's methods, nor the events of a machine.

    A record may have as many fields as there are facts: they are not state that methods keep in agreement."""
    if of.is_record:
        return [], []
    is_listed = of.name.rpartition(".")[2] in LISTED
    is_machine = of.name.startswith("replog.protocol.")
    is_of_seam = of.name.startswith("replog.abc") or any(each.name.startswith("replog.abc") for each in ancestors(of))

    def counts(name: str) -> bool:
        return name.startswith("_") or not (is_listed or is_machine or (is_of_seam and name in seam_methods()))

    # The fields of options are public: docs/reference/configuration.md lists them.
    is_public_attribute = is_listed or of.name.startswith("replog.abc") or of.name.endswith("Options")
    return (
        sorted({name for name in of.methods if counts(name)}),
        sorted(name for name in of.attributes if name.startswith("_") or not is_public_attribute),
    )


def test_classes_are_small() -> None:
    sizes = {name: tuple(len(each) for each in counted(of)) for name, of in all_classes().items()}
    large = {
        name: f"{name}: {methods} methods, {attributes} attributes"
        for name, (methods, attributes) in sizes.items()
        if methods > METHODS_MAX or attributes > ATTRIBUTES_MAX
    }
    assert_none(text for name, text in large.items() if name not in TOO_LARGE)
    assert_none(f"{name} is small now: take it off TOO_LARGE" for name in TOO_LARGE if name not in large)


def test_classes_do_not_inherit_to_be_split() -> None:
    """A base that only one class has, in the same room, and that nobody uses by itself, is a part of that class."""
    heirs: dict[str, list[Class]] = {}
    for each in all_classes().values():
        for base in each.bases:
            heirs.setdefault(base, []).append(each)
    found = {
        only[0].name: f"{only[0].name} is the only class that inherits from {name}"
        for name, only in heirs.items()
        if (inherited := all_classes().get(name)) is not None
        and len(only) == 1
        and inherited.room == only[0].room
        and name.rpartition(".")[2] not in called_or_passed()
        and not inherited.is_abstract
        and not is_exception(inherited)
        and not any(is_exception(each) for each in ancestors(inherited))
    }
    assert_none(text for name, text in found.items() if name not in INHERITS_ALONE)
    assert_none(f"{name} does not any more: take it off INHERITS_ALONE" for name in INHERITS_ALONE if name not in found)
