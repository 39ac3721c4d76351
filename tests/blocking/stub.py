"""Writes the types of `replog.blocking`, whose classes are made at run time: `python -m tests.blocking.stub` rewrites its stub,
and that of `replog.aio`.

Each verb of trio's classes stands there as a plain call, with its parameters and its docstring.
"""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from replog import api, blocking
from replog.blocking import client, readers, writers
from replog.blocking.faces import FACES as THREADS
from replog.runtime.faces import Face

STUB = Path(blocking.__file__).with_suffix(".pyi")
FACES = (
    client.Client,
    writers.LedgerWriter,
    writers.LogWriter,
    readers.LedgerReader,
    readers.LogReader,
    client.ServedBookie,
    client.RemoteBookie,
)
FUNCTIONS = ("connect", "embed", "served_bookie")
REMOTE_BOOKIE = (
    "bookie_id: str\nendpoints: Sequence[Endpoint]\nread_only: bool\ndraining: bool\nlabels: Mapping[str, str]"
)
ATTRIBUTES = {  # that objects have from their beginning
    client.Client: "default_quorum: Quorum\nbookies: tuple[ServedBookie, ...]\nleft_out: Mapping[str, StorageError]",
    writers.LedgerWriter: "ledger_id: int",
    writers.LogWriter: "name: str",
    readers.LedgerReader: "ledger_id: int\ndef __iter__(self) -> Iterator[Entry]: ...",
    readers.LogReader: "name: str\ntimeout_s: float | None\ndef __iter__(self) -> Iterator[Record]: ...",
    client.RemoteBookie: REMOTE_BOOKIE,
}
API_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
SHOWN = set(re.findall(r"`(?:await |async |with |for )*(?:\w+\.)*(\w+)[`(]", API_PAGE.read_text(encoding="utf-8")))

HEAD = '''
# Made by `python -m tests.blocking.stub` from trio's classes: not to be edited.

from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeVar
from collections.abc import Iterable, Iterator, Mapping, Sequence
from replog.client.entries import Entry
from replog.errors import StorageError
from replog.records.bookies import Endpoint

Value = TypeVar("Value", covariant=True)


class Opening(AbstractContextManager[Value]):
    """A context to be entered once: by `with`, or by `open`."""

    def __enter__(self) -> Value: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def open(self) -> Value:
        """Enters it without a block. It is left by `close` of what this returns, or when the process ends; whichever thread
        opened it may end before."""
'''
CLOSE = '''def close(self) -> None:
    """Leaves the context that gave this, as the end of its block does. Idempotent."""
'''
Verb = ast.FunctionDef | ast.AsyncFunctionDef


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


def as_called(verb: Verb) -> ast.FunctionDef:
    """The verb as a plain call."""
    verb = ast.FunctionDef(**{field: getattr(verb, field) for field in verb._fields}, lineno=0, col_offset=0)
    is_context = any(isinstance(each, ast.Name) and each.id == "asynccontextmanager" for each in verb.decorator_list)
    verb.decorator_list = [each for each in verb.decorator_list if isinstance(each, ast.Name) and each.id == "property"]
    returned = ast.unparse(verb.returns) if verb.returns is not None else "None"
    if is_context:
        returned = returned.replace("AsyncIterator", "Opening")
    returned = {
        "Opening": "Opening[LogReader]",
        "LedgerRangeReader": "Iterator[EntryBatch]",
        "Any": "Sequence[object]",
    }.get(returned, returned.replace("Batches[", "Iterator["))
    if verb.name == "extend":  # any iterable: it is read in the thread of the caller
        verb.args.args[1].annotation = ast.parse("Iterable[bytes]", mode="eval").body
    verb.returns = ast.parse(returned, mode="eval").body
    docstring = ast.get_docstring(verb, clean=False)
    verb.body = [ast.Expr(ast.Constant(docstring if docstring is not None else ...))]
    return verb


def face_text(face: type[Face]) -> str:
    """The class of this face."""
    source = next(trio_class for trio_class, known in face._kind._face_of.items() if known is face)
    own = {name: verb for name, verb in verbs_of(face).items() if ast.get_docstring(verb) is not None}
    verbs = verbs_of(source) | own
    public = (verb for name, verb in verbs.items() if name in SHOWN and name != "aclose")
    body = [ast.unparse(as_called(verb)) for verb in public if verb.name != "close"]
    parts = [f'"""{inspect.cleandoc(face.__doc__ or "")}"""', ATTRIBUTES.get(face, ""), *body]
    if hasattr(face, "close"):
        parts.append(CLOSE)
    indented = "\n".join(f"    {line}" for part in parts for line in part.splitlines())
    return f"class {face.__name__}:\n{indented}\n"


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


def stub_text() -> str:
    """The whole stub, formatted."""
    functions = []
    for name in FUNCTIONS:
        (node,) = ast.parse(inspect.getsource(inspect.unwrap(getattr(api, name)))).body
        assert isinstance(node, Verb)
        functions.append(ast.unparse(as_called(node)))
    classes = [face_text(face) for face in FACES]
    modules = {api.__name__} | {source.__module__ for source in THREADS._face_of} | {each.__module__ for each in FACES}
    names = {face.__name__ for face in FACES} | {"Opening", *FUNCTIONS}
    wanted = dict.fromkeys(line for line in imports_of(modules) if line.split()[-1] not in names)
    return formatted("\n".join([*wanted, HEAD, *functions, *classes]), STUB)


def formatted(text: str, stub: Path) -> str:
    """The text of a stub, without what it does not need."""
    for command in (["check", "--fix-only", "--quiet", "--select", "F,I"], ["format", "--quiet"]):
        arguments = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(stub), "-"]
        text = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True, timeout=60).stdout
    return text


if __name__ == "__main__":
    STUB.write_text(stub_text(), encoding="utf-8")
    runpy.run_module("tests.aio.stub", run_name="__main__")  # a verb is new in both
