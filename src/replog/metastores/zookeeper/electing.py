"""Elections: ephemeral nodes with ascending numbers below a key; the lowest number leads (M3: advice).

Rules: each candidate watches the one before it alone, so that an end wakes one. Each has a token and its session in its
name: a node whose creation was not answered is found by that, and no second one stands in the queue. A candidate that
loses its session queues again, and does not take a node for its own that will go with the session before.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from kazoo.exceptions import NoNodeError

from replog.errors import MetastoreError, MetastoreUncertainError
from replog.metastores.zookeeper import requests
from replog.metastores.zookeeper.announcing import PAUSE_S, Store, take_back
from replog.metastores.zookeeper.calls import Call
from replog.metastores.zookeeper.nodes import failed, good, make_placeholders, remove_placeholders
from replog.metastores.zookeeper.paths import Paths, encode_value
from replog.metastores.zookeeper.session import Session
from replog.metastores.zookeeper.watches import Watches
from replog.runtime.loggers import logger
from replog.runtime.nursery import open_service_nursery

_log = logger("replog.metastores.zookeeper")

_PREFIX = "candidate-"
_DIGITS = 10


class Candidacy:
    """One candidate. `session_id`: of the session in which it queued last."""

    def __init__(
        self, store: Store, session: Session, paths: Paths, watches: Watches, key: str, candidate: bytes
    ) -> None:
        self._store = store
        self._session = session
        self._paths = paths
        self._watches = watches
        self._what = f"election {key!r}"
        self._path = paths.node(key)
        self._data = encode_value(candidate)
        # The token finds a node whose creation was not answered; a number that ZooKeeper chose would not be known.
        self._token = f"{_PREFIX}{secrets.token_hex(8)}-"
        self._session_id = 0
        self._may_exist = False

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Elected while this is open."""
        try:
            await self._lead()
            async with open_service_nursery() as nursery:
                nursery.start_soon(self._keep)
                yield
        finally:
            if self._may_exist:
                await take_back(self._store, self._what, self._remove)

    async def _lead(self) -> None:
        problem = ""
        while True:
            try:
                predecessor = await self._store.run(self._what, self._look)
                if predecessor is None:
                    return
                await self._wait_gone(f"{self._path}/{predecessor}")
            except MetastoreError as error:
                if not self._may_exist:
                    raise  # it never was in the queue: the caller gets the error, and may come again
                if str(error) != problem:
                    problem = str(error)
                    _log.warning("%s; still waiting to be elected", problem)
                await trio.sleep(PAUSE_S)

    async def _look(self, call: Call) -> str | None:
        """Queues, if need be. The candidate before this one, or None if this one leads."""
        while True:
            queue = await self._queue(call)
            mine = [place for place, name in enumerate(queue) if name.startswith(self._prefix())]
            if mine:
                return queue[mine[0] - 1] if mine[0] else None
            await self._join(call)

    def _prefix(self) -> str:
        return f"{self._token}{self._session.session_id:x}-"

    async def _queue(self, call: Call) -> list[str]:
        """The candidates, in order."""
        _, names = await call.ask(requests.barrier(self._path), requests.children(self._path))
        if failed(names, NoNodeError):
            return []
        return sorted((name for name in good(call, names) if name.startswith(_PREFIX)), key=_number)

    async def _join(self, call: Call) -> None:
        await self._session.connected()
        self._session_id, self._may_exist = self._session.session_id, True
        path = f"{self._path}/{self._prefix()}"
        wanted = requests.create(path, self._data, ephemeral=True, sequence=True)
        try:
            made = await call.change(wanted)
            if failed(made, NoNodeError):
                await make_placeholders(call, self._paths, path)
            else:
                good(call, made)
        # Not created again: the queue is looked at first, since this candidate may stand in it already.
        except MetastoreUncertainError:
            call.forget_doubt()  # the queue tells

    async def _wait_gone(self, path: str) -> None:
        with self._watches.waiting(path) as waiting:
            waiting.rearm()
            watched = requests.exists(path, self._session.watcher)

            async def is_there(call: Call) -> bool:
                return good(call, (await call.ask(watched))[-1]) is not None

            # `exists` watches a node that is not there, too; but then the queue is looked at again at once.
            if await self._store.run(self._what, is_there):
                await waiting.woken()

    async def _keep(self) -> None:
        """Queues again in each later session, at the end of the queue."""
        while True:
            try:
                await self._session.wait_another(self._session_id)
                self._session_id = self._session.session_id
                predecessor = await self._store.run(self._what, self._look)
                if predecessor is not None:
                    _log.warning(
                        "%s: %s was lost with its session; another candidate leads", self._session.place, self._what
                    )
            except trio.ClosedResourceError:
                return
            except MetastoreError as error:
                _log.warning("%s; %s: not a candidate now", error, self._what)
                await trio.sleep(PAUSE_S)
                self._session_id = 0

    async def _remove(self, call: Call) -> None:
        for name in await self._queue(call):
            if name.startswith(self._token):
                path = f"{self._path}/{name}"
                # Any version: a candidate never changes.
                removed = await call.change(requests.delete(path, -1))
                if not failed(removed, NoNodeError):
                    good(call, removed)
        await remove_placeholders(call, self._paths, f"{self._path}/{self._token}")


def _number(name: str) -> tuple[int, str]:
    digits = name[-_DIGITS:]
    return (int(digits) if digits.isdigit() else -1, name)
