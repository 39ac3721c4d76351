"""Ledgers: what members of an ensemble lack while their index is failed (rules W7, W8)."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.protocol.effects import ChooseReplacements, SendAdd, SendRead, WriteMetadata
from replog.protocol.gaps import GAPS_MAX, Gap, merged
from replog.protocol.model import Fragment
from tests.protocol.driving import STRIPED, Cluster, Recovery, Writer


def fail_third(cluster: Cluster, *payloads: bytes) -> Writer:
    """A writer of which the third bookie has entry 0, and fails at the first of these."""
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    cluster.down.add("b3")
    for payload in payloads:
        writer.add(payload)
        writer.run_without(ChooseReplacements)
    return writer


def come_back(writer: Writer) -> None:
    writer.cluster.down.discard("b3")
    writer.machine.bookies_changed()
    writer.collect()
    writer.choose({2: "b3"})
    writer.run()


def test_w7_a_close_records_the_gap_of_a_failed_index() -> None:
    """W7: its third bookie lacks entries 1 and 2, and came back for entry 3 in the same fragment."""
    cluster = Cluster()
    writer = fail_third(cluster, b"b")
    writer.choose({})
    writer.run()
    writer.add(b"c")
    writer.run()
    come_back(writer)
    writer.add(b"d")
    writer.run()
    writer.close()
    writer.run()
    assert cluster.metadata().gaps == (Gap(2, 1, 2),)
    assert [cluster.copies(entry_id) for entry_id in range(4)] == [3, 2, 2, 3]
    assert len(cluster.metadata().fragments) == 1


def test_w7_entries_pending_when_a_bookie_returns_are_not_a_gap() -> None:
    """W7, C5: it is sent again."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    writer.add(b"b")
    writer.fail(SendAdd, "b3")
    writer.choose({2: "b3"})
    writer.run()
    writer.close()
    writer.run()
    assert cluster.metadata().gaps == ()
    assert cluster.copies(1) == 3


def test_w7_a_late_failing_add_is_a_gap_despite_confirmation() -> None:
    """W7: entry 0 was confirmed by two; its add to the third fails when entry 1 is confirmed, too."""
    cluster = Cluster()
    writer = cluster.writer()
    for payload in (b"a", b"b"):
        writer.add(payload)
        writer.deliver(SendAdd, "b1")
        writer.deliver(SendAdd, "b2")
    writer.fail(SendAdd, "b3", 0)
    writer.choose({2: "b3"})
    writer.run()
    writer.close()
    writer.run()
    assert cluster.metadata().gaps == (Gap(2, 0, 1),)


def test_w7_a_replacement_records_the_gap_of_the_one_before_it() -> None:
    """W7: in the fragment that ends; the new one begins without a gap."""
    cluster = Cluster()
    writer = fail_third(cluster, b"b")
    writer.choose({})
    writer.run()
    writer.machine.bookies_changed()
    writer.collect()
    writer.choose({2: "b4"})
    writer.run()
    assert cluster.metadata().gaps == (Gap(2, 1, 1),)
    assert [each.first_entry_id for each in cluster.metadata().fragments] == [0, 2]
    writer.close()
    writer.run()
    assert cluster.metadata().gaps == (Gap(2, 1, 1),)


def test_w7_a_late_failure_is_a_gap_in_the_former_fragment() -> None:
    """W7, C6: its acknowledgements count for nothing any more; that it lacks an entry of its fragment does."""
    cluster = Cluster()
    writer = cluster.writer()
    for payload in (b"a", b"b"):
        writer.add(payload)
        writer.deliver(SendAdd, "b1")
        writer.deliver(SendAdd, "b2")
    writer.fail(SendAdd, "b3", 1)
    writer.choose({2: "b4"})
    writer.deliver(WriteMetadata)
    assert cluster.metadata().gaps == (Gap(2, 1, 1),)
    writer.fail(SendAdd, "b3", 0)
    writer.run()
    writer.close()
    writer.run()
    assert cluster.metadata().gaps == (Gap(2, 0, 1),)


def test_w7_an_index_missing_in_a_change_has_an_open_gap() -> None:
    """W7, C7: recorded as not ended in the new fragment: so it is known even if the writer dies."""
    cluster = Cluster()
    writer = fail_third(cluster, b"b")
    writer.choose({})
    writer.run()
    writer.bookie_failed("b2")
    writer.choose({1: "b4"})
    writer.deliver(WriteMetadata)
    assert cluster.metadata().gaps == (Gap(2, 1, 1), Gap(2, 2))
    writer.add(b"c")
    writer.run()
    writer.close()
    writer.run()
    assert cluster.metadata().gaps == (Gap(2, 1, 1), Gap(2, 2, 2))


def test_w7_an_index_missing_from_the_start_lacks_everything() -> None:
    """W7, C7: from entry 0 on."""
    cluster = Cluster()
    writer = cluster.writer(missing=0b100)
    writer.add(b"a")
    writer.run()
    come_back(writer)
    writer.add(b"b")
    writer.run()
    writer.close()
    writer.run()
    assert cluster.metadata().gaps == (Gap(2, 0, 0),)


def test_w7_nothing_is_recorded_where_nothing_failed() -> None:
    """W7: nor where an index failed without an entry under way, and was back before the next."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    writer.bookie_failed("b3")
    writer.choose({2: "b3"})
    writer.run()
    writer.add(b"b")
    writer.run()
    writer.close()
    writer.run()
    assert cluster.metadata().gaps == ()


def test_w7_gaps_are_bounded_in_number_and_never_narrower() -> None:
    """W7: the closest ones are joined."""
    fragments = (Fragment(0, ("a", "b", "c")), Fragment(1000, ("a", "b", "d")))
    many = [Gap(0, 10 * number, 10 * number + 1) for number in range(200)]
    found = merged(many, fragments)
    assert len(found) == 2 * GAPS_MAX
    assert all(any(each.holds(entry_id) for each in found) for gap in many for entry_id in (gap.first_entry_id,))
    assert all(gap.last_entry_id is not None and gap.last_entry_id < 1000 for gap in found[:GAPS_MAX])


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.none() | st.integers(0, 20)), max_size=60),
    st.lists(st.tuples(st.integers(1, 60), st.sets(st.integers(0, 2))), max_size=3, unique_by=lambda each: each[0]),
)
def test_w7_merged_gaps_hold_the_same_at_the_same_bookie(
    drawn: list[tuple[int, int, int | None]], changes: list[tuple[int, set[int]]]
) -> None:
    """W7: never narrower for the bookie that they begin with, never wider than from its first to its last; in order."""
    fragments = [Fragment(0, ("a", "b", "c"))]
    for first, indices in sorted(changes):
        ensemble = [f"{name}x" if index in indices else name for index, name in enumerate(fragments[-1].ensemble)]
        fragments.append(Fragment(first, tuple(ensemble)))
    gaps = [Gap(index, first, None if length is None else first + length) for index, first, length in drawn]
    found = merged(gaps, fragments)
    assert merged(found, fragments) == found

    def bookie_at(index: int, entry_id: int) -> str:
        return [each for each in fragments if each.first_entry_id <= entry_id][-1].ensemble[index]

    for entry_id in range(90):
        for index in range(3):
            is_held = any(
                gap.index == index
                and gap.holds(entry_id)
                and bookie_at(index, gap.first_entry_id) == bookie_at(index, entry_id)
                for gap in gaps
            )
            is_found = any(gap.index == index and gap.holds(entry_id) for gap in found)
            assert is_found or not is_held
            if is_found and not is_held:
                assert len(gaps) > GAPS_MAX, "only too many gaps are joined over what lies between them"


def test_w7_a_gap_ends_where_another_bookie_takes_the_index() -> None:
    """W7: a gap lies within one fragment, and concerns one bookie."""
    fragments = (Fragment(0, ("a", "b", "c")), Fragment(10, ("a", "b", "d")), Fragment(20, ("a", "b", "c")))
    assert merged([Gap(2, 5), Gap(1, 5, 12)], fragments) == (Gap(1, 5, 9), Gap(2, 5, 9), Gap(1, 10, 12))


def test_w7_an_earlier_failed_add_widens_the_gap() -> None:
    """W7: a bookie that is too busy refuses entry 1 at once, and entry 0, confirmed by the others, times out later."""
    cluster = Cluster()
    writer = cluster.writer()
    for payload in (b"a", b"b"):
        writer.add(payload)
        writer.deliver(SendAdd, "b1")
        writer.deliver(SendAdd, "b2")
    writer.fail(SendAdd, "b3", 1)
    writer.choose({})
    writer.fail(SendAdd, "b3", 0)
    writer.run()
    writer.close()
    writer.run()
    assert cluster.metadata().gaps == (Gap(2, 0, 1),)


def test_w7_a_reader_asks_bookies_with_a_gap_last() -> None:
    """W7, D2: its copies of the other entries are asked for as always."""
    cluster = Cluster()
    writer = fail_third(cluster, b"b")
    writer.choose({})
    writer.run()
    come_back(writer)
    writer.add(b"c")
    writer.run()
    writer.close()
    writer.run()
    for entry_id, asked in ((0, "b3"), (1, "b1"), (2, "b3")):
        reader = cluster.reader(first_entry_id=entry_id, order=("b3", "b1", "b2"))
        reader.machine.read_on()
        reader.collect()
        assert [effect.bookie_id for effect in reader.find(SendRead)] == [asked]


def test_w7_recovery_records_written_back_entries_not_taken() -> None:
    """W7: entries 1 and 2 are written back to two of three; the third is away, and nobody replaces it."""
    cluster = Cluster()
    writer = cluster.writer()
    for payload in (b"a", b"b", b"c"):
        writer.add(payload)
        writer.deliver(SendAdd, "b1")
        writer.deliver(SendAdd, "b2")
    cluster.down.update(set(cluster.bookies) - {"b1", "b2"})
    recovery = cluster.recovery()
    recovery.start()
    recovery.run()
    assert recovery.finished is not None
    assert recovery.finished.last_entry_id == 2
    assert recovery.finished.gaps == (Gap(2, recovery.machine.frozen_last_add_confirmed + 1, 2),)


def test_w7_recovery_ends_the_gap_left_by_the_writer() -> None:
    """W7, C7: the third bookie was away from the start, and is back: it lacks what was not written back."""
    cluster = Cluster()
    writer = cluster.writer(missing=0b100)
    cluster.records[7] = (cluster.metadata().with_gaps([Gap(2, 0)]), 0)
    for payload in (b"a", b"b", b"c"):
        writer.add(payload)
        writer.deliver(SendAdd, "b1")
        writer.deliver(SendAdd, "b2")
    recovery = cluster.recovery()
    recovery.start()
    recovery.run()
    assert recovery.finished is not None
    start = recovery.machine.frozen_last_add_confirmed
    assert recovery.finished.gaps == (Gap(2, 0, start),)
    assert [cluster.copies(entry_id) for entry_id in range(3)] == [
        3 if entry_id > start else 2 for entry_id in range(3)
    ]


def write_back(cluster: Cluster) -> Recovery:
    """A recovery that has read everything; what it writes back is on its way."""
    recovery = cluster.recovery()
    recovery.start()
    recovery.run_without(SendAdd)
    return recovery


def write_back_with_a_replacement() -> Recovery:
    """The third bookie is replaced at entry 2, before it has answered for entry 1, which two others have confirmed."""
    cluster = Cluster()
    writer = cluster.writer()
    for payload in (b"a", b"b", b"c"):
        writer.add(payload)
    writer.run()
    recovery = write_back(cluster)
    for entry_id in (0, 1):
        recovery.deliver(SendAdd, "b1", entry_id)
        recovery.deliver(SendAdd, "b2", entry_id)
    recovery.deliver(SendAdd, "b3", 0)
    recovery.fail(SendAdd, "b3", 2)
    recovery.choose({2: "b4"})
    return recovery


def test_w7_recovery_records_gaps_in_earlier_fragments() -> None:
    """W7, R6: only after it was replaced its add of an earlier entry fails."""
    recovery = write_back_with_a_replacement()
    recovery.fail(SendAdd, "b3", 1)
    recovery.run()
    assert recovery.finished is not None
    assert [each.first_entry_id for each in recovery.finished.fragments] == [0, 2]
    assert recovery.finished.gaps == (Gap(2, 1, 1),)


def test_w7_recovery_counts_unanswered_entries_as_lacking() -> None:
    """W7: as above, but the recovery closes the ledger before it learns that the add failed."""
    recovery = write_back_with_a_replacement()
    recovery.lose(SendAdd, "b3", 1)
    recovery.run()
    assert recovery.finished is not None
    assert recovery.finished.gaps == (Gap(2, 1, 1),)


def test_w7_recovery_records_a_batch_across_fragments() -> None:
    """W7, W1: entries 0 and 5 are one batch. The first bookie has it; the one that replaces it from entry 4 on does not."""
    cluster = Cluster(STRIPED)
    writer = cluster.writer()
    writer.add(*(b"%d" % number for number in range(10)))
    writer.run()
    recovery = write_back(cluster)
    for first in range(4):
        for index in STRIPED.write_set(first):
            recovery.deliver(SendAdd, f"b{index + 1}", first)
    recovery.deliver(SendAdd, "b2", 4)
    recovery.fail(SendAdd, "b1", 4)
    recovery.choose({0: "b6"})
    recovery.fail(SendAdd, "b6", 0)
    recovery.choose({})
    recovery.run()
    assert recovery.finished is not None
    assert [(each.first_entry_id, each.ensemble[0]) for each in recovery.finished.fragments] == [(0, "b1"), (4, "b6")]
    assert recovery.finished.gaps == (Gap(0, 5, 5),)
    assert [cluster.copies(entry_id) for entry_id in range(10)] == [3, 3, 3, 3, 3, 2, 3, 3, 3, 3]


def test_w8_full_fragment_is_recorded_at_next_change_and_close() -> None:
    """W8: and never sinks, nor lies behind what is fixed."""
    cluster = Cluster()
    writer = cluster.writer()
    for first in (0, 2):
        writer.add(b"a")
        writer.add(b"b")
        writer.run()
        writer.machine.roll()
        writer.collect()
        writer.choose({index: f"b{index + 1}" for index in range(3)})
        writer.run()
        assert cluster.metadata().full_before == first, "as of the roll before"
        writer.machine.found_full(first + 2)
        writer.machine.found_full(first + 1)
    with pytest.raises(AssertionError, match="only what is fixed"):
        writer.machine.found_full(5)
    writer.close()
    writer.run()
    assert (cluster.metadata().full_before, cluster.metadata().last_entry_id) == (4, 3)


def test_w8_full_fragment_stays_when_another_changes_the_record() -> None:
    """W8, C4: a filling replaced a bookie of the first fragment since."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    writer.machine.roll()
    writer.collect()
    writer.choose({index: f"b{index + 1}" for index in range(3)})
    writer.run()
    writer.machine.found_full(1)
    metadata = cluster.metadata()
    filled = attrs.evolve(metadata.fragments[0], ensemble=("b1", "b2", "b4"))
    changed = attrs.evolve(metadata, fragments=(filled, *metadata.fragments[1:]), token="filler")
    cluster.records[metadata.ledger_id] = changed, cluster.records[metadata.ledger_id][1] + 1
    writer.add(b"b")
    writer.run()
    writer.close()
    writer.run()
    assert (cluster.metadata().full_before, cluster.metadata().fragments[0]) == (1, filled)
