"""The messages between clients and bookies. Encoding them is a transport's business.

Every request carries the ledger's key (B7), except a repairer's: the transport knows which clients may repair. Requests
that may end in a write or that fence carry the sender's term (T1); plain reads carry none. Requests of adds, recoveries
and copies carry the revision of the record that the sender knows (M5), or 0. Facts about a request are in its message;
facts about the entries are in the batch (W3).
"""

from __future__ import annotations

import enum
from typing import ClassVar

import attrs

from replog.protocol.batch import Batch

MESSAGE_BYTES = 128  # that a message keeps in memory, about, beside its batch: what the bounds of queues count
NO_REQUEST = 0  # the request id of a message that answers nothing: clients begin with 1


class Status(enum.IntEnum):
    """A bookie's answer. Only NO_ENTRY proves absence (R4); a bookie in doubt answers with one of the weak denials (B8, R10);
    damage and I/O errors are UNKNOWN. The numbers pass over the wire."""

    OK = 0
    NO_ENTRY = 1  # proven: never durable here, under this stamp
    UNKNOWN = 2  # damage, an I/O error, lost storage: may or may not be there
    FENCED = 3  # a higher term holds the ledger; `fence_term` says which
    CONFLICT = 4  # other bytes for an identity that is stored already (T3): nothing was changed
    UNAUTHORIZED = 5
    READ_ONLY = 6
    BAD_REQUEST = 7
    TOO_BUSY = 8
    NO_ENTRY_IN_DOUBT = 9  # weak: not found, and the bookie cannot prove that its storage is complete (B8)
    NO_ENTRY_AFTER_LOSS = 10  # weak: not found, and the bookie knows that its storage lost something (B8)
    IN_DOUBT = 11  # a plain add to a ledger in doubt: refused, since the fence may have been lost (B8). Not Fenced
    METASTORE_DOUBTED = 12  # the bookie's metastore may have gone back (B6a): nothing was changed; later
    RECORD_OUTDATED = 13  # a recovery or repair by a record older than one that the bookie knows (M5): read it again


class Denial(enum.Enum):
    """How much a bookie's "no such entry" is worth (R10)."""

    PROVEN = enum.auto()  # it vouches for its storage: the entry was never durable there
    IN_DOUBT = enum.auto()  # weak: it cannot prove that its storage is complete (B8)
    AFTER_LOSS = enum.auto()  # weak: it knows that its storage lost something (B8)


DENIALS = {
    Status.NO_ENTRY: Denial.PROVEN,
    Status.NO_ENTRY_IN_DOUBT: Denial.IN_DOUBT,
    Status.NO_ENTRY_AFTER_LOSS: Denial.AFTER_LOSS,
}


@attrs.define
class AddRequest:
    """Store this batch. With `recovery` it may pass a fence of the same term, and `proof` proves the frozen last add
    confirmed (R5, R11).

    The same request may be sent to several bookies: `frame_head` is where a transport keeps what it made of all but the batch.
    So the sender must not change it any more.
    """

    request_id: int
    ledger_id: int
    key: bytes
    term: int
    batch: Batch
    recovery: bool = False
    proof: bytes = b""
    revision: int = 0
    frame_head: bytes = attrs.field(default=b"", init=False, eq=False, repr=False)


@attrs.define
class CopyRequest(AddRequest):
    """Store this batch, which was read from another bookie. It passes as a recovery add does, and never fences more than
    the ledger's record does: `term` is the one of the record (F2).

    Without a `key` the sender has the role of a repairer, which the transport has checked, and `stored_key` becomes the
    ledger's if the bookie has never seen it: what the record's `key_check` says (F3, B7). A batch that is damaged here is
    stored again; other bytes for an entry that can be read are refused (T3)."""

    stored_key: bytes = b""


@attrs.define
class FenceRequest:
    """Raise the fence to `term`, durably, then answer with the highest last add confirmed (R2, R3)."""

    request_id: int
    ledger_id: int
    key: bytes
    term: int
    revision: int = 0


@attrs.define
class RecoveryReadRequest:
    """Raise the fence to `term`, durably, then look the entry up (R4)."""

    request_id: int
    ledger_id: int
    key: bytes
    term: int
    entry_id: int
    stamp: int
    revision: int = 0


@attrs.define
class ReadRequest:
    """The batch that holds the entry, and those stored after it up to `bytes_max`. Fences nothing (D1)."""

    request_id: int
    ledger_id: int
    key: bytes
    entry_id: int
    stamp: int
    bytes_max: int


@attrs.define
class CopyReadRequest(ReadRequest):
    """Reads batches to copy them, like `ReadRequest`. Without a `key` the sender has the role of a repairer, which the
    transport has checked, and `stored_key` is what the ledger's record has as `key_check`: a bookie that holds another
    creation of this id refuses (M5)."""

    stored_key: bytes = b""


@attrs.define
class RangesRequest:
    """Tell which of these entries are stored under this stamp (F3). The answer's `detail` is a `replog.protocol.holding.Holding`.
    Without a `key` the sender has the role of a repairer, and `stored_key` is as in `CopyReadRequest`. Fences nothing."""

    request_id: int
    ledger_id: int
    key: bytes
    stamp: int
    first_entry_id: int
    last_entry_id: int
    stored_key: bytes = b""


@attrs.define
class ReadLastAddConfirmedRequest:
    """Tell the last add confirmed once it exceeds `after`, or after `wait_ms` at the latest (D1).

    If `entry_id` is confirmed then, the answer may bring the batches that a read of it would find, up to `bytes_max`: what
    the bookie has at hand, or none. So a reader that follows need not ask again.
    """

    request_id: int
    ledger_id: int
    key: bytes
    after: int
    wait_ms: int
    entry_id: int = 0
    stamp: int = 0
    bytes_max: int = 0


@attrs.define
class WatchRequest(ReadLastAddConfirmedRequest):
    """Asks for the last add confirmed like `ReadLastAddConfirmedRequest`, without a `key`: for a transport whose readers show
    none. `stored_key` is as in `CopyReadRequest`. No wire of replog carries it."""

    stored_key: bytes = b""


@attrs.define
class WriteLastAddConfirmedRequest:
    """Remember the last add confirmed that `proof` proves, though no entry carries it yet (W5, R11)."""

    request_id: int
    ledger_id: int
    key: bytes
    term: int
    proof: bytes
    revision: ClassVar[int] = 0  # its sender looks at the record by itself (W9)


class AdminCommand(enum.IntEnum):
    """The commands of an administrator to a bookie. The numbers pass over the wire."""

    UNKNOWN = 0  # one of a later version: answered by BAD_REQUEST
    STATISTICS = 1  # any client that may connect may ask for them
    COLLECT_GARBAGE = 2
    COMPACT = 3  # where most is gained
    COMPACT_ALL = 4
    SCRUB = 5
    LEDGER_DELETED = 6  # a hint: look soon what of this ledger is still this bookie's (B6). Clients may send it
    CONFIRM_METASTORE = 7  # the metastore is right as it is, after a restore (B6a)


@attrs.define
class AdminRequest:
    """Do this, and answer how it went: the answer's `detail` is a JSON object, or with UNKNOWN what went wrong. It
    carries no key, since it changes no ledger: the transport knows which clients may ask. `ledger_id` is for
    LEDGER_DELETED only."""

    request_id: int
    command: AdminCommand
    ledger_id: int = 0


class MetastorePurpose(enum.IntEnum):
    """The rights that a request to the process's metastore needs. The numbers pass over the wire."""

    MEMBER = 1  # a message of another member
    CLIENT = 2  # a question or a change of a client
    ADMIN = 3  # a change of the members


@attrs.define
class MetastoreRequest:
    """A request to the member of a metastore that runs in the bookie's process. The transport knows which clients may send
    it, and nothing of its `body`, which is `replog.metastores.quorum`'s. It is for no ledger."""

    request_id: int
    purpose: MetastorePurpose
    body: bytes
    ledger_id: ClassVar[int] = 0


LedgerRequest = (
    AddRequest
    | FenceRequest
    | RecoveryReadRequest
    | ReadRequest
    | ReadLastAddConfirmedRequest
    | WriteLastAddConfirmedRequest
    | CopyRequest
    | CopyReadRequest
    | RangesRequest
)
RepairRequest = CopyRequest | CopyReadRequest | RangesRequest
Request = LedgerRequest | AdminRequest | MetastoreRequest


@attrs.define
class Response:
    """The answer to the request of this id. Fields that a request doesn't ask for keep their defaults.

    `awaited` tells the writer that a reader waits at this bookie for a later last add confirmed (W5). A hint. A reader that comes
    after the answer to the last add is reported by a message of its own, `LedgerAwaited`.
    With RECORD_OUTDATED, `fence_term` is the revision that the bookie knows. `last_add_confirmed` is a hint, too: what the
    bookie can prove of it is in `proof`, in the answers to
    `FenceRequest` and `ReadLastAddConfirmedRequest`, and only that counts (R11). `body` is the answer to a `MetastoreRequest`.
    """

    request_id: int
    status: Status
    last_add_confirmed: int = -1
    fence_term: int = 0
    batches: tuple[Batch, ...] = ()
    detail: str = ""
    awaited: bool = False
    proof: bytes = b""
    body: bytes = b""


@attrs.define
class LedgerAwaited(Response):
    """A bookie's unasked message to a ledger's writer: a reader waits for an entry whose add was answered before (W5).
    It answers no request: `request_id` is `NO_REQUEST`."""

    ledger_id: int = -1


def ledger_awaited(ledger_id: int) -> LedgerAwaited:
    """The message for the writer of this ledger."""
    return LedgerAwaited(NO_REQUEST, Status.OK, awaited=True, ledger_id=ledger_id)
