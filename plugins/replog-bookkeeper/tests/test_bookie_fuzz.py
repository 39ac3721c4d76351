"""Clients that are broken or hostile: whatever they send, the bookie goes on, and so do other connections."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import trio
from google.protobuf.descriptor import FieldDescriptor
from wire_bookie import KEY, LEDGER, Caller, Served, a_bookie, add_of, entry

from replog_bookkeeper import frames_v2
from replog_bookkeeper.frames import Code, Operation
from replog_bookkeeper.schema import wire
from replog_bookkeeper.serving import listener, session
from replog_bookkeeper.serving.session import TAKEN_BYTES_MAX

_NUMBERS = (-(1 << 63), -2, -1, 0, 1, LEDGER, 1 << 31, (1 << 63) - 1)
_SMALL_NUMBERS = (-(1 << 31), -1, 0, 1, 2, 3, 99, (1 << 31) - 1)
_BYTES = (b"", b"\0", bytes(20), bytes(KEY), bytes(36), bytes(1 << 16))
_MESSAGES = {
    Operation.READ_ENTRY: (100, "ReadRequest"),
    Operation.ADD_ENTRY: (101, "AddRequest"),
    Operation.AUTHENTICATE: (102, "AuthMessage"),
    Operation.WRITE_CONFIRMED: (103, "WriteLacRequest"),
    Operation.READ_CONFIRMED: (104, "ReadLacRequest"),
    Operation.BOOKIE_INFO: (105, "GetBookieInfoRequest"),
    Operation.START_TLS: (106, "StartTLSRequest"),
    Operation.FORCE_LEDGER: (107, "ForceLedgerRequest"),
    Operation.LIST_ENTRIES: (108, "GetListOfEntriesOfLedgerRequest"),
}


def good(name: str) -> dict[str, Any]:
    """Fields of a message that a bookie would take."""
    fields: dict[str, Any] = {"ledgerId": LEDGER, "entryId": 0, "lac": 0, "requested": 3, "masterKey": bytes(KEY)}
    fields |= {"authPluginName": "x", "payload": b"", "body": entry(0)}
    if name == "WriteLacRequest":
        fields["body"] = KEY.seal_confirmed(LEDGER, 0)
    return {each.name: fields[each.name] for each in wire[name].DESCRIPTOR.fields if each.name in fields}


def variants(name: str) -> Iterator[Any]:
    """The message with each field missing, huge, negative or empty."""
    yield wire[name](**good(name))
    for field in wire[name].DESCRIPTOR.fields:
        rest = {key: value for key, value in good(name).items() if key != field.name}
        yield wire[name](**rest)
        if field.type == FieldDescriptor.TYPE_BYTES:
            values: tuple[Any, ...] = _BYTES
        elif field.type == FieldDescriptor.TYPE_STRING:
            values = ("", "x" * 10_000)
        else:
            values = _NUMBERS if field.type == FieldDescriptor.TYPE_INT64 else _SMALL_NUMBERS
        for value in values:
            yield wire[name](**rest, **{field.name: value})


def varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return found + bytes((number,))


def frame(operation: int, number: int, body: bytes, *, version: int = 3, transaction: int = 1) -> bytes:
    """A request whose body need not fit its operation."""
    head = wire["BKPacketHeader"](version=version, operation=operation, txnId=transaction)
    header: bytes = head.SerializeToString()
    data = b"\x0a" + varint(len(header)) + header
    if number:
        data += varint(number << 3 | 2) + varint(len(body)) + body
    return struct.pack(">I", len(data)) + data


async def still_serves(bookie: Served, neighbour: Caller) -> None:
    """Both a connection that was there and a new one."""
    assert (await neighbour.read(0)).body.body == entry(0)
    caller = await bookie.call(2)
    assert (await caller.read(0)).body.body == entry(0)
    await caller.stream.aclose()


@pytest.mark.parametrize("operation", list(_MESSAGES))
async def test_each_operation_with_each_field_odd(operation: Operation) -> None:
    number, name = _MESSAGES[operation]
    async with a_bookie() as bookie:
        neighbour, caller = await bookie.call(), await bookie.call()
        await neighbour.add(0)
        for message in variants(name):
            data = message.SerializePartialToString()
            if operation is Operation.READ_ENTRY and message.timeOut > 1:
                continue  # it waits
            await caller.stream.send_all(frame(operation, number, data))
            answer = await caller.answer_any()
            assert answer.header.operation == operation
            assert answer.status in set(Code), "one that Java knows"
        await still_serves(bookie, neighbour)


@pytest.mark.parametrize("version", [0, 1, 2, 4, -1])
async def test_another_version_of_the_header_is_refused(version: int) -> None:
    async with a_bookie() as bookie:
        caller = await bookie.call()
        body = wire["ReadRequest"](ledgerId=LEDGER, entryId=0).SerializeToString()
        await caller.stream.send_all(frame(Operation.READ_ENTRY, 100, body, version=version))
        assert (await caller.answer_any()).status == Code.BAD_VERSION


@pytest.mark.parametrize("operation", [0, 3, 4, 12, 13, -1, 1 << 30])
async def test_an_unserved_operation_is_refused(operation: int) -> None:
    async with a_bookie() as bookie:
        neighbour, caller = await bookie.call(), await bookie.call()
        await neighbour.add(0)
        body = wire["ReadRequest"](ledgerId=LEDGER, entryId=0).SerializeToString()
        for number in (0, 100, 105, 200):
            await caller.stream.send_all(frame(operation, number, body if number == 100 else b""))
            assert (await caller.answer_any()).status == Code.BAD_REQUEST
        await still_serves(bookie, neighbour)


async def ends(caller: Caller, data: bytes) -> None:
    """The bookie closes a connection of this content, as Java's does."""
    # It breaks where the bookie has not read all.
    with trio.fail_after(10), suppress(trio.BrokenResourceError):
        await caller.stream.send_all(data)
        while await caller.stream.receive_some():
            pass


_OF_VERSION_2 = [
    struct.pack(">I", 0),
    struct.pack(">IH", 2, 0x0201),
    *(struct.pack(">II", 4, 2 << 24 | opcode << 16) for opcode in range(256) if opcode != 3),
    struct.pack(">II", 4, 1),  # of the first version
    struct.pack(">IIq", 12, 2 << 24 | 2 << 16, LEDGER),
    struct.pack(">IIqq", 20, 2 << 24 | 2 << 16 | frames_v2.Flag.FENCING, LEDGER, 0),
    struct.pack(">II", 24, 2 << 24 | 1 << 16) + bytes(20),
    struct.pack(">IIqqq", 28, 2 << 24 | 7 << 16, LEDGER, 0, 1),
    struct.pack(">II", 6, 2 << 24 | 3 << 16) + b"\x0a\xff",  # no authentication
    struct.pack(">I", TAKEN_BYTES_MAX + 1),
    struct.pack(">I", (1 << 32) - 1),
]


async def test_unreadable_frames_of_version_2_end_their_connection() -> None:
    async with a_bookie() as bookie:
        neighbour = await bookie.call()
        await neighbour.add(0)
        for data in _OF_VERSION_2:
            caller = await bookie.call(2)
            await ends(caller, data)
            await caller.stream.aclose()
        await still_serves(bookie, neighbour)


@pytest.mark.parametrize("numbers", [(-1, 0), (LEDGER, -2), (-(1 << 63), -(1 << 63)), ((1 << 63) - 1, (1 << 63) - 1)])
async def test_senseless_numbers_of_version_2_are_answered(numbers: tuple[int, int]) -> None:
    async with a_bookie() as bookie:
        neighbour, caller = await bookie.call(), await bookie.call(2)
        await neighbour.add(0)
        for flags in (0, 1, 4, 5, 0xFFFF):
            data = struct.pack(">Iqq", 2 << 24 | 2 << 16 | flags, *numbers) + bytes(KEY)
            await caller.stream.send_all(struct.pack(">I", len(data)) + data)
            assert (await caller.answer()).code in (Code.BAD_REQUEST, Code.NO_LEDGER, Code.NO_ENTRY)
            data = struct.pack(">I", 2 << 24 | 1 << 16 | flags) + bytes(KEY) + struct.pack(">qqqq", *numbers, -5, -7)
            await caller.stream.send_all(struct.pack(">I", len(data)) + data)
            assert (await caller.answer()).code is Code.BAD_REQUEST
            data = struct.pack(">IqqqIq", 2 << 24 | 7 << 16 | flags, *numbers, -1, 1 << 31, -1) + bytes(KEY)
            await caller.stream.send_all(struct.pack(">I", len(data)) + data)
            with trio.fail_after(10):
                await caller.stream.receive_some()
        await still_serves(bookie, neighbour)


async def test_a_connection_stays_with_its_version() -> None:
    async with a_bookie() as bookie:
        neighbour = await bookie.call()
        await neighbour.add(0)
        of_2, of_3 = await bookie.call(2), await bookie.call(3)
        assert (await of_2.read(0)).code is Code.OK
        assert (await of_3.read(0)).code is Code.OK
        await ends(of_3, of_2.frame(*add_of(1)))
        await ends(of_2, of_3.frame(*add_of(1)))
        await still_serves(bookie, neighbour)


@pytest.mark.parametrize("version", [2, 3])
async def test_the_largest_frame_is_taken(version: int) -> None:
    async with a_bookie() as bookie:
        neighbour, caller = await bookie.call(), await bookie.call(version)
        await neighbour.add(0)
        around = len(caller.frame(*add_of(1, entry(1, bytes(1 << 20), length=1)))) - 4 - (1 << 20)
        largest = TAKEN_BYTES_MAX - around - 2  # a larger length has a longer number before it
        assert await caller.add(1, entry(1, bytes(largest), length=1)) is Code.OK
        assert (await caller.read(1)).body.body == entry(1, bytes(largest), length=1)
        await ends(caller, caller.frame(*add_of(2, entry(2, bytes(largest + 3), length=1))))
        await still_serves(bookie, neighbour)


async def test_bytes_at_random_end_their_connection_at_most() -> None:
    chance = random.Random(1)
    async with a_bookie() as bookie:
        neighbour = await bookie.call()
        await neighbour.add(0)
        for _ in range(200):
            caller = await bookie.call(3)
            begin = chance.choice(
                (b"", b"\x0a", b"\x02\x01", b"\x02\x02", b"\x02\x07", b"\x0a\x08\x08\x03\x10\x01\x18\x01")
            )
            data = begin + chance.randbytes(chance.choice((0, 4, 28, 60, 500)))
            await caller.stream.send_all(struct.pack(">I", len(data)) + data)
            await caller.stream.send_all(chance.randbytes(3))
            await caller.stream.aclose()
        await still_serves(bookie, neighbour)


async def test_damaged_requests_end_their_connection_at_most() -> None:
    chance = random.Random(2)
    async with a_bookie() as bookie:
        neighbour = await bookie.call()
        await neighbour.add(0)
        for number in range(300):
            caller = await bookie.call(2 + number % 2)
            read = wire["ReadRequest"](ledgerId=9, entryId=-1)
            data = bytearray(caller.frame(*add_of(9)) + caller.frame(Operation.READ_ENTRY, read))
            for _ in range(chance.randint(1, 4)):
                data[chance.randrange(4, len(data))] = chance.randrange(256)
            await caller.stream.send_all(data)
            await caller.stream.aclose()
        await still_serves(bookie, neighbour)


async def test_a_client_reading_nothing_stops_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """B9: what it is owed stays within its share, and it is cut."""
    monkeypatch.setattr(session, "_SENDING_S", 1.0)
    async with a_bookie() as bookie:
        neighbour, greedy = await bookie.call(), await bookie.call()
        await neighbour.add(0)
        await neighbour.add(1, entry(1, bytes(4 << 20)))
        wanted = greedy.frame(Operation.READ_ENTRY, wire["ReadRequest"](ledgerId=LEDGER, entryId=1))
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(30):
            while True:
                await greedy.stream.send_all(wanted * 1000)
                await still_serves(bookie, neighbour)
        await still_serves(bookie, neighbour)


async def test_large_frames_arriving_from_many_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """B9: each may be as large as a frame, and connections are many."""
    monkeypatch.setattr(session, "_ARRIVING_BYTES_MAX", 3 << 20)
    async with a_bookie() as bookie:
        neighbour = await bookie.call()
        await neighbour.add(0)
        for _ in range(2):
            caller = await bookie.call(2)
            await caller.stream.send_all(caller.frame(*add_of(1, entry(1, bytes(2 << 20))))[: 1 << 20])
            await still_serves(bookie, neighbour)
        last = await bookie.call(2)
        await ends(last, last.frame(*add_of(1, entry(1, bytes(4 << 20))))[: 2 << 20])
        await still_serves(bookie, neighbour)
        for each in bookie.callers[1:]:
            await each.stream.aclose()
        assert await neighbour.add(1, entry(1, bytes(2 << 20))) is Code.OK


async def test_no_more_connections_than_the_bookie_can_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS_MAX", 3)
    async with a_bookie() as bookie:
        callers = [await bookie.call() for _ in range(3)]
        for each in callers:
            await each.read(0)
        await ends(await bookie.call(), b"")
        await callers[0].stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert (await (await bookie.call()).read(0)).code is Code.NO_LEDGER
