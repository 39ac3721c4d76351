"""What the parts of the exam share: two clients, a place of their own, and waiting for what must come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

import attrs
import trio

from replog.abc import Metastore
from replog.errors import KeyNotFoundError, MetastoreKeyError
from replog.testing.promises import promise

OpenMetastore = Callable[[], AbstractAsyncContextManager[Metastore]]

MOMENT_S = 0.0002
LOOK_AGAIN_S = 0.002
ELECTED = b"elected"  # a line: what a process says that was
MISSING = "reading, replacing or deleting a key that does not exist raises KeyNotFoundError, which has the key"


@attrs.frozen
class Bench:
    """Two clients of one store, a part of it that nobody else uses, and a way to open more clients."""

    one: Metastore
    other: Metastore
    root: str
    open: OpenMetastore

    @property
    def clients(self) -> tuple[Metastore, Metastore]:
        """Both."""
        return self.one, self.other


@contextmanager
def no_other_error(subject: str) -> Iterator[None]:
    """An error about a key that the exam did not expect breaks the contract; it leaves the block as an AssertionError, as one
    that is in a group does."""
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
    """The first error of this type, in groups too."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for each in error.exceptions if (found := first_of(expected, each))), None)
    return error if isinstance(error, expected) else None


async def until(condition: Callable[[], Awaitable[bool]], wait: Callable[[], Awaitable[None]]) -> None:
    """Waits until it is so; `wait` may return early, but must not return late."""
    while True:
        await wait()
        if await condition():
            return


async def until_children(client: Metastore, key: str, known: Sequence[str], expected: Sequence[str]) -> None:
    """Waits until children that were `known` are those expected."""
    while (found := await client.children(key)) != list(expected):
        promise(found == list(known), f"children are {known}, then {expected}; got {found}")
        await client.wait_children_changed(key, known)


async def until_listed(client: Metastore, key: str, expected: Sequence[str], lingering: Sequence[str]) -> None:
    """Waits until the children are those expected: for a short while words may be named below which nothing is left."""
    while (found := await client.children(key)) != sorted(expected):
        missing = sorted(set(expected) - set(found))
        promise(not missing, f"children are the words below a key, each once, sorted; {missing} are missing")
        strange = sorted(set(found) - set(expected) - set(lingering))
        promise(not strange, f"children are the words below a key, each once, sorted; {strange} are not there")
        in_order = found == sorted(set(found))
        promise(in_order, f"children are the words below a key, each once, sorted; got {found}")
        await trio.sleep(LOOK_AGAIN_S)


async def version_of(client: Metastore, key: str) -> int | None:
    """The version, or None."""
    try:
        return (await client.get(key)).version
    except KeyNotFoundError:
        return None


async def exists(client: Metastore, key: str) -> bool:
    """Whether the key exists."""
    return await version_of(client, key) is not None


async def differs(client: Metastore, key: str, version: int) -> bool:
    """Whether the key has another version, or none."""
    return await version_of(client, key) != version
