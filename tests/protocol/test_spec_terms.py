"""Terms: fencing is an integer (rules T)."""

from __future__ import annotations

import attrs
import pytest

from replog.errors import FencedError
from replog.protocol import batch as batches
from replog.protocol import messages
from replog.protocol.batch import Batch
from replog.protocol.digest import ledger_key
from replog.protocol.effects import SendAdd, SendFence, SendRecoveryRead
from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    ReadRequest,
    RecoveryReadRequest,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.model import RECOVERY_TERM, WRITER_TERM, LedgerState
from tests.protocol.bookies import Bookie, proof_of
from tests.protocol.driving import PASSWORD, Cluster

KEY = ledger_key(7, PASSWORD)


def batch_of(*payloads: bytes, first_entry_id: int = 0, stamp: int = 1, stride: int = 1) -> Batch:
    return batches.build(
        Cluster().digest(),
        ledger_id=7,
        first_entry_id=first_entry_id,
        stride=stride,
        payloads=payloads,
        last_add_confirmed=-1,
        stamp=stamp,
        timestamp_ns=1,
        cumulative_length=sum(map(len, payloads)),
    )


def requests_of_term(term: int) -> list[messages.Request]:
    """One of each kind that carries a term."""
    return [
        AddRequest(1, 7, KEY, term, batch_of(b"x", stamp=term)),
        AddRequest(2, 7, KEY, term, batch_of(b"x"), recovery=True),
        FenceRequest(3, 7, KEY, term),
        RecoveryReadRequest(4, 7, KEY, term, entry_id=0, stamp=1),
        WriteLastAddConfirmedRequest(5, 7, KEY, term, proof_of(0)),
    ]


@pytest.mark.parametrize("kind", range(5))
def test_t1_a_lower_term_is_refused_with_the_bookies_term(kind: int) -> None:
    """T1: whatever carries a term is refused below the fence, and told which term holds it; nothing is stored."""
    bookie = Bookie()
    bookie.handle(FenceRequest(0, 7, KEY, 5))
    before = bookie.disk.marks[7]
    response = bookie.handle(requests_of_term(4)[kind])  # type: ignore[arg-type]
    assert (response.status, response.fence_term) == (Status.FENCED, 5)
    assert bookie.disk.marks[7] == before
    assert not bookie.disk.batches


@pytest.mark.parametrize("kind", range(5))
def test_t1_a_fence_is_durable_before_the_answer(kind: int) -> None:
    """T1: also an add, a recovery add or an explicit last add confirmed raises the fence."""
    bookie = Bookie()
    bookie.handle(FenceRequest(0, 7, KEY, 3))
    for term in (3, 4):
        accepted = bookie.accept(requests_of_term(term)[kind])  # type: ignore[arg-type]
        bookie.disk.commit(accepted.mutations)
        assert bookie.disk.marks[7].fence_term == term  # before the answer is even asked for
        assert accepted.refusal is None
    bookie.crash()
    assert bookie.handle(requests_of_term(3)[kind]).status is Status.FENCED  # type: ignore[arg-type]


def test_t1_uncommitted_fence_is_asked_for_again() -> None:
    """T1, R3: a full disk refuses the fence; the next request must not be answered as if the fence were durable."""
    bookie = Bookie()
    bookie.handle(AddRequest(0, 7, KEY, 1, batch_of(b"x")))
    bookie.accept(FenceRequest(1, 7, KEY, 2))  # its commit fails: nothing of it happened, and the bookie goes on
    assert bookie.handle(FenceRequest(2, 7, KEY, 2)).status is Status.OK
    bookie.crash()
    assert bookie.handle(AddRequest(3, 7, KEY, 1, batch_of(b"y", first_entry_id=1))).status is Status.FENCED


def test_t1_uncommitted_mark_is_asked_for_again() -> None:
    """T1, W5: the same of an explicit last add confirmed: OK means that it survives a restart."""
    bookie = Bookie()
    bookie.handle(AddRequest(0, 7, KEY, 1, batch_of(b"x")))
    bookie.accept(WriteLastAddConfirmedRequest(1, 7, KEY, 1, proof_of(0)))  # its commit fails
    assert bookie.handle(WriteLastAddConfirmedRequest(2, 7, KEY, 1, proof_of(0))).status is Status.OK
    bookie.crash()
    assert bookie.ledger(7).last_add_confirmed == 0


def test_t1_plain_reads_carry_no_term_and_raise_no_fence() -> None:
    """T1: a reader can't fence, not even by mistake."""
    for request in (messages.ReadRequest, messages.ReadLastAddConfirmedRequest):
        assert "term" not in {field.name for field in attrs.fields(request)}
    bookie = Bookie()
    bookie.handle(AddRequest(0, 7, KEY, 1, batch_of(b"x")))
    assert bookie.read(ReadRequest(1, 7, KEY, 0, 1, 1 << 20)).status is Status.OK
    assert bookie.ledger(7).fence_term == 1
    assert bookie.handle(AddRequest(2, 7, KEY, 1, batch_of(b"y", first_entry_id=1))).status is Status.OK


def test_t2_concurrent_recoveries_do_not_fence_each_other() -> None:
    """T2: the writer's term is 1, everyone who recovers has 2: two recoveries interleave and both end."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"x")
    writer.run()
    assert cluster.metadata().term == WRITER_TERM
    one, other = cluster.recovery(nonce="w2"), cluster.recovery(nonce="w3")
    one.claim()
    assert (cluster.metadata().term, cluster.metadata().state) == (RECOVERY_TERM, LedgerState.IN_RECOVERY)
    other.start()
    for actor in (one, other, one, other):  # both fence, then both read
        for effect in list(actor.waiting):
            if isinstance(effect, SendFence | SendRecoveryRead):
                actor.deliver(type(effect), effect.bookie_id)
    one.run()
    other.run()
    assert one.error is None
    assert other.error is None
    assert one.finished == other.finished == cluster.metadata()


def test_t2_a_fence_of_the_recovery_term_is_the_fenced_flag() -> None:
    """T2: behind fence term 2 the writer (term 1) is refused, and learns it as FencedError."""
    cluster = Cluster()
    writer = cluster.writer()
    for name in ("b1", "b2", "b3"):
        cluster[name].handle(FenceRequest(0, 7, KEY, RECOVERY_TERM))
    writer.add(b"x")
    writer.deliver(SendAdd, "b1")
    assert isinstance(writer.error, FencedError)
    assert writer.error.unconfirmed == range(0, 1)


def test_t3_recovery_copies_keep_the_stamp_of_the_writer() -> None:
    """T3: what recovery writes back is byte for byte what the writer sent, its stamp included."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"x")
    sent = writer.find(SendAdd)[0].batch
    writer.deliver(SendAdd, "b1")
    cluster.recovery().recover()
    for name in ("b2", "b3"):
        (copy,) = cluster[name].disk.batches[7]
        assert copy.data == sent.data
        assert copy.stamp == WRITER_TERM


def test_t3_other_bytes_for_an_identity_are_refused() -> None:
    """T3: the first bytes stay, whether the others come at once, in another batch, or after a restart."""
    bookie = Bookie()
    bookie.handle(AddRequest(0, 7, KEY, 1, batch_of(b"a", b"b")))
    for restart in (False, True):
        if restart:
            bookie.crash()
        for other in (batch_of(b"A", b"b"), batch_of(b"B", first_entry_id=1), batch_of(b"a", b"b", b"c")):
            assert bookie.handle(AddRequest(1, 7, KEY, 1, other)).status is Status.CONFLICT
    assert [batch.payloads() for batch in bookie.disk.batches[7]] == [[b"a", b"b"]]


def test_t3_the_same_bytes_are_stored_once_and_acknowledged() -> None:
    """T3: an add delivered twice is one entry, and both are OK; also behind newer entries, also after a restart."""
    bookie = Bookie()
    for request_id in range(2):
        assert bookie.handle(AddRequest(request_id, 7, KEY, 1, batch_of(b"a"))).status is Status.OK
    bookie.handle(AddRequest(2, 7, KEY, 1, batch_of(b"b", first_entry_id=1)))
    assert bookie.handle(AddRequest(3, 7, KEY, 1, batch_of(b"a"))).status is Status.OK
    bookie.crash()
    assert bookie.handle(AddRequest(4, 7, KEY, 1, batch_of(b"a"))).status is Status.OK
    assert len(bookie.disk.batches[7]) == 2


def test_t3_batches_of_another_stride_cannot_slip_past_the_check() -> None:
    """T3: a ledger has one stride; a batch of another one might hold identities that are stored already."""
    bookie = Bookie()
    bookie.handle(AddRequest(0, 7, KEY, 1, batch_of(*[b"a"] * 10)))
    striped = batch_of(b"A", b"A", first_entry_id=3, stride=5)
    assert bookie.handle(AddRequest(1, 7, KEY, 1, striped)).status in (Status.CONFLICT, Status.BAD_REQUEST)
    assert len(bookie.disk.batches[7]) == 1


def test_t3_another_stamp_is_another_identity() -> None:
    """T3: entry 0 of term 2 is stored beside entry 0 of term 1, and each is read by its stamp."""
    bookie = Bookie()
    bookie.handle(AddRequest(0, 7, KEY, 1, batch_of(b"old")))
    assert bookie.handle(AddRequest(1, 7, KEY, 2, batch_of(b"new", stamp=2))).status is Status.OK
    for stamp, payload in ((1, b"old"), (2, b"new")):
        (batch,) = bookie.read(ReadRequest(2, 7, KEY, 0, stamp, 1 << 20)).batches
        assert batch.payloads() == [payload]


def test_t3_a_writer_adds_under_its_own_term_only() -> None:
    """T3: an add that is no recovery's, with the stamp of another term, is a broken client's."""
    bookie = Bookie()
    assert bookie.handle(AddRequest(0, 7, KEY, 2, batch_of(b"x", stamp=1))).status is Status.BAD_REQUEST
    assert not bookie.disk.batches
    assert not bookie.disk.marks
