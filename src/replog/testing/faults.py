"""A metastore that fails as real ones do, in ways that the contract of `Metastore` allows (M1).

It wraps any metastore. A request or its answer gets lost, the server is not reachable, another client was faster, or an old
request arrives late. `calls` records every call and its fault.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import attrs
import trio

from replog.abc import Metastore, ValuesPage, Versioned
from replog.errors import KeyExistsError, MetastoreError, MetastoreUnavailableError, MetastoreUncertainError

Answer = TypeVar("Answer")


class Fault(enum.Enum):
    """The fault of one call."""

    ANSWER_LOST = "it is applied, and raises `MetastoreUncertainError`"
    REQUEST_LOST = "it is not applied, and raises `MetastoreUncertainError`"
    ARRIVES_LATE = "it raises `MetastoreUncertainError`, and is applied right after the key is next read"
    UNAVAILABLE = "it is not applied, and raises `MetastoreUnavailableError`"
    CONFLICT = "another client wrote the same value again just before, so that the version has changed"


@attrs.frozen
class Call:
    """One call, and the fault that it met."""

    operation: str
    key: str
    fault: Fault | None


@attrs.frozen
class _Planned:
    operation: str
    under: str
    fault: Fault


class FaultyMetastore(Metastore):
    """Passes calls on to `inner`, except those that are to fail.

    `fail_next` plans faults of coming calls. `choose(operation, key)` may return a fault for any other call; operations
    are "create", "get", "put", "delete", "children", "values", "values_page", "announce", "announced", and "elect".
    Announcing and electing fail before anything is announced, for any fault. Waits never fail. `delay_s` is how long each
    call takes.
    """

    def __init__(
        self, inner: Metastore, choose: Callable[[str, str], Fault | None] | None = None, *, delay_s: float = 0.0
    ) -> None:
        self.inner = inner
        self.lease_s = inner.lease_s
        self.calls: list[Call] = []
        self.delay_s = delay_s
        self._choose = choose
        self._planned: deque[_Planned] = deque()
        self._late: dict[str, list[Callable[[], Awaitable[object]]]] = {}

    def fail_next(self, operation: str, fault: Fault, *, under: str = "", times: int = 1) -> None:
        """Let the next calls of this operation, to keys that begin with `under`, meet this fault. Earlier plans come first."""
        self._planned.extend([_Planned(operation, under, fault)] * times)

    def planned(self) -> int:
        """How many planned faults no call has met yet. Assert in the end of a test that there are none."""
        return len(self._planned)

    async def create(self, key: str, value: bytes) -> int:
        """Creates a key, with faults (`Metastore.create`)."""
        return await self._change("create", key, lambda: self.inner.create(key, value))

    async def get(self, key: str) -> Versioned:
        """Reads a key, with faults (`Metastore.get`). Late requests for this key arrive right after it."""
        await self._read("get", key)
        try:
            return await self.inner.get(key)
        finally:
            # After the caller has read back, and decided that the change did not happen: the worst moment.
            for arrive in self._late.pop(key, []):
                with suppress(MetastoreError):  # it came too late to have an effect
                    await arrive()

    async def put(self, key: str, value: bytes, expected: int) -> int:
        """Replaces a value, with faults (`Metastore.put`)."""
        return await self._change("put", key, lambda: self.inner.put(key, value, expected))

    async def delete(self, key: str, expected: int | None = None) -> None:
        """Deletes a key, with faults (`Metastore.delete`)."""
        await self._change("delete", key, lambda: self.inner.delete(key, expected))

    async def children(self, key: str) -> list[str]:
        """Lists the keys right below this one, with faults (`Metastore.children`)."""
        await self._read("children", key)
        return await self.inner.children(key)

    async def wait_changed(self, key: str, version: int | None) -> None:
        """Waits for a change of the key, without faults of its own (`Metastore.wait_changed`)."""
        await self.inner.wait_changed(key, version)

    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        """Waits for a change of the keys below, without faults of its own (`Metastore.wait_children_changed`)."""
        await self.inner.wait_children_changed(key, known)

    async def values(self, key: str) -> dict[str, Versioned]:
        """Reads the keys right below this one, with faults (`Metastore.values`)."""
        await self._read("values", key)
        return await self.inner.values(key)

    async def values_page(self, key: str, first: str, count_max: int) -> ValuesPage:
        """Reads a page of the keys right below this one, with faults (`Metastore.values_page`)."""
        await self._read("values_page", key)
        return await self.inner.values_page(key, first, count_max)

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        """Announces a key (`Metastore.announce`)."""
        await self._begin("announce", key)
        async with self.inner.announce(key, value):
            yield

    async def announced(self, key: str) -> dict[str, bytes]:
        """The announced values right below this key (`Metastore.announced`)."""
        await self._read("announced", key)
        return await self.inner.announced(key)

    @asynccontextmanager
    async def elect(self, key: str, candidate: bytes) -> AsyncIterator[None]:
        """Competes for a key (`Metastore.elect`)."""
        await self._begin("elect", key)
        async with self.inner.elect(key, candidate):
            yield

    async def aclose(self) -> None:
        """Close the inner metastore."""
        await self.inner.aclose()

    def _fate(self, operation: str, key: str) -> Fault | None:
        fault = self._choose(operation, key) if self._choose is not None else None
        for planned in self._planned:
            if planned.operation == operation and key.startswith(planned.under):
                self._planned.remove(planned)
                fault = planned.fault
                break
        self.calls.append(Call(operation, key, fault))
        return fault

    async def _read(self, operation: str, key: str) -> None:
        fault = self._fate(operation, key)
        await trio.sleep(self.delay_s)
        if fault is not None:
            raise MetastoreUnavailableError(f"key {key!r}: {operation} failed on purpose ({fault.name}); try again")

    async def _begin(self, operation: str, key: str) -> None:
        fault = self._fate(operation, key)
        await trio.sleep(self.delay_s)
        if fault is Fault.CONFLICT:
            raise KeyExistsError(key, f"{operation} failed on purpose: another client was faster")
        if fault is Fault.UNAVAILABLE:
            raise MetastoreUnavailableError(f"key {key!r}: {operation} failed on purpose; try again")
        if fault is not None:
            raise MetastoreUncertainError(f"key {key!r}: the answer to {operation} was lost on purpose; taken back")

    async def _change(self, operation: str, key: str, change: Callable[[], Awaitable[Answer]]) -> Answer:
        fault = self._fate(operation, key)
        await trio.sleep(self.delay_s)
        if fault is Fault.UNAVAILABLE:
            raise MetastoreUnavailableError(
                f"key {key!r}: {operation} failed on purpose; nothing was written, try again"
            )
        if fault is Fault.CONFLICT:
            await self._interfere(key)
        if fault is Fault.ARRIVES_LATE:
            self._late.setdefault(key, []).append(change)
        if fault in (Fault.REQUEST_LOST, Fault.ARRIVES_LATE):
            raise MetastoreUncertainError(f"key {key!r}: the answer to {operation} was lost on purpose; read back")
        answer = await change()
        if fault is Fault.ANSWER_LOST:
            raise MetastoreUncertainError(f"key {key!r}: the answer to {operation} was lost on purpose; read back")
        return answer

    async def _interfere(self, key: str) -> None:
        with suppress(MetastoreError):  # without a value there is no conflict
            found = await self.inner.get(key)
            await self.inner.put(key, found.value, found.version)
