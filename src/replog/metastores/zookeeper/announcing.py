"""Announcements: ephemeral nodes, which ZooKeeper removes when their session ends.

Rules: a node belongs to a session, whose id ZooKeeper tells; so after an answer was lost it is known whose a node is. A
session that is followed by another one takes its announcements with it, and they are made again. All of it is advice (M3).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import trio
from kazoo.exceptions import BadVersionError, NoNodeError, NotEmptyError

from replog.errors import KeyExistsError, MetastoreError, MetastoreUncertainError
from replog.metastores.zookeeper import requests
from replog.metastores.zookeeper.calls import Call
from replog.metastores.zookeeper.nodes import create_node, failed, good, remove_placeholders
from replog.metastores.zookeeper.paths import Paths, encode_value
from replog.metastores.zookeeper.session import Session
from replog.runtime.loggers import logger
from replog.runtime.nursery import open_service_nursery

_log = logger("replog.metastores.zookeeper")

# How long leaving may take; remaining nodes end with the session, or when there is a connection
FAREWELL_S = 2.0
PAUSE_S = 0.5


class Store(Protocol):
    """The part of the metastore that announcements and elections need."""

    async def run(self, what: str, work: Callable[[Call], Awaitable[Any]], timeout_s: float | None = None) -> Any: ...
    def leave_over(self, removal: Callable[[Call], Awaitable[None]]) -> None: ...


async def take_back(store: Store, what: str, removal: Callable[[Call], Awaitable[None]]) -> None:
    """Removes a node that must not stay, even if cancelled; if that fails, it is removed later."""
    with trio.CancelScope(shield=True):
        try:
            await store.run(what, removal, FAREWELL_S)
        except MetastoreError as error:
            _log.info("%s could not be removed yet: %s", what, error)
            store.leave_over(removal)
        except trio.ClosedResourceError:
            pass  # the session has ended, or does


class Announcement:
    """One key that is announced. `session_id`: of the session in which it was made last."""

    def __init__(self, store: Store, session: Session, paths: Paths, key: str, value: bytes) -> None:
        self._store = store
        self._session = session
        self._paths = paths
        self._key = key
        self._path = paths.node(key)
        self._data = encode_value(value)
        self._session_id = 0
        self._may_exist = False

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Announced while this is open."""
        try:
            await self._store.run(f"key {self._key!r}", self._claim)
            async with open_service_nursery() as nursery:
                nursery.start_soon(self._keep)
                yield
        finally:
            if self._may_exist:
                await take_back(self._store, f"key {self._key!r}", self._remove)

    async def _claim(self, call: Call) -> None:
        while True:
            await self._session.connected()
            # Noted before the request goes out: if the answer is lost, the node must be removed all the same.
            self._session_id, self._may_exist = self._session.session_id, True
            try:
                if await create_node(call, self._paths, self._path, self._data, is_ephemeral=True):
                    return
                if await self._adopt(call):
                    return
            except MetastoreUncertainError:
                call.forget_doubt()  # whose the node is, its owner tells

    async def _adopt(self, call: Call) -> bool:
        """Decides about a node that exists. True if it is ours; False if it is gone. Raises `KeyExistsError`."""
        _, found = await call.ask(requests.barrier(self._path), requests.get(self._path))
        if failed(found, NoNodeError):
            return False
        data, stat = good(call, found)
        if stat.ephemeralOwner and stat.ephemeralOwner == self._session.session_id:
            if data != self._data:  # of an attempt before this one
                good(call, await call.change(requests.put(self._path, self._data, stat.version)))
            self._session_id = self._session.session_id
            return True
        # An unneeded placeholder is in the place of the announcement.
        if not data and not stat.ephemeralOwner and not stat.numChildren:
            removed = await call.change(requests.delete(self._path, stat.version))
            if not failed(removed, NoNodeError, BadVersionError, NotEmptyError):
                good(call, removed)
            return False
        # It belongs to another client: leaving must not remove it.
        self._may_exist = False
        raise KeyExistsError(self._key, "another client announces it, or it exists otherwise: nothing was written")

    async def _keep(self) -> None:
        """Announces it again in each session that follows. An announcement that was deleted in the same session stays
        deleted."""
        while True:
            try:
                await self._session.wait_another(self._session_id)
                await self._store.run(f"key {self._key!r}", self._claim)
                _log.info("%s: key %r is announced again, in a new session", self._session.place, self._key)
            except trio.ClosedResourceError:
                return
            except KeyExistsError as error:
                _log.warning("%s; it is announced again as soon as that is gone", error)
                await self._try_again()
            except MetastoreError as error:
                _log.warning("%s; key %r is not announced now", error, self._key)
                await self._try_again()

    async def _try_again(self) -> None:
        self._session_id = 0  # in this session, too
        await trio.sleep(PAUSE_S)

    async def _remove(self, call: Call) -> None:
        stat = good(call, (await call.ask(requests.exists(self._path)))[-1])
        # Of a later session it may belong to another client, and of an earlier one it is gone by itself.
        if stat is None or stat.ephemeralOwner != self._session.session_id:
            return
        removed = await call.change(requests.delete(self._path, stat.version))
        if not failed(removed, NoNodeError, BadVersionError):
            good(call, removed)
        await remove_placeholders(call, self._paths, self._path)
