"""Proofs of a last add confirmed: what is one, what it proves, and who can make it (R11)."""

from __future__ import annotations

import struct

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.errors import RemoteProtocolError
from replog.protocol.batch import ENTRY_ID_MAX, Batch, build
from replog.protocol.bookie import LedgerOnBookie
from replog.protocol.digest import Digest, DigestType, ledger_key
from replog.protocol.messages import AddRequest, FenceRequest, Status, WriteLastAddConfirmedRequest
from replog.protocol.model import Fragment, LedgerMetadata
from replog.protocol.mutations import Marks, SetMarks
from replog.protocol.proofs import (
    PROOF_BYTES_MAX,
    better_proof,
    claimed,
    head_of,
    proof_of_head,
    prove,
    proven,
    read_claim,
)
from replog.protocol.quorum import Quorum
from replog.protocol.reading import LedgerReading
from replog.protocol.recovery import LedgerRecovery

PASSWORD = b"open sesame"
KEY = ledger_key(7, PASSWORD)
HMAC = Digest(DigestType.HMAC_SHA256, 7, PASSWORD)
CRC = Digest(DigestType.CRC32C, 7, PASSWORD)
each_digest = pytest.mark.parametrize("digest", [CRC, HMAC], ids=["crc32c", "hmac"])


def record(digest: Digest = HMAC) -> LedgerMetadata:
    return LedgerMetadata(7, Quorum(3, 3, 2), digest.digest_type, "", (Fragment(0, ("b1", "b2", "b3"), 1),))


def a_batch(confirmed: int, digest: Digest = HMAC, payload: bytes = b"payload", stamp: int = 1) -> Batch:
    return build(
        digest,
        ledger_id=7,
        first_entry_id=confirmed + 1,
        stride=1,
        payloads=[payload],
        last_add_confirmed=confirmed,
        stamp=stamp,
        timestamp_ns=1,
        cumulative_length=7,
    )


def head_proof(confirmed: int, digest: Digest = HMAC) -> bytes:
    return proof_of_head(head_of(a_batch(confirmed, digest)))


@each_digest
@given(confirmed=st.integers(0, ENTRY_ID_MAX - 1), size=st.integers(0, 5000))
def test_proofs_of_both_kinds_prove_their_number(digest: Digest, confirmed: int, size: int) -> None:
    """R11: an explicit one, and the head of a batch without its body."""
    head = proof_of_head(head_of(a_batch(confirmed, digest, bytes(size))))
    for proof in (prove(digest, 7, 1, confirmed), head):
        assert proven(proof, digest, record(digest)) == confirmed == claimed(proof)
        assert read_claim(proof).last_add_confirmed == confirmed
        assert len(proof) <= PROOF_BYTES_MAX
        assert proof_of_head(proof) == proof


def test_missing_proof_proves_no_confirmation() -> None:
    assert prove(HMAC, 7, 1, -1) == b"" == head_proof(-1) == head_proof(-1, CRC)
    assert proven(b"", HMAC, record()) == -1 == claimed(b"")


@each_digest
def test_a_changed_proof_proves_nothing(digest: Digest) -> None:
    """R11: each bit counts, and so does the length."""
    for proof in (prove(digest, 7, 1, 9), head_proof(9, digest)):
        for bit in range(8 * len(proof)):
            changed = bytearray(proof)
            changed[bit // 8] ^= 1 << bit % 8
            with pytest.raises(RemoteProtocolError):
                proven(bytes(changed), digest, record(digest))
        for changed_length in (proof[:-1], proof + b"x", proof[:30], b"x", b"rlac", b"rlog"):
            with pytest.raises(RemoteProtocolError):
                proven(changed_length, digest, record(digest))


@pytest.mark.parametrize(
    "proof",
    [
        prove(Digest(DigestType.HMAC_SHA256, 7, b"guessed"), 7, 1, 9),
        prove(CRC, 7, 1, 9),  # of the weaker digest, which needs no password
        head_proof(9, CRC),
        head_of(a_batch(9, CRC)),
        head_proof(9, Digest(DigestType.HMAC_SHA256, 7, b"guessed")),
        prove(Digest(DigestType.HMAC_SHA256, 8, PASSWORD), 8, 1, 9),  # of another ledger
        prove(HMAC, 7, 2, 9),  # of another writer's term
        proof_of_head(head_of(a_batch(9, stamp=2))),
        struct.pack("<4sBBHqqq", b"rlac", 1, 2, 0, 7, 1, 9),
    ],
    ids=lambda proof: str(len(proof)),
)
def test_a_code_of_another_ledger_or_term_proves_nothing(proof: bytes) -> None:
    """R11."""
    with pytest.raises(RemoteProtocolError):
        proven(proof, HMAC, record())


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: b"rlac\1\2" + tail))
def test_any_bytes_are_survived(proof: bytes) -> None:
    assert claimed(better_proof(b"", proof)) >= -1
    with pytest.raises(RemoteProtocolError):
        read_claim(proof)
        assert proven(proof, HMAC, record()) == -1, "only nothing"
        raise RemoteProtocolError("nothing")


def test_recovery_takes_only_proven_marks() -> None:
    """R11: a forged number is no answer; the frozen last add confirmed is signed again (R5)."""
    machine = LedgerRecovery(attrs.evolve(record()), 1, HMAC, "nonce")
    with pytest.raises(RemoteProtocolError):
        machine.proven(prove(CRC, 7, 1, 10**12))
    assert machine.proven(head_proof(4)) == 4


def test_readers_bound_takes_only_proven_marks() -> None:
    """R11, D1. A proof that claims nothing new is not looked at: that costs nothing at the tail."""
    machine = LedgerReading(record(), HMAC, 0, lambda write_set, _ensemble: list(write_set))
    with pytest.raises(RemoteProtocolError):
        machine.proven(prove(CRC, 7, 1, 10**12))
    machine.last_add_confirmed_heard(machine.proven(head_proof(4)))
    assert machine.last_readable == 4
    assert machine.proven(prove(CRC, 7, 1, 4)) == -1


# -- bookies ----------------------------------------------------------------------------------------------------------


def fence(ledger: LedgerOnBookie, found: list[Batch] | None = None) -> bytes:
    answer = ledger.answer(ledger.accept(FenceRequest(1, 7, KEY, 2)), found)
    assert answer.status is Status.OK
    return answer.proof


@each_digest
def test_bookie_proves_marks_of_headers_and_explicit_proofs(digest: Digest) -> None:
    """R11: by the best proof that it was given; of a batch it keeps a few bytes only."""
    ledger = LedgerOnBookie(7, Marks())
    assert fence(LedgerOnBookie(7, Marks())) == b""
    ledger.accept(AddRequest(1, 7, KEY, 1, a_batch(-1, digest)))
    ledger.accept(AddRequest(2, 7, KEY, 1, a_batch(3, digest, bytes(10_000))))
    assert proven(ledger.proof, digest, record(digest)) == 3
    assert len(ledger.proof) <= PROOF_BYTES_MAX
    explicit = prove(digest, 7, 1, 5)
    (marks,) = ledger.accept(WriteLastAddConfirmedRequest(3, 7, KEY, 1, explicit)).mutations
    assert isinstance(marks, SetMarks)
    assert (marks.last_add_confirmed, marks.proof) == (5, explicit)
    ledger.accept(WriteLastAddConfirmedRequest(4, 7, KEY, 1, prove(digest, 7, 1, 4)))
    ledger.accept(AddRequest(5, 7, KEY, 1, a_batch(4, digest)))
    assert fence(ledger) == explicit


@each_digest
def test_restarted_bookie_reads_the_batch_with_the_best_proof(digest: Digest) -> None:
    """R11: what a stored header says stands in the marks as a bare number."""
    marks = Marks(None, 1, 8, 9, prove(digest, 7, 1, 5))
    ledger = LedgerOnBookie(7, marks)
    assert ledger.lacks_proof
    assert ledger.proof_place == (9, 1)
    assert proven(fence(ledger, [a_batch(8, digest)]), digest, record(digest)) == 8
    assert not ledger.lacks_proof
    for found in (None, [], [a_batch(2, digest)]):  # damaged, or gone: the best that can be proven
        assert proven(fence(LedgerOnBookie(7, marks), found), digest, record(digest)) == 5
    assert not LedgerOnBookie(7, attrs.evolve(marks, proof=prove(digest, 7, 1, 8))).lacks_proof
    assert not LedgerOnBookie(7, Marks(None, 1, 8)).lacks_proof, "there is no batch to read"


@pytest.mark.parametrize(
    "proof",
    [b"", b"x" * 40, prove(Digest(DigestType.CRC32C, 8, b""), 8, 1, 5), prove(CRC, 7, 1, 5)[:-1] + b"\0"],
    ids=["none", "nonsense", "of another ledger", "damaged"],
)
def test_bookie_refuses_obviously_invalid_proofs(proof: bytes) -> None:
    """R11: it would hide the best proof that there is."""
    ledger = LedgerOnBookie(7, Marks())
    accepted = ledger.accept(WriteLastAddConfirmedRequest(3, 7, KEY, 1, proof))
    assert accepted.refusal is not None
    assert accepted.refusal.status is Status.BAD_REQUEST
    assert not accepted.mutations
    if proof:
        recovered = ledger.accept(AddRequest(4, 7, KEY, 2, a_batch(3), True, proof))
        assert recovered.refusal is not None
        assert recovered.refusal.status is Status.BAD_REQUEST
    assert ledger.last_add_confirmed == -1
