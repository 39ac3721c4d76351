"""The seam of metastores: a map with compare-and-set, and the presence of clients."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import attrs
import trio

from replog.abc.authentication import Authenticator
from replog.abc.transport import Transport
from replog.errors import KeyExistsError, KeyNotFoundError, MetastoreCorruptError, MetastoreError
from replog.runtime.keys import Versioned
from replog.runtime.leases import Leases

_POLL_S, _POLL_MAX_S = 0.05, 0.5  # at first, and while nothing has changed for long
_POLL_GROWTH = 1.1


@attrs.frozen
class ValuesPage:
    """Some of the values right below a key, by their last words. `next_first` is the first word of the next page; None: this is
    the last one."""

    values: dict[str, Versioned]
    next_first: str | None


class Metastore(ABC):
    """A map with CAS. Keys are words joined by "/", like "ledgers/00/0000/0001"; a key may have both a value and children.

    Every call has its own deadline and ends in a named error: `MetastoreUnavailableError` if waiting may help, another
    `MetastoreError` if it does not. Only the waits have no deadline, and go on while the store is unreachable. A change that
    was sent but not answered raises `MetastoreUncertainError` (M1): the caller must read the key to learn the outcome. A
    cancelled change has an unknown outcome. Reads are linearizable: a `get` sees every change that was answered before it
    began. Values have at least 512 KiB; `check_key` and `check_value` refuse what some store could not keep.

    Versions of a key may repeat after it was deleted and created again: so keys that are changed by CAS are never created
    again.
    """

    lease_s: float = 10.0
    """How long a silent process counts as alive, in the default `announce` and `elect`."""

    poll_s: float = 0.0
    """How often a wait asks the store, where each request is paid for: then clients begin new waits less often. 0: it is told."""

    @abstractmethod
    async def create(self, key: str, value: bytes) -> int:
        """Creates the key and returns its version. Raises `KeyExistsError`, `MetastoreUncertainError`."""

    @abstractmethod
    async def get(self, key: str) -> Versioned:
        """Raises `KeyNotFoundError` only if the key does not exist."""

    @abstractmethod
    async def put(self, key: str, value: bytes, expected: int) -> int:
        """Replaces the value if the version is as expected, and returns the new version.
        Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""

    @abstractmethod
    async def delete(self, key: str, expected: int | None = None) -> None:
        """Deletes the key, if it has the expected version (None: any).
        Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""

    @abstractmethod
    async def children(self, key: str) -> list[str]:
        """The words that follow `key + "/"` in existing keys, each once, sorted.

        For a short time, a word may be listed although nothing is left below it."""

    async def aclose(self) -> None:  # noqa: B027 - a default, not an oversight
        """Releases connections and files. Idempotent."""

    async def wait_changed(self, key: str, version: int | None) -> None:
        """Returns soon after the key's version differs from this (None: after the key exists). May return early."""
        try:
            await self._poll(lambda: self._seen_version(key, version), version)
        finally:
            self._versions_seen.pop(key, None)

    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        """Returns soon after the children differ from these. May return early."""
        await self._poll(lambda: self.children(key), list(known))

    async def _poll(self, look: Callable[[], Awaitable[object]], known: object) -> None:
        pause_s = _POLL_S
        while True:
            try:
                if await look() != known:
                    return
            except MetastoreCorruptError:
                raise
            except MetastoreError:
                pass  # a wait goes on while the store is unreachable
            await trio.sleep(pause_s)
            pause_s = min(_POLL_MAX_S, _POLL_GROWTH * pause_s)

    async def _seen_version(self, key: str, known: int | None) -> int | None:
        """Returns the version like `_version`; but where others wait for this key, one of them looks for all: a hundred
        followers of one log took a whole processor."""
        version, at_s = self._versions_seen.get(key, (None, -math.inf))
        if version != known or trio.current_time() - at_s >= _POLL_S:
            version = await self._version(key)
            self._versions_seen[key] = version, trio.current_time()
        return version

    async def _version(self, key: str) -> int | None:
        try:
            return (await self.get(key)).version
        except KeyNotFoundError:
            return None

    async def values(self, key: str) -> dict[str, Versioned]:
        """The values right below this key, by their last words. One read each: together they are not a snapshot."""
        return await self._values_of(key, await self.children(key))

    async def values_page(self, key: str, first: str, count_max: int) -> ValuesPage:
        """The values right below this key whose last words are `first` or greater: the least words come first, `count_max` at
        most. Fewer, even none, are not the end: that is a page without a next one. For keys with very many children."""
        words = [word for word in await self.children(key) if word >= first]
        next_first = words[count_max] if len(words) > count_max else None
        return ValuesPage(await self._values_of(key, words[:count_max]), next_first)

    async def _values_of(self, key: str, words: Sequence[str]) -> dict[str, Versioned]:
        """The values below this key that have these last words and exist."""
        found = {}
        for word in words:
            # It has only children, or was deleted between the two calls.
            with suppress(KeyNotFoundError):
                found[word] = await self.get(f"{key}/{word}")
        return found

    # -- who is alive: advice, never safety (M3) ------------------------------------------------------------------

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        """Makes the key exist while the context is open and this process lives; afterwards it vanishes soon.

        If the process dies, `announced` and `announce` notice after `lease_s`. Raises `KeyExistsError` if another
        process announces the key, or it exists otherwise; `MetastoreError`. The value that `get` returns for such a key
        depends on the store: use `announced`.

        The default calls `put` a few times per `lease_s`. Override it where the store itself knows which clients live."""
        async with self._leases.announce(key, value):
            yield

    async def announced(self, key: str) -> dict[str, bytes]:
        """The values that live processes announce right below this key, by their last words."""
        return await self._leases.announced(key)

    @asynccontextmanager
    async def elect(self, key: str, candidate: bytes) -> AsyncIterator[None]:
        """Waits for its turn, and is elected at this key while the context is open and this process lives.

        `candidate` is for people. Raises `MetastoreError` if the store is unreachable at first; later it waits. Losing
        an election gives no notice: only fences make writing safe (M3). The key has no other use; the store uses it and
        the keys below it freely."""
        async with AsyncExitStack() as stack:
            is_first = True
            while not await self._try_to_be_elected(stack, key, candidate, is_first):
                is_first = False
                # A leader that dies changes nothing: its lease only runs out. So the
                # candidate also asks from time to time.
                with trio.move_on_after(self.lease_s / 4):
                    version = await self._version_or_none(key)
                    if version is None:
                        await trio.sleep(_POLL_S)
                    else:
                        await self.wait_changed(key, version)
            yield

    async def _try_to_be_elected(self, stack: AsyncExitStack, key: str, candidate: bytes, is_first: bool) -> bool:
        try:
            await stack.enter_async_context(self.announce(key, candidate))
        except KeyExistsError:
            return False
        except MetastoreCorruptError:
            raise
        except MetastoreError:
            if is_first:
                raise
            return False
        return True

    async def _version_or_none(self, key: str) -> int | None:
        try:
            return await self._version(key)
        except MetastoreCorruptError:
            raise
        except MetastoreError:
            return None

    @property
    def _versions_seen(self) -> dict[str, tuple[int | None, float]]:
        # Keys that are waited for: their versions, and when they were looked at
        seen: dict[str, tuple[int | None, float]] = self.__dict__.setdefault("_versions_seen", {})
        return seen

    @property
    def _leases(self) -> Leases:
        # Made when it is needed, and not by `__init__`: stores need not call that of this class.
        leases: Leases = self.__dict__.setdefault("_leases", Leases(self, self.lease_s))
        return leases


class MetastoreOverTransports(Metastore):
    """A metastore whose members are reached as bookies are: by transports, with the same certificates and authentication."""

    @abstractmethod
    def use(self, open_transport: Callable[[str], Transport], authenticator: Authenticator | None) -> None:
        """Called once, before the first call: `open_transport` gives the transport of a scheme, with its options."""
