"""Random placement: distinct, usable, even, and the same for the same randomness."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.abc import Candidate
from replog.errors import NotEnoughBookiesError
from replog.placements.uniform import RandomPlacement
from replog.protocol.digest import DigestType
from replog.protocol.model import Fragment, LedgerMetadata
from replog.protocol.quorum import Quorum

PLACEMENT = RandomPlacement()
BOOKIES = [f"bookie-{number}" for number in range(6)]

bookies = st.lists(st.sampled_from(BOOKIES), max_size=12)
seeds = st.integers(0, 1 << 32)


def named(*ids: str) -> list[Candidate]:
    return [Candidate(bookie_id) for bookie_id in ids]


def metadata(*ensembles: tuple[str, ...]) -> LedgerMetadata:
    fragments = tuple(Fragment(10 * number, ensemble) for number, ensemble in enumerate(ensembles))
    return LedgerMetadata(1, Quorum(3, 3, 2), DigestType.CRC32C, "", fragments)


@given(bookies, seeds, st.integers(1, 6))
def test_an_ensemble_is_distinct_and_usable(usable: list[str], seed: int, ensemble: int) -> None:
    quorum = Quorum(ensemble, ensemble, 1)
    if len(set(usable)) < ensemble:
        with pytest.raises(NotEnoughBookiesError) as raised:
            PLACEMENT.choose_ensemble(quorum, named(*usable), random.Random(seed))
        assert raised.value.needed == ensemble
        assert raised.value.usable == tuple(sorted(set(usable)))
        return
    chosen = PLACEMENT.choose_ensemble(quorum, named(*usable), random.Random(seed))
    assert len(set(chosen)) == len(chosen) == ensemble
    assert set(chosen) <= set(usable)
    shuffled = random.Random(seed + 1).sample(usable, len(usable))
    assert PLACEMENT.choose_ensemble(quorum, named(*shuffled), random.Random(seed)) == chosen, "the order has no say"


def test_every_bookie_is_as_likely_at_every_index() -> None:
    source = random.Random(1)
    seen: Counter[tuple[int, str]] = Counter()
    for _ in range(3000):
        seen.update(enumerate(PLACEMENT.choose_ensemble(Quorum(3, 3, 2), named(*BOOKIES), source)))
    assert len(seen) == 18
    assert all(400 < count < 600 for count in seen.values()), seen


@given(bookies, seeds, st.lists(st.integers(0, 2), max_size=4))
def test_replacements_are_distinct_usable_and_new(usable: list[str], seed: int, failed: list[int]) -> None:
    """C2: not already in the ensemble, the last one; those of earlier fragments may come back."""
    ledger = metadata(("bookie-3", "bookie-4", "bookie-5"), ("bookie-0", "bookie-1", "bookie-2"))
    members = named("bookie-0", "bookie-1", "bookie-2")
    replaced = PLACEMENT.replace_bookies(ledger, failed, named(*usable), members, random.Random(seed))
    candidates = set(usable) - {"bookie-0", "bookie-1", "bookie-2"}
    assert set(replaced) <= set(failed)
    assert set(replaced.values()) <= candidates
    assert len(set(replaced.values())) == len(replaced) == min(len(set(failed)), len(candidates)), (
        "as many as can be had"
    )


def test_lack_of_replacements_is_an_empty_answer() -> None:
    ledger, members = metadata(("a", "b", "c")), named("a", "b", "c")
    assert PLACEMENT.replace_bookies(ledger, [0], named("a", "b", "c"), members, random.Random(1)) == {}


@given(seeds)
def test_readers_ask_each_index_once(seed: int) -> None:
    assert sorted(PLACEMENT.read_order([2, 0, 1], named("a", "b", "c"), random.Random(seed))) == [0, 1, 2]


def test_readers_spread() -> None:
    source = random.Random(1)
    first = Counter(PLACEMENT.read_order([0, 1, 2], named("a", "b", "c"), source)[0] for _ in range(900))
    assert all(count > 200 for count in first.values()), first


def test_error_lists_present_bookies_and_the_remedy() -> None:
    with pytest.raises(NotEnoughBookiesError, match=r"3 bookies .* only 1 can be used \(a\): start more bookies"):
        PLACEMENT.choose_ensemble(Quorum(), named("a"), random.Random(1))
