"""Writes the types of `replog.blocking` and `replog.aio`, whose classes are made at run time: `python hatch_stubs.py`.

A stub has each verb of trio's classes, with its parameters and its docstring. `Stub` says what differs between the two faces.
The stubs are not in git: hatch_build.py has them written whenever a wheel is built, an editable one included, and `make check`
writes them anew. Nothing but replog's own dependencies is needed for it. A file whose text stays is not touched.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

import attrs

# The sources beside this file, whichever replog is installed. PYTHONPATH does not do it: in the environment of a build pip takes
# all places away that editable packages outside of it have.
sys.path.insert(0, str(Path(__file__).parent / "src"))

from replog import aio, api, blocking
from replog.runtime.faces import Face, Faces

Verb = ast.FunctionDef | ast.AsyncFunctionDef

FUNCTIONS = ("connect", "embed", "serve_bookie", "serve_repairs")
# The classes by their modules, in the order of a stub.
CLASSES = {
    "client": ("Client",),
    "administration": ("Admin", "Jobs", "Cursors", "RemoteBookie"),
    "writers": ("LedgerWriter", "LogWriter"),
    "readers": ("LedgerReader", "LogReader", "Cursor"),
    "machines": ("RunningMachine",),
    "bookies": ("ServedBookie",),
}
IMPORTS = """
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar
from replog.client.entries import Entry
from replog.errors import StorageError
from replog.records.bookies import Endpoint
"""
OPENING = '''
Value = TypeVar("Value", covariant=True)


class Opening({context}[Value]):
    """A context to be entered once: by `{block}`, or by `open`."""

    {verb} __{a}enter__(self) -> Value: ...
    {verb} __{a}exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    {verb} open(self) -> Value:
        """Enters it without a block. It is left by `{a}close` of what this returns, or when {life} ends; {opener}
        opened it may end before."""
'''
CLOSE = '''{verb} {a}close(self) -> None:
    """Leaves the context that gave this, as the end of its block does. Idempotent."""
'''
GENERIC = {"RunningMachine": "(Generic[State])"}  # what the types of faces inherit
SIGNATURE_WIDTH_MAX = 116


class _Unpacked(ast.NodeTransformer):
    """Names of packages' types without their packages: `api.Admin` is `Admin`."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        is_packages = isinstance(node.value, ast.Name) and node.value.id in ("api", "machines")
        return ast.Name(node.attr) if is_packages else node


@attrs.frozen
class Stub:
    """The stub of one package of faces. `words` fill OPENING and CLOSE; `attributes` are those that objects have from their
    beginning, by the name of their face; `returned` has the types that this face returns for others."""

    package: ModuleType
    words: Mapping[str, str]
    attributes: Mapping[str, str]
    returned: Mapping[str, str]
    is_async: bool

    @property
    def path(self) -> Path:
        """The file."""
        return Path(str(self.package.__file__)).with_suffix(".pyi")

    def write(self) -> None:
        """Rewrites the file, if its text changes: whoever reads it meanwhile sees the old text or the new one."""
        text = self.text()
        if not self.path.exists() or self.path.read_text(encoding="utf-8") != text:
            written = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            written.write_text(text, encoding="utf-8")
            written.replace(self.path)

    def text(self) -> str:
        """The whole stub."""
        functions, modules = [], set()
        for name in FUNCTIONS:
            source = inspect.unwrap(getattr(api, name))
            modules.add(source.__module__)
            (node,) = ast.parse(inspect.getsource(source)).body
            assert isinstance(node, Verb)
            functions.append(self._verb(node))
        homes = {home: import_module(f"{self.package.__name__}.{home}") for home in CLASSES}
        faces: list[type[Face]] = [getattr(homes[home], name) for home, names in CLASSES.items() for name in names]
        kind: Faces = faces[0]._kind
        classes_of = (base for each in (*kind._face_of, *faces) for base in each.__mro__)
        modules |= {each.__module__ for each in classes_of if each.__module__.startswith("replog.")}
        body = "\n\n".join([OPENING.format(**self.words), *functions, *map(self._class, faces)])
        used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
        used -= {"Opening", *(face.__name__ for face in faces)}
        # One line for a name, which two modules may import from different places.
        wanted = dict(imports_of(modules)) | dict(imports_in(ast.parse(IMPORTS)))
        imports = sorted(line for name, line in wanted.items() if name in used)
        made = f"# Made by {Path(__file__).name} from trio's classes: not to be edited."
        return "\n".join([made, "", *imports, body])

    def _verb(self, verb: Verb) -> str:
        """The verb without its code, as it is called here: one that gives a context never waits, nor does any of `blocking`."""
        decorators = [each.id for each in verb.decorator_list if isinstance(each, ast.Name)]
        is_context = "asynccontextmanager" in decorators
        kind = type(verb) if self.is_async and not is_context else ast.FunctionDef
        docstring = ast.get_docstring(verb)
        verb = kind(**{field: getattr(verb, field) for field in verb._fields}, lineno=0, col_offset=0)
        verb.decorator_list = [ast.Name(each) for each in decorators if each == "property"]
        returned = ast.unparse(verb.returns) if verb.returns is not None else "None"
        if is_context:
            returned = returned.replace("AsyncIterator", "Opening")
        iterator = self.words["iterator"]
        known = {"LedgerRangeReader": f"{iterator}[EntryBatch]", **self.returned}
        returned = known.get(returned, returned.replace("Batches[", f"{iterator}["))
        verb.returns = ast.parse(returned, mode="eval").body
        if verb.name == "extend":  # any iterable: it is read before the call waits
            given = verb.args.args[1].annotation
            assert given is not None
            wider = ast.unparse(given).replace("Sequence", "Iterable")
            verb.args.args[1].annotation = ast.parse(wider, mode="eval").body
        # Types that are named by their package are imported by the stub.
        verb = _Unpacked().visit(verb)
        verb.body = [ast.Expr(ast.Constant(... if docstring is None else textwrap.indent(docstring, "    ").lstrip()))]
        return re.sub("^(?:async )?def .*", folded, ast.unparse(verb), count=1, flags=re.MULTILINE)

    def _class(self, face: type[Face]) -> str:
        source = next(trio_class for trio_class, known in face._kind._face_of.items() if known is face)
        own = {name: verb for name, verb in verbs_of(face).items() if ast.get_docstring(verb) is not None}
        verbs = verbs_of(source) | own
        close = self.words["a"] + "close"
        body = [self._verb(verb) for name, verb in verbs.items() if name not in ("aclose", close)]
        parts = [f'"""{inspect.cleandoc(face.__doc__ or "")}"""', self.attributes.get(face.__name__, ""), *body]
        if hasattr(face, close):
            parts.append(CLOSE.format(**self.words))
        indented = "\n".join(f"    {line}".rstrip() for part in parts for line in part.splitlines())
        return f"class {face.__name__}{GENERIC.get(face.__name__, '')}:\n{indented}"


def folded(signature: re.Match[str]) -> str:
    """A signature, in several lines if it is long: each begins with a parameter."""
    if len(signature[0]) <= SIGNATURE_WIDTH_MAX:
        return signature[0]
    unbroken = re.sub(r" (?!(?<=, )[\w*]+[:,])", "\0", signature[0])
    return textwrap.fill(
        unbroken, SIGNATURE_WIDTH_MAX, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False
    ).replace("\0", " ")


def attributes(aiter: str, timeout: str = "", result: str = "Any") -> dict[str, str]:
    """Those of both faces. `aiter` begins the lines that say what iterating gives; a machine's commands return `result`."""
    return {
        "Client": "default_quorum: Quorum\nbookies: tuple[ServedBookie, ...]\nleft_out: Mapping[str, StorageError]",
        "LogWriter": "name: str",
        "LedgerReader": f"ledger_id: int\n{aiter}[Entry]: ...",
        "LogReader": f"name: str\n{timeout}{aiter}[Record]: ...",
        "Cursor": f"{timeout}{aiter}[Record]: ...",
        "RunningMachine": f"def __getattr__(self, name: str) -> Callable[..., {result}]: ...",
        "RemoteBookie": (
            "bookie_id: str\nendpoints: Sequence[Endpoint]\nread_only: bool\ndraining: bool\nlabels: Mapping[str, str]"
        ),
    }


def verbs_of(cls: type) -> dict[str, Verb]:
    """The public methods and properties that a class defines, or inherits from a class of replog's, as they are written."""
    found: dict[str, Verb] = {}
    for each in cls.__mro__:
        if each.__module__.startswith("replog.") and each not in Face.__mro__:
            (node,) = ast.parse(inspect.getsource(each)).body
            assert isinstance(node, ast.ClassDef)
            own = (member for member in node.body if isinstance(member, Verb))
            found = {member.name: member for member in own if not member.name.startswith("_")} | found
    return found


def imports_of(modules: set[str]) -> Iterator[tuple[str, str]]:
    """The names that these modules import and define, with the lines that import them."""
    for module in sorted(modules):
        tree = ast.parse(inspect.getsource(sys.modules[module]))
        yield from imports_in(tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                yield node.name, f"from {module} import {node.name}"
            elif isinstance(node, ast.Assign):
                yield from (
                    (each.id, f"from {module} import {each.id}") for each in node.targets if isinstance(each, ast.Name)
                )


def imports_in(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a module imports, with a line for each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for each in node.names:
                yield each.asname or each.name, ast.unparse(type(node)(**{**vars(node), "names": [each]}))


AITER = "def __aiter__(self) -> AsyncIterator"
STUBS = (
    Stub(
        package=blocking,
        words={
            "context": "AbstractContextManager",
            "iterator": "Iterator",
            "block": "with",
            "verb": "def",
            "a": "",
            "life": "the process",
            "opener": "whichever thread",
        },
        attributes=attributes("def __iter__(self) -> Iterator", "timeout_s: float | None\n"),
        returned={"Opening": "Opening[LogReader]", "Any": "Sequence[object]"},
        is_async=False,
    ),
    Stub(
        package=aio,
        words={
            "context": "AbstractAsyncContextManager",
            "iterator": "AsyncIterator",
            "block": "async with",
            "verb": "async def",
            "a": "a",
            "life": "the event loop",
            "opener": "the task that",
        },
        attributes=attributes(AITER, result="Coroutine[Any, Any, Any]")
        | {
            "LogReader": f"name: str\n{AITER}[Record]: ...\nasync def __anext__(self) -> Record: ...",
            "Cursor": f"{AITER}[Record]: ...\nasync def __anext__(self) -> Record: ...",
        },
        returned={},
        is_async=True,
    ),
)

if __name__ == "__main__":
    for stub in STUBS:
        stub.write()
