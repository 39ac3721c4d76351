"""A bookie as clients of BookKeeper see it, frame by frame, in both versions of the protocol."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from wire_bookie import KEY, KEYS, LAST, LEDGER, a_bookie, add_of, entry, fence_of

from replog.abc import UNBOUNDED, Doubt
from replog.backends.memory import MemoryStorage
from replog.config import BackendURL
from replog.registry import Registry
from replog_bookkeeper.digests import LedgerDigest, LedgerKey
from replog_bookkeeper.frames import Code, Operation, ReadFlag
from replog_bookkeeper.schema import wire
from replog_bookkeeper.serving.entries import encode_availability

each_version = pytest.mark.parametrize("version", [2, 3])


# -- adds -------------------------------------------------------------------------------------------------------------


@each_version
async def test_an_entry_is_read_as_it_was_added(version: int) -> None:
    async with a_bookie() as bookie:
        caller = await bookie.call(version)
        payloads = (b"", b"x", bytes(1 << 20))
        for entry_id, payload in enumerate(payloads):
            assert await caller.add(entry_id, entry(entry_id, payload, length=1 << 30)) is Code.OK
            found = await caller.read(entry_id)
            assert (found.code, found.body.body) == (Code.OK, entry(entry_id, payload, length=1 << 30))
        assert (await caller.read(3)).code is Code.NO_ENTRY
        assert (await caller.read(0, ledger_id=8)).code is Code.NO_LEDGER
        last = await caller.read(LAST)
        assert (last.body.entryId, last.body.body) == (LAST, entry(2, payloads[2], length=1 << 30))


@each_version
async def test_entries_come_in_any_order_and_again(version: int) -> None:
    async with a_bookie() as bookie:
        caller = await bookie.call(version)
        for entry_id in (5, 1, 3, 1, 5, 0):
            assert await caller.add(entry_id) is Code.OK
        assert (await caller.read(LAST)).body.body == entry(5)


@each_version
@pytest.mark.parametrize("digest", list(LedgerDigest))
async def test_an_entry_is_the_same_under_another_last_add_confirmed(version: int, digest: LedgerDigest) -> None:
    """Java's recovery resends with what is confirmed by then; the first copy stays, and other payloads are refused (T3)."""
    key, payload = KEYS[digest], b"payload of a good size for each digest"
    first = entry(3, payload, 0, key)
    async with a_bookie() as bookie:
        caller = await bookie.call(version)
        assert await caller.add(3, first, key=key) is Code.OK
        assert await caller.add(3, entry(3, payload, 7, key), key=key) is Code.OK
        assert await caller.add(3, entry(3, payload, 2, key), key=key, is_recovery=True) is Code.OK
        assert await caller.add(3, entry(3, payload[::-1], 0, key), key=key) is Code.IO_ERROR
        assert await caller.add(3, entry(3, payload[::-1], 2, key), key=key) is Code.IO_ERROR
        assert await caller.add(3, entry(3, payload, 2, key, length=1), key=key) is Code.IO_ERROR
        assert (await caller.read(3)).body.body == first


@each_version
async def test_a_ledger_belongs_to_the_first_key(version: int) -> None:
    other = LedgerKey(b"other", LedgerDigest.CRC32C, KEY.quorum)
    async with a_bookie() as bookie:
        caller = await bookie.call(version)
        assert await caller.add(0) is Code.OK
        assert await caller.add(1, key=other) is Code.UNAUTHORIZED
        assert await caller.add(1, key=bytes(20)) is Code.UNAUTHORIZED
        assert await caller.add(1, key=other, is_recovery=True) is Code.UNAUTHORIZED
        assert (await caller.fence(key=other)).code is Code.UNAUTHORIZED
        assert await caller.add(1) is Code.OK, "a wrong key fences nothing"


# -- fences -----------------------------------------------------------------------------------------------------------


@each_version
@pytest.mark.parametrize("fenced_by", [LAST, 0, 9], ids=["the last entry", "an entry", "a missing entry"])
async def test_a_read_with_the_flag_fences(version: int, fenced_by: int) -> None:
    async with a_bookie() as bookie:
        caller, recovery = await bookie.call(version), await bookie.call(version)
        assert await caller.add(0) is Code.OK
        found = await recovery.fence(fenced_by)
        assert found.code is (Code.NO_ENTRY if fenced_by == 9 else Code.OK)
        assert found.body.body == (b"" if fenced_by == 9 else entry(0))
        assert await caller.add(1) is Code.FENCED
        assert await recovery.add(1, is_recovery=True) is Code.OK
        assert (await recovery.fence()).body.body == entry(1)


@each_version
async def test_a_recovery_in_one_piece_passes_its_own_fence(version: int) -> None:
    """A bookie that others were faster than gets a recovery's fence, reads and adds together."""
    async with a_bookie() as bookie:
        caller = await bookie.call(version)
        pieces = [fence_of(LAST), fence_of(0), add_of(0, is_recovery=True), add_of(1, is_recovery=True), add_of(2)]
        await caller.stream.send_all(b"".join(caller.frame(*each) for each in pieces))
        found = [await caller.answer() for _ in pieces]
        adds = {each.body.entryId: each.code for each in found if each.operation is Operation.ADD_ENTRY}
        assert adds == {0: Code.OK, 1: Code.OK, 2: Code.FENCED}
        reads = {each.code for each in found if each.operation is Operation.READ_ENTRY}
        assert reads <= {Code.NO_ENTRY, Code.OK}, "they may see what was made durable together with the fence"


@each_version
async def test_a_copy_of_an_auditor_fences_no_writer(version: int) -> None:
    """Java's autorecovery copies earlier fragments of a ledger that is being written, with recovery adds."""
    async with a_bookie() as bookie:
        caller = await bookie.call(version)
        assert await caller.add(0, is_recovery=True) is Code.OK
        assert await caller.add(1) is Code.OK


@each_version
@pytest.mark.parametrize("kind", ["files", "lmdb"])
async def test_a_fence_of_an_unknown_ledger_outlives_a_restart(version: int, kind: str, tmp_path: Path) -> None:
    """R3."""

    def opened() -> Any:
        return Registry().open_storage(BackendURL(kind, str(tmp_path / "data"), {}))

    storage = opened()
    async with a_bookie(storage) as bookie:
        caller = await bookie.call(version)
        assert (await caller.fence()).code is Code.NO_ENTRY
    storage.close()
    storage = opened()
    async with a_bookie(storage) as bookie:
        caller = await bookie.call(version)
        assert await caller.add(0) is Code.FENCED
        assert await caller.add(0, is_recovery=True) is Code.OK
        assert (await caller.read(LAST)).body.body == entry(0)
    storage.close()


async def test_a_fence_without_a_key_is_refused() -> None:
    async with a_bookie() as bookie:
        caller = await bookie.call()
        fence = wire["ReadRequest"](ledgerId=LEDGER, entryId=0, flag=ReadFlag.FENCE_LEDGER)
        assert (await caller.ask(Operation.READ_ENTRY, fence)).code is Code.UNAUTHORIZED
        assert await caller.add(0) is Code.OK


@each_version
async def test_a_dropped_ledger_takes_nothing_any_more(version: int) -> None:
    async with a_bookie() as bookie:
        caller = await bookie.call(version)
        await caller.add(0)
        await bookie.server.drop(LEDGER)
        assert (await caller.read(0)).code is Code.NO_LEDGER
        assert (await caller.fence()).code is Code.NO_LEDGER
        assert await caller.add(1) is Code.FENCED
        assert await caller.add(1, is_recovery=True) is Code.FENCED


# -- doubt ------------------------------------------------------------------------------------------------------------


class DoubtfulStorage(MemoryStorage):
    """One that knows that it lost something."""

    def doubt(self) -> Doubt:
        return Doubt(UNBOUNDED, UNBOUNDED, ("its journal is shorter than it was",))


@each_version
async def test_doubt_is_no_denial(version: int) -> None:
    """B8. Clients of version 2 know no word for it: an I/O error, which denies nothing either."""
    doubt = Code.IO_ERROR if version == 2 else Code.UNKNOWN_LEDGER_STATE
    async with a_bookie(DoubtfulStorage()) as bookie:
        caller = await bookie.call(version)
        assert (await caller.read(0)).code is doubt
        assert (await caller.fence()).code is doubt
        assert (await caller.fence(0)).code is doubt
        assert await caller.add(0, is_recovery=True) is Code.OK
        assert (await caller.fence(0)).body.body == entry(0)
    async with a_bookie(DoubtfulStorage()) as bookie:
        assert await (await bookie.call(version)).add(0) is doubt


# -- last add confirmed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", list(LedgerDigest))
async def test_an_explicit_last_add_confirmed_comes_back_as_it_was(digest: LedgerDigest, tmp_path: Path) -> None:
    key = KEYS[digest]
    storage = Registry().open_storage(BackendURL("files", str(tmp_path / "data"), {}))
    async with a_bookie(storage) as bookie:
        caller = await bookie.call()
        await caller.add(4, entry(4, key=key), key=key)
        for confirmed in (-1, 4, 2):  # what is confirmed never sinks
            body = key.seal_confirmed(LEDGER, confirmed)
            fields = {"ledgerId": LEDGER, "lac": confirmed, "masterKey": bytes(key), "body": body}
            assert (await caller.about(Operation.WRITE_CONFIRMED, "WriteLacRequest", **fields)).code is Code.OK
    storage.close()
    storage = Registry().open_storage(BackendURL("files", str(tmp_path / "data"), {}))
    async with a_bookie(storage) as bookie:
        found = await (await bookie.call()).about(Operation.READ_CONFIRMED, "ReadLacRequest")
        assert found.code is Code.OK
        assert found.body.lacBody == key.seal_confirmed(LEDGER, 4)
        assert found.body.lastEntryBody == entry(4, key=key)
    storage.close()


async def test_the_last_add_confirmed_of_an_unknown_ledger_is_absent() -> None:
    async with a_bookie() as bookie:
        found = await (await bookie.call()).about(Operation.READ_CONFIRMED, "ReadLacRequest")
        assert found.code is Code.NO_ENTRY


def poll(after: int, wait_ms: int, *, brings: bool = True, entry_id: int = LAST) -> Any:
    message = wire["ReadRequest"](ledgerId=LEDGER, entryId=entry_id, previousLAC=after, timeOut=wait_ms)
    if brings:
        message.flag = ReadFlag.ENTRY_PIGGYBACK
    return message


async def test_a_poll_brings_the_next_entry_as_soon_as_it_is_confirmed() -> None:
    async with a_bookie() as bookie:
        writer, reader = await bookie.call(), await bookie.call()
        await writer.add(0)
        await reader.stream.send_all(reader.frame(Operation.READ_ENTRY, poll(-1, 20_000)))
        assert await writer.add(1, entry(1, confirmed=0)) is Code.OK
        found = await reader.answer()
        assert (found.code, found.body.entryId, found.body.maxLAC) == (Code.OK, 0, 0)
        assert found.body.body == entry(0)


async def test_a_poll_without_news_ends_in_time() -> None:
    async with a_bookie() as bookie:
        caller = await bookie.call()
        await caller.add(0)
        found = await caller.ask(Operation.READ_ENTRY, poll(0, 30))
        assert (found.code, found.body.HasField("body"), found.body.maxLAC) == (Code.OK, False, -1)
        found = await caller.ask(Operation.READ_ENTRY, poll(0, 30, brings=False, entry_id=0))
        assert (found.code, found.body.body) == (Code.OK, entry(0))


async def test_a_poll_brings_no_entry_of_other_bookies() -> None:
    async with a_bookie() as bookie:
        caller = await bookie.call()
        await caller.add(2, entry(2, confirmed=1))
        found = await caller.ask(Operation.READ_ENTRY, poll(0, 20_000))
        assert (found.code, found.body.HasField("body"), found.body.maxLAC) == (Code.OK, False, 1)


async def test_a_poll_brings_a_large_entry() -> None:
    large = bytes(1 << 20)
    async with a_bookie() as bookie:
        caller = await bookie.call()
        await caller.add(0, entry(0, large))
        await caller.add(1, entry(1, large))
        assert (await caller.ask(Operation.READ_ENTRY, poll(-1, 20_000))).body.body == entry(0, large)


async def test_a_fence_and_a_dropped_connection_end_polls() -> None:
    async with a_bookie() as bookie:
        caller, waiting, leaving = await bookie.call(), await bookie.call(), await bookie.call()
        await caller.add(0)
        for each in (waiting, leaving):
            await each.stream.send_all(each.frame(Operation.READ_ENTRY, poll(0, 20_000)))
        await leaving.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        await caller.fence()
        found = await waiting.answer()
        assert (found.code, found.body.maxLAC) == (Code.OK, -1)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (poll(0, 10, entry_id=3), Code.BAD_REQUEST),
        (wire["ReadRequest"](ledgerId=LEDGER, entryId=LAST, flag=ReadFlag.ENTRY_PIGGYBACK), Code.BAD_REQUEST),
        (wire["ReadRequest"](ledgerId=8, entryId=LAST, previousLAC=0, timeOut=20_000), Code.NO_LEDGER),
    ],
)
async def test_a_senseless_poll_is_answered_at_once(message: Any, code: Code) -> None:
    async with a_bookie() as bookie:
        caller = await bookie.call()
        await caller.add(0)
        assert (await caller.ask(Operation.READ_ENTRY, message)).code is code


# -- the rest ---------------------------------------------------------------------------------------------------------


async def test_acknowledged_entries_need_no_force() -> None:
    async with a_bookie() as bookie:
        caller = await bookie.call()
        assert (await caller.about(Operation.FORCE_LEDGER, "ForceLedgerRequest")).code is Code.NO_LEDGER
        await caller.add(0)
        assert (await caller.about(Operation.FORCE_LEDGER, "ForceLedgerRequest")).code is Code.OK


async def test_a_bookie_tells_the_space_of_its_disk() -> None:
    async with a_bookie() as bookie:
        caller = await bookie.call()
        found = (await caller.about(Operation.BOOKIE_INFO, "GetBookieInfoRequest", requested=3)).body
        assert found.totalDiskCapacity > 0
        assert found.HasField("freeDiskSpace")
        assert not (
            await caller.about(Operation.BOOKIE_INFO, "GetBookieInfoRequest", requested=2)
        ).body.totalDiskCapacity


def available(data: bytes) -> list[int]:
    """The entries of a list, as Java's class reads it."""
    version, count = struct.unpack_from(">ii", data)
    assert version == 0
    assert data[8:64] == bytes(56)
    assert len(data) == 64 + 24 * count
    found: list[int] = []
    for place in range(count):
        first, last, size, period = struct.unpack_from(">qqii", data, 64 + 24 * place)
        starts = [first] if first == last else range(first, last + 1, period)
        found += [start + each for start in starts for each in range(size)]
    return found


@pytest.mark.parametrize(
    "entries", [[0], [5, 6, 7], list(range(100)), [0, 1, 2, 5, 6, 7, 10, 11, 12, 20], [0, 3, 6, 7, 10], [1, 2, 4, 8, 9]]
)
async def test_a_bookie_lists_its_entries(entries: list[int]) -> None:
    async with a_bookie() as bookie:
        caller = await bookie.call()
        for entry_id in entries:
            await caller.add(entry_id)
        found = await caller.about(Operation.LIST_ENTRIES, "GetListOfEntriesOfLedgerRequest")
        assert available(found.body.availabilityOfEntriesOfLedger) == entries


async def test_a_ledger_in_stripes_is_listed_in_one_group() -> None:
    async with a_bookie() as bookie:
        caller = await bookie.call()
        for entry_id in range(0, 90, 3):
            await caller.add(entry_id)
        found = await caller.about(Operation.LIST_ENTRIES, "GetListOfEntriesOfLedgerRequest")
        assert len(found.body.availabilityOfEntriesOfLedger) == 64 + 24
        found = await caller.about(Operation.LIST_ENTRIES, "GetListOfEntriesOfLedgerRequest", ledgerId=8)
        assert found.code is Code.NO_LEDGER


def test_an_empty_list_has_no_groups() -> None:
    assert encode_availability((), 0) == bytes(64)


@each_version
async def test_everybody_may_do_everything(version: int) -> None:
    """Authentication: none. Java's clients hear what its bookies answer then."""
    message = wire["AuthMessage"](authPluginName="sasl", payload=b"token")
    async with a_bookie() as bookie:
        caller = await bookie.call(version)
        if version == 3:
            found = (await caller.ask(Operation.AUTHENTICATE, message)).body
        else:
            data = message.SerializeToString()
            await caller.stream.send_all(struct.pack(">II", 4 + len(data), 2 << 24 | 3 << 16) + data)
            answer = await caller.stream.receive_some()
            assert struct.unpack_from(">II", answer) == (len(answer) - 4, 2 << 24 | 3 << 16)
            found = wire["AuthMessage"].FromString(answer[8:])
        assert (found.authPluginName, found.payload) == ("AuthDisabledPlugin", b"")
        assert await caller.add(0) is Code.OK


async def test_tls_is_not_spoken() -> None:
    async with a_bookie() as bookie:
        assert (
            await (await bookie.call()).ask(Operation.START_TLS, wire["StartTLSRequest"]())
        ).code is Code.BAD_REQUEST


async def test_a_read_only_bookie_takes_recovery_adds() -> None:
    """B5."""
    async with a_bookie() as bookie:
        caller = await bookie.call()
        bookie.server.mode.turn(is_read_only=True)
        assert await caller.add(0) is Code.READ_ONLY
        assert await caller.add(0, is_recovery=True) is Code.OK
        assert (await caller.read(0)).code is Code.OK


# -- batches of version 2 ---------------------------------------------------------------------------------------------


@attrs.frozen
class Batches:
    """What a read of several entries answers."""

    result: int
    request_id: int
    entries: list[bytes]


async def read_batch(stream: trio.SocketStream, first: int, count: int, bytes_max: int, key: bytes = b"") -> Batches:
    header = 2 << 24 | 7 << 16 | bool(key)
    data = struct.pack(">IqqqIq", header, LEDGER, first, 99, count, bytes_max) + key
    await stream.send_all(struct.pack(">I", len(data)) + data)
    (size,) = struct.unpack(">I", await receive(stream, 4))
    header, result, ledger_id, entry_id, request_id = struct.unpack(">IIqqq", await receive(stream, 32))
    assert (header, ledger_id, entry_id) == (2 << 24 | 7 << 16, LEDGER, first)
    rest, entries = await receive(stream, size - 32), []
    while rest:
        (length,) = struct.unpack_from(">I", rest)
        entries.append(rest[4 : 4 + length])
        rest = rest[4 + length :]
    return Batches(result, request_id, entries)


async def receive(stream: trio.SocketStream, count: int) -> bytes:
    found = b""
    with trio.fail_after(10):
        while len(found) < count:
            found += await stream.receive_some(count - len(found))
    return found


async def test_several_entries_are_read_at_once() -> None:
    async with a_bookie() as bookie:
        caller = await bookie.call(2)
        for entry_id in (0, 1, 2, 3, 5):
            await caller.add(entry_id)
        size = len(entry(0))
        every = [entry(each) for each in range(4)]
        assert await read_batch(caller.stream, 0, 0, 1 << 20) == Batches(0, 99, every), (
            "up to the first that is missing"
        )
        assert await read_batch(caller.stream, 1, 2, 1 << 20) == Batches(0, 99, every[1:3])
        for count in (1, 2, 3):
            few = await read_batch(caller.stream, 0, 0, 36 + count * (4 + size))
            assert few == Batches(0, 99, every[:count]), "as many as there is room for"
            fewer = await read_batch(caller.stream, 0, 0, 36 + count * (4 + size) - 1)
            assert fewer == Batches(0, 99, every[: max(1, count - 1)])
        assert await read_batch(caller.stream, 2, 5, 1) == Batches(0, 99, every[2:3]), "the first one in any case"
        assert await read_batch(caller.stream, 4, 5, 1 << 20) == Batches(2, 99, [])
        assert await read_batch(caller.stream, 0, 1, 1 << 20, bytes(KEY)) == Batches(0, 99, every[:1])
        assert await caller.add(6) is Code.FENCED
