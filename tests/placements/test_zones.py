"""Placement in zones: for every rotation and every replaced member, also where E > Qw."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.abc import Candidate
from replog.errors import NotEnoughBookiesError, PlacementUnmetError
from replog.placements.arranging import arrange, span, windows
from replog.placements.zones import ZonesPlacement
from replog.protocol.digest import DigestType
from replog.protocol.model import Fragment, LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.registry import Registry

seeds = st.integers(0, 1 << 32)
quorums = st.sampled_from(
    [
        Quorum(2, 2, 2),
        Quorum(3, 3, 2),
        Quorum(3, 2, 2),
        Quorum(4, 2, 2),
        Quorum(5, 3, 2),
        Quorum(6, 3, 2),
        Quorum(6, 4, 2),
    ]
)
zone_lists = st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=2, max_size=12)


def bookies(zones: Sequence[str | None]) -> list[Candidate]:
    return [
        Candidate(f"bookie-{number:02}", {} if zone is None else {"zone": zone}) for number, zone in enumerate(zones)
    ]


def record(quorum: Quorum, ensemble: Sequence[str]) -> LedgerMetadata:
    return LedgerMetadata(1, quorum, DigestType.CRC32C, "", (Fragment(0, tuple(ensemble)),))


def spans(quorum: Quorum, members: Sequence[Candidate]) -> list[int]:
    """How many zones the write set of each rotation spans: counted in another way than the code's."""
    found = []
    for rotation in range(quorum.ensemble):
        found.append(len({members[index].labels.get("zone") for index in quorum.write_set(rotation)} - {None}))
    return found


def is_possible(quorum: Quorum, zones: Sequence[str | None], wanted: int) -> bool:
    """True if some ensemble of these bookies meets the wish: tries all."""

    def extended(chosen: list[str | None], left: Counter[str | None]) -> bool:
        if len(chosen) == quorum.ensemble:
            return all(span(chosen, window) >= wanted for window in windows(quorum.ensemble, quorum.write))
        if len(chosen) >= quorum.write and len(set(chosen[-quorum.write :]) - {None}) < wanted:
            return False
        for zone in list(left):
            if left[zone]:
                left[zone] -= 1
                if extended([*chosen, zone], left):
                    return True
                left[zone] += 1
        return False

    return extended([], Counter(zones))


@given(quorums, zone_lists, st.integers(1, 3), seeds)
def test_every_write_set_spans_the_zones_or_an_error_says_why(
    quorum: Quorum, zones: list[str | None], wanted: int, seed: int
) -> None:
    placement, candidates = ZonesPlacement(wanted, is_strict=True), bookies(zones)
    if len(candidates) < quorum.ensemble:
        with pytest.raises(NotEnoughBookiesError):
            placement.choose_ensemble(quorum, candidates, random.Random(seed))
    elif not is_possible(quorum, zones, wanted):
        with pytest.raises(PlacementUnmetError, match=f"must span {wanted} zones .*: start bookies in other zones"):
            placement.choose_ensemble(quorum, candidates, random.Random(seed))
    else:
        ensemble = placement.choose_ensemble(quorum, candidates, random.Random(seed))
        by_id = {each.bookie_id: each for each in candidates}
        members = [by_id[bookie_id] for bookie_id in ensemble]
        assert min(spans(quorum, members)) >= wanted
        assert placement.shortfall(quorum, members) == ""


@given(quorums, zone_lists, st.integers(1, 3), seeds)
def test_soft_placement_spans_as_many_zones_as_can_be(
    quorum: Quorum, zones: list[str | None], wanted: int, seed: int
) -> None:
    placement, candidates = ZonesPlacement(wanted), bookies(zones)
    if len(candidates) < quorum.ensemble:
        return
    by_id = {each.bookie_id: each for each in candidates}
    members = [by_id[each] for each in placement.choose_ensemble(quorum, candidates, random.Random(seed))]
    best = next(count for count in range(wanted, -1, -1) if is_possible(quorum, zones, count))
    assert min(spans(quorum, members)) >= best
    shortfall = placement.shortfall(quorum, members)
    assert bool(shortfall) is (min(spans(quorum, members)) < wanted)


@given(quorums, zone_lists, seeds, st.data())
def test_a_replacement_keeps_the_zones(quorum: Quorum, zones: list[str | None], seed: int, data: st.DataObject) -> None:
    """For every replaced member: strict gives only what keeps the constraint, soft gives as many as there are."""
    candidates = bookies(zones)
    if len(candidates) < quorum.ensemble or not is_possible(quorum, zones, 2):
        return
    strict, soft = ZonesPlacement(2, is_strict=True), ZonesPlacement(2)
    by_id = {each.bookie_id: each for each in candidates}
    ensemble = strict.choose_ensemble(quorum, candidates, random.Random(seed))
    members = [by_id[bookie_id] for bookie_id in ensemble]
    failed = data.draw(st.lists(st.integers(0, quorum.ensemble - 1), unique=True, max_size=3))
    spare = [each for each in candidates if each.bookie_id not in ensemble]
    ledger = record(quorum, ensemble)

    chosen = strict.replace_bookies(ledger, failed, spare, members, random.Random(seed))
    after = [by_id[chosen.get(index, bookie_id)] for index, bookie_id in enumerate(ensemble)]
    assert min(spans(quorum, after)) >= 2
    for index in set(failed) - set(chosen):  # who was left out would have broken it
        for each in spare:
            if each.bookie_id not in chosen.values():
                worse = [each if place == index else member for place, member in enumerate(after)]
                assert min(spans(quorum, worse)) < 2

    chosen = soft.replace_bookies(ledger, failed, spare, members, random.Random(seed))
    assert len(chosen) == min(len(failed), len(spare)), "soft: availability comes first (C8)"


def test_replacement_restores_lost_zones() -> None:
    quorum, members = Quorum(3, 3, 2), bookies(["a", "a", "a"])
    spare = [Candidate("z", {"zone": "a"}), Candidate("y", {"zone": "b"})]
    ledger = record(quorum, [each.bookie_id for each in members])
    for is_strict in (False, True):
        placement = ZonesPlacement(2, is_strict=is_strict)
        for seed in range(20):
            assert placement.replace_bookies(ledger, [1], spare, members, random.Random(seed)) == {1: "y"}


def test_refused_strict_replacement_is_left_out() -> None:
    quorum, members = Quorum(2, 2, 2), bookies(["a", "b"])
    spare, ledger = [Candidate("z", {"zone": "a"})], record(quorum, ["bookie-00", "bookie-01"])
    assert ZonesPlacement(is_strict=True).replace_bookies(ledger, [1], spare, members, random.Random(1)) == {}
    assert ZonesPlacement().replace_bookies(ledger, [1], spare, members, random.Random(1)) == {1: "z"}


def test_a_shortfall_names_the_write_set_and_the_bookies() -> None:
    members = bookies(["a", "a", "b", None])
    words = ZonesPlacement().shortfall(Quorum(4, 2, 2), members)
    assert words == (
        "a write set spans 1 of 2 zones (label zone): bookie-00 in a, bookie-01 in a; start bookies in other zones"
    )


def test_bookies_of_a_zone_are_chosen_alike() -> None:
    source, candidates, seen = random.Random(3), bookies(["a", "a", "a", "b", "b", "b"]), Counter[str]()
    for _ in range(600):
        seen.update(ZonesPlacement().choose_ensemble(Quorum(2, 2, 2), candidates, source))
    assert all(140 < count < 260 for count in seen.values()), seen


def test_a_search_without_hope_ends_soon() -> None:
    """30 indices, and one bookie too few in the other zone."""
    few: dict[str | None, int] = {"a": 60, "b": 14}
    enough: dict[str | None, int] = {"a": 60, "b": 15}
    assert arrange([None] * 30, [True] * 30, few, 2, 2, random.Random(1).random) is None
    assert arrange([None] * 30, [True] * 30, enough, 2, 2, random.Random(1).random) is not None


def test_the_options_stand_in_its_url() -> None:
    registry = Registry(load_installed=False)
    placement = registry.open_placement("zones:?at_least=3&strict=yes&label=rack")
    members = [Candidate(f"b{number}", {"rack": "r1"}) for number in range(3)]
    assert placement.is_strict
    assert "spans 1 of 3 zones (label rack)" in placement.shortfall(Quorum(), members)
