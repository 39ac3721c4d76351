"""Ledgers: writing (rules W)."""

from __future__ import annotations

import pytest

from replog.errors import AddTimeoutError, FencedError
from replog.protocol.digest import DigestType
from replog.protocol.effects import SendAdd, SendLastAddConfirmed
from replog.protocol.messages import FenceRequest
from replog.protocol.quorum import Quorum
from tests.protocol.driving import STRIPED, THREE, Cluster


@pytest.mark.parametrize("quorum", [Quorum(1, 1, 1), Quorum(2, 2, 1), THREE, STRIPED, Quorum(4, 3, 2), Quorum(6, 2, 2)])
def test_w1_each_entry_goes_to_its_write_set_by_index(quorum: Quorum) -> None:
    """W1: entry e is stored on the indices (e + w) mod E for w in [0, Qw), and nowhere else; ids are 0, 1, 2, ..."""
    cluster = Cluster(quorum)
    writer = cluster.writer()
    for size in (1, 2, quorum.ensemble, 3 * quorum.ensemble + 1):
        writer.add(*[b"x"] * size)
    writer.run()
    names = list(cluster.bookies)
    for entry_id in range(3 + 4 * quorum.ensemble + 1):
        indices = {(entry_id + offset) % quorum.ensemble for offset in range(quorum.write)}
        assert cluster.holders(entry_id) == {names[index] for index in indices}
    assert writer.confirmed[-1] == writer.machine.last_add_pushed == 4 * quorum.ensemble + 3


def test_w1_acks_count_indices_not_addresses() -> None:
    """W1: one bookie that acknowledges twice, or for an index outside the write set, is no quorum."""
    writer = Cluster(STRIPED).writer()
    writer.add(b"x")  # entry 0: indices 0, 1, 2
    for _ in range(3):
        writer.machine.add_confirmed(0, "b1", 0)
    writer.machine.add_confirmed(3, "b4", 0)
    writer.machine.add_confirmed(4, "b5", 0)
    writer.collect()
    assert writer.confirmed == []
    writer.deliver(SendAdd, "b3")
    assert writer.confirmed == [0]


def test_w2_confirmed_needs_the_ack_quorum_and_every_lower_id() -> None:
    """W2: entry 1 at all three bookies waits for entry 0 at two; both confirm at once, in order."""
    writer = Cluster().writer()
    writer.add(b"a")
    writer.add(b"b")
    for name in ("b1", "b2", "b3"):
        writer.deliver(SendAdd, name, 1)
    assert writer.confirmed == []
    writer.deliver(SendAdd, "b3", 0)
    assert writer.confirmed == []
    assert writer.machine.last_add_confirmed == -1
    writer.deliver(SendAdd, "b1", 0)
    assert writer.confirmed == [1]


def test_w2_striped_gathering_confirms_as_one() -> None:
    """W2: with E > Qw one gathering is E batches; a fragment can never begin in the middle of it."""
    writer = Cluster(STRIPED).writer()
    writer.add(*[b"x"] * 12)
    writer.add(b"y")
    batches = {effect.batch.first_entry_id for effect in writer.find(SendAdd)}
    assert batches == {0, 1, 2, 3, 4, 12}
    for first in (0, 1, 2, 4, 12):
        for effect in writer.find(SendAdd, entry_id=first):
            writer.deliver(SendAdd, effect.bookie_id, first)
    assert writer.confirmed == []
    writer.run()
    assert writer.confirmed == [12]


def test_w2_the_writers_mark_advances_only_with_the_report() -> None:
    """W2: what the next batch's header says is what was reported confirmed, not what has its quorum already."""
    writer = Cluster().writer()
    writer.add(b"a")
    writer.add(b"b")
    writer.deliver(SendAdd, "b1", 1)
    writer.deliver(SendAdd, "b2", 1)  # entry 1 has its quorum, entry 0 nothing
    writer.add(b"c")
    assert writer.find(SendAdd, "b1", 2)[0].batch.last_add_confirmed == -1
    writer.run()
    writer.add(b"d")
    assert writer.find(SendAdd, "b1", 3)[0].batch.last_add_confirmed == 2


@pytest.mark.parametrize("digest_type", DigestType)
def test_w3_a_batch_carries_ids_and_mark_under_its_code(digest_type: DigestType) -> None:
    """W3: ledger id, entry id, last add confirmed when sent and payload, and a code over all of them."""
    cluster = Cluster(digest_type=digest_type)
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    writer.add(b"b", b"c")
    batch = writer.find(SendAdd)[0].batch
    assert (batch.ledger_id, batch.entry_ids, batch.last_add_confirmed) == (7, range(1, 3), 0)
    assert batch.payloads() == [b"b", b"c"]
    assert batch.cumulative_length == 3
    assert batch.verify(cluster.digest())
    assert batch.verify(cluster.digest(8)) is (digest_type is DigestType.CRC32C)  # only a keyed code knows the ledger


def test_w3_the_bytes_are_built_once_and_resent_unchanged() -> None:
    """W3: a resend after an ensemble change sends the same bytes, though the writer's mark has advanced since."""
    writer = Cluster().writer()
    writer.add(b"a")
    writer.add(b"b")
    built = writer.find(SendAdd, "b1", 1)[0].batch
    writer.deliver(SendAdd, "b1", 0)
    writer.deliver(SendAdd, "b2", 0)
    assert writer.confirmed == [0]
    writer.fail(SendAdd, "b3", 1)
    writer.run_without(SendAdd)
    writer.run()
    assert writer.cluster.metadata().last_fragment.ensemble == ("b1", "b2", "b4")
    (resent,) = writer.cluster["b4"].disk.batches[7]
    assert resent is built
    assert resent.last_add_confirmed == -1


def test_w4_a_failed_add_is_unknown_and_its_id_not_reused() -> None:
    """W4: the add was stored and its answer lost; the entry keeps its id and its bytes, and is confirmed once."""
    writer = Cluster().writer()
    writer.add(b"a")
    writer.arrive(SendAdd, "b1")  # stored; the answer is lost
    writer.bookie_failed("b1")
    assert writer.machine.unconfirmed == range(0, 1)
    writer.add(b"b")
    writer.run()
    assert writer.machine.last_add_pushed == 1
    assert writer.confirmed[-1] == 1
    assert {batch.data for name in ("b1", "b2", "b3", "b4") for batch in writer.cluster[name].disk.batches[7]} == {
        batch.data for batch in writer.cluster["b2"].disk.batches[7]
    }


def test_w4_fenced_is_an_unknown_outcome_and_ends_the_writer() -> None:
    """W4: one Fenced answer fails all that is unconfirmed; acks that come later confirm nothing."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    writer.add(b"b")
    writer.add(b"c")
    late = [writer.arrive(SendAdd, name, 1) for name in ("b1", "b2")]
    cluster["b3"].handle(FenceRequest(0, 7, writer.key, 2))
    writer.deliver(SendAdd, "b3", 2)
    assert isinstance(writer.error, FencedError)
    assert writer.error.unconfirmed == range(1, 3)
    for answer in late:
        answer()
    writer.bookie_failed("b2")
    assert writer.confirmed == [0]
    assert writer.machine.last_add_confirmed == 0


def test_w5_an_idle_writer_publishes_the_last_entry() -> None:
    """W5: the header of the last entry lags by one; publishing lets a reader see it without another append."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.machine.publish()
    writer.collect()
    assert not writer.waiting  # nothing is confirmed: there is nothing to publish
    writer.add(b"a")
    writer.run()
    reader = cluster.reader()
    reader.poll()
    assert reader.read_all() == []
    writer.machine.publish()
    writer.run()
    reader.poll()
    assert reader.read_all() == [b"a"]
    assert {cluster[name].disk.marks[7].last_add_confirmed for name in ("b1", "b2", "b3")} == {0}


def test_w5_change_publishes_to_the_remaining_bookies() -> None:
    """W5, C9: what was confirmed during a change, too; afterwards to the new bookie as well."""
    writer = Cluster().writer()
    writer.add(b"a")
    writer.bookie_failed("b3")
    writer.choose({2: "b4"})
    writer.deliver(SendAdd, "b1")
    writer.deliver(SendAdd, "b2")
    writer.machine.publish()
    writer.collect()
    published = writer.find(SendLastAddConfirmed)
    assert {(each.bookie_id, each.last_add_confirmed) for each in published} == {("b1", 0), ("b2", 0)}
    writer.run()
    writer.machine.publish()
    writer.collect()
    assert {each.bookie_id for each in writer.find(SendLastAddConfirmed)} == {"b1", "b2", "b4"}


def test_w5_refused_published_mark_ends_the_writer() -> None:
    """W5, L5: an idle writer learns of its deposition when it publishes."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    cluster.recovery().claim()
    cluster["b1"].handle(FenceRequest(0, 7, writer.key, 2))
    writer.machine.publish()
    writer.collect()
    writer.deliver(SendLastAddConfirmed, "b1")
    assert isinstance(writer.error, FencedError)


def test_w6_a_quorum_out_of_reach_ends_in_a_named_error() -> None:
    """W6: with one bookie of three and nothing to replace the others, appends wait; the deadline ends them by name."""
    cluster = Cluster(bookies=3)
    writer = cluster.writer()
    cluster.down = {"b2", "b3"}
    writer.add(b"a")
    writer.run()
    writer.add(b"b")
    writer.run()
    assert writer.confirmed == []
    assert writer.error is None
    assert writer.machine.missing.bit_count() == 2
    writer.machine.abandon(AddTimeoutError(7, "no quorum", writer.machine.unconfirmed))
    writer.collect()
    assert isinstance(writer.error, AddTimeoutError)
    assert writer.error.unconfirmed == range(0, 2)


def test_w6_an_unreachable_quorum_is_retried_when_bookies_come() -> None:
    """W6: the same two bookies are back; what they missed is sent to them again, and all is confirmed."""
    cluster = Cluster(bookies=3)
    writer = cluster.writer()
    cluster.down = {"b2", "b3"}
    writer.add(b"a")
    writer.run()
    cluster.down = set()
    writer.machine.bookies_changed()
    writer.collect()
    writer.choose({1: "b2", 2: "b3"})
    writer.run()
    assert writer.confirmed == [0]
    assert cluster.copies(0) == 3
    assert len(cluster.metadata().fragments) == 1
