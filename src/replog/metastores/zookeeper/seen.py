"""Announced values, as they were seen last, and kept current by watches.

Rules: an answer is given only after a barrier: ZooKeeper tells of changes in the order in which they happened, so every
announcement from before the question has fired its watch by then. The known values are bounded, and none of them
outlives a connection.
"""

from __future__ import annotations

import trio
from kazoo.exceptions import NoNodeError

from replog.metastores.zookeeper import requests
from replog.metastores.zookeeper.calls import Call
from replog.metastores.zookeeper.nodes import failed, good
from replog.metastores.zookeeper.paths import Paths, decode_value, unescape
from replog.metastores.zookeeper.session import Session
from replog.metastores.zookeeper.watches import Watches

_KEYS_MAX = 16
_WINDOW = 64


class Seen:
    """Announcements below the keys that were asked for last."""

    def __init__(self, paths: Paths, watches: Watches, session: Session) -> None:
        self._paths = paths
        self._watches = watches
        self._session = session
        self._directories: dict[str, _Directory] = {}

    async def announced(self, call: Call, key: str) -> dict[str, bytes]:
        """The announced values right below this key, by their last words. Raises `MetastoreError`."""
        directory = self._directories.pop(key, None)
        if directory is None:
            directory = _Directory(self._paths.node(key), self._watches, self._session)
        self._directories[key] = directory  # at the end: it was asked for last
        while len(self._directories) > _KEYS_MAX:
            self._directories.pop(next(iter(self._directories))).forget()
        # Even when everything is known: without it the answer could be from before a change that was answered already.
        good(call, (await call.ask(requests.barrier(directory.path)))[-1])
        async with directory.reading:
            if not directory.is_known:
                await directory.read(call)
            return dict(directory.values)


class _Directory:
    """The announced values below one node. Anything that happens to it, or to a node in it, makes it unknown."""

    def __init__(self, path: str, watches: Watches, session: Session) -> None:
        self.path = path
        self.reading = trio.Lock()
        self.is_known = False
        self.values: dict[str, bytes] = {}
        self._watches = watches
        self._session = session
        self._watched: set[str] = set()

    async def read(self, call: Call) -> None:
        """Reads everything, and sets watches on it."""
        self.is_known = True  # until a watch fires
        try:
            names = await self._names(call)
            # Registered before the requests that set them: a watch that fires at once must find its receiver.
            self._watch({self.path, *(f"{self.path}/{name}" for name in names)})
            values = {}
            for start in range(0, len(names), _WINDOW):
                window = names[start : start + _WINDOW]
                asked = (requests.get(f"{self.path}/{name}", self._session.watcher) for name in window)
                for name, answer in zip(window, await call.ask(*asked), strict=True):
                    if failed(answer, NoNodeError):
                        continue  # the watch on the directory has fired
                    data, stat = good(call, answer)
                    if stat.ephemeralOwner and data:
                        values[unescape(name)] = decode_value(data)
            self.values = values
        except BaseException:
            self.is_known = False
            raise

    def forget(self) -> None:
        """Nobody asks any more."""
        self._watch(set())
        self.is_known = False

    async def _names(self, call: Call) -> list[str]:
        self._watch({self.path, *self._watched})
        while True:
            names = (await call.ask(requests.children(self.path, self._session.watcher)))[-1]
            if not failed(names, NoNodeError):
                return list(good(call, names))
            if good(call, (await call.ask(requests.exists(self.path, self._session.watcher)))[-1]) is None:
                return []

    def _watch(self, paths: set[str]) -> None:
        for path in paths - self._watched:
            self._watches.add(path, self._fired)
        for path in self._watched - paths:
            self._watches.remove(path, self._fired)
        self._watched = paths

    def _fired(self) -> None:
        self.is_known = False
