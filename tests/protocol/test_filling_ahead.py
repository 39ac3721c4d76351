"""Filling reads ahead: while copies are stored, the next ones are read, as far as memory is bounded (F1, F3, W6)."""

from __future__ import annotations

import random
import sys
from types import FrameType

from replog.protocol import filling
from replog.protocol.effects import SendCopy
from replog.protocol.quorum import Quorum
from tests.protocol.driving_filling import World

THREE = Quorum(3, 3, 2)


def test_more_is_read_while_copies_are_stored() -> None:
    """F3: and what is on its way is not asked for as if it were missing."""
    world = World(THREE, [(0, "abc")])
    world.write()
    world.lose("c")
    filler = world.filler(replacements={2: "h"})
    filler.batches_per_read = 1
    filler.start()
    waiting = filler.run_but_copies()
    assert [each.batch.first_entry_id for each in waiting] == [*range(0, 30, 3)]
    assert filler.machine.result.rounds == 1
    filler.run(random.Random(1))
    assert filler.machine.result.replaced == {2: "h"}
    assert filler.machine.result.rounds == 2


def test_read_ahead_is_bounded() -> None:
    """Of large batches one is read while one is stored."""
    world = World(THREE, [(0, "abc")], last_entry_id=4)
    for entry_id in range(5):
        batch = world.make(entry_id, [bytes(1 << 20)])
        for bookie_id in "abc":
            world.store(bookie_id, batch)
    world.lose("c")
    filler = world.filler(replacements={2: "h"})
    filler.batches_per_read = 1
    filler.start()
    for stored in range(4):
        assert [each.batch.first_entry_id for each in filler.run_but_copies()] == [stored, stored + 1]
        filler.step()
    filler.run()
    assert world.lacking() == {}


def test_copies_read_ahead_of_a_refusal_are_not_stored() -> None:
    """F1: the only one that lacks them takes nothing more."""
    world = World(THREE, [(0, "abc")])
    world.write()
    world.lose("c")
    filler = world.filler(replacements={2: "h"})
    filler.batches_per_read = 1
    filler.start()
    while not (copies := [each for each in filler._waiting if isinstance(each, SendCopy)]):
        filler.step()
    (copy,) = copies
    filler._waiting.remove(copy)
    filler.machine.copy_refused("h", copy.batch, "full")
    filler.run()
    result = filler.machine.result
    assert (result.copied_batches, result.replaced, result.refusals) == (0, {}, {"h": "full"})
    assert world.version == 1


def test_many_small_copies_on_their_way_cost_no_more_each() -> None:
    """A ledger of lone appends has thousands of them, none of which is answered before all are read."""

    def calls_of(batches: int) -> int:
        world = World(THREE, [(0, "abc")], last_entry_id=batches - 1)
        world.write((1,) * batches)
        world.lose("c")
        filler = world.filler(replacements={2: "h"})
        filler.batches_per_read = 1
        filler.start()
        calls = 0

        def count(frame: FrameType, event: str, _: object) -> None:
            nonlocal calls
            calls += event == "call" and frame.f_code.co_filename == filling.__file__

        sys.setprofile(count)
        try:
            filler.run_but_copies()
        finally:
            sys.setprofile(None)
        return calls

    assert calls_of(200) < 2.2 * calls_of(100)
