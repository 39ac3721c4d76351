"""The machine of one ledger on one bookie: it decides which requests are accepted, in which order, and the answers
(T1-T3, R3, B2, B7, B8).

There is one object for each ledger, and requests pass through it in one order: adds, fences and recovery reads alike
(B2). `accept` decides at once and raises the fence in memory; the bookie then makes the mutations durable, in the order
of acceptance, and only then asks `answer`. So no answer of any kind leaves before the fence that it depends on is
durable (R3).

The bookie proves the last add confirmed that it answers with (R11): by the explicit proof that it was given, or by the head of
a batch that carries it. Of a batch in memory only these few bytes are kept. After a restart the batch is only in the
storage: then `lacks_proof`, and the bookie reads the batch that `proof_place` names before it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from hmac import compare_digest

import attrs

from replog.errors import RemoteProtocolError
from replog.protocol.batch import Batch, check_damage
from replog.protocol.digest import STORED_KEY_BYTES, is_stored_ledger_key, stored_ledger_key
from replog.protocol.messages import (
    NO_REQUEST,
    AddRequest,
    CopyReadRequest,
    CopyRequest,
    FenceRequest,
    RangesRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Response,
    Status,
    WatchRequest,
    WriteLastAddConfirmedRequest,
    ledger_awaited,
)
from replog.protocol.model import WRITER_TERM
from replog.protocol.mutations import DELETED_TERM, DropEntries, DropLedger, Marks, Mutation, PutBatch, SetMarks
from replog.protocol.proofs import CODE_BYTES, HEAD_BYTES, better_proof, claimed, head_of, proof_of_head, read_claim
from replog.protocol.releasing import ForeignRange

_IN_DOUBT = (
    "the bookie's storage was found shortened, and may have lost the ledger's fence: it takes nothing from writers of "
    "ledgers from before that (B8)"
)

OrderedRequest = AddRequest | FenceRequest | RecoveryReadRequest | WriteLastAddConfirmedRequest


@attrs.define
class Accepted:
    """The changes that must be durable before the request is answered. `refusal` is the answer if it was refused.

    With `may_be_stored`, entries at or above the batch's ids were accepted before: once everything accepted earlier is
    durable, look up the stored ones and let `settle_add` decide."""

    request: OrderedRequest
    mutations: list[Mutation]
    refusal: Response | None = None
    may_be_stored: bool = False


class WaitingReaders:
    """Whether readers wait here for a later last add confirmed of one ledger, and how its writer learns that (W5): with the
    answer to each add; and in a message of its own if they come after the answer to the last one."""

    __slots__ = ("_ledger_id", "answer_writer", "is_awaited", "last_add", "untold_add")

    def __init__(self, ledger_id: int) -> None:
        self.is_awaited = False
        self.answer_writer: Callable[[Sequence[Response]], None] | None = None  # where the last request came from
        self.last_add = NO_REQUEST  # that was accepted
        self.untold_add = NO_REQUEST  # the last one whose answer said that nobody waits
        self._ledger_id = ledger_id

    def came(self, *, is_more_stored: bool) -> None:
        """A reader begins to wait. With `is_more_stored`, for something that is stored here: it may be confirmed already."""
        self.is_awaited = True
        is_last_untold = self.untold_add == self.last_add != NO_REQUEST
        if is_last_untold and is_more_stored and self.answer_writer is not None:
            self.untold_add = NO_REQUEST
            self.answer_writer([ledger_awaited(self._ledger_id)])


class LedgerOnBookie:
    """One ledger. `marks` are its durable ones, or `Marks()` if the storage never saw it. While it `is_in_doubt`, the storage
    may have lost the ledger's fence: what only a writer sends is refused, fences and recovery adds are accepted (B8)."""

    __slots__ = (
        "_durable_fence_term",
        "_durable_last_add_confirmed",
        "_highest",
        "_is_key_durable",
        "_last_entry_id",
        "_proof",
        "_shown_key",
        "_stride",
        "fence_term",
        "is_in_doubt",
        "key",
        "lacks_proof",
        "last_add_confirmed",
        "ledger_id",
        "readers",
        "revision",
        "stored_key",
    )

    def __init__(self, ledger_id: int, marks: Marks, *, is_in_doubt: bool = False) -> None:
        self.ledger_id = ledger_id
        self.is_in_doubt = is_in_doubt
        self.stored_key = marks.key
        self._shown_key: bytes | None = None  # the key itself, once somebody has shown it
        self.fence_term = marks.fence_term
        self.last_add_confirmed = marks.last_add_confirmed
        self.revision = marks.revision  # the highest that it was told of the ledger's record, durably
        self.readers = WaitingReaders(ledger_id)
        self._is_key_durable = marks.key is not None
        self._durable_fence_term = marks.fence_term
        self._durable_last_add_confirmed = marks.last_add_confirmed  # or more, in batches' headers
        self._last_entry_id = marks.last_entry_id
        self._proof = marks.proof  # the best one, or the head of the batch that carries it
        # The last add confirmed is in the header of a stored batch: `_proof` proves less.
        self.lacks_proof = claimed(marks.proof) < marks.last_add_confirmed and marks.last_entry_id >= 0
        self._highest: dict[tuple[int, int], int] = {}  # by stamp and rotation: the last id accepted
        self._stride: int | None = None  # of all batches: else two of them could hold one id in different rotations

    # -- requests that change something, or fence -----------------------------------------------------------------

    def accept(self, request: OrderedRequest) -> Accepted:
        """Decides on a request, in the order of arrival."""
        refusal = self._refusal(request)
        if refusal is not None:
            return Accepted(request, [], refusal)
        marks = self._raise_marks(request)
        assert self.fence_term >= self._durable_fence_term, "a fence is raised in memory first (R3)"
        mutations: list[Mutation] = [] if marks is None else [marks]
        if not isinstance(request, AddRequest):
            return Accepted(request, mutations)
        batch = request.batch
        self.readers.last_add = request.request_id
        mutations.append(PutBatch(batch))
        self._stride = stride = batch.stride
        rotation = (batch.stamp, batch.first_entry_id % stride)
        # After a restart only the highest id of all rotations is known: that may look for more than is stored, never
        # for less.
        highest = self._highest.get(rotation, self._last_entry_id)
        if batch.last_entry_id > highest:
            self._highest[rotation] = batch.last_entry_id
        return Accepted(request, mutations, None, batch.first_entry_id <= highest)

    def drop(self, entries: ForeignRange | None = None) -> Accepted:
        """The ledger was deleted (B6): forgets it, and permanently refuses everybody, as a fence does (L5). Or only these
        entries are dropped, which are other bookies' alone (F5): then marks, and with them the fence, stay."""
        if entries is None:
            self.fence_term = DELETED_TERM
        request = FenceRequest(0, self.ledger_id, b"", self.fence_term)
        return Accepted(request, [DropLedger(self.ledger_id) if entries is None else _drop_of(self.ledger_id, entries)])

    def fence(self, term: int) -> Accepted:
        """The bookie fences the ledger itself, as the ledger's record says (B8). Whose it is, only a client can show (B7)."""
        assert term >= WRITER_TERM, "a record has a writer's term at least (T2)"
        self.fence_term = max(self.fence_term, term)
        return Accepted(FenceRequest(0, self.ledger_id, b"", self.fence_term), [SetMarks(self.ledger_id, None, term)])

    def is_foreign(self, key: bytes) -> bool:
        """True if this key is not the ledger's (B7). The first key that is shown becomes the ledger's."""
        if self._shown_key is not None and compare_digest(key, self._shown_key):
            return False
        if self.stored_key is None:
            return False
        if not is_stored_ledger_key(key, self.stored_key):
            return True
        self._shown_key = key  # from now on it is compared, not hashed
        return False

    def _refusal(self, request: OrderedRequest) -> Response | None:
        # In one process it is the same object each time, and there is nothing to compare.
        is_known = request.key is self._shown_key
        if not is_known and self.is_foreign(request.key) and not _is_by_role(request):
            return self._unauthorized(request.request_id)
        if request.term < self.fence_term:
            return self._fenced(request.request_id)
        if self.is_in_doubt and is_of_writer(request):
            return Response(request.request_id, Status.IN_DOUBT, detail=_IN_DOUBT)
        # A writer looks at its record by itself (W9): it may go on while a repair has changed that.
        if request.revision < self.revision and request.revision and not is_of_writer(request):
            return self._outdated(request.request_id, request.revision)
        if isinstance(request, AddRequest):
            batch = request.batch
            if batch.ledger_id != self.ledger_id or (
                batch.stamp > request.term if request.recovery else batch.stamp != request.term
            ):
                detail = f"{batch!r} in an add for ledger {self.ledger_id} of term {request.term}"
                return Response(request.request_id, Status.BAD_REQUEST, detail=detail)
            if batch.stride != (self._stride or batch.stride):
                detail = f"{batch!r} in a ledger whose batches have stride {self._stride} (T3)"
                return Response(request.request_id, Status.BAD_REQUEST, detail=detail)
            # Its header is checked, too: a wrong last add confirmed would mislead recoveries (R4). Once for each object: in one
            # process client and bookie share it.
            if not batch.is_sealed:
                try:
                    check_damage(batch)
                except RemoteProtocolError as error:
                    return Response(request.request_id, Status.BAD_REQUEST, detail=str(error))
            # A writer's add has no proof: its header says what is confirmed. A recovery's has one, unless nothing is.
            if request.proof:
                return self._refuse_proof(request)
            return self._refuse_copy(request) if request.recovery else None
        return self._refuse_proof(request) if isinstance(request, WriteLastAddConfirmedRequest) else None

    def _refuse_copy(self, request: AddRequest) -> Response | None:
        """Refuses a copy whose key is not the ledger's. A ledger without a key would belong to the first client that
        shows one."""
        if not _is_by_role(request):
            return None
        assert isinstance(request, CopyRequest), "of adds, only copies are made by role"
        if self._is_of_another_creation(request.stored_key):
            return self._unauthorized(request.request_id)
        if len(request.stored_key) != STORED_KEY_BYTES:
            detail = f"a copy for ledger {self.ledger_id} with a stored key of {len(request.stored_key)} bytes (F3)"
            return Response(request.request_id, Status.BAD_REQUEST, detail=detail)
        return None

    def _refuse_proof(self, request: AddRequest | WriteLastAddConfirmedRequest) -> Response | None:
        """Refuses what cannot be a proof for this ledger. Only clients, which know the password, can check an HMAC."""
        try:
            claim = read_claim(request.proof)
        except RemoteProtocolError as error:
            return Response(request.request_id, Status.BAD_REQUEST, detail=str(error))
        if claim.ledger_id != self.ledger_id:
            detail = f"{claim} in a request for ledger {self.ledger_id}"
            return Response(request.request_id, Status.BAD_REQUEST, detail=detail)
        return None

    def _raise_marks(self, request: OrderedRequest) -> SetMarks | None:
        """Raises the fence (T1) and the last add confirmed in memory; returns what must follow on the disk.

        Every request asks for marks until `answer` finds them durable: a commit without space did nothing, and the
        next request must not be answered as if it had (R3). A batch raises the last add confirmed by
        itself: its header is stored with it."""
        confirmed, proof = -1, b""
        if isinstance(request, AddRequest):
            if request.proof:
                confirmed, proof = claimed(request.proof), request.proof
            batch = request.batch
            if batch.last_add_confirmed > self.last_add_confirmed:
                self.last_add_confirmed = batch.last_add_confirmed
                data = batch.data
                # As `head_of`, without the call. A slice keeps no reference to the whole batch.
                self._proof, self.lacks_proof = data[:HEAD_BYTES] + data[-CODE_BYTES:], False
        elif isinstance(request, WriteLastAddConfirmedRequest):
            confirmed, proof = claimed(request.proof), request.proof
        if self.stored_key is None:
            new_key: bytes | None = _key_to_store(request)
        else:
            new_key = None if self._is_key_durable else self.stored_key
        new_term = request.term if request.term > self._durable_fence_term else None
        new_confirmed = confirmed if confirmed > self._durable_last_add_confirmed else None
        # Almost every add: its batch alone says all that is new.
        if new_key is None and new_term is None and new_confirmed is None and request.revision <= self.revision:
            return None
        new_revision = request.revision if request.revision > self.revision else None
        if self.stored_key is None:
            self.stored_key, self._shown_key = new_key, request.key or None
        assert request.term >= self.fence_term, "a lower term is refused before it raises anything (T1)"
        self.fence_term = request.term
        self.last_add_confirmed = max(self.last_add_confirmed, confirmed)
        if new_confirmed is None:
            return SetMarks(self.ledger_id, new_key, new_term, revision=new_revision)
        self._hold_proof(proof)
        return SetMarks(self.ledger_id, new_key, new_term, new_confirmed, proof, new_revision)

    def _hold_proof(self, proof: bytes) -> None:
        self._proof = better_proof(self._proof, proof)
        self.lacks_proof = self.lacks_proof and claimed(self._proof) < self.last_add_confirmed

    # -- proofs -------------------------------------------------------------------------------------------------------

    @property
    def proof(self) -> bytes:
        """The best proof of the last add confirmed that is at hand (R11)."""
        if self._proof:
            self._proof = proof_of_head(self._proof)
        return self._proof

    @property
    def proof_place(self) -> tuple[int, int]:
        """Entry id and stamp of the stored batch that carries the last add confirmed, while `lacks_proof`. A writer's
        headers never go back, so it is the last batch that was stored before this object was made. Where later terms may have
        written, it is the last one of the highest stamp, which only the storage knows."""
        return self._last_entry_id, WRITER_TERM

    @property
    def may_have_later_terms(self) -> bool:
        """True if batches may have a higher stamp than that of the ledger's first writer."""
        return self.fence_term > WRITER_TERM

    def proof_read(self, found: Sequence[Batch] | None) -> None:
        """Takes the batches read at `proof_place`; None if that read failed, and only proofs in memory count."""
        assert self.lacks_proof, "a proof is read only where one is lacking (R11)"
        self.lacks_proof = False
        for batch in found or ():
            with suppress(RemoteProtocolError):
                check_damage(batch)
                self._proof = better_proof(self._proof, head_of(batch))

    def answer(
        self, accepted: Accepted, found: Sequence[Batch] | None = (), denial: Status = Status.NO_ENTRY
    ) -> Response:
        """The answer, once everything accepted up to here is durable.

        For a recovery read `found` is what the storage gave for the entry, or None if it could not tell (R4); `denial` is how
        far it vouches for having nothing (B8). For a fence of a ledger that lacks its proof, `found` is what it gave for
        `proof_place` (R11)."""
        request = accepted.request
        if accepted.refusal is not None:
            assert not accepted.mutations, "what is refused changes nothing"
            return accepted.refusal
        if accepted.mutations and isinstance(accepted.mutations[0], SetMarks):
            self._remember_durable(accepted.mutations[0])
        is_awaited = self.readers.is_awaited
        answer = Response(request.request_id, Status.OK, self.last_add_confirmed, self.fence_term, (), "", is_awaited)
        if isinstance(request, AddRequest):
            if not is_awaited:
                self.readers.untold_add = request.request_id
            return answer
        if isinstance(request, RecoveryReadRequest):
            return read_answer(request.request_id, found, self.last_add_confirmed, denial)
        if isinstance(request, FenceRequest):
            if self.lacks_proof:
                self.proof_read(found)
            assert not self.lacks_proof, "a proof is looked for once (R11)"
            answer.proof = self.proof
        return answer

    def awaited(self, after: int) -> None:
        """A reader begins to wait here for a last add confirmed above `after` (W5)."""
        self.readers.came(is_more_stored=max(self._highest.values(), default=-1) > after)

    def _remember_durable(self, marks: SetMarks) -> None:
        if marks.key is not None:
            assert self.stored_key is not None, "what is durable was accepted"
            self._is_key_durable = True
        if marks.fence_term is not None:
            assert marks.fence_term <= self.fence_term, "a fence is raised in memory first (R3)"
            self._durable_fence_term = max(self._durable_fence_term, marks.fence_term)
        if marks.last_add_confirmed is not None:
            assert marks.last_add_confirmed <= self.last_add_confirmed, "what is confirmed never sinks"
            self._durable_last_add_confirmed = max(self._durable_last_add_confirmed, marks.last_add_confirmed)
        if marks.revision is not None:
            self.revision = max(self.revision, marks.revision)

    # -- plain reads ----------------------------------------------------------------------------------------------

    def refuse_read(self, request: ReadRequest | ReadLastAddConfirmedRequest | RangesRequest) -> Response | None:
        """Why a plain read is refused, or None. It carries no term and fences nothing (T1, D1)."""
        if _is_by_role(request):
            by_role = CopyReadRequest | RangesRequest | WatchRequest
            assert isinstance(request, by_role), "of plain reads, only these are made by role"
            is_refused = self._is_of_another_creation(request.stored_key)
        else:
            is_refused = self.is_foreign(request.key)
        return self._unauthorized(request.request_id) if is_refused else None

    def _is_of_another_creation(self, stored_key: bytes) -> bool:
        """True if this is not what the bookie stored for the ledger's key: the record is of another creation (M5)."""
        return self.stored_key is not None and stored_key != self.stored_key

    def _unauthorized(self, request_id: int) -> Response:
        detail = (
            f"its copy of ledger {self.ledger_id} is of another creation of this id, or has another password (M5, B7)"
        )
        return Response(request_id, Status.UNAUTHORIZED, detail=detail)

    def _outdated(self, request_id: int, revision: int) -> Response:
        detail = (
            f"it knows change {self.revision} of the record of ledger {self.ledger_id}, and was asked by change {revision}: "
            "another client has changed the record since, or the metastore went back (M5)"
        )
        return Response(request_id, Status.RECORD_OUTDATED, fence_term=self.revision, detail=detail)

    def _fenced(self, request_id: int) -> Response:
        return Response(request_id, Status.FENCED, self.last_add_confirmed, self.fence_term)


def is_of_writer(request: OrderedRequest) -> bool:
    """True for requests that only a ledger's writer sends, and that a fence stops."""
    if isinstance(request, AddRequest):
        return not request.recovery
    return isinstance(request, WriteLastAddConfirmedRequest)


def _is_by_role(request: object) -> bool:
    """True for requests that a repairer may send without the ledger's key; the transport has checked that it is one (B7)."""
    return isinstance(request, CopyRequest | CopyReadRequest | RangesRequest | WatchRequest) and not request.key


def _drop_of(ledger_id: int, entries: ForeignRange) -> DropEntries:
    return DropEntries(ledger_id, entries.stamp, entries.first_entry_id, entries.last_entry_id, entries.stride)


def _key_to_store(request: OrderedRequest) -> bytes:
    if isinstance(request, CopyRequest) and not request.key:
        assert len(request.stored_key) == STORED_KEY_BYTES, "a copy without a key was refused"
        return request.stored_key
    return stored_ledger_key(request.key)


def settle_add(
    batch: Batch, stored: Sequence[Batch], is_same: Callable[[Batch, Batch], bool] = Batch.__eq__
) -> Status | None:
    """Decides on a batch, given the stored batches of its identities (T3): None to store it, OK if it is stored
    already, CONFLICT if another one is. Nothing is ever stored over.

    `is_same(stored, batch)` says whether two batches of one identity are the same: if their bytes are, unless their writers
    resend an entry with another header."""
    overlapping = [other for other in stored if other.stamp == batch.stamp and _overlap(other, batch)]
    if not overlapping:
        return None
    return Status.OK if all(is_same(other, batch) for other in overlapping) else Status.CONFLICT


def read_answer(
    request_id: int, found: Sequence[Batch] | None, last_add_confirmed: int, denial: Status = Status.NO_ENTRY
) -> Response:
    """The answer to a read: the batches found, proven absence, a weak denial, or doubt (R4, B8)."""
    if found is None:
        return Response(request_id, Status.UNKNOWN, last_add_confirmed)
    if not found:
        return Response(request_id, denial, last_add_confirmed)
    return Response(request_id, Status.OK, last_add_confirmed, batches=tuple(found))


def _overlap(one: Batch, other: Batch) -> bool:
    low = max(one.first_entry_id, other.first_entry_id)
    high = min(one.last_entry_id, other.last_entry_id)
    if one.stride == other.stride:
        return low <= high and (one.first_entry_id - other.first_entry_id) % one.stride == 0
    return any(entry_id in one.entry_ids for entry_id in other.entry_ids)
