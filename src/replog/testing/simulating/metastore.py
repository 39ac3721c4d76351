"""The metastore of a simulation: one map that processes reach over the simulated network.

Requests and answers take time, and each may be lost. A change may be made after its caller has given up. Keys that a process
announces belong to its session, which ends some time after the process died. A fault can end the session of a living process;
then the keys come back later, unless another process has taken them.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

import trio

from replog.abc import Metastore, Versioned
from replog.errors import MetastoreError, MetastoreUnavailableError, MetastoreUncertainError
from replog.metastores.memory import MemoryMetastore
from replog.testing.simulating.network import METASTORE, Network

Answer = TypeVar("Answer")

_DEADLINE_S = 0.8  # of each call
LEASE_S = 1.0  # after which the session of a process that is gone ends, at most
_LATE_MAX_S = 3.0


class Fate(enum.Enum):
    """The fault that a call meets."""

    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"
    LATE = "arrives late"
    UNAVAILABLE = "unavailable"
    CONFLICT = "somebody else was quicker"


class MetastoreServer:
    """The map, and the sessions of all processes."""

    def __init__(self, network: Network) -> None:
        self.inner = MemoryMetastore()
        self.network = network
        self.world = network.world
        self.rate = 0.0  # probability that a call meets a fault
        self.session_rate = 0.0  # probability that a wait ends early or fails
        self.random = self.world.stream("metastore")
        self.deadly_rate = 0.0  # probability that a process dies right after its change was made
        self.on_deadly: Callable[[str], None] = lambda _process: None
        self.on_put: Callable[[str, str, bytes], None] = lambda _process, _key, _value: None
        self.on_change: Callable[[str, bytes], None] = lambda _key, _value: None  # right before a put succeeds
        self.bookies: set[str] = set()  # the names of bookies, whose processes are NAME.NUMBER
        self.sessions: dict[str, dict[str, bytes]] = {}  # by process: the keys that it announces, and their values
        self._past: MemoryMetastore | None = None  # while it is not None, the metastore has gone back to this
        self._owners: dict[str, str] = {}  # by key: the process whose session holds it

    def copy(self) -> MemoryMetastore:
        """A copy of the present content, without the announcements of sessions."""
        made = MemoryMetastore()
        for key, each in self.inner._store._values.items():
            if key not in self._owners:
                made._store.create(key, each.value)
        return made

    async def go_back(self, past: MemoryMetastore, for_s: float) -> None:
        """For so long, bookies find this instead of the present content, as after a restore from an older back-up, and
        clients can't reach the metastore. Changes that bookies make meanwhile are lost (B6a)."""
        if self._past is not None:
            return
        self.world.tell(METASTORE, "goes back")
        self.world.count("metastore went back")
        self._past = past
        await trio.sleep(for_s)
        self._past = None
        self.world.tell(METASTORE, "is right again")

    def store_of(self, process: str) -> MemoryMetastore:
        """The content that this process finds. Raises `MetastoreUnavailableError`."""
        if self._past is None:
            return self.inner
        if process.partition(".")[0] not in self.bookies:
            raise MetastoreUnavailableError(
                f"{process}: the metastore is being restored; nothing was changed, try again"
            )
        return self._past

    def fate(self, *, is_put: bool) -> Fate | None:
        """Draw the fault of a call; None if it meets none."""
        if not self.rate or self.random.random() >= self.rate:
            return None
        fates = [fate for fate in Fate if is_put or fate is not Fate.CONFLICT]
        return self.random.choice(fates)

    def changed(self, process: str) -> None:
        """A change by this process was made: let the process die now, with `deadly_rate`."""
        if self.deadly_rate and process not in self.world.dead and self.random.random() < self.deadly_rate:
            self.on_deadly(process)

    async def lose_session(self, process: str, for_s: float) -> None:
        """End the session of a living process, and restore it after a while."""
        self.world.tell(process, "loses its session")
        self.world.count("session lost")
        await self.withdraw(process)
        await trio.sleep(for_s)
        await self.restore(process)

    async def restore(self, process: str) -> None:
        """Give a process a new session, and announce again what it still announces."""
        if process in self.world.dead:
            return
        for key, value in list(self.sessions.get(process, {}).items()):
            with suppress(MetastoreError):  # another process has the key now
                await self.create(process, key, value)
            # Announced again while its process died or left: no other process would ever remove it.
            if process in self.world.dead or key not in self.sessions[process]:
                await self.remove(process, key)  # the announcement ended meanwhile

    async def expire(self, process: str) -> None:
        """End the session of a dead process within a lease."""
        await trio.sleep(LEASE_S * (0.2 + self.random.random()))
        await self.withdraw(process)

    async def withdraw(self, process: str) -> None:
        """Remove everything that the session of this process holds."""
        for key in list(self.sessions.get(process, {})):
            await self.remove(process, key)

    async def create(self, process: str, key: str, value: bytes) -> None:
        """Create a key that belongs to this process's session."""
        await self.inner.create(key, value)
        self._owners[key] = process

    async def announced(self, key: str) -> dict[str, bytes]:
        """The values that sessions hold right below this key, by the last part of their keys."""
        found = await self.inner.values(key)
        return {word: each.value for word, each in found.items() if f"{key}/{word}" in self._owners}

    async def remove(self, process: str, key: str) -> None:
        """Remove a key if it belongs to this process's session."""
        if self._owners.get(key) == process:
            del self._owners[key]
            await self.inner.delete(key)


class SimulatedMetastore(Metastore):
    """The metastore as one process sees it."""

    def __init__(self, server: MetastoreServer, process: str) -> None:
        self._server = server
        self._world = server.world
        self._process = process

    async def create(self, key: str, value: bytes) -> int:
        """Creates a key (`Metastore.create`)."""
        return await self._call(f"create {key}", key, lambda: self._store.create(key, value), changes=True)

    async def get(self, key: str) -> Versioned:
        """Reads a key (`Metastore.get`)."""
        return await self._call(f"get {key}", key, lambda: self._store.get(key))

    async def put(self, key: str, value: bytes, expected: int) -> int:
        """Replaces a value (`Metastore.put`)."""
        self._server.on_put(self._process, key, value)
        what = f"put {key} expecting {expected}"

        async def put() -> int:
            store = self._store
            if store._store.version(key) == expected:
                self._server.on_change(key, value)
            return await store.put(key, value, expected)

        return await self._call(what, key, put, changes=True)

    async def delete(self, key: str, expected: int | None = None) -> None:
        """Deletes a key (`Metastore.delete`)."""
        return await self._call(f"delete {key}", key, lambda: self._store.delete(key, expected), changes=True)

    async def children(self, key: str) -> list[str]:
        """Lists the keys right below this one (`Metastore.children`)."""
        return await self._call(f"children {key}", key, lambda: self._store.children(key))

    async def announced(self, key: str) -> dict[str, bytes]:
        """The announced values right below this key, in one call (`Metastore.announced`): some stores can read several
        keys at once."""
        return await self._call(f"announced {key}", key, lambda: self._server.announced(key))

    @property
    def _store(self) -> MemoryMetastore:
        return self._server.store_of(self._process)

    # -- calls ----------------------------------------

    async def _call(
        self, what: str, key: str, call: Callable[[], Awaitable[Answer]], *, changes: bool = False
    ) -> Answer:
        """Send a call, and wait for its answer until the deadline. A change goes on after its caller has given up."""
        await trio.lowlevel.checkpoint_if_cancelled()
        fate = await self._sent(what)
        answered = trio.Event()
        answers: list[Answer] = []
        errors: list[MetastoreError] = []

        async def serve() -> None:
            try:
                await self._serve(what, key, fate, call, answers)
                if changes:
                    self._server.changed(self._process)
            except MetastoreError as error:
                errors.append(error)
            if fate is not Fate.ANSWER_LOST:
                await self._server.network.passage(METASTORE, self._process)
                answered.set()

        if changes and fate is not Fate.REQUEST_LOST:
            # A task without a parent: a change under way is made even if its caller gives up, or dies.
            self._world.spawn(serve)
        with trio.move_on_after(_DEADLINE_S):
            if not changes and fate is not Fate.REQUEST_LOST:
                await serve()
            if not answered.is_set():
                await answered.wait()
        if answered.is_set():
            for error in errors:
                raise error
            return answers[0]
        lost = MetastoreUncertainError if changes else MetastoreUnavailableError
        raise lost(f"{what}: no answer in {_DEADLINE_S} s")

    async def _sent(self, what: str) -> Fate | None:
        """The fault that this call meets on its way; raises if the call doesn't leave the process."""
        if self._process in self._world.dead:
            await trio.sleep(0.1)  # a dead process may still run, without effect
            raise MetastoreUnavailableError(f"{what}: this process is dead")
        fate = self._server.fate(is_put=what.startswith("put"))
        if fate is not None:
            self._world.tell(self._process, f"{what}: {fate.value}")
            self._world.count(f"metastore: {fate.value}")
        if fate is Fate.UNAVAILABLE:
            await trio.sleep(self._server.network.delay_s())
            raise MetastoreUnavailableError(f"{what}: the metastore is not reachable; nothing was changed, try again")
        return fate

    async def _serve(
        self, what: str, key: str, fate: Fate | None, call: Callable[[], Awaitable[Answer]], answers: list[Answer]
    ) -> None:
        await self._server.network.passage(self._process, METASTORE)
        if fate is Fate.LATE:
            await trio.sleep(self._server.random.random() * _LATE_MAX_S)
        # The same value with a new version: the caller's put must fail, and nothing else changes.
        if fate is Fate.CONFLICT:
            found = await self._store.get(key)
            await self._store.put(key, found.value, found.version)
        try:
            answers.append(await call())
        except MetastoreError as error:
            self._world.tell(METASTORE, f"{self._process} {what}: {type(error).__name__}")
            raise
        if "/pages/" in key:
            self._world.count(f"page of a log: {what.partition(' ')[0]}")
        answer = answers[0]
        said = (
            answer.version
            if isinstance(answer, Versioned)
            else ",".join(answer)
            if isinstance(answer, dict)
            else answer
        )
        self._world.tell(METASTORE, f"{self._process} {what}: {said}")

    # -- waiting and announcing ----------------------------------------

    async def wait_changed(self, key: str, version: int | None) -> None:
        """Waits for a change of the key; may return early or fail, with `session_rate` (`Metastore.wait_changed`)."""
        await self._wait(lambda: self._server.inner.wait_changed(key, version))

    async def _wait(self, wait: Callable[[], Awaitable[None]]) -> None:
        server = self._server
        await server.network.passage(self._process, METASTORE)
        if self._process in self._world.dead:
            await trio.sleep_forever()
        if server.session_rate and server.random.random() < server.session_rate:
            await trio.sleep(server.random.random())
            if server.random.random() < 0.5:
                raise MetastoreUnavailableError("the session was lost while it waited; try again")
            return
        await wait()
        await server.network.passage(METASTORE, self._process)

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        """Announces a key (`Metastore.announce`)."""
        session = self._server.sessions.setdefault(self._process, {})
        try:
            create = partial(self._server.create, self._process, key, value)
            await self._call(f"announce {key}", key, create, changes=True)
        except (MetastoreUncertainError, trio.Cancelled):
            # The key may exist now: remove it when the lease ends.
            self._world.spawn(self._forget, key)
            raise
        session[key] = value
        try:
            yield
        finally:
            del session[key]
            with trio.CancelScope(shield=True):  # each call has its deadline
                try:
                    remove = partial(self._server.remove, self._process, key)
                    await self._call(f"withdraw {key}", key, remove, changes=True)
                except MetastoreError:
                    self._world.spawn(self._forget, key)

    async def _forget(self, key: str) -> None:
        """Remove a key that is no longer announced: when the lease ends, and again after a late request may have created it."""
        for wait_s in (LEASE_S, _LATE_MAX_S):
            await trio.sleep(wait_s)
            if key not in self._server.sessions.get(self._process, {}):
                await self._server.remove(self._process, key)
