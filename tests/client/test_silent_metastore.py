"""A bookie fails while the metastore does not answer: appends go on, however long that takes (C9)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from replog.client.ledger_writer import LedgerWriter
from replog.config import ClientOptions
from replog.config.client import ClientTuning
from replog.errors import AddTimeoutError
from replog.hookspecs import EnsembleChanged
from replog.protocol.messages import WriteLastAddConfirmedRequest
from replog.protocol.quorum import Quorum
from replog.testing import Fault
from tests.kit import Bookie, Cluster, cluster, read_ledger

OPTIONS = ClientTuning(metastore_timeout_s=2.0, bookie_retry_after_s=1.0)
SILENT_S = 20.0  # many times the longest deadline of a call
PAUSE_S = 0.01


class Silence:
    """The metastore answers until a ledger's record is to be changed. That call meets `first`; later ones about keys that begin
    with `under` are not answered."""

    def __init__(self, world: Cluster, first: Fault, under: str = "") -> None:
        self.is_over = False
        self._first: Fault | None = first
        self._under = under
        world.metastore._choose = self._choose

    def _choose(self, operation: str, key: str) -> Fault | None:
        if self.is_over:
            return None
        if self._first is not None:
            if operation != "put":
                return None
            first, self._first = self._first, None
            return first
        return Fault.UNAVAILABLE if key.startswith(self._under) else None


async def append_for(writer: LedgerWriter, seconds: float) -> float:
    """Appends one entry after the other; returns the longest time that one took."""
    ends_s, longest_s = trio.current_time() + seconds, 0.0
    while trio.current_time() < ends_s:
        began_s = trio.current_time()
        await writer.append(b"%d" % (writer.last_add_pushed + 1))
        longest_s = max(longest_s, trio.current_time() - began_s)
        await trio.sleep(PAUSE_S)
    return longest_s


@asynccontextmanager
async def changing(first: Fault, under: str = "") -> AsyncIterator[tuple[Cluster, Silence, LedgerWriter, Bookie]]:
    """A writer of which a bookie was killed, and the metastore that was asked to replace it."""
    async with cluster(4) as world, world.client(OPTIONS, Quorum(3, 3, 2)) as client:
        async with client.create_ledger() as writer:
            await append_for(writer, 0.1)
            silence = Silence(world, first, under)
            gone = world.named(writer.metadata.last_fragment.ensemble)[2]
            await gone.kill()
            yield world, silence, writer, gone
            silence.is_over = True
        count = writer.last_add_confirmed + 1
        assert await read_ledger(client, writer.ledger_id) == [b"%d" % number for number in range(count)]


LOST = (Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.UNAVAILABLE, Fault.CONFLICT)


@pytest.mark.parametrize("first", LOST, ids=lambda fault: fault.name)
async def test_appends_go_on_while_the_change_is_unanswered(
    first: Fault, autojump_clock: trio.testing.MockClock
) -> None:
    async with changing(first) as (world, silence, writer, _):
        assert await append_for(writer, SILENT_S) < PAUSE_S
        before = writer.last_add_confirmed
        silence.is_over = True
        await append_for(writer, 3.0)
        assert len(world.told(EnsembleChanged)) == 1
        fragment = writer.metadata.last_fragment
        [new] = world.spare(writer.metadata.fragments[0].ensemble)
        assert fragment.ensemble[2] == new.bookie_id
        stored = {entry_id for add in new.adds(writer.ledger_id) for entry_id in add.batch.entry_ids}
        assert stored == set(range(fragment.first_entry_id, writer.last_add_confirmed + 1))
        # A change that could be written when it was sent begins there; another one behind what was confirmed by then
        assert fragment.first_entry_id < 30 or (first is Fault.CONFLICT and fragment.first_entry_id > before)


async def test_returning_bookie_stays_out_during_its_change(autojump_clock: trio.testing.MockClock) -> None:
    async with changing(Fault.ANSWER_LOST, "ledgers/") as (_, silence, writer, gone):
        await append_for(writer, 1.0)
        await gone.start()
        sent = len(gone.adds(writer.ledger_id))
        await append_for(writer, SILENT_S)
        assert len(gone.adds(writer.ledger_id)) == sent
        silence.is_over = True


def publications(world: Cluster) -> int:
    seen = [each for bookie in world.bookies for each in bookie.wire.seen]
    return sum(isinstance(each, WriteLastAddConfirmedRequest) for each in seen)


async def test_idle_writer_publishes_while_a_change_is_unanswered(autojump_clock: trio.testing.MockClock) -> None:
    """W5: a follower sees the last entry, though none follows."""
    async with changing(Fault.ANSWER_LOST) as (world, silence, writer, _):
        await append_for(writer, 1.0)
        before = publications(world)
        await trio.sleep(1.0)
        assert publications(world) == before + 2, "to the two bookies that stay"
        silence.is_over = True


async def test_overflow_becomes_a_gap_and_blocks_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W6, W7."""
    monkeypatch.setattr("replog.client.writer_background._KEPT_BYTES_MAX", 100)
    async with changing(Fault.ANSWER_LOST) as (world, silence, writer, _):
        assert await append_for(writer, SILENT_S) < PAUSE_S
        silence.is_over = True
        await append_for(writer, 3.0)
        fragment = writer.metadata.last_fragment
        [new] = world.spare(writer.metadata.fragments[0].ensemble)
        stored = {entry_id for add in new.adds(writer.ledger_id) for entry_id in add.batch.entry_ids}
        await writer.aclose()
        lacking = {
            entry_id
            for gap in writer.metadata.gaps
            for entry_id in range(fragment.first_entry_id, writer.last_add_confirmed + 1)
            if gap.index == 2 and gap.holds(entry_id)
        }
        assert lacking
        assert stored.isdisjoint(lacking)
        assert stored | lacking == set(range(fragment.first_entry_id, writer.last_add_confirmed + 1))


async def test_appends_fail_when_they_need_the_failed_bookie(autojump_clock: trio.testing.MockClock) -> None:
    """W6, C1: with (3, 3, 3) nothing can be confirmed meanwhile."""
    options = ClientOptions(metastore_timeout_s=2.0, add_quorum_timeout_s=10.0)
    async with cluster(4) as world, world.client(options, Quorum(3, 3, 3)) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            Silence(world, Fault.ANSWER_LOST)
            await world.named(writer.metadata.last_fragment.ensemble)[2].kill()
            began_s = trio.current_time()
            with pytest.raises(AddTimeoutError):
                await writer.append(b"1")
            assert 10.0 <= trio.current_time() - began_s < 11.0
