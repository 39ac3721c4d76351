"""The nodes below the root of BookKeeper's metadata, with their data as they are. Keys are paths below the root; one that begins
with "/" is beside the root, where other programs of the cluster keep their metadata.

It stands upon replog's own connection to ZooKeeper: its deadlines, its retries, and its word for a change whose answer was lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from kazoo.exceptions import BadVersionError, NoNodeError, NotEmptyError

from replog.abc import Metastore, Versioned
from replog.errors import KeyExistsError, KeyNotFoundError, VersionConflictError
from replog.metastores.zookeeper import requests
from replog.metastores.zookeeper.announcing import Announcement
from replog.metastores.zookeeper.calls import Call, within
from replog.metastores.zookeeper.leftovers import Leftovers
from replog.metastores.zookeeper.nodes import create_node, failed, good
from replog.metastores.zookeeper.options import Place, ZooKeeperOptions
from replog.metastores.zookeeper.paths import Paths
from replog.metastores.zookeeper.session import Session
from replog.metastores.zookeeper.watches import Watches

Answer = TypeVar("Answer")


class LedgersRoot(Metastore):
    """The nodes below one root, connected at the first call. For one trio run."""

    def __init__(self, place: Place, options: ZooKeeperOptions) -> None:
        self.place = place
        self._timeout_s = options.timeout_s
        self._paths = Paths(place.chroot, options.layout)
        self._watches = Watches(lambda path: self._session.forget_watch(path))
        self._session = Session(place, options, self._watches.fired, self._watches.is_watched)
        self._leftovers = Leftovers(self._session, self.run)

    def _path(self, key: str) -> str:
        if key.startswith("/"):
            return self.place.chroot.rpartition("/")[0] + key
        return f"{self.place.chroot}/{key}" if key else self.place.chroot

    async def _run(self, key: str, work: Callable[[Call], Awaitable[Answer]]) -> Answer:
        return await self.run(f"node {self._path(key)}", work)

    async def run(self, what: str, work: Callable[[Call], Awaitable[Answer]], timeout_s: float | None = None) -> Answer:
        """Does something with nodes, within `timeout_s`, or else the root's own deadline. Raises `MetastoreError`."""
        self._session.check_open()

        async def cleared(call: Call) -> Answer:
            # Before each call: what is announced again must not be removed by what was left over.
            await self._leftovers.clear(call)
            return await work(call)

        return await within(self._session, self._timeout_s if timeout_s is None else timeout_s, what, cleared)

    def leave_over(self, removal: Callable[[Call], Awaitable[None]]) -> None:
        """A node could not be removed while there was no connection: it is as soon as there is one."""
        self._leftovers.add(removal)

    async def create(self, key: str, value: bytes) -> int:
        """Creates the node and returns its version. Raises `KeyExistsError`, `MetastoreUncertainError`."""

        async def work(call: Call) -> int:
            if not await create_node(call, self._paths, self._path(key), value):
                raise KeyExistsError(key, "it exists already: nothing was written")
            return 0

        return await self._run(key, work)

    async def get(self, key: str) -> Versioned:
        """Raises `KeyNotFoundError` only if the node does not exist."""
        path = self._path(key)

        async def work(call: Call) -> Versioned:
            _, found = await call.ask(requests.barrier(path), requests.get(path))
            if failed(found, NoNodeError):
                raise KeyNotFoundError(key, "it does not exist")
            data, stat = good(call, found)
            return Versioned(data, stat.version)

        return await self._run(key, work)

    async def put(self, key: str, value: bytes, expected: int) -> int:
        """Replaces the data and returns the new version.

        Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""
        path = self._path(key)

        async def work(call: Call) -> int:
            stat = await call.change(requests.put(path, value, expected))
            if failed(stat, NoNodeError):
                raise KeyNotFoundError(key, "it does not exist: nothing was written")
            if failed(stat, BadVersionError):
                raise VersionConflictError(key, expected, None)
            return int(good(call, stat).version)

        return await self._run(key, work)

    async def delete(self, key: str, expected: int | None = None) -> None:
        """Deletes the node; nodes above it stay. Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""

        async def work(call: Call) -> None:
            deleted = await call.change(requests.delete(self._path(key), -1 if expected is None else expected))
            if failed(deleted, NoNodeError):
                raise KeyNotFoundError(key, "it does not exist")
            if failed(deleted, BadVersionError):
                raise VersionConflictError(key, expected or 0, None)
            if failed(deleted, NotEmptyError):
                raise KeyExistsError(key, "others are below it: nothing was deleted")
            good(call, deleted)

        await self._run(key, work)

    async def children(self, key: str) -> list[str]:
        """The names of the nodes right below this one, sorted."""
        path = self._path(key)

        async def work(call: Call) -> list[str]:
            _, names = await call.ask(requests.barrier(path), requests.children(path))
            return [] if failed(names, NoNodeError) else sorted(good(call, names))

        return await self._run(key, work)

    async def announced(self, key: str) -> dict[str, bytes]:
        """The data of the nodes right below this one. BookKeeper's are ephemeral: they end with their bookie."""
        return {name: found.value for name, found in (await self.values(key)).items()}

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        """Keeps an ephemeral node while the context is open: in each session that follows this one, too.

        Raises `KeyExistsError` if it is another client's, `MetastoreError`."""
        async with _Announced(self, self._session, self._paths, key, self._path(key), value).held():
            yield

    async def next_number(self, prefix: str) -> int:
        """The number that ZooKeeper gives to the next node that begins so: nobody else gets it. The node is deleted again.

        Raises `MetastoreError`; after `MetastoreUncertainError` a number may be lost."""

        async def work(call: Call) -> int:
            path = self._path(prefix)
            while True:
                made = await call.change(requests.create(path, b"", ephemeral=True, sequence=True))
                if not failed(made, NoNodeError):
                    break
                await create_node(call, self._paths, path.rpartition("/")[0], b"")
            made_path = str(good(call, made))
            await call.change(requests.delete(made_path, -1))
            return int(made_path.removeprefix(path))

        return await self._run(prefix, work)

    async def aclose(self) -> None:
        """Ends the session. Idempotent."""
        self._leftovers.close()
        await self._session.aclose()


class _Announced(Announcement):
    """An ephemeral node with its data as it is. The nodes above it are BookKeeper's, and stay."""

    def __init__(self, root: LedgersRoot, session: Session, paths: Paths, key: str, path: str, value: bytes) -> None:
        super().__init__(root, session, paths, key, value)
        self._path, self._data = path, value

    async def _remove(self, call: Call) -> None:
        stat = good(call, (await call.ask(requests.exists(self._path)))[-1])
        # Of a later session it may belong to another client, and of an earlier one it is gone by itself.
        if stat is not None and stat.ephemeralOwner == self._session.session_id:
            removed = await call.change(requests.delete(self._path, stat.version))
            if not failed(removed, NoNodeError, BadVersionError):
                good(call, removed)
