"""Damaged data is unknown, never absent, on every path through a bookie (R4, D2, T3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from replog.abc import Damage
from replog.backends.memory import MemoryStorage
from replog.config import BookieOptions
from replog.errors import StorageUncertainError
from replog.protocol.messages import (
    FenceRequest,
    ReadLastAddConfirmedRequest,
    RecoveryReadRequest,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.mutations import Marks
from tests.bookie.disks import SmallStorage
from tests.bookie.test_server import KEY, Served, a_batch, add, each_kind, read, serving
from tests.kit import until
from tests.protocol.bookies import proof_of

OPTIONS = BookieOptions(storage="memory")


@asynccontextmanager
async def rotten(*, is_instant: bool) -> AsyncIterator[Served]:
    """Entries 0 to 9, 10 to 19 and 20 to 29 are stored; those in the middle can't be read."""
    storage = SmallStorage(MemoryStorage(), is_instant=is_instant)
    async with serving(OPTIONS, storage=storage) as served:
        for first in (0, 10, 20):
            assert (await served.ask(add(a_batch(first, 10)))).status is Status.OK
        storage.rotten = [Damage(1, 1, 10, 19, "a bad sector")]
        yield served


@each_kind
async def test_a_plain_read(is_instant: bool) -> None:
    async with rotten(is_instant=is_instant) as served:
        expected = {9: Status.OK, 10: Status.UNKNOWN, 19: Status.UNKNOWN, 20: Status.OK, 30: Status.NO_ENTRY}
        answers = {entry_id: await served.ask(read(entry_id)) for entry_id in expected}
        assert {entry_id: answer.status for entry_id, answer in answers.items()} == expected
        assert "bad sector" in answers[10].detail
        assert not served.server.is_read_only


@each_kind
async def test_a_recovery_read(is_instant: bool) -> None:
    async with rotten(is_instant=is_instant) as served:
        expected = {9: Status.OK, 10: Status.UNKNOWN, 19: Status.UNKNOWN, 20: Status.OK, 30: Status.NO_ENTRY}
        ids = served.asker.send(*[RecoveryReadRequest(0, 1, KEY, 2, entry_id, 1) for entry_id in expected])
        await served.ask(FenceRequest(0, 1, KEY, 2))
        assert [served.asker.answers[each].status for each in ids] == list(expected.values())


@each_kind
@pytest.mark.parametrize("is_recovery", [False, True])
async def test_add_over_damaged_identities_is_not_confirmed(is_instant: bool, is_recovery: bool) -> None:
    """T3: neither confirmed nor stored over; wherever the damaged identities stand in the batch."""
    async with rotten(is_instant=is_instant) as served:
        commits = len(served.storage.commits)
        for sent in (a_batch(10, 10), a_batch(10, 10, payload=b"y"), a_batch(15, 10), a_batch(8, 14), a_batch(19, 1)):
            overlaps_good = sent.first_entry_id == 8 or sent.last_entry_id >= 20
            answer = await served.ask(add(sent, recovery=is_recovery))
            assert answer.status in ((Status.UNKNOWN, Status.CONFLICT) if overlaps_good else (Status.UNKNOWN,))
        assert len(served.storage.commits) == commits
        assert (await served.ask(add(a_batch(20, 10), recovery=is_recovery))).status is Status.OK
        assert (await served.ask(add(a_batch(30, 10), recovery=is_recovery))).status is Status.OK


@each_kind
async def test_damage_does_not_affect_others_of_its_group(is_instant: bool) -> None:
    async with rotten(is_instant=is_instant) as served:
        ids = served.asker.send(
            add(a_batch(30)), add(a_batch(10, 10)), RecoveryReadRequest(0, 1, KEY, 1, 12, 1), add(a_batch(31))
        )
        await served.ask(FenceRequest(0, 1, KEY, 2))
        expected = [Status.OK, Status.UNKNOWN, Status.UNKNOWN, Status.OK]
        assert [served.asker.answers[each].status for each in ids] == expected
        assert (await served.ask(read(31))).status is Status.OK


@each_kind
async def test_unreadable_marks_are_answered_as_damage(is_instant: bool) -> None:
    """Nobody may be told that there is no such ledger, or be let past a fence that can't be seen (R3)."""

    class Blind(SmallStorage):
        is_blind = True

        def marks(self, ledger_id: int) -> Marks | None:
            if self.is_blind:
                raise StorageUncertainError("a bad sector", "ask another bookie")
            return super().marks(ledger_id)

    storage = Blind(MemoryStorage(), is_instant=is_instant)
    async with serving(OPTIONS, storage=storage) as served:
        for request in (
            add(a_batch(0)),
            add(a_batch(0), recovery=True),
            FenceRequest(0, 1, KEY, 2),
            RecoveryReadRequest(0, 1, KEY, 2, 0, 1),
            WriteLastAddConfirmedRequest(0, 1, KEY, 1, proof_of(0, ledger_id=1)),
            ReadLastAddConfirmedRequest(0, 1, KEY, -1, 0),
            read(),
        ):
            assert (await served.ask(request)).status is Status.UNKNOWN
        with pytest.raises(StorageUncertainError):
            await served.server.drop(1)
        assert storage.commits == []
        storage.is_blind = False
        assert (await served.ask(add(a_batch(0)))).status is Status.OK


async def test_read_reports_marks_after_they_became_unreadable() -> None:
    """The machine was made anew meanwhile: that must not end the bookie."""
    storage = SmallStorage(MemoryStorage(), is_instant=False)
    async with serving(OPTIONS, storage=storage) as served:
        await served.ask(add(a_batch(0)))
        gate = storage.hang("read")
        (asked,) = served.asker.send(read())
        assert await trio.to_thread.run_sync(storage.begun["read"].wait, 5)
        served.server._ledgers.clear()

        def blind(ledger_id: int) -> Marks | None:
            raise StorageUncertainError("a bad sector", "ask another bookie")

        storage.marks = blind  # type: ignore[method-assign]
        gate.set()
        await until(lambda: asked in served.asker.answers)
        assert served.asker.answers[asked].status is Status.UNKNOWN
