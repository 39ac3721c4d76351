"""A batch that was damaged on its way is refused, and never becomes durable."""

import pytest
import trio

from replog.backends.memory import MemoryStorage
from replog.bookie.server import BookieServer
from replog.config import BookieOptions
from replog.protocol import batch as batches
from replog.protocol.digest import Digest, DigestType
from replog.protocol.messages import AddRequest, FenceRequest, Response, Status
from replog.testing.simulating.disks import damaged

LEDGER = 7
KEY = b"k" * 32


@pytest.mark.parametrize("is_recovery", [False, True])
async def test_a_damaged_batch_is_refused(is_recovery: bool) -> None:
    good = batches.build(
        Digest(DigestType.CRC32C, LEDGER, b""),
        ledger_id=LEDGER,
        first_entry_id=0,
        stride=1,
        payloads=[b"one", b"two"],
        last_add_confirmed=-1,
        stamp=1,
        timestamp_ns=1,
        cumulative_length=6,
    )
    storage = MemoryStorage()
    server = BookieServer(storage, BookieOptions(), lambda event: None)
    answers: list[Response] = []
    answered = trio.Event()

    def reply(responses: object) -> None:
        answers.extend(responses)  # type: ignore[arg-type]
        if len(answers) == 2:
            answered.set()

    async with server.running():
        for request_id, sent in enumerate((damaged(good), good)):
            server.handle([AddRequest(request_id, LEDGER, KEY, 2 if is_recovery else 1, sent, is_recovery)], reply)
        with trio.fail_after(5):
            await answered.wait()
    statuses = {answer.request_id: answer.status for answer in answers}
    assert statuses == {0: Status.BAD_REQUEST, 1: Status.OK}
    assert storage.read(LEDGER, 0, 1, 1 << 20) == [good]


async def test_a_damaged_header_tells_no_last_add_confirmed() -> None:
    good = batches.build(
        Digest(DigestType.CRC32C, LEDGER, b""),
        ledger_id=LEDGER,
        first_entry_id=9,
        stride=1,
        payloads=[b"ten"],
        last_add_confirmed=0,
        stamp=1,
        timestamp_ns=1,
        cumulative_length=3,
    )
    place = good.data.index((9).to_bytes(8, "little")) + 8  # the last add confirmed stands after the first entry id
    damaged = batches.decode(good.data[:place] + bytes([8]) + good.data[place + 1 :])
    assert damaged.last_add_confirmed == 8
    server = BookieServer(MemoryStorage(), BookieOptions(), lambda event: None)
    answers: list[Response] = []
    async with server.running():
        server.handle([AddRequest(1, LEDGER, KEY, 1, damaged), FenceRequest(2, LEDGER, KEY, 2)], answers.extend)
        with trio.fail_after(5):
            while len(answers) < 2:
                await trio.lowlevel.checkpoint()
    fenced = next(answer for answer in answers if answer.request_id == 2)
    assert fenced.last_add_confirmed == -1, "a recovery would close the ledger after entries that do not exist (R4)"
