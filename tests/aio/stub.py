"""Writes the types of `replog.aio`, whose classes are made at run time: `python -m tests.aio.stub` rewrites the stub.

Each verb of trio's classes stands there as it is, but that a context can be opened without a block, and what it gives closed.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from replog import aio, api
from replog.aio import client, readers, writers
from replog.aio.faces import FACES as COROUTINES
from replog.runtime.faces import Face
from tests.blocking.stub import REMOTE_BOOKIE, SHOWN, Verb, formatted, imports_of, verbs_of

STUB = Path(aio.__file__).with_suffix(".pyi")
FACES = (
    client.Client,
    writers.LedgerWriter,
    writers.LogWriter,
    readers.LedgerReader,
    readers.LogReader,
    client.ServedBookie,
    client.RemoteBookie,
)
FUNCTIONS = ("connect", "embed", "served_bookie", "serve_bookie")
ATTRIBUTES = {  # that objects have from their beginning
    client.Client: "default_quorum: Quorum\nbookies: tuple[ServedBookie, ...]\nleft_out: Mapping[str, StorageError]",
    writers.LedgerWriter: "ledger_id: int",
    writers.LogWriter: "name: str",
    readers.LedgerReader: "ledger_id: int\ndef __aiter__(self) -> AsyncIterator[Entry]: ...",
    readers.LogReader: "name: str\ndef __aiter__(self) -> AsyncIterator[Record]: ...\nasync def __anext__(self) -> Record: ...",
    client.RemoteBookie: REMOTE_BOOKIE,
}
HEAD = '''
# Made by `python -m tests.aio.stub` from trio's classes: not to be edited.

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TypeVar
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from replog.client.entries import Entry
from replog.errors import StorageError
from replog.records.bookies import Endpoint

Value = TypeVar("Value", covariant=True)


class Opening(AbstractAsyncContextManager[Value]):
    """A context to be entered once: by `async with`, or by `open`."""

    async def __aenter__(self) -> Value: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    async def open(self) -> Value:
        """Enters it without a block. It is left by `aclose` of what this returns, or when the event loop ends; the task that
        opened it may end before."""
'''
CLOSE = '''async def aclose(self) -> None:
    """Leaves the context that gave this, as the end of its block does. Idempotent."""
'''


def as_written(verb: Verb) -> Verb:
    """The verb without its code. One that gives a context is called without waiting."""
    is_context = any(isinstance(each, ast.Name) and each.id == "asynccontextmanager" for each in verb.decorator_list)
    kind = ast.FunctionDef if is_context else type(verb)
    verb = kind(**{field: getattr(verb, field) for field in verb._fields}, lineno=0, col_offset=0)
    verb.decorator_list = [each for each in verb.decorator_list if isinstance(each, ast.Name) and each.id == "property"]
    returned = ast.unparse(verb.returns) if verb.returns is not None else "None"
    if is_context:
        returned = returned.replace("AsyncIterator", "Opening")
    if returned == "LedgerRangeReader":
        returned = "AsyncIterator[EntryBatch]"
    verb.returns = ast.parse(returned.replace("Batches[", "AsyncIterator["), mode="eval").body
    docstring = ast.get_docstring(verb, clean=False)
    verb.body = [ast.Expr(ast.Constant(docstring if docstring is not None else ...))]
    return verb


def face_text(face: type[Face]) -> str:
    """The class of this face."""
    source = next(trio_class for trio_class, known in face._kind._face_of.items() if known is face)
    public = (verb for name, verb in verbs_of(source).items() if name in SHOWN and name != "aclose")
    body = [ast.unparse(as_written(verb)) for verb in public]
    parts = [f'"""{inspect.cleandoc(face.__doc__ or "")}"""', ATTRIBUTES.get(face, ""), *body]
    if hasattr(face, "aclose"):
        parts.append(CLOSE)
    indented = "\n".join(f"    {line}" for part in parts for line in part.splitlines())
    return f"class {face.__name__}:\n{indented}\n"


def stub_text() -> str:
    """The whole stub, formatted."""
    functions = []
    for name in FUNCTIONS:
        (node,) = ast.parse(inspect.getsource(inspect.unwrap(getattr(api, name)))).body
        assert isinstance(node, Verb)
        functions.append(ast.unparse(as_written(node)))
    classes = [face_text(face) for face in FACES]
    modules = (
        {api.__name__} | {source.__module__ for source in COROUTINES._face_of} | {each.__module__ for each in FACES}
    )
    names = {face.__name__ for face in FACES} | {"Opening", *FUNCTIONS}
    wanted = dict.fromkeys(line for line in imports_of(modules) if line.split()[-1] not in names)
    return formatted("\n".join([*wanted, HEAD, *functions, *classes]), STUB)


if __name__ == "__main__":
    STUB.write_text(stub_text(), encoding="utf-8")
