"""Writes the types of `replog.aio`, as `tests.blocking.stub` does, which says how."""

from __future__ import annotations

from replog import aio
from replog.aio import administration, bookies, client, machines, readers, writers
from tests.blocking.stub import Stub, attributes

AITER = "def __aiter__(self) -> AsyncIterator"
COROUTINES = Stub(
    package=aio,
    modules=(administration, bookies, client, machines, readers, writers),
    functions=("connect", "embed", "serve_bookie", "serve_repairs"),
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
)

if __name__ == "__main__":
    COROUTINES.write()
