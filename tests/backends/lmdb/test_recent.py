"""What was committed last, in memory: only what follows without a gap is given together."""

from replog.backends.lmdb.recent import RecentBatches
from replog.testing.storage_conformance import make_batch


def test_read_returns_following_batches_while_they_fit() -> None:
    recent = RecentBatches()
    batches = [make_batch(1, first, 10) for first in (0, 10, 20, 40)]
    recent.add(batches)
    size = len(batches[0].data)
    assert recent.read(1, 13, 1, 10 * size) == batches[1:3]
    assert recent.read(1, 0, 1, 2 * size) == batches[:2]
    assert recent.read(1, 0, 1, 0) == batches[:1]
    assert recent.read(1, 30, 1, 10 * size) == []
    assert recent.read(1, 0, 2, 10 * size) == []


def test_striped_batch_is_returned_alone() -> None:
    """Those of one gathering interleave (W1): what begins next is known to the storage only."""
    recent = RecentBatches()
    batches = [make_batch(1, first, 4, stride=3) for first in (0, 1, 12, 13)]
    recent.add(batches)
    assert recent.read(1, 4, 1, 1 << 20) == [batches[1]]
    assert recent.read(1, 5, 1, 1 << 20) == []


def test_next_gathering_does_not_follow_a_striped_batch() -> None:
    """The others of its own gathering are between them (W1), if that has 10 entries: 0, 3, 6, 9, then 1, 4, 7, then 2, 5, 8."""
    recent = RecentBatches()
    batches = [make_batch(1, 0, 4, stride=3), make_batch(1, 10, 1, stride=3)]
    recent.add(batches)
    assert recent.read(1, 0, 1, 1 << 20) == batches[:1]


def test_oldest_batches_are_forgotten_but_not_stored_again() -> None:
    batches = [make_batch(1, first, 1, size_bytes=100) for first in range(8)]
    recent = RecentBatches(5 * len(batches[0].data))
    again = make_batch(1, 0, 1, size_bytes=100)
    recent.add([*batches[:3], again, *batches[3:5]])
    assert recent.read(1, 0, 1, 0) == [again]
    recent.add(batches[5:7])
    assert [bool(recent.read(1, first, 1, 0)) for first in range(8)] == [True, False, False, *[True] * 4, False]
    recent.add([make_batch(1, 100, 1, size_bytes=5000)])
    assert recent.read(1, 100, 1, 0) == [], "larger than all that may be kept"
    recent.drop([1])
    assert recent.read(1, 6, 1, 0) == []
    recent.add([make_batch(2, 0, 9, size_bytes=50)])
    assert recent.read(2, 8, 1, 0)
