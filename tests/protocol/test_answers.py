"""Every answer to every kind of request, with every field missing, empty, huge or inconsistent (D2, R4, R11)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.errors import RemoteProtocolError
from replog.protocol.answers import check_answer
from replog.protocol.batch import Batch, build
from replog.protocol.digest import Digest, DigestType
from replog.protocol.messages import (
    DENIALS,
    AddRequest,
    AdminCommand,
    AdminRequest,
    FenceRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from tests.cases import case
from tests.protocol.bookies import proof_of

KEY = bytes(32)


def a_batch(first: int, *, ledger_id: int = 7, stamp: int = 1, count: int = 2, stride: int = 1) -> Batch:
    return build(
        Digest(DigestType.CRC32C, ledger_id, b""),
        ledger_id=ledger_id,
        first_entry_id=first,
        stride=stride,
        payloads=[b"x" * 100] * count,
        last_add_confirmed=first - 1,
        stamp=stamp,
        timestamp_ns=1,
        cumulative_length=1,
    )


GOOD: dict[str, tuple[Request, Response]] = {
    "add": (AddRequest(1, 7, KEY, 1, a_batch(4)), Response(1, Status.OK, 3, 1)),
    "recovery add": (AddRequest(1, 7, KEY, 2, a_batch(4), True, proof_of(3)), Response(1, Status.OK, 3, 2)),
    "fence": (FenceRequest(1, 7, KEY, 2), Response(1, Status.OK, 3, 2, proof=proof_of(3))),
    "recovery read": (RecoveryReadRequest(1, 7, KEY, 2, 5, 1), Response(1, Status.OK, 3, 0, (a_batch(4),))),
    "read": (ReadRequest(1, 7, KEY, 5, 1, 1000), Response(1, Status.OK, 3, 0, (a_batch(4), a_batch(6)))),
    "poll": (ReadLastAddConfirmedRequest(1, 7, KEY, 2, 0), Response(1, Status.OK, 3, 1, proof=proof_of(3))),
    "poll for batches": (
        ReadLastAddConfirmedRequest(1, 7, KEY, 2, 0, 5, 1, 1000),
        Response(1, Status.OK, 7, 1, (a_batch(4), a_batch(6)), proof=proof_of(7)),
    ),
    "publish": (WriteLastAddConfirmedRequest(1, 7, KEY, 1, proof_of(3)), Response(1, Status.OK, 3, 1)),
    "command": (AdminRequest(1, AdminCommand.STATISTICS), Response(1, Status.OK, detail="{}")),
}
each_kind = pytest.mark.parametrize("kind", GOOD)
READS = {"recovery read", "read"}

# For every kind: what no answer can be.
NONSENSE: dict[str, dict[str, Any]] = {
    "unknown status": {"status": 99},
    "no status": {"status": None},
    "last add confirmed below -1": {"last_add_confirmed": -2},
    "huge last add confirmed": {"last_add_confirmed": 1 << 63},
    "no last add confirmed": {"last_add_confirmed": None},
    "last add confirmed in words": {"last_add_confirmed": "9"},
    "true as last add confirmed": {"last_add_confirmed": True},
    "fence term below 0": {"fence_term": -1},
    "huge fence term": {"fence_term": 1 << 63},
    "no fence term": {"fence_term": None},
    "no batches": {"batches": None},
    "a list": {"batches": [a_batch(4)]},
    "batches that are none": {"batches": (b"rlog",)},
    "no detail": {"detail": None},
    "detail in bytes": {"detail": b"{}"},
    "no proof": {"proof": None},
    "proof in words": {"proof": "rlac"},
    "broken proof": {"proof": b"rlac" + bytes(40)},
    "proof of another ledger": {"proof": proof_of(3, ledger_id=8)},
    "another ledger's batch": {"batches": (a_batch(4, ledger_id=8),)},
    "another term's batch": {"batches": (a_batch(4, stamp=2),)},
    "another entry's batch": {"batches": (a_batch(6),)},
    "a batch beside the entry": {"batches": (a_batch(4, stride=2),)},
    "too many batches": {"batches": tuple(a_batch(first) for first in range(4, 40, 2))},
    "another ledger's batch behind": {"batches": (a_batch(4), a_batch(6, ledger_id=8))},
    "fenced by its own term": {"status": Status.FENCED, "fence_term": 1},
}


READ_NONSENSE = {
    "unknown status",
    "no status",
    "no batches",
    "a list",
    "batches that are none",
    "fenced by its own term",
}


@each_kind
def test_a_good_answer_passes(kind: str) -> None:
    check_answer(*GOOD[kind])


@each_kind
def test_an_impossible_answer_is_refused(kind: str) -> None:
    for nonsense in NONSENSE:
        with case(nonsense):
            request, response = GOOD[kind]
            altered = attrs.evolve(response, **NONSENSE[nonsense])
            if kind == "read" and nonsense not in READ_NONSENSE:
                check_answer(request, altered)  # what is used of it is compared by the reading machine
                continue
            with pytest.raises(RemoteProtocolError):
                check_answer(request, altered)


@pytest.mark.parametrize("kind", sorted(READS))
def test_a_read_answered_ok_without_a_batch_is_refused(kind: str) -> None:
    """R4: else it was an IndexError in a callback, which ended the whole client."""
    request, response = GOOD[kind]
    with pytest.raises(RemoteProtocolError):
        check_answer(request, attrs.evolve(response, batches=()))


def test_a_recovery_read_has_one_batch() -> None:
    request, response = GOOD["recovery read"]
    with pytest.raises(RemoteProtocolError):
        check_answer(request, attrs.evolve(response, batches=(a_batch(4), a_batch(6))))


def test_a_fence_answered_with_a_lower_term_is_refused() -> None:
    """R3: OK means that the fence is at least as high as was asked for."""
    request, response = GOOD["fence"]
    with pytest.raises(RemoteProtocolError):
        check_answer(request, attrs.evolve(response, fence_term=1))


def test_first_batch_of_a_poll_comes_at_any_size() -> None:
    request, response = GOOD["poll for batches"]
    large = a_batch(4, count=100)
    check_answer(request, attrs.evolve(response, batches=(large,)))
    with pytest.raises(RemoteProtocolError):
        check_answer(request, attrs.evolve(response, batches=(large, a_batch(104))))


@each_kind
def test_each_kind_has_its_statuses(kind: str) -> None:
    """A refusal brings nothing along; only reads are denied, only adds conflict, and plain reads carry no term (T1)."""
    for status in Status:
        with case(status):
            request, response = GOOD[kind]
            told = Response(1, status, fence_term=9) if status is not Status.OK else response
            plain = kind in ("read", "poll", "poll for batches", "command")
            denied = status in DENIALS and kind not in READS
            wrong = (status is Status.CONFLICT and "add" not in kind) or (
                plain
                and status
                in (
                    Status.FENCED,
                    Status.IN_DOUBT,
                    Status.RECORD_OUTDATED,
                    *(() if kind == "command" else (Status.READ_ONLY,)),
                )
            )
            if denied or wrong:
                with pytest.raises(RemoteProtocolError):
                    check_answer(request, told)
                continue
            check_answer(request, told)
            if status is not Status.OK:
                for more in ({"batches": (a_batch(4),)}, {"proof": proof_of(3)}):
                    with pytest.raises(RemoteProtocolError):
                        check_answer(request, attrs.evolve(told, **more))


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 0, 3, 1 << 63]),
    st.text(max_size=3),
    st.binary(max_size=40),
)
some_batches = st.sampled_from(
    [a_batch(4), a_batch(6), a_batch(0, count=9), a_batch(4, stamp=2), a_batch(4, ledger_id=8), a_batch(4, stride=3)]
)


@given(
    kind=st.sampled_from(sorted(GOOD)),
    changes=st.fixed_dictionaries(
        {},
        optional={
            "status": st.sampled_from(Status) | anything,
            "last_add_confirmed": anything,
            "fence_term": anything,
            "batches": st.lists(some_batches | anything, max_size=3).map(tuple) | anything,
            "detail": anything,
            "proof": st.sampled_from([proof_of(3), proof_of(9), b""]) | anything,
        },
    ),
)
def test_any_bytes_are_an_answer_or_a_named_error(kind: str, changes: dict[str, Any]) -> None:
    """Accepted bytes can be used without another look."""
    request, good = GOOD[kind]
    response = attrs.evolve(good, **changes)
    try:
        check_answer(request, response)
    except RemoteProtocolError:
        return
    assert isinstance(response.status, Status)
    if response.status is Status.FENCED:
        assert response.fence_term > getattr(request, "term", 0)
    assert all(isinstance(batch, Batch) for batch in response.batches)
    if kind == "read":
        assert bool(response.batches) is (response.status is Status.OK)
        return
    if kind == "recovery read" and response.status is Status.OK:
        assert response.batches[0].holds(5)
    for batch in response.batches:
        assert (batch.ledger_id, batch.stamp) == (7, 1)
