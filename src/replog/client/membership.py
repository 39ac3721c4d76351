"""Which bookies there are, and connections to them. Liveness only: safety rests on fencing and CAS (M3)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection

import trio

from replog.abc import Authenticator, Connection, Metastore, Transport
from replog.client.channel import BookieChannel
from replog.client.failure import another
from replog.client.quarantine import Quarantine
from replog.config import ClientOptions
from replog.errors import (
    BookieError,
    BookieUnreachableError,
    ConfigError,
    KeyNotFoundError,
    MetastoreCorruptError,
    MetastoreError,
    ReplogError,
    StorageFailedError,
    StorageFullError,
)
from replog.records.bookies import (
    BOOKIES_KEY,
    COOKIES_KEY,
    READ_ONLY_BOOKIES_KEY,
    BookieAddress,
    Cookie,
    Endpoint,
    cookie_key,
    decode_address,
    decode_cookie,
)

_log = logging.getLogger("replog.client")

OUTSTANDING_BYTES_MAX = 128 << 20  # for one bookie: past it, it counts as too slow
_CONNECT_AGAIN_S = 0.05  # after connecting failed, for those who can do without; longer each time
_CONNECT_AGAIN_MAX_S = 1.0
_LOOK_EVERY_S = 1.0  # at the announcements, for all writers that miss a bookie together


class _Attempt:
    """To connect to one bookie, for all who want to."""

    __slots__ = ("done", "error", "started_s")

    def __init__(self) -> None:
        self.started_s = trio.current_time()
        self.done = trio.Event()
        self.error: ReplogError | None = None


class Membership:
    """The bookies that a client may use. A bookie that failed is left alone for a while, longer each time."""

    def __init__(
        self,
        metastore: Metastore,
        open_transport: Callable[[str], Transport],
        options: ClientOptions,
        nursery: trio.Nursery,
        authenticator: Authenticator | None = None,
    ) -> None:
        self._metastore = metastore
        self._open_transport = open_transport
        self._options = options
        self._nursery = nursery
        self._channels: dict[str, BookieChannel] = {}
        self._request_ids = itertools.count(1)
        self._attempts: dict[str, _Attempt] = {}  # under way
        self._transports: dict[str, Transport] = {}
        self._authenticator = authenticator
        self._quarantine = Quarantine(options.bookie_retry_after_s, options.bookie_retry_after_max_s)
        self.read_only: list[str] = []  # bookies that take no new entries, as `usable` saw them last
        self._unreachable = Quarantine(_CONNECT_AGAIN_S, _CONNECT_AGAIN_MAX_S)
        self.problems: dict[str, ReplogError] = {}  # of bookies that could not be connected to when that was last tried
        self.refusals: dict[
            str, ReplogError
        ] = {}  # by bookie: why it is read-only, as it was announced at the last look
        self._unreadable: dict[str, bytes] = {}  # announcements that were complained of
        self.announced_ids: frozenset[str] = frozenset()  # of the bookies that were announced at the last look
        self.seen_ids: set[str] = set()  # of all that were ever seen announced
        self._is_closed = False
        self._looking = trio.Lock()
        self._looked_at = -_LOOK_EVERY_S
        self._found_lately: dict[str, BookieAddress] = {}

    @property
    def patience_s(self) -> float:
        """How long to wait for a connection before somebody else is asked, where there is somebody else."""
        return self._options.speculative_read_after_s

    async def usable(self, excluded: Collection[str] = ()) -> list[str]:
        """Bookies that take new entries, did not fail lately, and are not excluded; sorted. Raises `MetastoreError`."""
        announced = await self.announced()
        return self._usable_of(announced, excluded)

    async def usable_lately(self, excluded: Collection[str] = ()) -> list[str]:
        """As `usable`, but as of up to a second ago: for those who look again and again, be they ever so many."""
        async with self._looking:
            if trio.current_time() >= self._looked_at + _LOOK_EVERY_S:
                self._found_lately = await self.announced()
                self._looked_at = trio.current_time()
        return self._usable_of(self._found_lately, excluded)

    def _usable_of(self, announced: dict[str, BookieAddress], excluded: Collection[str]) -> list[str]:
        now = trio.current_time()
        self.read_only = [bookie_id for bookie_id, address in announced.items() if address.read_only]
        return [
            bookie_id
            for bookie_id, address in announced.items()
            if not address.read_only and bookie_id not in excluded and not self._quarantine.holds(bookie_id, now)
        ]

    async def announced(self) -> dict[str, BookieAddress]:
        """All bookies that are announced, by their ids, sorted. Raises `MetastoreError`.

        One whose announcement can't be read is left out, with a warning: the others can be used all the same."""
        found: dict[str, BookieAddress] = {}
        for bookie_id, (key, value) in sorted((await self._announcements()).items()):
            try:
                found[bookie_id] = decode_address(key, value)
            except MetastoreCorruptError as error:
                if self._unreadable.get(bookie_id) != value:
                    self._unreadable[bookie_id] = value
                    _log.warning("bookie %s is not used: %s", bookie_id, error, extra={"bookie": bookie_id})
        self.refusals = {
            bookie_id: (StorageFailedError if address.has_failed else StorageFullError)(address.problem)
            for bookie_id, address in found.items()
            if address.problem
        }
        return found

    async def _announcements(self, wanted: str | None = None) -> dict[str, tuple[str, bytes]]:
        """Who is announced, with key and value; one that is both writable and read-only is about to turn, and counts as
        read-only. `wanted` is somebody who is hoped to be among them.

        The two places are read one after the other. Who becomes writable meanwhile is found in either; who becomes read-only
        could be missed in both, so whoever should be there and isn't is looked for once more."""
        read_only = await self._metastore.announced(READ_ONLY_BOOKIES_KEY)
        writable = await self._metastore.announced(BOOKIES_KEY)
        expected = self.announced_ids if wanted is None else frozenset((wanted,))
        if not expected <= writable.keys() | read_only.keys():
            read_only = {**read_only, **await self._metastore.announced(READ_ONLY_BOOKIES_KEY)}
        self.announced_ids = frozenset(writable) | frozenset(read_only)
        self.seen_ids |= self.announced_ids
        found = {bookie_id: (f"{BOOKIES_KEY}/{bookie_id}", value) for bookie_id, value in writable.items()}
        for bookie_id, value in read_only.items():
            found[bookie_id] = (f"{READ_ONLY_BOOKIES_KEY}/{bookie_id}", value)
        return found

    async def known_ids(self) -> list[str]:
        """All bookies that the metastore has a cookie of, there or away; sorted. Raises `MetastoreError`."""
        return sorted(await self._metastore.children(COOKIES_KEY))

    async def cookie(self, bookie_id: str) -> Cookie | None:
        """The cookie of a bookie; None if there is none, or it can't be read. Raises `MetastoreError`."""
        key = cookie_key(bookie_id)
        try:
            return decode_cookie(key, (await self._metastore.get(key)).value)
        except KeyNotFoundError:
            return None
        except MetastoreCorruptError as error:
            _log.warning("bookie %s is not used: %s", bookie_id, error, extra={"bookie": bookie_id})
            return None

    def shun(self, bookie_id: str) -> None:
        """A bookie failed: don't choose it for a while."""
        self._quarantine.failed(bookie_id, trio.current_time())

    def channel(self, bookie_id: str) -> BookieChannel | None:
        """The open channel to a bookie, if there is one."""
        channel = self._channels.get(bookie_id)
        return channel if channel is not None and channel.error is None else None

    async def connect(self, bookie_id: str) -> BookieChannel:
        """The channel to a bookie, opened if need be; whoever wants one at the same time waits for the same attempt. Raises
        `BookieUnreachableError`, `MetastoreError`. If cancelled, the attempt goes on."""
        if self._is_closed:
            raise BookieUnreachableError(bookie_id, "the client was left")
        channel = self.channel(bookie_id)
        if channel is not None:
            await trio.lowlevel.checkpoint()
            return channel
        attempt = self._attempt(bookie_id)
        await attempt.done.wait()
        channel = self.channel(bookie_id)
        if channel is not None:
            return channel
        raise another(attempt.error or BookieUnreachableError(bookie_id, "the connection was lost at once"))

    async def connect_most(self, bookie_ids: Collection[str], patience_s: float) -> None:
        """Connects to several bookies side by side, and returns once each attempt has succeeded, failed, or taken this long: it
        goes on by itself then. One that failed just now is not tried again at once. So whoever can do with some of the bookies
        does not wait for one that is silent."""
        attempts = []
        for bookie_id in bookie_ids:
            is_wanted = self.channel(bookie_id) is None and not self._is_closed
            if is_wanted and not self._unreachable.holds(bookie_id, trio.current_time()):
                attempts.append(self._attempt(bookie_id))
        await trio.lowlevel.checkpoint()
        for attempt in attempts:
            with trio.move_on_at(attempt.started_s + patience_s):
                await attempt.done.wait()

    def _attempt(self, bookie_id: str) -> _Attempt:
        attempt = self._attempts.get(bookie_id)
        if attempt is None:
            attempt = self._attempts[bookie_id] = _Attempt()
            self._nursery.start_soon(self._open, bookie_id, attempt)
        return attempt

    async def _open(self, bookie_id: str, attempt: _Attempt) -> None:
        shortest_s = min(self._options.add_timeout_s, self._options.read_timeout_s)
        channel = BookieChannel(bookie_id, OUTSTANDING_BYTES_MAX, shortest_s, self._request_ids)
        try:
            with trio.move_on_after(self._options.connect_timeout_s):
                address = await self._address(bookie_id)
                channel.connected(await self._connect_somehow(bookie_id, address, channel))
            if channel.connection is None:
                attempt.error = BookieUnreachableError(bookie_id, "connecting took too long")
            elif self._is_closed:
                await channel.connection.aclose()
            else:
                self._channels[bookie_id] = channel
                self.problems.pop(bookie_id, None)
                self._unreachable.succeeded(bookie_id)
                self._nursery.start_soon(channel.watch)
        except ReplogError as error:
            attempt.error = error
        finally:
            if attempt.error is not None:
                self.problems[bookie_id] = attempt.error
                self._unreachable.failed(bookie_id, trio.current_time())
            del self._attempts[bookie_id]
            attempt.done.set()

    async def _connect_somehow(self, bookie_id: str, address: BookieAddress, channel: BookieChannel) -> Connection:
        """By the first endpoint that works: one in this process stands before others."""
        problems: list[BookieError] = []
        for place, endpoint in enumerate(address.endpoints):
            left_s = max(0.0, trio.current_effective_deadline() - trio.current_time())
            share_s = left_s / (len(address.endpoints) - place)
            try:
                with trio.fail_after(share_s):  # one that does not answer leaves time for the others
                    return await self._connect_by(endpoint, bookie_id, channel)
            except trio.TooSlowError:
                problems.append(BookieUnreachableError(bookie_id, f"{endpoint} did not answer in {share_s:.1f} s"))
            except BookieError as error:
                problems.append(error)
        if not problems:
            raise BookieUnreachableError(bookie_id, "it announced no way to reach it")
        raise problems[-1]  # the others are shortcuts within a process

    async def _connect_by(self, endpoint: Endpoint, bookie_id: str, channel: BookieChannel) -> Connection:
        try:
            transport = self._transport(endpoint.scheme)
        except ConfigError as error:
            raise BookieUnreachableError(bookie_id, f"no way to {endpoint}: {error}") from error
        try:
            return await transport.connect(
                endpoint.address, channel, self._nursery, bookie_id=bookie_id, authenticator=self._authenticator
            )
        except ConfigError as error:  # of the bookie, which announced no address
            raise BookieUnreachableError(bookie_id, f"it announced {endpoint}: {error}") from error

    async def _address(self, bookie_id: str) -> BookieAddress:
        announced = await self._announcements(bookie_id)
        if bookie_id not in announced:
            raise BookieUnreachableError(bookie_id, "it is not announced in the metastore: it is down, or elsewhere")
        return decode_address(*announced[bookie_id])

    def _transport(self, scheme: str) -> Transport:
        if scheme not in self._transports:
            self._transports[scheme] = self._open_transport(scheme)
        return self._transports[scheme]

    async def aclose(self) -> None:
        """Ends all connections."""
        self._is_closed = True
        for channel in list(self._channels.values()):
            if channel.connection is not None:
                await channel.connection.aclose()
            channel.disconnected(BookieUnreachableError(channel.bookie_id, "the client was closed"))

    def outstanding_bytes(self) -> int:
        """Bytes that wait for answers, of all bookies."""
        return sum(channel.outstanding_bytes for channel in self._channels.values())


async def connect_all(membership: Membership, bookie_ids: Collection[str]) -> dict[str, BookieError]:
    """Connects to several bookies side by side; returns the failures."""
    failures: dict[str, BookieError] = {}

    async def connect(bookie_id: str) -> None:
        try:
            await membership.connect(bookie_id)
        except BookieError as error:
            failures[bookie_id] = error
        except MetastoreError as error:
            failures[bookie_id] = BookieUnreachableError(bookie_id, f"its address is not to be had: {error}")

    async with trio.open_nursery() as nursery:
        for bookie_id in bookie_ids:
            nursery.start_soon(connect, bookie_id)
    return failures
