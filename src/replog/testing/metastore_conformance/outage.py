"""The answers of a metastore's client while its store cannot be reached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import trio

from replog.errors import MetastoreUnavailableError, ReplogError, TransientError
from replog.testing.metastore_conformance.bench import OpenMetastore
from replog.testing.promises import WAIT_MAX_S, plain_assertions, promise, promised_error

_READ = "a read of a store that cannot be reached raises MetastoreUnavailableError: waiting may help, and nothing was changed"
_CHANGE = "a change while the store cannot be reached raises a TransientError (MetastoreUncertainError if it was sent)"
_KEY = "conformance/outage"


async def check_metastore_outage(open_metastore: OpenMetastore) -> None:
    """Check what a metastore raises while its store cannot be reached; raise `AssertionError` with the first broken promise.

    `open_metastore()` is a context manager that yields a client of a store that is not there: no server listens at the address,
    or the directory is missing. Programs wait and try again after a `TransientError`, and end after any other error; so each
    call must say which it is, within 30 seconds."""
    with plain_assertions():
        async with open_metastore() as client:
            reads: list[Callable[[], Awaitable[object]]] = [
                lambda: client.get(_KEY),
                lambda: client.children(_KEY),
                lambda: client.values(_KEY),
                lambda: client.announced(_KEY),
            ]
            for read in reads:
                await _fails(read, MetastoreUnavailableError, _READ)
            changes: list[Callable[[], Awaitable[object]]] = [
                lambda: client.create(_KEY, b""),
                lambda: client.put(_KEY, b"", 1),
                lambda: client.delete(_KEY),
                lambda: _enter(client.announce(_KEY, b"")),
                lambda: _enter(client.elect(_KEY, b"")),
            ]
            for change in changes:
                await _fails(change, TransientError, _CHANGE)


async def _fails(call: Callable[[], Awaitable[object]], expected: type[TransientError], contract: str) -> None:
    with trio.move_on_after(WAIT_MAX_S) as scope, promised_error(expected, contract):
        try:
            await call()
        except ReplogError as error:
            if isinstance(error, expected):
                raise
            raise AssertionError(f"the contract is broken: {contract}; got {error!r}") from error
    promise(not scope.cancelled_caught, f"each call ends by a deadline of its own (not within {WAIT_MAX_S:.0f} s)")


async def _enter(context: AbstractAsyncContextManager[None]) -> None:
    async with context:
        pass
