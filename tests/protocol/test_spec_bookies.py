"""Bookies: one order per ledger, and who may (rules B2 and B7, as far as the floor carries them)."""

from __future__ import annotations

import attrs
import pytest

from replog.protocol import messages
from replog.protocol.bookie import LedgerOnBookie, read_answer
from replog.protocol.digest import Digest, DigestType, ledger_key, ledger_key_check
from replog.protocol.effects import SendAdd
from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.mutations import DELETED_TERM, DropLedger, Marks, PutBatch, SetMarks
from tests.protocol.bookies import Bookie, proof_of
from tests.protocol.driving import PASSWORD, Cluster

KEY = ledger_key(7, PASSWORD)


def adds(count: int) -> list[AddRequest]:
    """A writer's adds to b1, one entry each."""
    writer = Cluster().writer()
    for _ in range(count):
        writer.add(b"x")
    return [writer.add_request(effect) for effect in writer.find(SendAdd, "b1")]


def test_b2_a_fence_keeps_its_place_among_adds() -> None:
    """B2: the order of acceptance is the order of the mutations: what the fence's answer follows includes the add."""
    bookie = Bookie()
    first, second = adds(2)
    fence = FenceRequest(1, 7, KEY, 2)
    accepted = [bookie.accept(request) for request in (first, fence, second)]
    mutations = [mutation for each in accepted for mutation in each.mutations]
    assert [type(mutation) for mutation in mutations] == [SetMarks, PutBatch, SetMarks]
    refusal = accepted[2].refusal
    assert refusal is not None
    assert (refusal.status, refusal.fence_term) == (Status.FENCED, 2)
    responses = [bookie.finish(each) for each in accepted]
    assert [response.status for response in responses] == [Status.OK, Status.OK, Status.FENCED]


def test_b2_a_recovery_read_sees_adds_accepted_before_it() -> None:
    """B2, R4: the add is accepted but not yet durable when the recovery read comes: its answer follows both."""
    bookie = Bookie()
    add = bookie.accept(adds(1)[0])
    read = bookie.accept(RecoveryReadRequest(2, 7, KEY, 2, entry_id=0, stamp=1))
    assert bookie.finish(add).status is Status.OK
    response = bookie.finish(read)
    assert response.status is Status.OK
    assert response.batches[0].holds(0)


def test_b2_a_negative_recovery_answer_is_permanent() -> None:
    """B2, O10: after "no entry" to term 2 this bookie never accepts the entry from a lower term."""
    bookie = Bookie()
    assert bookie.handle(RecoveryReadRequest(1, 7, KEY, 2, entry_id=0, stamp=1)).status is Status.NO_ENTRY
    for _ in range(2):
        assert bookie.handle(adds(1)[0]).status is Status.FENCED
        bookie.crash()


def test_b2_two_copies_in_one_group_are_settled_in_order() -> None:
    """B2, T3: the same add twice before the first commit: the second is marked as perhaps stored."""
    machine = LedgerOnBookie(7, Marks())
    add = adds(1)[0]
    assert not machine.accept(add).may_be_stored
    assert machine.accept(add).may_be_stored


def test_b2_a_dropped_ledger_is_permanently_fenced() -> None:
    """B2, L5: a deposed writer that wakes up after its ledger was deleted is refused, also after a restart."""
    bookie = Bookie()
    first, second = adds(2)
    bookie.handle(first)
    accepted = bookie.ledger(7).drop()
    assert accepted.mutations == [DropLedger(7)]
    assert bookie.handle(second).status is Status.FENCED
    bookie.finish(accepted)
    for _ in range(2):
        response = bookie.handle(second)
        assert (response.status, response.fence_term) == (Status.FENCED, DELETED_TERM)
        bookie.crash()
    assert not bookie.disk.holds(7, 0)


def foreign_requests() -> list[messages.Request]:
    key = ledger_key(7, b"another password")
    return [
        attrs.evolve(adds(1)[0], key=key),
        FenceRequest(1, 7, key, 2),
        RecoveryReadRequest(2, 7, key, 2, 0, 1),
        WriteLastAddConfirmedRequest(3, 7, key, 1, proof_of(0)),
    ]


@pytest.mark.parametrize("kind", range(4))
def test_b7_a_wrong_password_changes_nothing(kind: int) -> None:
    """B7: an add, a fence, a recovery read and an explicit mark with another key: refused, and nothing is raised."""
    bookie = Bookie()
    bookie.handle(FenceRequest(0, 7, KEY, 1))
    for _ in range(2):
        accepted = bookie.accept(foreign_requests()[kind])  # type: ignore[arg-type]
        assert not accepted.mutations
        assert bookie.finish(accepted).status is Status.UNAUTHORIZED
        assert bookie.ledger(7).fence_term == 1
        assert bookie.ledger(7).last_add_confirmed == -1
        bookie.crash()  # the key is durable


def test_b7_a_wrong_password_reads_nothing() -> None:
    """B7: neither entries nor the last add confirmed."""
    bookie = Bookie()
    bookie.handle(adds(1)[0])
    key = ledger_key(7, b"another password")
    for request in (ReadRequest(1, 7, key, 0, 1, 1 << 20), ReadLastAddConfirmedRequest(2, 7, key, -1, 0)):
        refusal = bookie.ledger(7).refuse_read(request)
        assert refusal is not None
        assert refusal.status is Status.UNAUTHORIZED
        assert not refusal.batches
    assert bookie.read(ReadRequest(1, 7, KEY, 0, 1, 1 << 20)).status is Status.OK


def test_b7_every_request_carries_the_key() -> None:
    """B7: no message about a ledger slips by without it."""
    for kind in messages.LedgerRequest.__args__:
        assert "key" in {field.name for field in attrs.fields(kind)}


def test_b7_keys_differ_by_ledger_and_hide_the_password() -> None:
    """B7: one ledger's key opens no other, and what the metadata keeps is not the key."""
    keys = {ledger_key(ledger_id, password) for ledger_id in (7, 8) for password in (b"", b"x", PASSWORD)}
    assert len(keys) == 6
    assert {len(key) for key in keys} == {32}
    assert KEY.hex() not in ledger_key_check(KEY)
    assert PASSWORD not in KEY


def test_b7_a_keyed_code_finds_forgery() -> None:
    """B7: with HMAC-SHA256 a reader refuses what somebody without the password made, whatever the bookie let in."""
    for digest_type in DigestType:
        cluster = Cluster(digest_type=digest_type)
        writer = cluster.writer()
        writer.add(b"true")
        forger = Digest(digest_type, 7, b"another password")
        batch = writer.find(SendAdd)[0].batch
        assert batch.verify(cluster.digest())
        assert batch.verify(forger) is (digest_type is DigestType.CRC32C)


def test_b7_doubt_and_absence_are_different_answers() -> None:
    """B7, R4: a bookie that can't read says unknown; only an empty result is absence."""
    assert read_answer(1, None, 3).status is Status.UNKNOWN
    assert read_answer(1, [], 3).status is Status.NO_ENTRY
    assert read_answer(1, [], 3).last_add_confirmed == 3


def test_b7_no_disk_has_the_key() -> None:
    """B7: what a bookie stores does not open the ledger, here or elsewhere; the key itself does, also after a restart."""
    bookie = Bookie()
    bookie.handle(FenceRequest(0, 7, KEY, 1))
    stored = bookie.disk.marks[7].key
    assert stored is not None
    assert KEY not in stored
    bookie.crash()
    for key in (stored, stored[1:], stored[:32]):
        assert bookie.handle(FenceRequest(1, 7, key, 1)).status is Status.UNAUTHORIZED
        assert bookie.ledger(7).refuse_read(ReadRequest(2, 7, key, 0, 1, 100)) is not None
    assert bookie.handle(FenceRequest(3, 7, KEY, 1)).status is Status.OK
    assert bookie.handle(FenceRequest(4, 7, ledger_key(7, b"another"), 1)).status is Status.UNAUTHORIZED
