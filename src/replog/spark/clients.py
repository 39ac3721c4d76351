"""Clients in Spark's Python processes: one for each worker, kept from task to task, or one for a single call.

Rules:
- A worker runs many tasks, one after the other; so do the processes in which Spark plans queries and commits. The costly parts of
  a client (connections, knowledge of bookies) are made for the first task, and kept in a thread of their own until the worker
  ends: `worker_client`. This is an optimisation: workers live about a minute without work, and are killed without notice.
- A worker that is killed closes nothing. Others must clean up after its task, by fencing.
- A fork of a worker has none of its clients, and makes its own at its first use.
- A process of the user's, as a driver is, has one trio run for one call, of which nothing is left: `run`.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

import trio

from replog import api, blocking
from replog.blocking.faces import FACES
from replog.blocking.portal import Portal
from replog.config import ClientOptions, load
from replog.errors import ConfigError, ReplogError
from replog.protocol.quorum import Quorum

Value = TypeVar("Value")

IDLE_CLIENTS_MAX = 4  # of one process; those of metastores that were not used for longest are closed

_Key = tuple[str, ClientOptions, Quorum | None]


class WorkerClient:
    """A client that a process keeps, for all its threads: `client`, which belongs to the trio run in the thread behind it,
    and `blocking`, the same one with plain calls. Made by `worker_client`."""

    def __init__(self, key: _Key) -> None:
        metastore, options, quorum = key
        self._portal = Portal()
        self._stack = ExitStack()
        self.users = 0
        self.client: api.Client = self._stack.enter_context(
            self._portal.running(
                lambda: api.connect(metastore, options=options, quorum=quorum), owner=threading.main_thread()
            )
        )
        self.blocking: blocking.Client = FACES.given(self._portal, self.client)

    @property
    # A fork has the object, and not the thread behind it.
    def is_running(self) -> bool:
        """True if it can be used: its trio run has not failed, and this process is not a fork of the one that made it."""
        return self._portal.is_running

    def call(self, function: Callable[[api.Client], Awaitable[Value]]) -> Value:
        """Calls this async function with the client in its trio run; returns or raises what it does. If the calling thread is
        interrupted, the function is cancelled."""
        return self._portal.call(function, self.client)

    def opened(self, make: Callable[[api.Client], AbstractAsyncContextManager[Value]]) -> AbstractContextManager[Value]:
        """An async context, kept open in the client's trio run while the block in this thread is."""
        return self._portal.opened(lambda: make(self.client))

    def close(self) -> None:
        """Leaves the client, and joins its thread."""
        self._stack.close()


class _Kept:
    """The clients of this process, the one used last at the end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clients: dict[_Key, WorkerClient] = {}

    def take(self, key: _Key) -> WorkerClient:
        with self.lock:
            found = self.clients.pop(key, None)
            if found is not None and not found.is_running:
                # Raises what its trio run failed with: the next try has another one.
                found.close()
                found = None
            if found is None:
                found = WorkerClient(key)
            self.clients[key] = found
            found.users += 1
            return found

    def give_back(self, client: WorkerClient) -> None:
        with self.lock:
            # Clients in use are never closed, so there may be more of them than `IDLE_CLIENTS_MAX`.
            client.users -= 1
        self.close_idle(IDLE_CLIENTS_MAX)

    def close_idle(self, kept: int) -> None:
        with self.lock:
            idle = [key for key, each in self.clients.items() if not each.users]
            # The dictionary is in the order of use: the least recently used come first.
            surplus = [self.clients.pop(key) for key in idle[: max(0, len(idle) - kept)]]
        # Outside of the lock: closing joins a thread, and other tasks of this worker must not wait for it.
        with ExitStack() as closing:
            for each in surplus:
                closing.callback(each.close)


_kept = _Kept()
_left_behind: list[_Kept] = []  # in a fork: what its parent has; kept, so that nothing of it is ended here


def _begin_anew() -> None:
    global _kept
    _left_behind.append(_kept)
    _kept = _Kept()


os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def worker_client(
    metastore: str, *, options: ClientOptions | None = None, quorum: Quorum | None = None
) -> Iterator[WorkerClient]:
    """The client that this process keeps for these arguments; makes one if none runs. It stays open after the block.

    `options` by default are what the process's environment says: `REPLOG_CLIENT_...`. For any thread but the client's own.
    Raises `ConfigError`; a metastore that cannot be reached shows at the first call. Errors that leave the block are noted
    with the process they come from."""
    with told_where(metastore):
        keeper = _kept
        client = keeper.take((metastore, _options(options), quorum))
        try:
            yield client
        finally:
            if keeper is _kept:  # else this is a fork, in a block that its parent had entered
                keeper.give_back(client)


def close_idle_clients() -> None:
    """Closes the unused clients that this process keeps. Spark's workers need not; a driver may."""
    _kept.close_idle(0)


def run(
    metastore: str,
    function: Callable[[api.Client], Awaitable[Value]],
    *,
    options: ClientOptions | None = None,
    quorum: Quorum | None = None,
) -> Value:
    """Calls this async function with a client that is made for this call, in a trio run of its own; returns what it returns.

    `options` as for `worker_client`. Raises `ConfigError`, even if this thread runs trio already: then nothing was done."""

    async def main() -> Value:
        async with api.connect(metastore, options=chosen, quorum=quorum) as client:
            return await function(client)

    # A second run inside of the first would block all of its tasks; trio forbids it, with words of its own.
    if trio.lowlevel.in_trio_run():
        raise ConfigError(
            "this would block the trio run that it was called from: call it by trio.to_thread.run_sync; nothing was done"
        )
    with told_where(metastore):
        chosen = _options(options)
        return trio.run(main)


def _options(options: ClientOptions | None) -> ClientOptions:
    return options or load(ClientOptions, environment=os.environ, prefix="REPLOG_CLIENT_")


@contextmanager
def told_where(metastore: str) -> Iterator[None]:
    """Notes the process on an error of replog: Spark shows it on the driver, where other hosts can be reached."""
    try:
        yield
    except ReplogError as error:
        # Errors are shown on web pages of Spark, and a URL may hold a password.
        scheme = metastore.partition(":")[0]  # the rest may hold a password
        note = f"in process {os.getpid()} on host {socket.gethostname()}, which used a metastore {scheme}:..."
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
