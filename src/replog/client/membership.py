"""Which bookies there are, and connections to them. Liveness only: safety rests on fencing and CAS (M3)."""

from __future__ import annotations

from collections.abc import Callable, Collection

import trio

from replog.abc import Authenticator, Connection, Metastore, Transport
from replog.client.channel import BookieChannel
from replog.client.quarantine import Quarantine
from replog.config import ClientOptions
from replog.errors import BookieError, BookieUnreachableError, ConfigError, MetastoreError
from replog.membership import BOOKIES_KEY, BookieAddress, Endpoint, decode_address

OUTSTANDING_BYTES_MAX = 128 << 20  # for one bookie: past it, it counts as too slow


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
        self._connecting: dict[str, trio.Event] = {}
        self._transports: dict[str, Transport] = {}
        self._authenticator = authenticator
        self._quarantine = Quarantine(options.bookie_retry_after_s, options.bookie_retry_after_max_s)
        self.read_only: list[str] = []  # bookies that take no new entries, as `usable` saw them last
        self._is_closed = False

    async def usable(self, excluded: Collection[str] = ()) -> list[str]:
        """Bookies that take new entries, did not fail lately, and are not excluded; sorted. Raises `MetastoreError`."""
        now = trio.current_time()
        announced = await self._metastore.announced(BOOKIES_KEY)
        self.read_only = sorted(
            bookie_id for bookie_id, value in announced.items() if decode_address(bookie_id, value).read_only
        )
        return sorted(
            bookie_id
            for bookie_id in announced.keys() - set(self.read_only)
            if bookie_id not in excluded and not self._quarantine.holds(bookie_id, now)
        )

    async def announced(self) -> dict[str, BookieAddress]:
        """All bookies that are announced, by their ids, sorted. Raises `MetastoreError`."""
        found = await self._metastore.announced(BOOKIES_KEY)
        return {bookie_id: decode_address(bookie_id, value) for bookie_id, value in sorted(found.items())}

    def shun(self, bookie_id: str) -> None:
        """A bookie failed: don't choose it for a while."""
        self._quarantine.failed(bookie_id, trio.current_time())

    def channel(self, bookie_id: str) -> BookieChannel | None:
        """The open channel to a bookie, if there is one."""
        channel = self._channels.get(bookie_id)
        return channel if channel is not None and channel.error is None else None

    async def connect(self, bookie_id: str) -> BookieChannel:
        """The channel to a bookie, opened if need be. Raises `BookieUnreachableError`, `MetastoreError`."""
        while True:
            if self._is_closed:
                raise BookieUnreachableError(bookie_id, "the client was left")
            channel = self.channel(bookie_id)
            if channel is not None:
                await trio.lowlevel.checkpoint()
                return channel
            under_way = self._connecting.get(bookie_id)
            if under_way is None:
                return await self._open(bookie_id)
            await under_way.wait()

    async def _open(self, bookie_id: str) -> BookieChannel:
        done = self._connecting[bookie_id] = trio.Event()
        shortest_s = min(self._options.add_timeout_s, self._options.read_timeout_s)
        channel = BookieChannel(bookie_id, OUTSTANDING_BYTES_MAX, shortest_s)
        try:
            with trio.fail_after(self._options.connect_timeout_s):
                address = await self._address(bookie_id)
                channel.connection = await self._connect_somehow(bookie_id, address, channel)
        except trio.TooSlowError as error:
            raise BookieUnreachableError(bookie_id, "connecting took too long") from error
        finally:
            del self._connecting[bookie_id]
            done.set()
        if self._is_closed:
            await channel.connection.aclose()
            raise BookieUnreachableError(bookie_id, "the client was left")
        self._channels[bookie_id] = channel
        self._nursery.start_soon(channel.watch)
        return channel

    async def _connect_somehow(self, bookie_id: str, address: BookieAddress, channel: BookieChannel) -> Connection:
        """By the first endpoint that works: one in this process stands before others."""
        problems: list[BookieError] = []
        for endpoint in address.endpoints:
            try:
                return await self._connect_by(endpoint, bookie_id, channel)
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
        return await transport.connect(
            endpoint.address, channel, self._nursery, bookie_id=bookie_id, authenticator=self._authenticator
        )

    async def _address(self, bookie_id: str) -> BookieAddress:
        announced = await self._metastore.announced(BOOKIES_KEY)
        if bookie_id not in announced:
            raise BookieUnreachableError(bookie_id, "it is not announced in the metastore: it is down, or elsewhere")
        return decode_address(bookie_id, announced[bookie_id])

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
