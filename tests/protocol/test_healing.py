"""B8: when a bookie that lost something may vouch for a ledger again."""

from __future__ import annotations

import attrs
import pytest

from replog.protocol.healing import fence_to_vouch
from replog.protocol.messages import Status
from replog.protocol.model import WRITER_TERM, Fragment, LedgerState
from replog.protocol.quorum import Quorum
from tests.protocol.bookies import Bookie
from tests.protocol.driving_filling import LEDGER, World

THREE = Quorum(3, 3, 2)


def record(state: LedgerState, term: int = 1, last: str = "abd") -> World:
    world = World(THREE, [(0, "abc"), (10, last)], state, term=term)
    world.metadata = attrs.evolve(world.metadata, last_entry_id=29 if state is LedgerState.CLOSED else None)
    return world


@pytest.mark.parametrize(
    ("state", "term", "bookie_id", "seen_term", "wanted"),
    [
        (LedgerState.CLOSED, 2, "a", 1, 2),
        (LedgerState.CLOSED, 1, "a", 1, 1),
        (LedgerState.OPEN, 1, "a", 1, None),
        (LedgerState.OPEN, 1, "c", 1, 1),
        (LedgerState.OPEN, 7, "h", 7, 7),
        (LedgerState.OPEN, 7, "a", 7, None),
        (LedgerState.OPEN, 7, "a", 6, 7),  # a takeover opened this fragment since the bookie was started
        (LedgerState.OPEN, 7, "a", 8, None),  # the record is from a back-up
        (LedgerState.IN_RECOVERY, 2, "a", 1, None),
        (LedgerState.IN_RECOVERY, 2, "h", 1, None),
    ],
)
def test_fence_follows_from_the_record(
    state: LedgerState, term: int, bookie_id: str, seen_term: int, wanted: int | None
) -> None:
    metadata = record(state, term).metadata
    last = attrs.evolve(metadata.last_fragment, term=term)
    metadata = attrs.evolve(metadata, fragments=(*metadata.fragments[:-1], last))
    assert fence_to_vouch(metadata, bookie_id, seen_term) == wanted


def heal(world: World, bookie_id: str) -> bool:
    """As the bookie does: the fence first, then the doubt ends."""
    term = fence_to_vouch(world.metadata, bookie_id, WRITER_TERM)
    if term is None:
        return False
    bookie = world.bookies[bookie_id]
    bookie.finish(bookie.ledger(LEDGER).fence(term))
    bookie.denial = Status.NO_ENTRY
    bookie.crash()
    return True


def test_bookie_regains_a_lost_fence_before_it_vouches() -> None:
    """Without the fence the deposed writer finds its ack quorum: on the bookie that forgot, and on one that was never reached."""
    world = record(LedgerState.CLOSED, term=2)
    late = world.make(30, [b"late"])
    world.shorten("a", 0)
    assert world.add("a", late) is Status.IN_DOUBT
    assert heal(world, "a")
    assert world.add("a", late) is Status.FENCED


def test_bookie_of_an_open_fragment_is_in_doubt_until_replaced() -> None:
    world = record(LedgerState.OPEN)
    world.shorten("a", 0)
    assert not heal(world, "a")
    world.metadata = world.metadata.with_fragment(Fragment(20, ("h", "b", "d")))
    assert heal(world, "a")
    assert world.add("a", world.make(20, [b"later"])) is Status.OK, "the writer may take it in again"


def test_own_fence_makes_no_key() -> None:
    """B7: whose the ledger is, only a client can show."""
    bookie = Bookie()
    bookie.finish(bookie.ledger(LEDGER).fence(5))
    assert bookie.disk.marks[LEDGER].fence_term == 5
    assert bookie.disk.marks[LEDGER].key is None
    world = record(LedgerState.OPEN, term=5)
    world.bookies["a"] = bookie
    assert world.add("a", world.make(0, [b"x"], stamp=5)) is Status.OK
    assert bookie.disk.marks[LEDGER].key is not None
