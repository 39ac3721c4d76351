"""Requests that are well formed and make no sense: whoever may connect can send them. They harm nobody else's ledgers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from replog.abc import Storage
from replog.backends import memory
from replog.backends.files import storage as files
from replog.backends.lmdb import storage as lmdb
from replog.bookie.server import BookieServer
from replog.config import BookieOptions
from replog.hookspecs import Event, StorageFailed
from replog.protocol.batch import Batch, build
from replog.protocol.digest import Digest, DigestType, stored_ledger_key
from replog.protocol.messages import (
    AddRequest,
    AdminCommand,
    AdminRequest,
    CopyReadRequest,
    CopyRequest,
    FenceRequest,
    RangesRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from tests.protocol.bookies import proof_of

LEAST, MOST = -(1 << 63), (1 << 63) - 1
NUMBERS = [LEAST, LEAST + 1, -(1 << 31), -2, -1, 0, 1, 2, 5, 1 << 31, 1 << 32, 1 << 62, MOST - 1, MOST]
OURS = 7777  # a ledger that none of the nonsense is about
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
REQUESTS = 1500


def a_batch(ledger_id: int, first: int, stamp: int = 1, stride: int = 1, confirmed: int = -1, count: int = 1) -> Batch:
    return build(
        Digest(DigestType.CRC32C, 0, b""),
        ledger_id=ledger_id,
        first_entry_id=first,
        stride=stride,
        payloads=[b"payload"] * count,
        last_add_confirmed=confirmed,
        stamp=stamp,
        timestamp_ns=LEAST,
        cumulative_length=(1 << 64) - 1,
    )


def nonsense(request_id: int, chance: random.Random) -> Request:
    """One request with numbers at the ends of what can be."""
    one, two, three, four = (chance.choice(NUMBERS) for _ in range(4))
    key = chance.choice([KEY, OTHER_KEY])
    kind = chance.randrange(10)
    if kind == 0:
        return FenceRequest(request_id, one, key, two)
    if kind == 1:
        return RecoveryReadRequest(request_id, one, key, two, three, four)
    if kind == 2:
        return ReadRequest(request_id, one, key, two, three, four)
    if kind == 3:
        return ReadLastAddConfirmedRequest(request_id, one, key, two, min(three, 0))
    if kind == 4:
        proof = chance.choice(
            [
                proof_of(three, ledger_id=max(0, chance.choice([one, four]))),
                b"",
                b"rlac" + bytes(32),
                b"rlog" + bytes(132),
            ]
        )
        return WriteLastAddConfirmedRequest(request_id, one, key, two, proof)
    key = chance.choice([key, b""]) if kind > 6 else key
    if kind == 7:
        return RangesRequest(request_id, one, key, two, three, four)
    if kind == 8:
        return CopyReadRequest(request_id, one, key, two, three, four)
    ledger_id, count = chance.choice([0, 1, MOST]), chance.choice([1, 3])
    stamp, stride = chance.choice([1, 2, MOST]), chance.choice([1, 2, (1 << 32) - 1])
    first = chance.choice([0, 1, 5, 1 << 40, MOST - (count - 1) * stride])
    batch = a_batch(ledger_id, first, stamp, stride, chance.choice([-1, first - 1]), count)
    term = chance.choice([stamp, two])
    if kind == 9:
        stored_key = chance.choice([b"", b"s" * 32, stored_ledger_key(KEY), b"short"])
        to = chance.choice([ledger_id, one])
        return CopyRequest(request_id, to, key, term, batch, recovery=True, stored_key=stored_key)
    return AddRequest(
        request_id,
        chance.choice([ledger_id, one]),
        key,
        term,
        batch,
        chance.random() < 0.3,
        proof_of(three, ledger_id=ledger_id),
    )


STORAGES: dict[str, Callable[[str], Storage]] = {
    "memory": memory.open_storage,
    "files": files.open_storage,
    "lmdb": lmdb.open_storage,
}


class Asker:
    def __init__(self, server: BookieServer) -> None:
        self.server = server
        self.answers: dict[int, Response] = {}
        self._came = trio.Event()

    def replied(self, responses: Sequence[Response]) -> None:
        for response in responses:
            assert response.request_id not in self.answers
            self.answers[response.request_id] = response
        self._came.set()

    async def ask(self, *requests: Request) -> list[Response]:
        self.server.handle(requests, self.replied)
        with trio.fail_after(30):
            while not all(request.request_id in self.answers for request in requests):
                self._came = trio.Event()
                await self._came.wait()
        return [self.answers[request.request_id] for request in requests]


@pytest.mark.parametrize("storage", STORAGES)
async def test_extreme_numbers_do_no_harm(storage: str, tmp_path: Path) -> None:
    chance = random.Random(storage)
    events: list[Event] = []
    opened = STORAGES[storage](str(tmp_path / "storage"))
    server = BookieServer(opened, BookieOptions(storage=storage), events.append)
    async with server.running():
        asker, number = Asker(server), 0
        (first,) = await asker.ask(AddRequest(-1, OURS, KEY, 1, a_batch(OURS, 0)))
        assert first.status is Status.OK
        while number < REQUESTS:
            some = [nonsense(number + place, chance) for place in range(chance.choice([1, 2, 50]))]
            number += len(some)
            await asker.ask(*some)
        assert {answer.status for answer in asker.answers.values()} >= {Status.OK, Status.FENCED, Status.UNAUTHORIZED}
        add, read = await asker.ask(
            AddRequest(-2, OURS, KEY, 1, a_batch(OURS, 1)), ReadRequest(-3, OURS, KEY, 0, 1, 1 << 20)
        )
        assert (add.status, read.status) == (Status.OK, Status.OK)
        (read,) = await asker.ask(ReadRequest(-4, OURS, KEY, 0, 1, 1 << 20))
        assert [batch.first_entry_id for batch in read.batches] == [0, 1]
        assert server.failure is None
        assert not [event for event in events if isinstance(event, StorageFailed)]
    await server.calls.close(5)
    reopened = STORAGES[storage](str(tmp_path / "storage"))  # what was stored is read again
    try:
        assert [batch.first_entry_id for batch in reopened.read(OURS, 0, 1, 1 << 20)] == [0, 1]
    finally:
        reopened.close()


async def test_too_many_commands_at_once_are_too_many(autojump_clock: trio.testing.MockClock) -> None:
    server = BookieServer(memory.open_storage("commands"), BookieOptions(storage="memory"), lambda _event: None)
    released = trio.Event()

    async def administer(command: AdminCommand) -> tuple[Status, str]:
        await released.wait()
        return Status.OK, command.name

    async with server.running():
        server.administrators.administer = administer
        asker = Asker(server)
        server.handle([AdminRequest(number, AdminCommand.SCRUB) for number in range(100)], asker.replied)
        await trio.testing.wait_all_tasks_blocked()
        refused = set(asker.answers)
        assert refused == set(range(32, 100))
        assert {asker.answers[number].status for number in refused} == {Status.TOO_BUSY}
        released.set()
        await trio.testing.wait_all_tasks_blocked()
        assert {asker.answers[number].detail for number in range(32)} == {"SCRUB"}
        (again,) = await asker.ask(AdminRequest(200, AdminCommand.COMPACT))
        assert (again.status, again.detail) == (Status.OK, "COMPACT")
    memory.forget("commands")
