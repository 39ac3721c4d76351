"""Quorum arithmetic, exhaustively: every quorum up to seven bookies, every set of indices."""

from __future__ import annotations

from itertools import combinations

import pytest

from replog.errors import ConfigError
from replog.protocol.quorum import Quorum
from tests.cases import case

QUORUMS = [
    Quorum(ensemble, write, ack)
    for ensemble in range(1, 8)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]


def bits(mask: int) -> set[int]:
    return {index for index in range(mask.bit_length()) if mask >> index & 1}


def test_covered_when_no_ack_quorum_avoids_the_answers() -> None:
    """R2: "so many of each write set" equals "no Qa-subset of any write set is disjoint from them"."""
    for quorum in QUORUMS:
        with case(quorum):
            ack_quorums = [
                sum(1 << index for index in chosen)
                for rotation in range(quorum.ensemble)
                for chosen in combinations(quorum.write_set(rotation), quorum.ack)
            ]
            for answered in range(1 << quorum.ensemble):
                assert quorum.is_covered(answered) == all(answered & ack_quorum for ack_quorum in ack_quorums)


def test_per_entry_arithmetic_agrees_with_sets() -> None:
    """W1, W2, R4: acknowledged and absent, by sets of indices."""
    for quorum in QUORUMS:
        with case(quorum):
            for entry_id in (0, 1, quorum.ensemble - 1, quorum.ensemble, 1000003):
                write_set = set(quorum.write_set(entry_id))
                assert len(write_set) == quorum.write
                assert write_set == bits(quorum.write_mask(entry_id))
                assert write_set == {index for index in range(quorum.ensemble) if quorum.stores(index, entry_id)}
                for mask in range(1 << quorum.ensemble):
                    held = len(bits(mask) & write_set)
                    assert quorum.is_acknowledged(entry_id, mask) == (held >= quorum.ack)
                    assert quorum.is_absent(entry_id, mask) == (quorum.write - held < quorum.ack)


def test_absence_and_acknowledgement_exclude_each_other() -> None:
    """R4: proven absent means that whoever is left can't be an ack quorum, now or ever."""
    for quorum in QUORUMS:
        with case(quorum):
            everybody = (1 << quorum.ensemble) - 1
            for negatives in range(1 << quorum.ensemble):
                others = everybody & ~negatives
                assert quorum.is_absent(0, negatives) != quorum.is_acknowledged(0, others)
                assert quorum.may_acknowledge(others) == all(
                    quorum.is_acknowledged(rotation, others) for rotation in range(quorum.ensemble)
                )


def test_entries_a_stride_apart_have_one_write_set() -> None:
    """W1: so a batch of that stride has one write set; and the load is even."""
    for quorum in QUORUMS:
        with case(quorum):
            stored = [0] * quorum.ensemble
            for entry_id in range(3 * quorum.ensemble):
                assert set(quorum.write_set(entry_id)) == set(quorum.write_set(entry_id + quorum.stride))
                for index in quorum.write_set(entry_id):
                    stored[index] += 1
            assert set(stored) == {3 * quorum.write}


def test_fewer_answers_suffice_when_entries_stripe() -> None:
    """The per-rotation rule, not E - Qa + 1: with six bookies, three and two, silence of 0 and 3 is covered."""
    quorum = Quorum(6, 3, 2)
    assert quorum.is_covered(0b110110)
    assert not quorum.is_covered(0b111100)


@pytest.mark.parametrize(
    "numbers", [(2, 3, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0), (-1, -1, -1), (3, -1, -2), (True, 1, 1), (3.0, 3, 2)]
)
def test_impossible_quorums_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="quorum"):
        Quorum(*numbers)


def test_c7_ensemble_may_lack_unneeded_bookies() -> None:
    """C7: with the others alone, every entry can be confirmed, and every write set can be fenced and proven absent."""
    for quorum in QUORUMS:
        with case(quorum):
            everybody = (1 << quorum.ensemble) - 1
            for missing in range(1 << quorum.ensemble):
                there = everybody & ~missing
                assert quorum.may_lack(missing) == (quorum.may_acknowledge(there) and quorum.is_covered(there))


def test_c7_spread_indices_may_lack_if_any_may() -> None:
    for quorum in QUORUMS:
        with case(quorum):
            for count in range(quorum.ensemble + 1):
                spread = quorum.spread(count)
                assert len(set(spread)) == count
                assert all(0 <= index < quorum.ensemble for index in spread)
                choices = combinations(range(quorum.ensemble), count)
                possible = any(quorum.may_lack(sum(1 << index for index in choice)) for choice in choices)
                assert quorum.may_lack(sum(1 << index for index in spread)) == possible
