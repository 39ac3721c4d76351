"""When a writer sends what has gathered: each stage, what leads from one to the next, and what comes in meanwhile (L2, W6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from replog.client.backlog import Backlog
from replog.client.pacing import TRANSITIONS, Pacing, Stage, When
from replog.protocol.batch import Payloads
from replog.runtime.event_loop import CallSoon
from tests.kit import cluster, settle


class Calls(CallSoon):
    """Turns that are taken when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []

    def soon(self, call: Callable[[], None], *, after_woken: bool = False) -> None:
        self.asked.append(call)

    def come(self) -> None:
        asked, self.asked = self.asked, []
        for call in asked:
            call()


class Writer:
    """A backlog and its pacing. Sent entries are confirmed when the test says so."""

    def __init__(self) -> None:
        self.turns = Calls()
        self.batches: list[list[bytes]] = []
        self.backlog = Backlog(1 << 20, -1, lambda: None)
        self.pacing = Pacing(self.backlog, 8, self.turns, self._send)

    def _send(self) -> None:
        if self.backlog.gathered and self.pacing.when() is not When.LATER:
            batch, self.backlog.gathered = self.backlog.gathered, []
            self.backlog.sent(self.backlog.last_add_pushed, sum(map(len, batch)))
            self.batches.append(batch)
            self.pacing.sent(len(batch))

    def stage(self) -> Stage:
        return self.pacing.stage

    def push(self, *payloads: bytes) -> None:
        for data in payloads:
            self.backlog.admit(data)
            self.pacing.pushed()

    def confirm(self) -> None:
        self.backlog.advance(self.backlog.last_add_pushed - len(self.backlog.gathered))
        self._send()


async def test_lone_entry_goes_at_once_and_later_ones_gather() -> None:
    writer = Writer()
    writer.push(b"0")
    assert writer.batches == [[b"0"]]
    writer.push(b"1", b"2", b"3")
    assert writer.stage() is Stage.GATHERING
    assert len(writer.turns.asked) == 1, "one turn for all of them"
    assert len(writer.batches) == 1
    writer.turns.come()
    assert writer.batches[1:] == [[b"1", b"2", b"3"]]
    assert writer.stage() is Stage.TOGETHER


async def test_where_several_came_together_the_next_one_waits_a_turn() -> None:
    writer = Writer()
    writer.push(b"0", b"1", b"2")
    writer.turns.come()
    writer.confirm()
    writer.push(b"3")
    assert writer.batches[-1] == [b"1", b"2"]
    writer.turns.come()
    assert writer.batches[-1] == [b"3"]
    assert writer.stage() is Stage.ALONE, "nobody else came"
    writer.confirm()
    writer.push(b"4")
    assert writer.batches[-1] == [b"4"]


async def test_nothing_is_sent_while_it_is_held_and_all_of_it_after() -> None:
    """L2: whichever turn was asked for before."""
    writer = Writer()
    writer.push(b"0", b"1")
    assert writer.pacing.hold()
    assert not writer.pacing.hold(), "another one holds it"
    writer.turns.come()
    writer.confirm()
    writer.push(b"2")
    assert writer.batches == [[b"0"]]
    assert writer.turns.asked == []
    writer.pacing.release()
    assert writer.batches == [[b"0"], [b"1", b"2"]]


async def test_late_turn_sends_nothing_of_the_next_one() -> None:
    writer = Writer()
    writer.push(b"0", b"1")
    late, writer.turns.asked = writer.turns.asked, []
    writer.pacing.send_now()
    assert writer.batches == [[b"0"], [b"1"]]
    writer.confirm()
    writer.pacing.stage = Stage.TOGETHER
    writer.push(b"2")
    late[0]()
    assert len(writer.batches) == 2, "its own turn sends it"
    writer.turns.come()
    assert writer.batches[-1] == [b"2"]


async def test_entries_of_a_whole_call_are_admitted_or_none() -> None:
    backlog = Backlog(100, -1, lambda: None)
    assert backlog.admit_all(Payloads([bytes(40), bytes(40)])) == range(2)
    with pytest.raises(trio.WouldBlock):
        backlog.admit_all(Payloads([bytes(10), bytes(11)]))
    assert (backlog.last_add_pushed, backlog.unconfirmed_bytes, len(backlog.gathered)) == (1, 80, 2)
    assert backlog.admit_all(Payloads([bytes(20)])) == range(2, 3)


def test_every_stage_is_reached_and_left() -> None:
    assert {stage for stage, _ in TRANSITIONS} == set(TRANSITIONS.values()) == set(Stage)


async def test_fragment_beginning_in_a_held_ledger_releases_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """L2: a roll of fragments by age may be due while the entries of the previous ledger are not confirmed."""
    async with cluster() as world, world.client() as client, client.create_ledger() as writer:
        writer._entries.pacing.hold()
        writer.push_nowait(b"held")
        await writer._entries.begin_fragment()
        await settle()
        assert writer.last_add_confirmed == -1
        writer._entries.pacing.release()
        await writer.flush()
        assert writer.last_add_confirmed == 0
