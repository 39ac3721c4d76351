"""A metastore in ZooKeeper: `zookeeper://h1,h2,h3/chroot`. Keys are nodes, versions are ZooKeeper's own.

Rules: reads are linearizable, by a barrier that is sent in one go with them: a transaction that changes nothing, and goes
through a quorum as changes do. ZooKeeper's own `sync` is not enough: a leader answers it before it has applied what it has
committed (one read of a few hundred was stale), and by itself, so that one that was deposed in its sleep answers it, too.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import trio
from kazoo.exceptions import BadVersionError, NoNodeError, NotEmptyError

from replog.abc import Metastore, Versioned, check_key, check_value
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreCorruptError,
    MetastoreError,
)
from replog.metastores.zookeeper import requests
from replog.metastores.zookeeper.announcing import Announcement
from replog.metastores.zookeeper.calls import Call, within
from replog.metastores.zookeeper.electing import Candidacy
from replog.metastores.zookeeper.layout import check_layout
from replog.metastores.zookeeper.leftovers import Leftovers
from replog.metastores.zookeeper.nodes import (
    conflict,
    create_node,
    failed,
    good,
    read,
    read_all,
    remove_placeholders,
)
from replog.metastores.zookeeper.options import Place, ZooKeeperOptions
from replog.metastores.zookeeper.paths import PLACEHOLDER, Listing, Paths, decode_value, encode_value
from replog.metastores.zookeeper.seen import Seen
from replog.metastores.zookeeper.session import Session
from replog.metastores.zookeeper.watches import Watches
from replog.runtime.loggers import logger

_log = logger("replog.metastores.zookeeper")

Answer = TypeVar("Answer")

_PAUSE_S = 0.5  # between two attempts of a wait while ZooKeeper refuses
_TIDYING_S = 2.0
_VERSIONS = range(-(1 << 31), 1 << 31)
_ANY_VERSION = -1  # to ZooKeeper: so never a version here


class ZooKeeperMetastore(Metastore):
    """The metastore below a chroot, connected at the first call. For one trio run.

    A call that waits for a connection when it is cancelled, or out of time, did nothing; later a change has an unknown
    outcome. In a child after a fork every call raises `MetastoreError`: open a new one there.
    """

    def __init__(self, place: Place, options: ZooKeeperOptions) -> None:
        self.lease_s = options.lease_s
        self._options = options
        self._paths = Paths(place.chroot, options.layout)
        self._pid = os.getpid()
        self._watches = Watches(lambda path: self._session.forget_watch(path))
        self._session = Session(place, options, self._watches.fired, self._watches.is_watched)
        self._checking = trio.Lock()
        self._is_layout_checked = False
        self._seen = Seen(self._paths, self._watches, self._session)
        self._mine: set[str] = set()
        self._leftovers = Leftovers(self._session, self.run)

    # -- the map --------------------------------------------------------------------------------------------------

    async def create(self, key: str, value: bytes) -> int:
        """Creates the key and returns its version. Raises `KeyExistsError`, `MetastoreUncertainError`."""
        check_key(key)
        check_value(key, value)
        path, data = self._paths.node(key), encode_value(value)

        async def work(call: Call) -> int:
            # A node that exists may be a placeholder, which is not a key; or it is gone when it is looked at.
            while not await create_node(call, self._paths, path, data):
                found = (await call.ask(requests.exists(path)))[-1]
                stat = good(call, found)
                if stat is None:
                    continue
                if stat.dataLength:
                    raise KeyExistsError(key, "it exists already: nothing was written")
                made = await call.change(requests.put(path, data, stat.version))  # of a placeholder
                if not failed(made, BadVersionError, NoNodeError):
                    return int(good(call, made).version)
            return 0

        return await self.run(f"key {key!r}", work)

    async def get(self, key: str) -> Versioned:
        """Raises `KeyNotFoundError` only if the key does not exist."""
        check_key(key)
        path = self._paths.node(key)
        found = await self.run(f"key {key!r}", lambda call: read(call, path))
        if found is None:
            raise KeyNotFoundError(key, "it does not exist")
        data, stat = found
        return Versioned(decode_value(data), stat.version)

    async def put(self, key: str, value: bytes, expected: int) -> int:
        """Replaces the value and returns the new version.

        Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""
        check_key(key)
        check_value(key, value)
        path, data = self._paths.node(key), encode_value(value)

        async def work(call: Call) -> int:
            if not _is_version(expected):
                raise await conflict(call, key, path, expected)
            stat = await call.change(requests.put(path, data, expected))
            if failed(stat, NoNodeError):
                raise KeyNotFoundError(key, "it does not exist: nothing was written")
            if failed(stat, BadVersionError):
                raise await conflict(call, key, path, expected)
            return int(good(call, stat).version)

        return await self.run(f"key {key!r}", work)

    async def delete(self, key: str, expected: int | None = None) -> None:
        """Deletes the key. Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""
        check_key(key)
        path = self._paths.node(key)

        async def work(call: Call) -> None:
            if expected is not None:
                if not _is_version(expected) or not await _delete(call, key, path, expected):
                    raise await conflict(call, key, path, expected)
                return
            while True:
                # The version is read, though any would do: a delete without one would also remove a placeholder.
                found = await read(call, path)
                if found is None:
                    raise KeyNotFoundError(key, "it does not exist")
                if await _delete(call, key, path, found[1].version):
                    return

        await self.run(f"key {key!r}", work)
        await self._tidy(path)

    async def children(self, key: str) -> list[str]:
        """The words that follow the key in existing keys, sorted."""
        check_key(key)
        return await self.run(f"key {key!r}", lambda call: self._words(call, self._paths.listings(key)))

    async def _values_of(self, key: str, words: Sequence[str]) -> dict[str, Versioned]:
        """The values below the key that have these last words; read concurrently."""
        nodes = [self._paths.node(f"{key}/{word}") for word in words]

        async def work(call: Call) -> dict[str, Versioned]:
            both = zip(words, await read_all(call, self._paths.node(key), nodes), strict=True)
            return {word: Versioned(decode_value(each[0]), each[1].version) for word, each in both if each is not None}

        return await self.run(f"key {key!r}", work)

    async def _words(self, call: Call, listings: Sequence[Listing]) -> list[str]:
        words: set[str] = set()
        for listing in listings:
            _, names = await call.ask(requests.barrier(listing.path), requests.children(listing.path))
            if not failed(names, NoNodeError):
                words |= listing.words(good(call, names))
        return sorted(words)

    # -- waiting --------------------------------------------------------------------------------------------------

    async def wait_changed(self, key: str, version: int | None) -> None:
        """Returns once the key has another version than this (None: once it exists)."""
        check_key(key)
        path = self._paths.node(key)

        async def work(call: Call) -> bool:
            stat = good(call, (await call.ask(requests.exists(path, self._session.watcher)))[-1])
            return (stat.version if stat is not None and stat.dataLength else None) != version

        await self._wait_until(f"key {key!r}", [path], work)

    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        """Returns once the children differ from these."""
        check_key(key)
        listings, expected, watcher = self._paths.listings(key), list(known), self._session.watcher

        async def work(call: Call) -> bool:
            words: set[str] = set()
            for listing in listings:
                names = (await call.ask(requests.children(listing.path, watcher)))[-1]
                if failed(names, NoNodeError):  # then it is its coming that is waited for
                    if good(call, (await call.ask(requests.exists(listing.path, watcher)))[-1]) is not None:
                        return await work(call)
                else:
                    words |= listing.words(good(call, names))
            return sorted(words) != expected

        await self._wait_until(f"key {key!r}", [listing.path for listing in listings], work)

    async def _wait_until(self, what: str, watched: Sequence[str], work: Callable[[Call], Awaitable[bool]]) -> None:
        """Does the work, which sets watches, whenever one of them fires, until it says that it is so."""
        with self._watches.waiting(*watched) as waiting:
            while True:
                waiting.rearm()
                try:
                    if await self.run(what, work):
                        return
                    await waiting.woken()
                except MetastoreCorruptError:
                    raise
                except MetastoreError:
                    # A wait goes on while the store can't be reached.
                    await trio.sleep(_PAUSE_S)

    # -- who is alive ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        """Keeps the key in existence, as an ephemeral node, while the context is open and this session lasts; a session
        that was lost is followed by another, in which it is announced again. Raises `KeyExistsError` if another client
        announces it, `MetastoreError`: then it is gone soon. Cancelled, it is not announced, or gone soon."""
        check_key(key)
        check_value(key, value)
        # ZooKeeper could not tell: both would be of this session, and the second would adopt the first one's node.
        if key in self._mine:
            raise KeyExistsError(key, "this client announces it already")
        self._mine.add(key)
        try:
            async with Announcement(self, self._session, self._paths, key, value).held():
                yield
        finally:
            self._mine.discard(key)

    async def announced(self, key: str) -> dict[str, bytes]:
        """The announced values right below this key. Watches keep them current: the usual call costs one barrier."""
        check_key(key)
        return await self.run(f"key {key!r}", lambda call: self._seen.announced(call, key))

    @asynccontextmanager
    async def elect(self, key: str, candidate: bytes) -> AsyncIterator[None]:
        """Waits until nobody else is elected there, in the order of asking, and is while the context is open and this session
        lasts. Candidates are ephemeral nodes below the key, of which the first leads; each waits for the one before it."""
        check_key(key)
        check_value(key, candidate)
        async with Candidacy(self, self._session, self._paths, self._watches, key, candidate).held():
            yield

    # -- calls ----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Ends the session, and with it all announcements, and kazoo's thread; waits end with
        `trio.ClosedResourceError`. Takes a few seconds if no server answers. Idempotent."""
        if os.getpid() != self._pid:
            await trio.lowlevel.checkpoint()
            return
        self._leftovers.close()
        await self._session.aclose()

    async def run(self, what: str, work: Callable[[Call], Awaitable[Answer]], timeout_s: float | None = None) -> Answer:
        """Does something in this store, with a deadline: `timeout_s`, if it has no other."""
        self._check_process()

        async def opened(call: Call) -> Answer:
            await self._open(call)
            return await work(call)

        if timeout_s is None:
            timeout_s = self._options.timeout_s
        return await within(self._session, timeout_s, what, opened)

    def leave_over(self, removal: Callable[[Call], Awaitable[None]]) -> None:
        """Something could not be removed while there was no connection: it is as soon as there is one."""
        self._leftovers.add(removal)

    async def _open(self, call: Call) -> None:
        self._session.check_open()
        if not self._is_layout_checked:
            async with self._checking:
                if not self._is_layout_checked:
                    await check_layout(call, self._paths, self._options.layout)
                    self._is_layout_checked = True
        # Before each call: a client that announces a key again must not have it removed by what it left over.
        await self._leftovers.clear(call)

    async def _tidy(self, path: str) -> None:
        """Removes placeholders above a deleted key. Placeholders that cannot be removed do no harm."""
        with suppress(MetastoreError):
            await self.run(f"node {path}", lambda call: remove_placeholders(call, self._paths, path), _TIDYING_S)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise MetastoreError(
                f"{self._session.place}: opened by process {self._pid}, used in its fork {os.getpid()}; nothing was done. "
                "Open a new one after the fork"
            )


async def _delete(call: Call, key: str, path: str, version: int) -> bool:
    """Deletes the key; False if it has another version. A key with others below it becomes a placeholder."""
    deleted = await call.change(requests.delete(path, version))
    if failed(deleted, NotEmptyError):
        deleted = await call.change(requests.put(path, PLACEHOLDER, version))
    if failed(deleted, NoNodeError):
        raise KeyNotFoundError(key, "it does not exist")
    if failed(deleted, BadVersionError):
        return False
    good(call, deleted)
    return True


def _is_version(number: int) -> bool:
    return number in _VERSIONS and number != _ANY_VERSION
