"""Checks that an answer fits its request: the one place where a client checks what a bookie says (D2, R4, R11).

A bookie may be damaged, of another version, or hostile. An answer that does not fit counts as a failure of that bookie,
and says nothing about the ledger. The machines check the parts that need the ledger's password or record: codes,
proofs, strides and bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replog.errors import RemoteProtocolError
from replog.protocol.batch import ENTRY_ID_MAX, Batch, CompressedBatch
from replog.protocol.holding import decode_holding
from replog.protocol.messages import (
    DENIALS,
    AddRequest,
    AdminRequest,
    CopyReadRequest,
    CopyRequest,
    FenceRequest,
    MetastoreRequest,
    RangesRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.mutations import DELETED_TERM
from replog.protocol.proofs import read_claim

_BATCHES = (Batch, CompressedBatch)
_REFUSALS = {Status.UNKNOWN, Status.UNAUTHORIZED, Status.BAD_REQUEST, Status.TOO_BUSY, Status.METASTORE_DOUBTED}
_WRITE_REFUSALS = {*_REFUSALS, Status.FENCED, Status.READ_ONLY, Status.IN_DOUBT, Status.RECORD_OUTDATED}
_STATUSES: dict[type, set[Status]] = {
    AddRequest: {Status.OK, Status.CONFLICT, *_WRITE_REFUSALS},
    FenceRequest: {Status.OK, *_WRITE_REFUSALS},
    RecoveryReadRequest: {Status.OK, *DENIALS, *_WRITE_REFUSALS},
    ReadRequest: {Status.OK, *DENIALS, *_REFUSALS},
    ReadLastAddConfirmedRequest: {Status.OK, *_REFUSALS},
    WriteLastAddConfirmedRequest: {Status.OK, *_WRITE_REFUSALS},
    AdminRequest: {Status.OK, Status.READ_ONLY, *_REFUSALS},
    CopyRequest: {Status.OK, Status.CONFLICT, *_WRITE_REFUSALS},
    CopyReadRequest: {Status.OK, *DENIALS, *_REFUSALS},
    RangesRequest: {Status.OK, *_REFUSALS},
    MetastoreRequest: {Status.OK, *_REFUSALS},
}


def check_answer(request: Request, response: Response) -> None:
    """Raises `RemoteProtocolError` if this can't be the answer to this request, and no other error.

    An answer that passes has fields of the right types and ranges, a status that such a request can have, and batches only where
    they were asked for: of the right ledger and stamp, no more than was asked for, the first of them with the entry. Of a plain
    read's answer only the types of the batches are looked at: the reading machine compares each batch with what it wants next
    anyway (D2), nothing else of it is used, and reads are many."""
    batches = response.batches
    # The common case first, in few steps: reads are many.
    if request.__class__ is ReadRequest and response.status is Status.OK and batches.__class__ is tuple and batches:
        for batch in batches:
            if batch.__class__ is not Batch:
                break
        else:
            return
    _check_fields(response)
    status, kind = response.status, type(request)
    if response.body and kind is not MetastoreRequest:
        raise RemoteProtocolError(f"a body in answer to {_said(request)}")
    if status not in _STATUSES[kind]:
        raise RemoteProtocolError(f"{status.name} in answer to {_said(request)}")
    if status is Status.FENCED:
        term = getattr(request, "term", 0)
        if response.fence_term <= term:
            raise RemoteProtocolError(
                f"fenced by term {response.fence_term} in answer to {_said(request)} of term {term}"
            )
    if status is not Status.OK:
        if response.batches or response.proof:
            raise RemoteProtocolError(f"{status.name} with batches or a proof in answer to {_said(request)}")
        return
    if kind in _CHECKS:
        _CHECKS[kind](request, response)
    elif response.batches or response.proof:
        raise RemoteProtocolError(f"batches or a proof in answer to {_said(request)}")


def _check_fields(response: Response) -> None:
    """In process the fields may be anything; from the wire they have their types, but any value."""
    numbers = response.last_add_confirmed, response.fence_term
    if type(response.status) is not Status or any(type(number) is not int for number in numbers):
        raise RemoteProtocolError(f"an answer of status {response.status!r} with {numbers!r}")
    if type(response.detail) is not str or type(response.proof) is not bytes:
        raise RemoteProtocolError("an answer whose detail is not text, or whose proof is not bytes")
    if type(response.body) is not bytes:
        raise RemoteProtocolError("an answer whose body is not bytes")
    if type(response.batches) is not tuple or any(type(batch) not in _BATCHES for batch in response.batches):
        raise RemoteProtocolError("an answer whose batches are not batches")
    if not -1 <= response.last_add_confirmed <= ENTRY_ID_MAX or not 0 <= response.fence_term <= DELETED_TERM:
        raise RemoteProtocolError(
            f"an answer with last add confirmed {numbers[0]}, fence term {numbers[1]}: out of range"
        )


def _check_fence(request: FenceRequest, response: Response) -> None:
    if response.fence_term < request.term:
        problem = f"a fence of term {response.fence_term} in answer to {_said(request)} of term {request.term}"
        raise RemoteProtocolError(problem)
    if response.batches:
        raise RemoteProtocolError(f"batches in answer to {_said(request)}")
    _check_proof(request, response)


def _check_proof(request: FenceRequest | ReadLastAddConfirmedRequest, response: Response) -> None:
    if response.proof and (claim := read_claim(response.proof)).ledger_id != request.ledger_id:
        raise RemoteProtocolError(f"{claim} in answer to {_said(request)}")


def _check_recovery_read(request: RecoveryReadRequest, response: Response) -> None:
    if len(response.batches) != 1 or response.proof:
        raise RemoteProtocolError(f"{len(response.batches)} batches in answer to {_said(request)}")
    _check_batches(request, response.batches)


def _check_read(request: ReadRequest, response: Response) -> None:
    if not response.batches or response.proof:
        raise RemoteProtocolError(f"{len(response.batches)} batches in answer to {_said(request)}")
    _check_batches(request, response.batches)
    _check_size(request, response.batches)


def _check_last_add_confirmed(request: ReadLastAddConfirmedRequest, response: Response) -> None:
    _check_proof(request, response)
    if response.batches:
        if not request.bytes_max:
            raise RemoteProtocolError(f"batches in answer to {_said(request)}, which wants none")
        _check_batches(request, response.batches)
        _check_size(request, response.batches)


def _check_ranges(request: RangesRequest, response: Response) -> None:
    if response.batches or response.proof:
        raise RemoteProtocolError(f"batches or a proof in answer to {_said(request)}")
    decode_holding(response.detail, request)


def _check_batches(
    request: RecoveryReadRequest | ReadRequest | ReadLastAddConfirmedRequest, batches: Sequence[Batch]
) -> None:
    for batch in batches:
        if batch.ledger_id != request.ledger_id or batch.stamp != request.stamp:
            raise RemoteProtocolError(f"{batch!r} in answer to {_said(request)} of stamp {request.stamp}")
    if not batches[0].holds(request.entry_id):
        raise RemoteProtocolError(f"{batches[0]!r} in answer to {_said(request)} of entry {request.entry_id}")


def _check_size(request: ReadRequest | ReadLastAddConfirmedRequest, batches: Sequence[Batch]) -> None:
    """The first batch comes at any size; more of them only if all fit."""
    if len(batches) > 1 and sum(len(batch.data) for batch in batches) > request.bytes_max:
        problem = f"{len(batches)} batches of more than {request.bytes_max} bytes in answer to {_said(request)}"
        raise RemoteProtocolError(problem)


def _said(request: Request) -> str:
    name = type(request).__name__.removesuffix("Request")
    return f"{name} of ledger {request.ledger_id}" if not isinstance(request, AdminRequest | MetastoreRequest) else name


_CHECKS: dict[type, Callable[..., None]] = {
    FenceRequest: _check_fence,
    RecoveryReadRequest: _check_recovery_read,
    ReadRequest: _check_read,
    ReadLastAddConfirmedRequest: _check_last_add_confirmed,
    CopyReadRequest: _check_read,
    RangesRequest: _check_ranges,
}
