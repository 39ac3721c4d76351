"""Archives for tests: one in memory, whose calls fail or stop on demand, and clusters that have it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import trio

from replog.abc import Archive, StoredObject
from replog.errors import ArchiveError
from replog.hookspecs import Backend, NoOptions, hookimpl
from replog.registry import Registry
from replog.runtime.threads import Threads, use_threads
from tests.kit import Cluster

URL = "test:bucket"
Answer = TypeVar("Answer")


class MemoryArchive(Archive):
    """A store. `begins` and `ended` are called with each call's name, and may raise; `clock_s` is its time."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.written_at_s: dict[str, float] = {}
        self.clock_s = 1_000_000.0
        self.calls: list[str] = []
        self.begins: Callable[[str], None] = lambda _call: None
        self.ended: Callable[[str], None] = lambda _call: None

    def shown(self) -> str:
        return URL

    def put(self, name: str, pieces: Sequence[bytes]) -> bool:
        self._called("put")
        if name in self.contents:
            return False
        self.contents[name], self.written_at_s[name] = b"".join(pieces), self.clock_s
        self.ended("put")
        return True

    def read(self, name: str, start: int, size_bytes: int) -> bytes | None:
        self._called("read")
        found = self.contents.get(name)
        return None if found is None else found[start : start + size_bytes]

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        self._called("objects")
        for name in [each for each in self.contents if each.startswith(prefix)]:
            yield StoredObject(name, len(self.contents[name]), self.written_at_s[name])

    def delete(self, names: Collection[str]) -> None:
        self._called("delete")
        for name in names:
            self.contents.pop(name, None)

    def _called(self, call: str) -> None:
        self.calls.append(call)
        self.begins(call)

    @property
    def objects_here(self) -> list[str]:
        """The names of the objects that have entries."""
        return sorted(each for each in self.contents if each.startswith("ledgers/"))

    def away(self, _call: str) -> None:
        """For `begins`: the store does not answer."""
        raise ArchiveError(URL, "the store does not answer: try again")


class InlineThreads(Threads):
    """Threads that are none: virtual time does not pass while they work."""

    async def run(
        self,
        function: Callable[..., Answer],
        *arguments: object,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> Answer:
        await trio.lowlevel.checkpoint()
        return function(*arguments)


class ArchivePlugin:
    """Offers one store as `test:bucket`."""

    def __init__(self, store: Archive) -> None:
        self._store = store

    @hookimpl
    def replog_archives(self) -> list[Backend[Archive]]:
        """Offers "test"."""
        return [Backend("test", self._open)]

    def _open(self, rest: str, options: NoOptions) -> Archive:
        return self._store


def with_archive(world: Cluster) -> MemoryArchive:
    """Gives the clients of a cluster an archive, whose calls take no threads."""
    use_threads(InlineThreads())
    store = MemoryArchive()
    observed = world.registry
    world.registry = Registry({"test-archive": ArchivePlugin(store)}, load_installed=False)
    world.registry._observers = copy.copy(observed._observers)
    return store


async def release(world: Cluster) -> None:
    """Has all bookies drop what records say is not theirs."""
    for bookie in world.bookies:
        if bookie.served is not None:
            await bookie.served.collect_garbage()


def held(world: Cluster, ledger_id: int) -> int:
    """How many bookies store an entry of a ledger."""
    return sum(bool(each.storage.ranges(ledger_id)) for each in world.bookies if each.served is not None)
