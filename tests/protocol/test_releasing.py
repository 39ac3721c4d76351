"""F5: a bookie drops what is others', and nothing that a filler is about to name it for."""

from __future__ import annotations

import itertools
import random

import attrs
import pytest

from replog.protocol.batch import ENTRY_ID_MAX
from replog.protocol.digest import DigestType
from replog.protocol.effects import WriteMetadata
from replog.protocol.messages import CopyRequest, Status
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState
from replog.protocol.quorum import Quorum
from replog.protocol.releasing import PIECE_ENTRIES, ForeignRange, Release, foreign_ranges
from tests.protocol.driving_filling import LEDGER, Filler, Releaser, World

THREE = Quorum(3, 3, 2)


def replaced() -> World:
    """Bookie h has all copies, from a filler that died before its compare-and-set; c is lost."""
    world = World(THREE, [(0, "abc")])
    world.write()
    world.lose("c")
    filler = world.filler(replacements={2: "h"})
    until_written(filler)
    return world


def until_written(filler: Filler) -> None:
    """Up to the compare-and-set, or to the end if there is nothing to write."""
    filler.start()
    while filler._waiting and not isinstance(filler._waiting[0], WriteMetadata):
        filler.step()


def held(world: World, bookie_id: str) -> tuple[tuple[int, int, int], ...]:
    return world.holding(bookie_id, 0, 99).ranges


def test_bookie_drops_entries_outside_its_named_fragments() -> None:
    world = replaced()
    Releaser(world, "h").run()
    assert held(world, "h") == ()
    assert world.bookies["h"].disk.read(LEDGER, 5, 1) is None, "its absence is no proof"
    Releaser(world, "a").run()
    assert held(world, "a") == ((0, 29, 1),)


def test_filler_asks_again_when_it_asked_before_a_drop() -> None:
    """Without that, the record names a bookie that has just dropped everything."""
    world = replaced()
    filler = world.filler(replacements={2: "h"})
    until_written(filler)
    Releaser(world, "h").run()
    filler.run()
    assert filler.machine.result.replaced == {2: "h"}
    assert world.metadata.fragments[0].ensemble == ("a", "b", "h")
    assert held(world, "h") == ((0, 29, 1),)


@pytest.mark.parametrize("steps", range(5))
def test_filler_names_only_held_copies_at_any_moment_of_release(steps: int) -> None:
    """Without hiding, a filler that asks between the proof and the drop believes in what is gone when it writes."""
    world = replaced()
    release = Releaser(world, "h").steps()
    for _ in range(steps):
        next(release)
    filler = world.filler(replacements={2: "h"})
    until_written(filler)
    for _ in release:
        pass
    filler.run()
    if "h" in world.metadata.fragments[0].ensemble:
        assert held(world, "h") == ((0, 29, 1),)
    else:
        assert world.fill(replacements={2: "h"}).replaced == {2: "h"}


@pytest.mark.parametrize("steps", range(1, 5))
def test_asking_filler_keeps_the_last_copies(steps: int) -> None:
    """All members are lost: told that nobody has the entries, a filler names the bookie of a leftover, which drops it."""
    world = replaced()
    release = Releaser(world, "h").steps()
    for _ in range(steps):
        next(release)
    disk = world.bookies["h"].disk
    had = list(disk.batches[LEDGER])
    for each in "ab":
        world.lose(each)
    assert world.fill(replacements={2: "h"}).replaced == {2: "h"}
    for _ in release:
        pass
    assert disk.batches[LEDGER] == had


def test_bookie_drops_nothing_when_it_was_named_meanwhile() -> None:
    """Without the compare-and-set, an old record would do."""
    world = replaced()
    release = Releaser(world, "h").steps()
    next(release)
    assert world.fill(replacements={2: "h"}).replaced == {2: "h"}
    for _ in release:
        pass
    assert held(world, "h") == ((0, 29, 1),)


def test_copy_is_refused_when_it_would_be_dropped_at_once() -> None:
    world = replaced()
    release = Releaser(world, "h").steps()
    next(release), next(release)
    batch = world.batches[0]
    request = CopyRequest(1, LEDGER, b"", 1, batch, recovery=True, stored_key=bytes.fromhex(world.metadata.key_check))
    assert world.bookies["h"].handle(request).status is Status.TOO_BUSY
    assert world.bookies["g"].handle(request).status is Status.OK


# -- what is foreign ----------------------------------------------------------------------------------------------


def record(state: LedgerState, *fragments: tuple[int, str]) -> LedgerMetadata:
    world = World(THREE, [(0, "abc")])
    made = tuple(Fragment(first, tuple(ensemble)) for first, ensemble in fragments)
    end = 29 if state is LedgerState.CLOSED else None
    return attrs.evolve(world.metadata, fragments=made, state=state, last_entry_id=end)


def test_fixed_fragments_without_the_bookie_are_foreign() -> None:
    metadata = record(LedgerState.CLOSED, (0, "abc"), (10, "abd"), (20, "bcd"))
    assert foreign_ranges(metadata, "a") == [ForeignRange(1, 20, ENTRY_ID_MAX)], "nobody reads behind the end"
    assert foreign_ranges(metadata, "d") == [ForeignRange(1, 0, 9)]
    assert foreign_ranges(metadata, "b") == []
    assert foreign_ranges(metadata, "h") == [ForeignRange(1, 0, ENTRY_ID_MAX)], "a batch may straddle two of them"


def test_last_fragment_of_an_open_ledger_is_never_foreign() -> None:
    """A writer may change back to a bookie that it replaced, and counts what that holds."""
    metadata = record(LedgerState.OPEN, (0, "abc"), (10, "abd"))
    assert foreign_ranges(metadata, "c") == []
    assert foreign_ranges(metadata, "h") == [ForeignRange(1, 0, 9)]


def test_nothing_is_foreign_while_a_ledger_is_in_recovery() -> None:
    """Its recovery may be about to name a bookie for what it wrote back (R6)."""
    assert foreign_ranges(record(LedgerState.IN_RECOVERY, (0, "abc"), (10, "abd")), "h") == []


@pytest.mark.sized
@pytest.mark.parametrize("numbers", [(3, 3, 2), (3, 2, 2), (5, 3, 2), (4, 1, 1)])
def test_foreign_entries_belong_to_no_index_of_the_bookie(numbers: tuple[int, int, int], is_long: bool) -> None:
    """F5, W1: for each bookie and entry, in fragments of any length, some of which name it at another index, or don't."""
    quorum = Quorum(*numbers)
    names = "abcdef"
    for seed in range(200 if is_long else 40):
        chance = random.Random(seed)
        firsts = sorted({0, *(chance.randrange(1, 40) for _ in range(3))})
        fragments = tuple(Fragment(first, tuple(chance.sample(names, quorum.ensemble))) for first in firsts)
        state = chance.choice((LedgerState.OPEN, LedgerState.CLOSED))
        end = 40 + chance.randrange(10) if state is LedgerState.CLOSED else None
        metadata = attrs.evolve(record(state), quorum=quorum, fragments=fragments, state=state, last_entry_id=end)
        fixed = range(0, end + 1) if end is not None else range(0, firsts[-1])
        for bookie_id in names:
            found = foreign_ranges(metadata, bookie_id)
            release = Release(found)
            for entry_id in range(60):
                ensemble = metadata.fragment_of(entry_id).ensemble
                is_own = bookie_id in ensemble and quorum.stores(ensemble.index(bookie_id), entry_id)
                is_foreign = any(
                    each.has_some_of(entry_id, entry_id, 1 << 30) for each in found if each.stride == 1
                ) or any(
                    entry_id in range(each.first_entry_id, each.last_entry_id + 1, each.stride)
                    for each in found
                    if each.stride > 1
                )
                if entry_id in fixed:
                    assert is_foreign is not is_own, (seed, bookie_id, entry_id)
                else:
                    assert not (is_foreign and is_own)
                held = [(entry_id, entry_id, quorum.stride)]
                assert release.shown(1, held) == ([] if is_foreign else held)
                assert bool(list(release.pieces(1, held))) is is_foreign


def test_pieces_of_a_rotation_have_its_entries() -> None:
    last = 5 * (2 * PIECE_ENTRIES + 7) + 2
    release = Release([ForeignRange(1, 2, last, 5)])
    found = list(release.pieces(1, [(0, last - 2, 5), (2, last, 5), (3, last - 4, 5)]))
    assert [each.stride for each in found] == [5, 5, 5]
    entries = [range(each.first_entry_id, each.last_entry_id + 1, 5) for each in found]
    assert [each for part in entries for each in part] == list(range(2, last + 1, 5))
    assert max(map(len, entries)) == PIECE_ENTRIES


def test_entries_dropped_at_once_are_bounded() -> None:
    release = Release([ForeignRange(1, 100, 10 * PIECE_ENTRIES), ForeignRange(2, 0, 5)])
    held = [(0, 150, 5), (1, 151, 5), (5 * PIECE_ENTRIES, 7 * PIECE_ENTRIES, 1)]
    pieces = list(release.pieces(1, held))
    assert (pieces[0].first_entry_id, pieces[-1].last_entry_id) == (100, 7 * PIECE_ENTRIES)
    assert all(each.last_entry_id - each.first_entry_id < PIECE_ENTRIES for each in pieces)
    assert all(one.last_entry_id + 1 == other.first_entry_id for one, other in itertools.pairwise(pieces))
    assert list(release.pieces(3, held)) == []
    assert release.shown(1, held) == [(0, 95, 5), (1, 96, 5)]
    assert release.shown(2, held)[0] == (10, 150, 5)


def test_every_bookie_drops_entries_without_a_fragment() -> None:
    """Unbounded ledgers: below the trim, and behind the end of a former term (T3, F5)."""
    fragments = (Fragment(10, ("a", "b", "c"), 1), Fragment(20, ("a", "b", "d"), 3))
    metadata = attrs.evolve(
        LedgerMetadata(LEDGER, THREE, DigestType.CRC32C, "", fragments),
        is_unbounded=True,
        term=3,
        open_term=3,
        trim_to=10,
    )
    nobodys = [ForeignRange(1, 0, 9), ForeignRange(1, 20, ENTRY_ID_MAX), ForeignRange(2, 0, 9)]
    nobodys += [ForeignRange(2, 20, ENTRY_ID_MAX), ForeignRange(3, 0, 9)]
    assert foreign_ranges(metadata, "a", {1, 2, 3}) == nobodys
    assert foreign_ranges(metadata, "d", {1, 2, 3}) == [*nobodys, ForeignRange(1, 10, 19)]
    in_recovery = attrs.evolve(metadata, state=LedgerState.IN_RECOVERY, term=4)
    assert foreign_ranges(in_recovery, "a", {1, 2, 3}) == []
