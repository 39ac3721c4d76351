"""Marks, the deletion of ledgers, and the order of mutations within one commit."""

from __future__ import annotations

from collections.abc import Callable

from replog.protocol.digest import Digest, DigestType
from replog.protocol.mutations import DELETED_TERM, DropLedger, Marks, Mutation, PutBatch, SetMarks
from replog.protocol.proofs import head_of, prove
from replog.testing.storage_conformance.batches import make_batch
from replog.testing.storage_conformance.candidate import PLENTY_BYTES, Candidate, expect, expect_read


def check_marks(candidate: Candidate) -> None:
    steps: list[tuple[list[Mutation], Marks]] = [
        ([SetMarks(1, fence_term=2)], Marks(None, 2, -1, -1)),  # a ledger never seen before is fenced just the same
        ([SetMarks(1, fence_term=1)], Marks(None, 2, -1, -1)),
        ([SetMarks(1, key=b"first")], Marks(b"first", 2, -1, -1)),
        ([SetMarks(1, key=b"second", last_add_confirmed=4)], Marks(b"first", 2, 4, -1)),
        ([SetMarks(1, last_add_confirmed=3), SetMarks(1)], Marks(b"first", 2, 4, -1)),
        ([PutBatch(make_batch(1, 9, 3, last_add_confirmed=8))], Marks(b"first", 2, 8, 11)),
        ([PutBatch(make_batch(1, 3, 3, last_add_confirmed=2))], Marks(b"first", 2, 8, 11)),
        ([PutBatch(make_batch(1, 3, 3, stamp=2))], Marks(b"first", 2, 8, 11)),
        ([SetMarks(1, None, 3, 10), SetMarks(1, None, 5, 9), SetMarks(1, None, 4, 7)], Marks(b"first", 5, 10, 11)),
        ([SetMarks(1, None, None, 9, _proof(9))], Marks(b"first", 5, 10, 11, _proof(9))),
        ([SetMarks(1, None, None, 8, _proof(8)), SetMarks(1, None, 6)], Marks(b"first", 6, 10, 11, _proof(9))),
        ([SetMarks(1, None, 7, 12, _proof(12)), SetMarks(1, None, 7)], Marks(b"first", 7, 12, 11, _proof(12))),
        ([PutBatch(make_batch(1, 20, 3, last_add_confirmed=19))], Marks(b"first", 7, 19, 22, _proof(12))),
        ([SetMarks(1, None, None, 20, _proof(20, is_head=True))], Marks(b"first", 7, 20, 22, _proof(20, is_head=True))),
        ([SetMarks(1, revision=3)], Marks(b"first", 7, 20, 22, _proof(20, is_head=True), 3)),
        (
            [SetMarks(1, revision=5), SetMarks(1, None, 8, revision=4)],
            Marks(b"first", 8, 20, 22, _proof(20, is_head=True), 5),
        ),
        (
            [PutBatch(make_batch(1, 30, 3, last_add_confirmed=29))],
            Marks(b"first", 8, 29, 32, _proof(20, is_head=True), 5),
        ),
    ]
    why = (
        "marks: a fence term, last add confirmed and revision only rise (batches' headers included), a key never changes"
        " (R3, T1, M5), and the proof that claims the most is kept as it is (R11)"
    )
    for mutations, wanted in steps:
        for storage in candidate.twice(mutations):
            found = storage.marks(1)
            expect(found == wanted, f"{why} [after {mutations}, wanted {wanted}]", found)
    with candidate.opened() as storage:
        expect(storage.ledger_ids() == [1], "ledger_ids: also of ledgers that are only fenced", storage.ledger_ids())


def _proof(last_add_confirmed: int, *, is_head: bool = False) -> bytes:
    """An explicit proof, or a head. A storage checks neither."""
    if is_head:
        return head_of(make_batch(1, last_add_confirmed + 1, last_add_confirmed=last_add_confirmed))
    return prove(Digest(DigestType.HMAC_SHA256, 1, b"password"), 1, 1, last_add_confirmed)


def check_drop(candidate: Candidate) -> None:
    gone = Marks(fence_term=DELETED_TERM)
    kept = make_batch(2, 0)
    before: list[Mutation] = [
        PutBatch(make_batch(1, 0)),
        SetMarks(1, b"key", 2, 1),
        PutBatch(kept),
        SetMarks(4, b"", 3),
    ]
    late: list[Mutation] = [PutBatch(make_batch(1, 3)), SetMarks(1, b"other", 7, 2)]
    with candidate.opened() as storage:
        storage.commit(before)
    for mutations in ([DropLedger(1), DropLedger(4), DropLedger(99)], [DropLedger(1)], late):
        for storage in candidate.twice(mutations):
            expect_read(storage, (1, 0, 1), PLENTY_BYTES, [], "DropLedger: forget the entries of a ledger (B6)")
            expect_read(storage, (1, 3, 1), PLENTY_BYTES, [], "DropLedger: nothing of it is ever stored again (L5)")
            for ledger_id in (1, 4, 99):
                marks = storage.marks(ledger_id)
                expect(
                    marks == gone, f"DropLedger: it stays fenced permanently, known or not [ledger {ledger_id}]", marks
                )
            expect(storage.ledger_ids() == [2], "DropLedger: no longer listed among the ledgers", storage.ledger_ids())
            expect_read(storage, (2, 0, 1), PLENTY_BYTES, [kept], "DropLedger: other ledgers stay")


def check_order_in_commit(candidate: Candidate) -> None:
    mutations: list[Mutation] = [
        PutBatch(make_batch(1, 0)),
        SetMarks(1, b"key", 2),
        DropLedger(1),
        SetMarks(2, b"early"),
        SetMarks(2, b"late"),
        PutBatch(make_batch(1, 3)),
    ]
    for storage in candidate.twice(mutations):
        why = "commit: in this order"
        expect(storage.ledger_ids() == [2], why, storage.ledger_ids())
        expect(storage.marks(2) == Marks(b"early"), why, storage.marks(2))
        expect_read(storage, (1, 0, 1), 1, [], why)
        expect_read(storage, (1, 3, 1), 1, [], why)


CHECKS: tuple[Callable[[Candidate], None], ...] = (
    check_marks,
    check_drop,
    check_order_in_commit,
)
