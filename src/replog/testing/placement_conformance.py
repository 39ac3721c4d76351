"""The conformance suite of placement policies."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from replog.abc import BookieState, Candidate, PlacementPolicy
from replog.errors import NotEnoughBookiesError
from replog.protocol.digest import DigestType
from replog.protocol.model import Fragment, LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.testing.promises import plain_assertions, promise, promised_error

MakePlacement = Callable[[], PlacementPolicy]

_QUORUMS = (Quorum(1, 1, 1), Quorum(2, 2, 2), Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(5, 3, 2), Quorum(4, 4, 3))
_ZONES = ("a", "b", "c", None)
_SEEDS = 8


def check_placement(make_placement: MakePlacement, *, labels: Sequence[Mapping[str, str]] = ()) -> None:
    """Check a placement policy; raise `AssertionError` with the first promise of `replog.abc` that it breaks.

    `labels` are those of bookies that the policy is made for, to be checked beside the zones a, b and c and no labels at all.
    Needs no pytest, and takes about a second."""
    with plain_assertions():
        placement = make_placement()
        for bookies in _clusters(labels):
            for quorum, seed in itertools.product(_QUORUMS, range(_SEEDS)):
                _check_creation(placement, quorum, bookies, seed)
        _check_too_few(placement)
        _check_reading(placement)


def _clusters(labels: Sequence[Mapping[str, str]]) -> Iterator[list[Candidate]]:
    """Bookies in several zones, in one, without labels, full and empty, and with these labels."""
    for count in (3, 6, 9):
        yield [_bookie(number, _ZONES[number % len(_ZONES)]) for number in range(count)]
        yield [_bookie(number, "a") for number in range(count)]
        yield [_bookie(number, None) for number in range(count)]
        yield [attrs.evolve(_bookie(number, _ZONES[number % 3]), free_bytes=None) for number in range(count)]
        yield [attrs.evolve(_bookie(number, _ZONES[number % 3]), free_bytes=0) for number in range(count)]
        if labels:
            yield [attrs.evolve(_bookie(number, None), labels=labels[number % len(labels)]) for number in range(count)]
    mixed = [_bookie(number, _ZONES[number % 3]) for number in range(6)]
    yield [
        attrs.evolve(mixed[0], state=BookieState.DRAINING),
        attrs.evolve(mixed[1], state=BookieState.AWAY),
        *mixed[2:],
    ]


def _bookie(number: int, zone: str | None) -> Candidate:
    return Candidate(f"bookie-{number:016x}", {} if zone is None else {"zone": zone}, (number % 4) << 30)


def _check_creation(placement: PlacementPolicy, quorum: Quorum, bookies: Sequence[Candidate], seed: int) -> None:
    try:
        ensemble = placement.choose_ensemble(quorum, bookies, random.Random(seed))
    except NotEnoughBookiesError as error:
        is_allowed = len(bookies) < quorum.ensemble or placement.is_strict
        promise(
            is_allowed, f"an ensemble is found where there are enough bookies, unless the policy is strict: {error}"
        )
        promise(bool(str(error)), "an error says what is missing")
        return
    ids = [each.bookie_id for each in bookies]
    promise(isinstance(ensemble, tuple), "an ensemble is a tuple")
    promise(len(ensemble) == quorum.ensemble, "an ensemble has E bookies")
    promise(len(set(ensemble)) == len(ensemble), "a bookie is in an ensemble once (C2)")
    promise(set(ensemble) <= set(ids), "an ensemble is made of candidates")
    again = placement.choose_ensemble(quorum, bookies, random.Random(seed))
    promise(again == ensemble, "the same randomness gives the same ensemble: a policy has no state")
    # Clients learn of bookies in any order; without this, two clients with the same seed would choose differently.
    other = random.Random(seed + 1).sample(list(bookies), len(bookies))
    promise(
        placement.choose_ensemble(quorum, other, random.Random(seed)) == ensemble,
        "the order of the candidates has no say",
    )
    by_id = {each.bookie_id: each for each in bookies}
    members = [by_id[bookie_id] for bookie_id in ensemble]
    shortfall = placement.shortfall(quorum, members)
    promise(isinstance(shortfall, str), "a shortfall is a text")
    promise(not shortfall or not placement.is_strict, "a strict policy chooses no ensemble that it finds wanting")
    metadata = LedgerMetadata(1, quorum, DigestType.CRC32C, "", (Fragment(0, ensemble),))
    for failed in _failures(quorum.ensemble, seed):
        _check_replacing(placement, metadata, members, failed, bookies, seed)


def _failures(ensemble: int, seed: int) -> Iterator[list[int]]:
    yield from ([index] for index in range(ensemble))
    yield random.Random(seed).sample(range(ensemble), (ensemble + 1) // 2)
    yield list(range(ensemble))
    yield []


def _check_replacing(
    placement: PlacementPolicy,
    metadata: LedgerMetadata,
    members: Sequence[Candidate],
    failed: Sequence[int],
    bookies: Sequence[Candidate],
    seed: int,
) -> None:
    ensemble = metadata.last_fragment.ensemble
    new = {each.bookie_id for each in bookies} - set(ensemble)
    for candidates in (bookies, [each for each in bookies if each.bookie_id in new]):
        chosen = placement.replace_bookies(metadata, failed, candidates, members, random.Random(seed))
        promise(set(chosen) <= set(failed), "only bookies that failed are replaced")
        promise(set(chosen.values()) <= new, "a replacement is a candidate that is not in the ensemble already (C2)")
        promise(len(set(chosen.values())) == len(chosen), "a bookie replaces one other only (C2)")
        most = min(len(set(failed)), len(new))
        promise(len(chosen) == most or placement.is_strict, "as many are replaced as there are candidates")
        by_id = {each.bookie_id: each for each in bookies}
        after = [by_id[chosen.get(index, bookie_id)] for index, bookie_id in enumerate(ensemble)]
        if placement.is_strict and chosen:
            promise(not placement.shortfall(metadata.quorum, after), "a strict policy keeps to its wishes")


def _check_too_few(placement: PlacementPolicy) -> None:
    few = [_bookie(number, "abc"[number]) for number in range(2)]
    with promised_error(NotEnoughBookiesError, "too few candidates raise NotEnoughBookiesError") as raised:
        placement.choose_ensemble(Quorum(3, 3, 2), few, random.Random(1))
    promise(bool(str(raised[0])), "an error says what is missing")
    metadata = LedgerMetadata(1, Quorum(2, 2, 1), DigestType.CRC32C, "", (Fragment(0, ("x", "y")),))
    members = [Candidate("x"), Candidate("y")]
    promise(placement.replace_bookies(metadata, [0], [], members, random.Random(1)) == {}, "nobody replaces nobody")


def _check_reading(placement: PlacementPolicy) -> None:
    members = [_bookie(number, _ZONES[number % 3]) for number in range(5)]
    for seed in range(_SEEDS):
        order = placement.read_order([3, 4, 0], members, random.Random(seed))
        promise(isinstance(order, list), "a reading order is a list, which the client may change")
        promise(sorted(order) == [0, 3, 4], "a reader asks each index of the write set once")
