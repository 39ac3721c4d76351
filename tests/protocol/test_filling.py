"""F1-F6, rule by rule: schedules that would lose or falsify a copy, or fence a writer, without the rule."""

from __future__ import annotations

import random

import attrs
import pytest

from replog.errors import LedgerNotFoundError
from replog.protocol.batch import decode
from replog.protocol.digest import DigestType
from replog.protocol.effects import AskHolding, SendCopy, WriteMetadata
from replog.protocol.filling import ROUNDS_MAX, LedgerFilling
from replog.protocol.fragment_copies import fixed_fragments
from replog.protocol.gaps import Gap
from replog.protocol.messages import AddRequest, FenceRequest, Status
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState
from replog.protocol.quorum import Quorum
from tests.lanes.seeds import seeds
from tests.protocol.driving_filling import KEY, LEDGER, Faults, World

THREE = Quorum(3, 3, 2)
STRIPED = Quorum(5, 3, 2)


def closed(quorum: Quorum = THREE, ensemble: str = "abc", **named: object) -> World:
    return World(quorum, [(0, ensemble)], **named)  # type: ignore[arg-type]


# -- F1: copy, then one compare-and-set -------------------------------------------------------------------------------


@pytest.mark.parametrize(("quorum", "ensemble"), [(THREE, "abc"), (STRIPED, "abcde"), (Quorum(2, 2, 1), "ab")])
@pytest.mark.parametrize("digest_type", list(DigestType))
def test_lost_bookie_is_replaced_when_the_new_one_holds_all(
    quorum: Quorum, ensemble: str, digest_type: DigestType
) -> None:
    world = closed(quorum, ensemble, digest_type=digest_type)
    world.write((7, 3, 10, 1, 9))
    world.lose("b")
    result = world.fill(replacements={1: "h"})
    assert result.replaced == {1: "h"}
    assert result.lacking == []
    assert world.metadata.fragments[0].ensemble == tuple(ensemble.replace("b", "h"))
    assert world.lacking() == {}
    copied = world.bookies["h"].disk.batches[LEDGER]
    assert all(any(copy.data == batch.data for batch in world.batches) for copy in copied)


def test_nothing_changes_for_anybody_before_the_cas() -> None:
    """F1: a filler that dies before the last effect leaves the record as it was."""
    world = closed()
    world.write()
    world.lose("c")
    before = world.metadata
    filler = world.filler(replacements={2: "h"})
    filler.start()
    while not isinstance(filler._waiting[0], WriteMetadata):
        assert world.metadata == before
        filler.step()
    assert world.holding("h", 0, 99).ranges == ((0, 29, 1),)


def test_entries_missing_everywhere_are_reported_and_skipped() -> None:
    """F1: two of three copies were lost with one batch; the third bookie never had it."""
    world = closed()
    world.write(missed={"a": [3], "b": [3]})
    world.lose("c")
    result = world.fill(replacements={2: "h"})
    assert result.replaced == {2: "h"}
    assert {(lack.bookie_id, lack.entries, lack.nowhere) for lack in result.lacking} == {
        (bookie_id, ((3, 5),), ((3, 5),)) for bookie_id in "abh"
    }
    assert world.holding("h", 0, 99).ranges == ((0, 2, 1), (6, 29, 1))


def test_absent_bookie_may_have_the_only_copy() -> None:
    """F1: until it is heard or declared lost, no replacement that lacks something is named."""
    world = closed()
    world.write(missed={"a": [3], "c": [3]})
    world.lose("c")
    world.away.add("b")
    result = world.fill(replacements={2: "h"}, lost=["c"])
    assert result.replaced == {}
    assert world.metadata.fragments[0].ensemble == ("a", "b", "c")
    world.away.clear()
    assert world.fill(replacements={2: "h"}).replaced == {2: "h"}
    assert world.lacking() == {}


def test_only_a_complete_bookie_replaces_a_present_one() -> None:
    """F1: it may have what it does not say, as a page of its index can't be read."""
    world = closed()
    world.write(missed={"a": [3], "b": [3], "c": [3]})
    assert world.fill(replacements={2: "h"}).replaced == {}
    assert world.metadata.fragments[0].ensemble == ("a", "b", "c")


def test_two_bookies_of_a_fragment_change_places() -> None:
    """F1: each holds what the other's place needs before the record says so; what it needs no more it drops afterwards (F5)."""
    world = closed(Quorum(4, 2, 2), "abcd")
    world.write()
    result = world.fill(replacements={1: "c", 2: "b"})
    assert result.replaced == {1: "c", 2: "b"}
    assert world.metadata.fragments[0].ensemble == tuple("acbd")
    assert world.lacking() == {}


@pytest.mark.parametrize("away", ["b", "c"])
def test_bookies_change_places_both_or_not_at_all(away: str) -> None:
    """C2: one of them cannot be asked. If only the other one moved, it would have two places."""
    world = closed(Quorum(4, 2, 2), "abcd")
    world.write()
    world.away.add(away)
    assert world.fill(replacements={1: "c", 2: "b"}).replaced == {}
    assert world.metadata.fragments[0].ensemble == tuple("abcd")
    # One from outside takes its place all the same, whoever else changes places.
    assert world.fill(replacements={0: "h", 1: "c", 2: "b"}).replaced == {0: "h"}
    assert world.metadata.fragments[0].ensemble == tuple("hbcd")
    world.away.clear()
    assert world.lacking() == {}


def test_a_gap_stays_named_if_its_bookie_keeps_its_place() -> None:
    """W7: the one that was to take the place has everything, the one that keeps it has not."""
    world = closed(Quorum(4, 2, 2), "abcd")
    world.write(missed={"b": [4]})
    world.metadata = attrs.evolve(world.metadata, gaps=(Gap(1, 4, 4),))
    world.away.add("b")
    assert world.fill(replacements={1: "c", 2: "b"}).replaced == {}
    assert world.metadata.gaps == (Gap(1, 4, 4),)


def test_refusing_target_is_not_named_and_still_read_from() -> None:
    """F1: a full bookie takes no copy, but its own are the only ones."""
    world = closed()
    world.write(missed={"b": [0, 3], "a": [6]})
    world.lose("c")
    filler = world.filler(replacements={2: "h"})
    filler.machine.start()
    filler._waiting += filler.machine.take_effects()
    while not filler.is_over:
        effect = filler._waiting[0]
        if isinstance(effect, SendCopy) and effect.bookie_id == "a":
            filler._waiting.pop(0)
            filler.machine.copy_refused("a", effect.batch, "full")
            filler._waiting += filler.machine.take_effects()
        else:
            filler.step()
    assert filler.machine.result.replaced == {2: "h"}
    assert filler.machine.result.refusals == {"a": "full"}
    assert world.lacking() == {(0, "a"): [(6, 8)]}


# -- F2: only what is fixed -------------------------------------------------------------------------------------------


def test_last_fragment_of_an_open_ledger_is_not_filled() -> None:
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        world = World(THREE, [(0, "abc"), (15, "abd")], state)
        assert [each.place for each in fixed_fragments(world.metadata)] == [0]
        with pytest.raises(AssertionError, match="F2"):
            world.filler(1)
    assert fixed_fragments(World(THREE, [(0, "abc")], LedgerState.OPEN).metadata) == []
    ended = World(THREE, [(0, "abc"), (15, "abd")], LedgerState.CLOSED, 14)
    assert [(each.place, each.last_entry_id) for each in fixed_fragments(ended.metadata)] == [(0, 14)]
    assert fixed_fragments(closed(last_entry_id=-1).metadata) == []


def test_filling_never_fences_the_writer() -> None:
    """F2: the writer's bookies still take its adds, those that were filled, too."""
    world = World(THREE, [(0, "abc"), (15, "abd")], LedgerState.OPEN)
    world.write(missed={"b": [3]})
    world.lose("c")
    filler = world.filler(replacements={2: "d"})
    filler.start()
    filler.run()
    assert world.metadata.fragments[0].ensemble == ("a", "b", "d")
    assert {effect.term for effect in filler.sent if isinstance(effect, SendCopy)} == {1}
    later = world.make(30, [b"later"])
    for bookie_id in "abd":
        assert world.bookies[bookie_id].handle(AddRequest(1, LEDGER, KEY, 1, later)).status is Status.OK


def test_batch_reaching_into_an_open_fragment_is_not_copied() -> None:
    """F2: a recovery may have been told by the target that it lacks entry 15."""
    world = World(THREE, [(0, "abc"), (15, "abd")], LedgerState.IN_RECOVERY, term=2)
    batch = world.make(13, [b"13", b"14", b"15"])
    for bookie_id in "ab":
        world.store(bookie_id, batch)
    world.lose("c")
    result = world.fill(replacements={2: "d"})
    assert result.copied_batches == 0
    assert world.holding("d", 0, 99).ranges == ()


def test_batch_is_copied_when_a_takeover_ended_its_term_in_it() -> None:
    """Its part behind the end is requested under another stamp: otherwise an open ledger would stay without the copy."""
    world = World(THREE, [(0, "abc"), (15, "abd")], LedgerState.OPEN, term=2)
    world.write((3, 3, 3, 4))
    batch = world.make(13, [b"13", b"14", b"15"])
    for bookie_id in "ab":
        world.store(bookie_id, batch)
    first, last = world.metadata.fragments
    last = attrs.evolve(last, term=2)
    world.metadata = attrs.evolve(world.metadata, fragments=(first, last), is_unbounded=True, open_term=2)
    world.lose("c")
    assert world.fill(replacements={2: "d"}).replaced == {2: "d"}
    assert world.holding("d", 0, 14).ranges == ((0, 14, 1),)


def test_batch_straddling_two_fragments_is_copied_whole() -> None:
    """A recovery's private ensemble changed within a batch: both fragments get it, byte for byte."""
    world = World(THREE, [(0, "abc"), (14, "abd")], last_entry_id=15)
    batch = world.make(13, [b"13", b"14", b"15"])
    world.write((3, 3, 3, 4))
    for bookie_id in "ab":
        world.store(bookie_id, batch)
    world.lose("c")
    assert world.fill(0, replacements={2: "h"}).replaced == {2: "h"}
    assert [each.data for each in world.bookies["h"].disk.batches[LEDGER]][-1] == batch.data
    assert world.fill(1).lacking == []
    assert world.lacking() == {}


def test_fence_above_the_records_term_ends_the_filling() -> None:
    """T1, F4: a recovery began after the record was read."""
    world = World(THREE, [(0, "abc"), (15, "abd")], LedgerState.OPEN)
    world.write()
    world.lose("c")
    filler = world.filler(replacements={2: "d"})
    world.bookies["d"].handle(FenceRequest(1, LEDGER, KEY, 2))
    filler.start()
    filler.run()
    assert filler.machine.result.is_overtaken
    assert world.version == 1


# -- F3: asked, not assumed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_damaged_copy_is_repaired_and_not_multiplied(digest_type: DigestType) -> None:
    world = closed(digest_type=digest_type)
    world.write()
    world.bookies["a"].disk.damaged |= {(LEDGER, each) for each in (3, 4, 5)}
    world.lose("c")
    assert world.fill(replacements={2: "h"}).replaced == {2: "h"}
    assert world.lacking() == {}
    assert world.bookies["a"].disk.damaged == set()


@pytest.mark.parametrize("holder", ["a", "c"])
def test_unverified_copy_is_not_stored(holder: str) -> None:
    """F3: of two copies the damaged one is found out by its code, although its bookie does not know."""
    world = closed()
    world.write(missed={"b": [3]})
    good = world.batches[1]
    bad = bytearray(good.data)
    bad[-8] ^= 1
    stored = world.bookies[holder].disk.batches[LEDGER]
    stored[stored.index(good)] = decode(bytes(bad))
    assert world.fill().refusals == {}
    assert good in world.bookies["b"].disk.batches[LEDGER]
    assert all(each.data != bytes(bad) for each in world.bookies["b"].disk.batches[LEDGER])


def test_differing_keyed_copies_are_reported_not_chosen() -> None:
    """F3."""
    world = closed(digest_type=DigestType.HMAC_SHA256)
    world.write()
    good = world.batches[2]
    stored = world.bookies["a"].disk.batches[LEDGER]
    stored[stored.index(good)] = world.make(6, [b"x", b"y", b"z"])
    world.lose("c")
    result = world.fill(replacements={2: "h"})
    assert result.differing == [(6, 8)]
    assert result.replaced == {}
    assert [lack.entries for lack in result.lacking] == [((6, 8),)]
    assert world.holding("h", 0, 99).ranges == ((0, 5, 1), (9, 29, 1))


def test_a_last_keyed_copy_is_copied_and_reported_unverified() -> None:
    """F3."""
    world = closed(digest_type=DigestType.HMAC_SHA256)
    world.write(missed={"b": [3], "c": [3]})
    world.lose("c")
    result = world.fill(replacements={2: "h"})
    assert result.unverified == 1
    assert result.replaced == {2: "h"}
    assert world.lacking() == {}


@pytest.mark.parametrize("holder", ["a", "b"])
def test_filler_with_the_password_verifies_keyed_copies(holder: str) -> None:
    world = closed(digest_type=DigestType.HMAC_SHA256)
    world.write()
    forged = world.make(6, [b"x", b"y", b"z"])
    forged = decode(forged.data[:-1] + bytes([forged.data[-1] ^ 1]))
    stored = world.bookies[holder].disk.batches[LEDGER]
    stored[stored.index(world.batches[2])] = forged
    world.lose("c")
    result = world.fill(replacements={2: "h"}, knows_password=True)
    assert (result.unverified, result.differing) == (0, [])
    assert world.batches[2] in world.bookies["h"].disk.batches[LEDGER]


def test_false_claim_of_storage_is_not_believed() -> None:
    """F1, F3: what the target holds is asked again before the record names it, and not for ever."""
    world = closed()
    world.write()
    world.lose("c")
    filler = world.filler(replacements={2: "h"})
    filler.start()
    for _ in range(1000):
        if filler.is_over:
            break
        effect = filler._waiting[0]
        if isinstance(effect, SendCopy):
            filler._waiting.pop(0)
            filler.machine.copy_stored("h", effect.batch)
            filler._waiting += filler.machine.take_effects()
        else:
            filler.step()
    assert filler.is_over
    assert filler.machine.result.replaced == {}
    assert filler.machine.result.rounds == ROUNDS_MAX
    assert world.version == 1


def test_target_with_another_key_is_not_named() -> None:
    world = closed()
    world.write()
    world.lose("c")
    other = world.make(0, [b"x"])
    assert world.bookies["h"].handle(AddRequest(1, LEDGER, b"o" * 32, 1, other)).status is Status.OK
    result = world.fill(replacements={2: "h"})
    assert result.replaced == {}
    assert result.refusals == {"h": "UNAUTHORIZED"}


# -- F4: conflicts ----------------------------------------------------------------------------------------------------


def changed(world: World, metadata: LedgerMetadata) -> None:
    world.metadata, world.version = attrs.evolve(metadata, token="other"), world.version + 1


def test_writers_change_is_adopted() -> None:
    """F4: the writer appends a fragment, and closes, between the filler's look and its CAS."""
    world = World(THREE, [(0, "abc"), (15, "abd")], LedgerState.OPEN)
    world.write()
    world.lose("c")
    steps = [
        lambda: changed(world, world.metadata.with_fragment(Fragment(24, ("a", "b", "e")))),
        lambda: changed(world, world.metadata.closed_at(29)),
    ]

    def before_write(_proposed: LedgerMetadata) -> None:
        if steps:
            steps.pop(0)()

    world.before_write = before_write
    assert world.fill(replacements={2: "d"}).replaced == {2: "d"}
    assert [each.ensemble for each in world.metadata.fragments] == [
        ("a", "b", "d"),
        ("a", "b", "d"),
        ("a", "b", "e"),
    ]
    assert world.metadata.state is LedgerState.CLOSED


def test_writers_change_is_adopted_when_only_gaps_are_removed() -> None:
    """F4, W7: no bookie is replaced, so nobody is asked again before the record is changed."""
    world = World(THREE, [(0, "abc"), (15, "abd")], LedgerState.OPEN)
    world.write(missed={"b": [0]})
    world.metadata = attrs.evolve(world.metadata, gaps=(Gap(1, 0, 2),))
    steps = [lambda: changed(world, world.metadata.with_fragment(Fragment(24, ("a", "b", "e"))))]

    def before_write(_proposed: LedgerMetadata) -> None:
        if steps:
            steps.pop()()

    world.before_write = before_write
    assert world.fill().replaced == {}
    assert not world.metadata.gaps
    assert [each.ensemble for each in world.metadata.fragments] == [tuple("abc"), tuple("abd"), tuple("abe")]


def test_other_repairers_change_is_not_undone() -> None:
    """F4: it named another replacement first."""
    world = closed()
    world.write()
    world.lose("c")
    fragment = Fragment(0, ("a", "b", "g"))

    def before_write(_proposed: LedgerMetadata) -> None:
        if world.version == 1:
            changed(world, attrs.evolve(world.metadata, fragments=(fragment,)))

    world.before_write = before_write
    result = world.fill(replacements={2: "h"})
    assert result.is_overtaken
    assert result.replaced == {}
    assert world.metadata.fragments == (fragment,)


def test_lost_answer_to_the_cas_is_settled_by_reading_back() -> None:
    """M1: also if somebody changed something else behind it."""
    for answer_lost in range(2):
        world = closed()
        world.write()
        world.lose("c")
        filler = world.filler(replacements={2: "h"})
        filler.faults = Faults(answer_lost_rate=0.0)
        filler.start()
        while not isinstance(filler._waiting[0], WriteMetadata):
            filler.step()
        effect = filler._waiting.pop(0)
        assert isinstance(effect, WriteMetadata)
        world.metadata, world.version = effect.metadata, 2
        if answer_lost:
            changed(world, attrs.evolve(world.metadata, custom={"by": "somebody"}))
        filler.machine.metadata_uncertain()
        filler._waiting += filler.machine.take_effects()
        filler.run()
        assert filler.machine.result.replaced == {2: "h"}
        assert world.version == 2 + answer_lost


def test_deleted_ledger_ends_the_filling() -> None:
    world = closed()
    world.write()
    world.lose("c")
    filler = world.filler(replacements={2: "h"})

    def before_write(_proposed: LedgerMetadata) -> None:
        world.version = 0

    world.before_write = before_write
    filler.start()
    filler.run()
    assert isinstance(filler.error, LedgerNotFoundError)
    assert filler.machine.result.replaced == {}


# -- F6, W7 -----------------------------------------------------------------------------------------------------------


def test_filled_gaps_leave_the_record_and_others_stay() -> None:
    """W7: nobody holds entries 6 to 8 but a bookie that is away."""
    world = closed()
    world.write(missed={"a": [0], "b": [6], "c": [6]})
    world.metadata = attrs.evolve(world.metadata, gaps=(Gap(0, 0, 2), Gap(1, 6, 8)))
    world.away.add("a")
    assert world.fill().lacking != []
    assert world.metadata.gaps == (Gap(0, 0, 2), Gap(1, 6, 8))
    world.away.clear()
    world.fill()
    assert not world.metadata.gaps
    assert world.lacking() == {}


def test_filling_a_complete_fragment_changes_nothing() -> None:
    """F6."""
    world = closed()
    world.write()
    filler = world.filler()
    filler.start()
    filler.run()
    assert {type(effect) for effect in filler.sent[:-1]} == {AskHolding}
    assert world.version == 1


def test_calls_after_the_end_change_nothing() -> None:
    world = closed()
    world.write()
    filler = world.filler()
    filler.start()
    filler.run()
    machine: LedgerFilling = filler.machine
    batch = world.batches[0]
    machine.holding_told("a", [])
    machine.holding_unknown("a", "late")
    machine.copies_found("a", 0, [batch])
    machine.copies_unreadable("a", 0)
    machine.copy_stored("a", batch)
    machine.copy_refused("a", batch, "late")
    machine.copy_fenced("a", batch)
    machine.metadata_conflict()
    assert machine.take_effects() == []
    assert machine.result.refusals == {}


@pytest.mark.parametrize("seed", seeds(20, few=10, fast=5))
def test_filler_loses_nothing_when_it_dies_after_any_effect(seed: int) -> None:
    """F6: another one finishes, whatever the first left."""
    chance = random.Random(seed)
    quorum, ensemble = chance.choice([(THREE, "abc"), (STRIPED, "abcde")])
    for dies_after in range(40):
        world = closed(quorum, ensemble)
        world.write((7, 3, 10, 1, 9), {"a": [7]} if quorum is THREE else {"a": [0], "b": [10]})
        world.lose("c")
        filler = world.filler(replacements={2: chance.choice("fgh")})
        filler.faults = Faults(dies_after=dies_after)
        filler.start()
        filler.run(chance)
        left = world.lacking()
        assert all(bookie_id in "abc" for _, bookie_id in left)
        # The record names the lost bookie, or one that holds everything.
        replacements = {2: chance.choice("fgh")} if "c" in world.metadata.fragments[0].ensemble else {}
        world.fill(replacements=replacements)
        assert world.lacking() == {}
