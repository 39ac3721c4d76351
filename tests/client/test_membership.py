"""Ways to bookies: several endpoints, announcements that make no sense, and bookies that are gone, moved or replaced."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from replog.abc import Authenticator, Connection, ResponseReceiver, Transport
from replog.client.connections import Connections
from replog.client.membership import Membership
from replog.config.client import ClientTuning
from replog.errors import BookieRefusedError, BookieUnreachableError, MetastoreCorruptError, PluginNotFoundError
from replog.metastores.memory import MemoryMetastore
from replog.records.bookies import (
    BOOKIES_KEY,
    READ_ONLY_BOOKIES_KEY,
    BookieAddress,
    Endpoint,
    announcement_key,
    decode_address,
    encode_address,
)
from replog.runtime.nursery import open_service_nursery
from replog.transports.memory import MemoryTransport
from replog.transports.tcp import TcpOptions, TcpTransport
from tests.transports.tcp.kit import Handler


class Counting(Transport):
    """Counts how often it is asked to connect; an address that begins with "hole" never answers."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.tries: list[tuple[str, float]] = []

    async def connect(
        self,
        address: str,
        receiver: ResponseReceiver,
        nursery: trio.Nursery,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> Connection:
        self.tries.append((address, trio.current_time()))
        if address.startswith("hole"):
            await trio.sleep_forever()
        return await self.inner.connect(address, receiver, nursery, bookie_id=bookie_id, authenticator=authenticator)

    def listen(self, address: str, handler: Any, **introduction: Any) -> Any:
        return self.inner.listen(address, handler, **introduction)


class Place:
    """A membership, what is announced in its metastore, and its transports."""

    def __init__(self, nursery: trio.Nursery, **options: Any) -> None:
        self.metastore = MemoryMetastore()
        self.memory, self.tcp = Counting(MemoryTransport()), Counting(TcpTransport(TcpOptions()))
        self.membership = Membership(self.metastore, ClientTuning(**options))
        self.connections = Connections(self.membership, self._open, ClientTuning(**options), nursery)
        self._stack = AsyncExitStack()

    def _open(self, scheme: str) -> Transport:
        try:
            return {"memory": self.memory, "tcp": self.tcp}[scheme]
        except KeyError:
            raise PluginNotFoundError(f"no transport {scheme!r}") from None

    @asynccontextmanager
    async def announced(self, bookie_id: str, *endpoints: tuple[str, str] | bytes) -> AsyncIterator[None]:
        value = endpoints[0]
        if not isinstance(value, bytes):
            ways = tuple(Endpoint(*endpoint) for endpoint in endpoints if isinstance(endpoint, tuple))
            value = encode_address(BookieAddress(ways))
        async with self.metastore.announce(f"{BOOKIES_KEY}/{bookie_id}", value):
            yield


@asynccontextmanager
async def place(**options: Any) -> AsyncIterator[Place]:
    async with open_service_nursery() as nursery:
        made = Place(nursery, **options)
        yield made
        await made.connections.aclose()


# -- announcements ----------------------------------------------------------------------------------------------------


def test_an_announcement_has_the_endpoints_and_read_only() -> None:
    for address in (
        BookieAddress((Endpoint("memory", "x"), Endpoint("tcp", "[::1]:3181")), read_only=True),
        BookieAddress(()),
    ):
        assert decode_address("bookies/a", encode_address(address)) == address


GARBAGE = [
    b"",
    b"null",
    b"[]",
    b"3",
    b"\xff\xfe",
    b'"text"',
    b"{}",
    b'{"endpoints": 3}',
    b'{"endpoints": [3]}',
    b'{"endpoints": [["tcp"]]}',
    b"[" * 100_000,
    b'{"endpoints": []}',
    b'{"format": true, "endpoints": []}',
    b'{"format": 0, "endpoints": []}',
    b'{"format": 1}',
    b'{"format": 1, "scheme": "tcp", "address": "x"}',
    b'{"format": 1, "endpoints": [["tcp", 3181]]}',
    b'{"format": 1, "endpoints": ["ab"]}',
    b'{"format": 1, "endpoints": {"tcp": "x"}}',
    b'{"format": 1, "endpoints": [], "read_only": 0}',
    b'{"format": 1, "endpoints": [], "required": "read_only"}',
]


@pytest.mark.parametrize("value", GARBAGE, ids=[repr(value[:30]) for value in GARBAGE])
def test_garbage_is_named_as_such(value: bytes) -> None:
    with pytest.raises(MetastoreCorruptError, match="bookies/a"):
        decode_address("bookies/a", value)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (b'{"format": 2, "somewhere": []}', "format is 2, and this version of replog reads up to 1"),
        (b'{"format": 1, "endpoints": [], "required": ["zone", "read_only"]}', r"fields \['zone'\] must be understood"),
    ],
)
def test_an_announcement_of_a_newer_format_is_refused(value: bytes, fault: str) -> None:
    with pytest.raises(MetastoreCorruptError, match=f"bookies/a.*{fault}.*a newer replog wrote it.*upgrade"):
        decode_address("bookies/a", value)


def test_unknown_optional_fields_are_ignored() -> None:
    value = b'{"format": 1, "endpoints": [["tcp", "x:1"]], "required": ["endpoints"], "zone": "b"}'
    assert decode_address("bookies/a", value) == BookieAddress((Endpoint("tcp", "x:1"),))


def test_a_bookie_below_the_read_only_key_is_read_only() -> None:
    value = encode_address(BookieAddress((Endpoint("tcp", "x:1"),)))
    assert decode_address("read-only-bookies/a", value).read_only
    assert not decode_address("bookies/read-only-bookies/a", value).read_only


class Turning(MemoryMetastore):
    """Bookie `a` turns between two looks, as often as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.places = [BOOKIES_KEY]  # of `a`, one for each look; the last one stays

    async def announced(self, key: str) -> dict[str, bytes]:
        await trio.lowlevel.checkpoint()
        self.asked.append(key)
        place = self.places.pop(0) if len(self.places) > 1 else self.places[0]
        return {"a": encode_address(BookieAddress((), place == READ_ONLY_BOOKIES_KEY))} if key == place else {}


async def test_both_places_are_looked_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with place() as here:
        here.membership._metastore = metastore = Turning()
        for _ in range(3):
            assert await here.membership.usable() == ["a"]
        assert metastore.asked == [READ_ONLY_BOOKIES_KEY, BOOKIES_KEY] * 3
        metastore.places = [READ_ONLY_BOOKIES_KEY]
        assert await here.membership.usable() == []
        assert here.membership.read_only == ["a"]
        assert len(metastore.asked) == 8


@pytest.mark.parametrize("way", ["becomes writable", "becomes read-only"])
async def test_bookie_is_found_while_it_turns_read_only(way: str, autojump_clock: trio.testing.MockClock) -> None:
    async with place() as here:
        here.membership._metastore = metastore = Turning()
        await here.membership.announced()
        turned = [BOOKIES_KEY, READ_ONLY_BOOKIES_KEY]
        metastore.places = turned[::-1] if way == "becomes writable" else turned.copy()
        found = await here.membership.announced()
        assert found["a"].read_only  # as it is, or was a moment ago
        metastore.places = turned.copy()
        with pytest.raises(BookieUnreachableError, match="no way to reach it"):  # nor that it is not announced
            await here.connections.connect("a")


async def test_under_both_keys_it_is_about_to_turn_and_read_only(autojump_clock: trio.testing.MockClock) -> None:
    async with place() as here, MemoryTransport().listen("", Handler(), bookie_id="a") as address:
        async with here.announced("a", ("memory", address)), here.announced("b", ("memory", "b")):
            assert await here.membership.usable() == ["a", "b"]
            key = announcement_key("a", read_only=True)
            async with here.metastore.announce(
                key, encode_address(BookieAddress((Endpoint("memory", address),), True))
            ):
                assert await here.membership.usable() == ["b"]
                assert list(await here.membership.announced()) == ["a", "b"]
                await here.connections.connect("a")  # its entries can be read
            assert await here.membership.usable() == ["a", "b"]


async def test_a_garbage_announcement_leaves_other_bookies_usable(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    caplog.set_level(logging.WARNING)
    async with place() as here, MemoryTransport().listen("", Handler(), bookie_id="good") as address:
        async with here.announced("bad", b"garbage"), here.announced("good", ("memory", address)):
            for _ in range(3):
                assert await here.membership.usable() == ["good"]
            assert list(await here.membership.announced()) == ["good"]
            failures = await here.connections.connect_all(["bad", "good"])
            assert list(failures) == ["bad"]
            assert "bookies/bad" in str(failures["bad"])
    (record,) = caplog.records  # not at every look
    assert "bookie bad is not used" in record.getMessage()


# -- endpoints --------------------------------------------------------------------------------------------------------


async def test_the_endpoint_in_this_process_comes_first(autojump_clock: trio.testing.MockClock) -> None:
    async with place() as here, MemoryTransport().listen("", Handler(), bookie_id="a") as address:
        async with here.announced("a", ("memory", address), ("tcp", "127.0.0.1:1")):
            channel = await here.connections.connect("a")
            assert channel.connection is not None
            assert not here.tcp.tries


@pytest.mark.real
@pytest.mark.parametrize(
    "first", [("memory", "elsewhere"), ("smoke", "signals"), ("tcp", "no port:x"), ("tcp", "::::")]
)
async def test_failing_endpoint_is_skipped(first: tuple[str, str], patient_clock: trio.testing.MockClock) -> None:
    async with place() as here, here.tcp.listen("127.0.0.1:0", Handler(), bookie_id="a") as address:
        async with here.announced("a", first, ("tcp", address)):
            channel = await here.connections.connect("a")
            assert channel.connection is not None
            assert here.tcp.tries


@pytest.mark.parametrize(
    "addresses", [[], ["x:y"], ["127.0.0.1:" + "9" * 5000], ["a..b:1"], ["a" * 70 + ":1"], [":1"], ["\0:1"]]
)
async def test_a_bookie_with_bad_endpoints_is_unreachable(
    addresses: list[str],
) -> None:
    async with place() as here:
        value = encode_address(BookieAddress(tuple(Endpoint("tcp", address) for address in addresses)))
        async with here.announced("a", value):
            with pytest.raises(BookieUnreachableError, match="bookie a: "):
                await here.connections.connect("a")


async def test_a_silent_endpoint_leaves_time_for_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with place(connect_timeout_s=5.0) as here, MemoryTransport().listen("", Handler()) as address:
        async with here.announced("a", ("memory", "hole"), ("memory", "hole 2"), ("memory", address)):
            begin_s = trio.current_time()
            await here.connections.connect("a")
            assert trio.current_time() - begin_s < 5
        async with here.announced("b", ("memory", "hole"), ("memory", "hole 2")):
            with pytest.raises(BookieUnreachableError):
                await here.connections.connect("b")


@pytest.mark.real
async def test_another_bookie_at_the_address_is_refused(
    patient_clock: trio.testing.MockClock,
) -> None:
    async with place() as here, here.tcp.listen("127.0.0.1:0", Handler(), bookie_id="new") as address:
        async with here.announced("old", ("tcp", address)):
            with pytest.raises(BookieRefusedError, match="new"):
                await here.connections.connect("old")


@pytest.mark.real
async def test_moved_bookie_is_found_again(patient_clock: trio.testing.MockClock) -> None:
    async with place() as here:
        seen = set()
        for _ in range(3):
            async with here.tcp.listen("127.0.0.1:0", Handler(), bookie_id="a") as address:
                seen.add(address)
                async with here.announced("a", ("tcp", address)):
                    channel = await here.connections.connect("a")
                    assert await here.connections.connect("a") is channel
            with trio.fail_after(1):
                while here.connections.channel("a") is not None:  # noqa: ASYNC110 - it has no event
                    await trio.sleep(0.01)
        assert [address for address, _ in here.tcp.tries] == list(dict.fromkeys(a for a, _ in here.tcp.tries))
        assert len(here.tcp.tries) == 3


# -- bookies that are gone ---------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_readers_do_not_storm_a_dead_bookie(autojump_clock: trio.testing.MockClock) -> None:
    """Twenty readers that ask all the time: the bookie and the metastore hear from them about once a second."""
    async with place() as here, here.announced("a", ("memory", "it")):

        async def reader() -> None:
            while here.connections.channel("a") is None:
                await here.connections.connect_most(["a"], 0.5)
                await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(reader)
            await trio.sleep(60)
            tries = [tried_s for _, tried_s in here.memory.tries]
            assert 55 < len(tries) < 100
            pauses = [after - before for before, after in itertools.pairwise(tries)]
            assert max(pauses) <= 1.06
            assert min(pauses) >= 0.04
            assert max(pauses[-20:]) - min(pauses[-20:]) > 0.05  # not all clients at the same moment
            async with MemoryTransport().listen("it", Handler()):
                await trio.sleep(1.1)  # when it comes back, that is seen soon
                assert here.connections.channel("a") is not None
            nursery.cancel_scope.cancel()


async def test_waiters_share_the_failure_of_a_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with place(connect_timeout_s=5.0) as here, here.announced("a", ("memory", "hole")):
        begin_s = trio.current_time()
        failures: list[float] = []

        async def connect() -> None:
            with pytest.raises(BookieUnreachableError):
                await here.connections.connect("a")
            failures.append(trio.current_time() - begin_s)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(connect)
        assert len(failures) == 20
        assert max(failures) < 5.1
        assert len(here.memory.tries) == 1
