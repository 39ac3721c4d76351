"""Connections to bookies: one channel for each, opened when it is first needed, and again after it was lost.

Tasks that need the same bookie at the same time share one attempt to connect. An attempt runs in the client's nursery: it goes
on if the task that asked for it is cancelled, and stops after `connect_timeout_s`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection

import trio

from replog.abc import Authenticator, Connection, Transport
from replog.client.channel import BookieChannel
from replog.client.endings import copy_for_raise
from replog.client.membership import Membership, Quarantine
from replog.config.client import ClientTuning
from replog.errors import BookieError, BookieUnreachableError, ConfigError, MetastoreError, ReplogError
from replog.records.bookies import BookieAddress, Endpoint

OUTSTANDING_BYTES_MAX = 128 << 20  # for one bookie: above it, the bookie counts as too slow
_CONNECT_AGAIN_S = 0.05  # after connecting failed, for callers that can do without; doubled each time
_CONNECT_AGAIN_MAX_S = 1.0


class _Attempt:
    """One attempt to connect to a bookie, for all tasks that want to."""

    __slots__ = ("done", "error", "started_s")

    def __init__(self) -> None:
        self.started_s = trio.current_time()
        self.done = trio.Event()
        self.error: ReplogError | None = None


class Connections:
    """The channels of one client to its bookies."""

    def __init__(
        self,
        membership: Membership,
        open_transport: Callable[[str], Transport],
        options: ClientTuning,
        nursery: trio.Nursery,
        authenticator: Authenticator | None = None,
    ) -> None:
        self.channels: dict[str, BookieChannel] = {}  # by bookie; one whose `error` is set was lost
        # By bookie: why it could not be connected to when that was last tried
        self.problems: dict[str, ReplogError] = {}
        # Called with a ledger's id when a bookie says that a reader waits for entries of this client.
        self.on_awaited: Callable[[int], None] = lambda _ledger_id: None
        self._membership = membership
        self._open_transport = open_transport
        self._options = options
        self._nursery = nursery
        self.authenticator = authenticator
        self._transports: dict[str, Transport] = {}  # by scheme
        self._request_ids = itertools.count(1)
        self._attempts: dict[str, _Attempt] = {}  # under way
        self._unreachable = Quarantine(_CONNECT_AGAIN_S, _CONNECT_AGAIN_MAX_S)
        self._is_closed = False

    @property
    def patience_s(self) -> float:
        """How long to wait for a connection before another bookie is asked, where there is one."""
        return self._options.speculative_read_after_s

    def channel(self, bookie_id: str) -> BookieChannel | None:
        """The open channel to a bookie, or None."""
        channel = self.channels.get(bookie_id)
        return channel if channel is not None and channel.error is None else None

    async def connect(self, bookie_id: str) -> BookieChannel:
        """The channel to a bookie, opened if need be.

        Raises `BookieUnreachableError`, `MetastoreError`. If cancelled, the attempt goes on."""
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
        raise copy_for_raise(attempt.error or BookieUnreachableError(bookie_id, "the connection was lost at once"))

    async def connect_most(self, bookie_ids: Collection[str], patience_s: float) -> None:
        """Connects to several bookies at once, and returns when each attempt has succeeded, failed, or taken this long.

        A caller that can do with some of them so never waits for a silent one: its attempt goes on by itself. A bookie that just
        failed is not tried again at once."""
        attempts = []
        for bookie_id in bookie_ids:
            is_wanted = self.channel(bookie_id) is None and not self._is_closed
            if is_wanted and not self._unreachable.holds(bookie_id, trio.current_time()):
                attempts.append(self._attempt(bookie_id))
        await trio.lowlevel.checkpoint()
        for attempt in attempts:
            with trio.move_on_at(attempt.started_s + patience_s):
                await attempt.done.wait()

    async def connect_all(self, bookie_ids: Collection[str]) -> dict[str, BookieError]:
        """Connects to several bookies at once, and waits for all attempts. Returns the failures, by bookie."""
        failures: dict[str, BookieError] = {}

        async def connect(bookie_id: str) -> None:
            try:
                await self.connect(bookie_id)
            except BookieError as error:
                failures[bookie_id] = error
            except MetastoreError as error:
                failures[bookie_id] = BookieUnreachableError(bookie_id, f"its address can't be read: {error}")

        async with trio.open_nursery() as nursery:
            for bookie_id in bookie_ids:
                nursery.start_soon(connect, bookie_id)
        return failures

    def _attempt(self, bookie_id: str) -> _Attempt:
        attempt = self._attempts.get(bookie_id)
        if attempt is None:
            attempt = self._attempts[bookie_id] = _Attempt()
            self._nursery.start_soon(self._open, bookie_id, attempt)
        return attempt

    async def _open(self, bookie_id: str, attempt: _Attempt) -> None:
        # The watch looks often enough for the shorter of both deadlines.
        shortest_s = min(self._options.add_timeout_s, self._options.read_timeout_s)
        channel = BookieChannel(bookie_id, OUTSTANDING_BYTES_MAX, shortest_s, self._request_ids, self.on_awaited)
        try:
            with trio.move_on_after(self._options.connect_timeout_s):
                address = await self._membership.address(bookie_id)
                channel.connected(await self._connect_somehow(bookie_id, address, channel))
            if channel.connection is None:
                attempt.error = BookieUnreachableError(bookie_id, "connecting took too long")
            # The client was left while this connection was being made: no other task would close it.
            elif self._is_closed:
                await channel.connection.aclose()
            else:
                self.channels[bookie_id] = channel
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
        """Connects by the first endpoint that works: those within this process come first."""
        problems: list[BookieError] = []
        for place, endpoint in enumerate(address.endpoints):
            left_s = max(0.0, trio.current_effective_deadline() - trio.current_time())
            share_s = left_s / (len(address.endpoints) - place)
            try:
                with trio.fail_after(share_s):  # a silent endpoint leaves time for the others
                    return await self._connect_by(endpoint, bookie_id, channel)
            except trio.TooSlowError:
                problems.append(BookieUnreachableError(bookie_id, f"{endpoint} did not answer in {share_s:.1f} s"))
            except BookieError as error:
                problems.append(error)
        if not problems:
            raise BookieUnreachableError(bookie_id, "it announced no way to reach it")
        # The last endpoint is the general one; the others are shortcuts within a process.
        raise problems[-1]

    async def _connect_by(self, endpoint: Endpoint, bookie_id: str, channel: BookieChannel) -> Connection:
        try:
            transport = self.transport(endpoint.scheme)
        except ConfigError as error:
            raise BookieUnreachableError(bookie_id, f"no way to {endpoint}: {error}") from error
        try:
            return await transport.connect(
                endpoint.address, channel, self._nursery, bookie_id=bookie_id, authenticator=self.authenticator
            )
        except ConfigError as error:
            # The bookie's configuration: what it announced is not an address.
            raise BookieUnreachableError(bookie_id, f"it announced {endpoint}: {error}") from error

    def transport(self, scheme: str) -> Transport:
        """The client's transport of this scheme. Raises `ConfigError`."""
        if scheme not in self._transports:
            self._transports[scheme] = self._open_transport(scheme)
        return self._transports[scheme]

    async def aclose(self) -> None:
        """Ends all connections. Attempts under way end as soon as they succeed."""
        self._is_closed = True
        for channel in list(self.channels.values()):
            if channel.connection is not None:
                await channel.connection.aclose()
            channel.disconnected(BookieUnreachableError(channel.bookie_id, "the client was closed"))

    def outstanding_bytes(self) -> int:
        """Bytes of requests that wait for answers, of all bookies."""
        return sum(channel.outstanding_bytes for channel in self.channels.values())
