"""A metastore in this process: `memory:NAME`, shared by all users of that name, in any thread; lost with the process.

Rules: one lock guards one map, and is held only during a change. Versions come from one counter per store, so they never
repeat, not even after a deletion. Waiters are woken by events, in any trio run.
"""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import attrs
import trio

from replog.abc import Metastore, Versioned, check_key, check_value
from replog.errors import KeyExistsError, KeyNotFoundError, VersionConflictError
from replog.hookspecs import Backend, NoOptions, hookimpl

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence


class MemoryMetastore(Metastore):
    """A view of the store of this name; "" makes a new store without a name.

    Every call is a checkpoint *before* it changes anything: so a cancelled change did not happen. After `aclose`, calls raise
    `trio.ClosedResourceError`; the store and its values stay until the process ends or `discard` is called."""

    def __init__(self, name: str = "") -> None:
        self._store = _store_named(name)
        self._closed = False
        self._waiters: set[_Waiter] = set()

    @staticmethod
    def discard(name: str) -> None:
        """Forgets the store of this name: opening it again makes an empty one. Open metastores keep the old store."""
        with _stores_lock:
            _stores.pop(name, None)

    async def create(self, key: str, value: bytes) -> int:
        """Creates the key and returns its version. Raises `KeyExistsError`."""
        check_value(key, value)
        await self._checkpoint(key)
        # A copy: the caller may go on to change a bytearray.
        return self._store.create(key, bytes(value))

    async def get(self, key: str) -> Versioned:
        """Raises `KeyNotFoundError`."""
        await self._checkpoint(key)
        return self._store.get(key)

    async def put(self, key: str, value: bytes, expected: int) -> int:
        """Replaces the value. Raises `VersionConflictError`, `KeyNotFoundError`."""
        check_value(key, value)
        await self._checkpoint(key)
        return self._store.put(key, bytes(value), expected)

    async def delete(self, key: str, expected: int | None = None) -> None:
        """Deletes the key. Raises `VersionConflictError`, `KeyNotFoundError`."""
        await self._checkpoint(key)
        self._store.delete(key, expected)

    async def children(self, key: str) -> list[str]:
        """The words that follow the key in existing keys, sorted."""
        await self._checkpoint(key)
        return self._store.children(key)

    async def wait_changed(self, key: str, version: int | None) -> None:
        """Returns once the key has another version than this (None: once it exists)."""
        await self._checkpoint(key)
        await self._wait_while(key, lambda: self._store.version(key) == version)

    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        """Returns once the children differ from these."""
        await self._checkpoint(key)
        expected = list(known)
        await self._wait_while(f"{key}/", lambda: self._store.children(key) == expected)

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        """Keeps the key in existence while the context is open. Raises `KeyExistsError`."""
        check_value(key, value)
        await self._checkpoint(key)
        version = self._store.create(key, bytes(value), is_announced=True)
        try:
            yield
        finally:
            with suppress(KeyNotFoundError, VersionConflictError):  # it was removed already, as intended
                self._store.delete(key, version)

    async def announced(self, key: str) -> dict[str, bytes]:
        """The announced values right below this key, by their last words."""
        await self._checkpoint(key)
        return self._store.announced(key)

    async def aclose(self) -> None:
        """Ends the waits of this view with `trio.ClosedResourceError`. Idempotent."""
        self._closed = True
        for waiter in list(self._waiters):
            waiter.wake()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _checkpoint(self, key: str) -> None:
        check_key(key)
        await trio.lowlevel.checkpoint()
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this metastore was closed")

    async def _wait_while(self, topic: str, unchanged: Callable[[], bool]) -> None:
        """Waits for events on the topic until the condition is false; the waiter is there before it is first asked."""
        while True:
            waiter = _Waiter()
            self._waiters.add(waiter)
            self._store.add_waiter(topic, waiter)
            try:
                if not unchanged():
                    return
                await waiter.woken.wait()
                self._check_open()
            finally:
                self._waiters.discard(waiter)
                self._store.remove_waiter(topic, waiter)


@attrs.define(eq=False)
class _Waiter:
    """One task that waits, and how to wake it from any thread."""

    token: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token)
    woken: trio.Event = attrs.field(factory=trio.Event)

    def wake(self) -> None:
        # In its own run a waiter is woken directly: `run_sync_soon` would cost a write to a socket pair.
        if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self.token:
            self.woken.set()
            return
        with suppress(trio.RunFinishedError):  # its run is over: it waits no more
            self.token.run_sync_soon(self.woken.set, idempotent=True)


class _Store:
    """The map. Every method takes the lock; none waits for anything else."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Versioned] = {}
        self._below: dict[str, dict[str, int]] = {}  # key -> word below it -> how many keys begin with both
        self._announced: set[str] = set()
        self._waiters: dict[str, set[_Waiter]] = {}
        self._last_version = 0

    def create(self, key: str, value: bytes, *, is_announced: bool = False) -> int:
        with self._lock:
            if key in self._values:
                raise KeyExistsError(key, "it exists already: nothing was written")
            for parent, word in _steps(key):
                words = self._below.setdefault(parent, {})
                # Counted, so that `children` costs what it returns, and not a look at all keys.
                words[word] = words.get(word, 0) + 1
                if words[word] == 1:
                    self._wake(f"{parent}/")
            if is_announced:
                self._announced.add(key)
            return self._set(key, value)

    def get(self, key: str) -> Versioned:
        with self._lock:
            return self._existing(key)

    def version(self, key: str) -> int | None:
        with self._lock:
            found = self._values.get(key)
            return None if found is None else found.version

    def put(self, key: str, value: bytes, expected: int) -> int:
        with self._lock:
            self._check_version(key, expected)
            return self._set(key, value)

    def delete(self, key: str, expected: int | None) -> None:
        with self._lock:
            self._check_version(key, expected)
            del self._values[key]
            self._announced.discard(key)
            self._wake(key)
            for parent, word in _steps(key):
                words = self._below[parent]
                words[word] -= 1
                if not words[word]:
                    del words[word]
                    self._wake(f"{parent}/")
                    if not words:
                        del self._below[parent]

    def children(self, key: str) -> list[str]:
        with self._lock:
            return sorted(self._below.get(key, ()))

    def announced(self, key: str) -> dict[str, bytes]:
        with self._lock:
            places = {word: f"{key}/{word}" for word in sorted(self._below.get(key, ()))}
            return {word: self._values[place].value for word, place in places.items() if place in self._announced}

    def add_waiter(self, topic: str, waiter: _Waiter) -> None:
        with self._lock:
            self._waiters.setdefault(topic, set()).add(waiter)

    def remove_waiter(self, topic: str, waiter: _Waiter) -> None:
        with self._lock:
            waiters = self._waiters.get(topic, set())
            waiters.discard(waiter)
            if not waiters:
                self._waiters.pop(topic, None)

    def _set(self, key: str, value: bytes) -> int:
        self._last_version += 1
        self._values[key] = Versioned(value, self._last_version)
        self._wake(key)
        return self._last_version

    def _existing(self, key: str) -> Versioned:
        try:
            return self._values[key]
        except KeyError:
            raise KeyNotFoundError(key, "it does not exist") from None

    def _check_version(self, key: str, expected: int | None) -> None:
        actual = self._existing(key).version
        if expected is not None and actual != expected:
            raise VersionConflictError(key, expected, actual)

    def _wake(self, topic: str) -> None:
        for waiter in self._waiters.get(topic, ()):
            waiter.wake()


def _steps(key: str) -> list[tuple[str, str]]:
    """Each proper prefix of a key, with the word that follows it."""
    words = key.split("/")
    return [("/".join(words[:depth]), words[depth]) for depth in range(1, len(words))]


_stores: dict[str, _Store] = {}
_stores_lock = threading.Lock()


def _store_named(name: str) -> _Store:
    if not name:
        return _Store()
    with _stores_lock:
        return _stores.setdefault(name, _Store())


@hookimpl
def replog_metastores() -> Sequence[Backend[Metastore]]:
    """Offers "memory"."""
    return [Backend("memory", _open, summary="a map in this process, shared by name: memory:NAME")]


def _open(rest: str, options: NoOptions) -> Metastore:
    return MemoryMetastore(rest)
