"""Shared by the parts of the suite: two clients, a root key of their own, and waits for expected states."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

import attrs
import trio

from replog.abc import Metastore
from replog.errors import KeyNotFoundError, MetastoreKeyError
from replog.testing.promises import promise

OpenMetastore = Callable[[], AbstractAsyncContextManager[Metastore]]

# Short beside a call of most stores, so that multiples of it cancel calls at all stages.
MOMENT_S = 0.0002
LOOK_AGAIN_S = 0.002
ELECTED = b"elected"  # a line: what a process says that was
MISSING = "reading, replacing or deleting a key that does not exist raises KeyNotFoundError, which has the key"


@attrs.frozen
class Bench:
    """Two clients of one store, a root key that nothing else uses, and a function that opens more clients."""

    one: Metastore
    other: Metastore
    root: str
    open: OpenMetastore

    @property
    def clients(self) -> tuple[Metastore, Metastore]:
        """Both clients."""
        return self.one, self.other


@contextmanager
def no_other_error(subject: str) -> Iterator[None]:
    """Turn an unexpected error about a key, alone or in a group, into an `AssertionError`: it breaks the contract."""
    try:
        yield
    except (ExceptionGroup, MetastoreKeyError) as error:
        assertion = first_of(AssertionError, error)
        if assertion is not None:
            raise assertion from None
        found = first_of(MetastoreKeyError, error)
        if found is None:
            raise
        raise AssertionError(
            f"the contract is broken: {subject}: {type(found).__name__}, for which there was no reason: {found}"
        ) from error


def first_of(expected: type[Exception], error: BaseException) -> Exception | None:
    """The first error of this type, also inside of groups; None if there is none."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for each in error.exceptions if (found := first_of(expected, each))), None)
    return error if isinstance(error, expected) else None


async def until(condition: Callable[[], Awaitable[bool]], wait: Callable[[], Awaitable[None]]) -> None:
    """Wait until the condition holds. `wait` may return too early, but not too late."""
    while True:
        await wait()
        if await condition():
            return


async def until_children(client: Metastore, key: str, known: Sequence[str], expected: Sequence[str]) -> None:
    """Wait until the children, which were `known`, are those expected."""
    while (found := await client.children(key)) != list(expected):
        promise(found == list(known), f"children are {known}, then {expected}; got {found}")
        await client.wait_children_changed(key, known)


async def until_listed(client: Metastore, key: str, expected: Sequence[str], lingering: Sequence[str]) -> None:
    """Wait until the children are those expected: a store may list a child for a short time after its last key was deleted."""
    while (found := await client.children(key)) != sorted(expected):
        missing = sorted(set(expected) - set(found))
        promise(not missing, f"children are the words below a key, each once, sorted; {missing} are missing")
        strange = sorted(set(found) - set(expected) - set(lingering))
        promise(not strange, f"children are the words below a key, each once, sorted; {strange} are not there")
        in_order = found == sorted(set(found))
        promise(in_order, f"children are the words below a key, each once, sorted; got {found}")
        await trio.sleep(LOOK_AGAIN_S)


async def version_of(client: Metastore, key: str) -> int | None:
    """The version of a key; None if it does not exist."""
    try:
        return (await client.get(key)).version
    except KeyNotFoundError:
        return None


async def exists(client: Metastore, key: str) -> bool:
    """True if the key exists."""
    return await version_of(client, key) is not None


async def differs(client: Metastore, key: str, version: int) -> bool:
    """True if the key has another version, or does not exist."""
    return await version_of(client, key) != version
