"""Writes the types of `replog.blocking` and `replog.aio`, whose classes are made at run time: `python -m tests.blocking.stub`.

A stub has each verb of trio's classes, with its parameters and its docstring. `Stub` says what differs between the two faces;
that of `aio` is in `tests.aio.stub`.
"""

from __future__ import annotations

import ast
import inspect
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import attrs

from replog import api, blocking
from replog.blocking import administration, bookies, client, machines, readers, writers
from replog.runtime.faces import Face, Faces
from tests.kit import own_faces

Verb = ast.FunctionDef | ast.AsyncFunctionDef

HEAD = '''
# Made by `python -m tests.blocking.stub` from trio's classes: not to be edited.

from contextlib import {context}
from types import TracebackType
from typing import Any, Generic, TypeVar
from collections.abc import {iterator}, Callable, Coroutine, Iterable, Mapping, Sequence
from replog.client.entries import Entry
from replog.errors import StorageError
from replog.records.bookies import Endpoint

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


class _Unpacked(ast.NodeTransformer):
    """Names of packages' types without their packages: `api.Admin` is `Admin`."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        is_packages = isinstance(node.value, ast.Name) and node.value.id in ("api", "machines")
        return ast.Name(node.attr) if is_packages else node


@attrs.frozen
class Stub:
    """The stub of one package of faces. `words` fill HEAD and CLOSE; `attributes` are those that objects have from their
    beginning, by the name of their face; `returned` has the types that this face returns for others."""

    package: ModuleType
    modules: tuple[ModuleType, ...]  # administration, bookies, client, machines, readers, writers
    functions: tuple[str, ...]
    words: Mapping[str, str]
    attributes: Mapping[str, str]
    returned: Mapping[str, str]
    is_async: bool

    @property
    def path(self) -> Path:
        """The file."""
        return Path(str(self.package.__file__)).with_suffix(".pyi")

    @property
    def faces(self) -> tuple[type[Face], ...]:
        """The classes, in the order of the stub."""
        administration, bookies, client, machines, readers, writers = self.modules
        return (
            client.Client,
            administration.Admin,
            administration.Jobs,
            administration.Cursors,
            writers.LedgerWriter,
            writers.LogWriter,
            readers.LedgerReader,
            readers.LogReader,
            readers.Cursor,
            machines.RunningMachine,
            bookies.ServedBookie,
            administration.RemoteBookie,
        )

    def write(self) -> None:
        """Rewrites the file."""
        self.path.write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        """The whole stub, formatted."""
        functions, modules = [], set()
        for name in self.functions:
            source = inspect.unwrap(getattr(api, name))
            modules.add(source.__module__)
            (node,) = ast.parse(inspect.getsource(source)).body
            assert isinstance(node, Verb)
            functions.append(ast.unparse(self._verb(node)))
        classes = [self._class(face) for face in self.faces]
        kind: Faces = self.faces[0]._kind
        classes_of = (base for each in (*own_faces(kind), *self.faces) for base in each.__mro__)
        modules |= {each.__module__ for each in classes_of if each.__module__.startswith("replog.")}
        names = {face.__name__ for face in self.faces} | {"Opening", *self.functions}
        # One line for a name, which two modules may import from different places.
        wanted = {line.split()[-1]: line for line in imports_of(modules) if line.split()[-1] not in names}.values()
        return formatted("\n".join([*wanted, HEAD.format(**self.words), *functions, *classes]), self.path)

    def _verb(self, verb: Verb) -> Verb:
        """The verb without its code, as it is called here: one that gives a context never waits, nor does any of `blocking`."""
        decorators = [each.id for each in verb.decorator_list if isinstance(each, ast.Name)]
        is_context = "asynccontextmanager" in decorators
        kind = type(verb) if self.is_async and not is_context else ast.FunctionDef
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
        docstring = ast.get_docstring(verb, clean=False)
        verb.body = [ast.Expr(ast.Constant(docstring if docstring is not None else ...))]
        # Types that are named by their package are imported by the stub.
        unpacked = _Unpacked().visit(verb)
        assert isinstance(unpacked, Verb)
        return unpacked

    def _class(self, face: type[Face]) -> str:
        source = next(trio_class for trio_class, known in face._kind._face_of.items() if known is face)
        own = {name: verb for name, verb in verbs_of(face).items() if ast.get_docstring(verb) is not None}
        verbs = verbs_of(source) | own
        close = self.words["a"] + "close"
        public = (verb for name, verb in verbs.items() if name not in ("aclose", close))
        body = [ast.unparse(self._verb(verb)) for verb in public]
        parts = [f'"""{inspect.cleandoc(face.__doc__ or "")}"""', self.attributes.get(face.__name__, ""), *body]
        if hasattr(face, close):
            parts.append(CLOSE.format(**self.words))
        indented = "\n".join(f"    {line}" for part in parts for line in part.splitlines())
        return f"class {face.__name__}{GENERIC.get(face.__name__, '')}:\n{indented}\n"


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


def imports_of(modules: set[str]) -> Iterator[str]:
    """All that these modules import and define: what is too much goes afterwards."""
    for module in sorted(modules):
        tree = ast.parse(inspect.getsource(sys.modules[module]))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "__future__"):
                yield from (ast.unparse(type(node)(**{**vars(node), "names": [each]})) for each in node.names)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                yield f"from {module} import {node.name}"
            elif isinstance(node, ast.Assign):
                yield from (f"from {module} import {each.id}" for each in node.targets if isinstance(each, ast.Name))


def formatted(text: str, stub: Path) -> str:
    """The text of a stub, without what it does not need."""
    for command in (["check", "--fix-only", "--quiet", "--select", "F,I"], ["format", "--quiet"]):
        arguments = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(stub), "-"]
        text = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True, timeout=60).stdout
    return text


THREADS = Stub(
    package=blocking,
    modules=(administration, bookies, client, machines, readers, writers),
    functions=("connect", "embed", "serve_bookie", "serve_repairs"),
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
)

if __name__ == "__main__":
    THREADS.write()
    runpy.run_module("tests.aio.stub", run_name="__main__")  # a verb is new in both
