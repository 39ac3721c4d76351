"""Messages as frames of bytes, for a byte stream between a client and a bookie (wire version 1).

A frame is a header, the fields of its kind, and a body that is copied verbatim: batches (W3). Little-endian throughout:

    header (24 bytes)  checksum, size of the whole frame, size of the fields, kind, flags, reserved, request id
    fields             as the kind says; a later version may append some, which this one skips
    body               the batch of an add, the batches of an answer, what is for a metastore; nothing otherwise

The checksum is the CRC32C of the header behind it and of the fields. A batch is checked by its own code: CRC32C by the
bookie, HMAC only with the password; so an add of an HMAC batch carries a CRC32C of it among its fields.

A connection begins with the frames of `replog.protocol.greetings`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from crc32c import crc32c

from replog.errors import LocalProtocolError, RemoteProtocolError
from replog.protocol.batch import Batch, decode
from replog.protocol.digest import DigestType
from replog.protocol.frames import FIELDS_BYTES_MAX as FIELDS_BYTES_MAX
from replog.protocol.frames import FRAME_BYTES_MAX as FRAME_BYTES_MAX
from replog.protocol.frames import GREETING_BYTES_MAX as GREETING_BYTES_MAX
from replog.protocol.frames import HEADER as HEADER
from replog.protocol.frames import Frame as Frame
from replog.protocol.frames import FrameSplitter as FrameSplitter
from replog.protocol.frames import seal as seal
from replog.protocol.greetings import HELLO as HELLO
from replog.protocol.greetings import MAGIC as MAGIC
from replog.protocol.greetings import NONCE_BYTES as NONCE_BYTES
from replog.protocol.greetings import PING as PING
from replog.protocol.greetings import PING_FRAME as PING_FRAME
from replog.protocol.greetings import PONG as PONG
from replog.protocol.greetings import PONG_FRAME as PONG_FRAME
from replog.protocol.greetings import PROVE as PROVE
from replog.protocol.greetings import READY as READY
from replog.protocol.greetings import REASON_BYTES_MAX as REASON_BYTES_MAX
from replog.protocol.greetings import REFUSE as REFUSE
from replog.protocol.greetings import WELCOME as WELCOME
from replog.protocol.greetings import Greeting as Greeting
from replog.protocol.greetings import Hello as Hello
from replog.protocol.greetings import Prove as Prove
from replog.protocol.greetings import Ready as Ready
from replog.protocol.greetings import Refuse as Refuse
from replog.protocol.greetings import Welcome as Welcome
from replog.protocol.greetings import decode_greeting as decode_greeting
from replog.protocol.greetings import encode_greeting as encode_greeting
from replog.protocol.messages import (
    AddRequest,
    AdminCommand,
    AdminRequest,
    CopyReadRequest,
    CopyRequest,
    FenceRequest,
    MetastorePurpose,
    MetastoreRequest,
    RangesRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    RepairRequest,
    Request,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.proofs import PROOF_BYTES_MAX
from replog.protocol.unasked import AWAITED as AWAITED
from replog.protocol.unasked import FEATURE_AWAITED as FEATURE_AWAITED

WIRE_VERSION = 1
DETAIL_BYTES_MAX = FIELDS_BYTES_MAX // 2
KEY_BYTES = 32

ADD, FENCE, RECOVERY_READ, READ, READ_LAST_ADD_CONFIRMED, WRITE_LAST_ADD_CONFIRMED, ADMIN = range(16, 23)
COPY, COPY_READ, RANGES, METASTORE = range(23, 27)
RESPONSE = 32

_RECOVERY = 1  # a flag of an add
_AWAITED = 1  # flag of an answer
_ADD = struct.Struct(
    "<qqq32sII"
)  # ledger id, term, revision, key, CRC32C of an HMAC batch or 0, bytes of the proof behind
_FENCE = struct.Struct("<qqq32s")  # ledger id, term, revision, key
_RECOVERY_READ = struct.Struct("<qqqqq32s")  # ledger id, term, revision, entry id, stamp, key
_READ = struct.Struct("<qqqq32s")
_READ_LAST_ADD_CONFIRMED = struct.Struct("<qqq32s")
_AND_READ = struct.Struct("<qqq")  # entry id, stamp, bytes: behind the former, if batches are wanted
_WRITE_LAST_ADD_CONFIRMED = struct.Struct("<qq32sI")  # ledger id, term, key, bytes of the proof behind this
_ADMIN = struct.Struct("<I")  # the command; behind it, for LEDGER_DELETED:
_LEDGER_ID = struct.Struct("<q")
_METASTORE = struct.Struct("<II")  # the purpose, CRC32C of the body
_BODY_CHECKSUM = struct.Struct("<I")  # of an answer with a body that is no batch: behind its proof
_COPY = struct.Struct(
    "<qqq32sI32s"
)  # ledger id, term, revision, key or zeros, CRC32C of an HMAC batch or 0, stored key
_RANGES = struct.Struct("<qqqq32s32s")  # ledger id, stamp, first entry, last entry, key or zeros, stored key or zeros
_COPY_READ = struct.Struct("<qqqq32s32s")  # ledger id, entry id, stamp, bytes, key or zeros, stored key or zeros
_NO_KEY = bytes(KEY_BYTES)  # of a repairer, which has a role instead
# Status, last add confirmed, fence term, bytes of the detail, number of batches, bytes of the proof. Behind: detail, proof.
_RESPONSE = struct.Struct("<IqqIII")
_BATCH_SIZE = struct.Struct("<8xI")  # where a batch says how long it is
_COMMANDS = {int(command) for command in AdminCommand}
_PURPOSES = {int(purpose): purpose for purpose in MetastorePurpose}
_STATUSES = {int(status): status for status in Status}


# -- requests -----------------------------------------------------------------------------------------------------


def encode_request(request: Request, pieces: list[bytes]) -> int:
    """Appends the bytes of a request to `pieces`, the batch's unchanged; returns how many these are.

    Raises `LocalProtocolError` for a message that no bookie could read."""
    try:
        return _ENCODERS[type(request)](request, pieces)
    except (struct.error, OverflowError) as error:
        raise LocalProtocolError(f"{type(request).__name__} {request.request_id}: a field is out of range") from error


def _encode_add(request: AddRequest, pieces: list[bytes]) -> int:
    data, head = request.batch.data, request.frame_head
    # The bookies of a write set get the same request object: its head is made for the first of them only.
    if not head:
        key = request.key
        # The code of a CRC32C batch is its checksum. That of an HMAC batch can be checked only by those who have the
        # password.
        checksum = 0 if request.batch.digest_type is DigestType.CRC32C else crc32c(data)
        if len(key) != KEY_BYTES:
            key = _key(key)
        proof = request.proof
        numbers = request.ledger_id, request.term, request.revision
        fields = _ADD.pack(*numbers, key, checksum, len(proof) if proof else 0) + proof
        flags = _RECOVERY if request.recovery else 0
        request.frame_head = head = seal(ADD, flags, request.request_id, fields, len(data))
    pieces += (head, data)
    return len(head) + len(data)


def _encode_fence(request: FenceRequest, pieces: list[bytes]) -> int:
    fields = _FENCE.pack(request.ledger_id, request.term, request.revision, _key(request.key))
    return _put(pieces, FENCE, request.request_id, fields)


def _encode_recovery_read(request: RecoveryReadRequest, pieces: list[bytes]) -> int:
    key = _key(request.key)
    numbers = request.ledger_id, request.term, request.revision, request.entry_id, request.stamp
    fields = _RECOVERY_READ.pack(*numbers, key)
    return _put(pieces, RECOVERY_READ, request.request_id, fields)


def _encode_read(request: ReadRequest, pieces: list[bytes]) -> int:
    key = _key(request.key)
    fields = _READ.pack(request.ledger_id, request.entry_id, request.stamp, request.bytes_max, key)
    return _put(pieces, READ, request.request_id, fields)


def _encode_read_last_add_confirmed(request: ReadLastAddConfirmedRequest, pieces: list[bytes]) -> int:
    key = _key(request.key)
    fields = _READ_LAST_ADD_CONFIRMED.pack(request.ledger_id, request.after, request.wait_ms, key)
    if request.bytes_max:
        fields += _AND_READ.pack(request.entry_id, request.stamp, request.bytes_max)
    return _put(pieces, READ_LAST_ADD_CONFIRMED, request.request_id, fields)


def _encode_write_last_add_confirmed(request: WriteLastAddConfirmedRequest, pieces: list[bytes]) -> int:
    key = _key(request.key)
    fields = _WRITE_LAST_ADD_CONFIRMED.pack(request.ledger_id, request.term, key, len(request.proof)) + request.proof
    return _put(pieces, WRITE_LAST_ADD_CONFIRMED, request.request_id, fields)


def _encode_admin(request: AdminRequest, pieces: list[bytes]) -> int:
    fields = _ADMIN.pack(request.command)
    if request.command is AdminCommand.LEDGER_DELETED:
        fields += _LEDGER_ID.pack(request.ledger_id)
    return _put(pieces, ADMIN, request.request_id, fields)


def _encode_copy(request: CopyRequest, pieces: list[bytes]) -> int:
    data = request.batch.data
    checksum = 0 if request.batch.digest_type is DigestType.CRC32C else crc32c(data)
    keys = _keys(request)
    fields = _COPY.pack(request.ledger_id, request.term, request.revision, keys[0], checksum, keys[1])
    head = seal(COPY, 0, request.request_id, fields, len(data))
    pieces += (head, data)
    return len(head) + len(data)


def _encode_copy_read(request: CopyReadRequest, pieces: list[bytes]) -> int:
    numbers = request.ledger_id, request.entry_id, request.stamp, request.bytes_max
    return _put(pieces, COPY_READ, request.request_id, _COPY_READ.pack(*numbers, *_keys(request)))


def _encode_ranges(request: RangesRequest, pieces: list[bytes]) -> int:
    numbers = request.ledger_id, request.stamp, request.first_entry_id, request.last_entry_id
    return _put(pieces, RANGES, request.request_id, _RANGES.pack(*numbers, *_keys(request)))


def _encode_metastore(request: MetastoreRequest, pieces: list[bytes]) -> int:
    fields = _METASTORE.pack(request.purpose, crc32c(request.body))
    head = seal(METASTORE, 0, request.request_id, fields, len(request.body))
    pieces += (head, request.body)
    return len(head) + len(request.body)


def _put(pieces: list[bytes], kind: int, request_id: int, fields: bytes) -> int:
    frame = seal(kind, 0, request_id, fields)
    pieces.append(frame)
    return len(frame)


def _keys(request: RepairRequest) -> tuple[bytes, bytes]:
    return _key(request.key or _NO_KEY), _key(request.stored_key or _NO_KEY)


def _key(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise LocalProtocolError(f"a ledger's key has {KEY_BYTES} bytes, not {len(key)}")
    return key


_ENCODERS: dict[type, Callable[..., int]] = {
    AddRequest: _encode_add,
    FenceRequest: _encode_fence,
    RecoveryReadRequest: _encode_recovery_read,
    ReadRequest: _encode_read,
    ReadLastAddConfirmedRequest: _encode_read_last_add_confirmed,
    WriteLastAddConfirmedRequest: _encode_write_last_add_confirmed,
    AdminRequest: _encode_admin,
    CopyRequest: _encode_copy,
    CopyReadRequest: _encode_copy_read,
    RangesRequest: _encode_ranges,
    MetastoreRequest: _encode_metastore,
}


def decode_request(frame: Frame) -> Request:
    """Reads a request. Raises `RemoteProtocolError` for anything that isn't one, and nothing else."""
    decoder = _DECODERS.get(frame.kind)
    if decoder is None:
        raise RemoteProtocolError(f"a frame of kind {frame.kind}: no request that this version knows")
    try:
        request = decoder(frame)
    except struct.error as error:
        raise RemoteProtocolError(f"a request of kind {frame.kind} with {len(frame.fields)} bytes of fields") from error
    # If such a ledger were stored, nothing could remove it.
    if request.ledger_id < 0:
        raise RemoteProtocolError(f"a request for ledger {request.ledger_id}: there can be none")
    return request


def _decode_add(frame: Frame) -> AddRequest:
    ledger_id, term, revision, key, checksum, proof_bytes = _ADD.unpack_from(frame.fields)
    batch = decode(frame.body)
    if batch.digest_type is not DigestType.CRC32C and crc32c(frame.body) != checksum:
        raise RemoteProtocolError(f"{batch!r} does not match the CRC32C of its add: it was damaged on the way")
    recovery = frame.flags & _RECOVERY != 0
    proof = _read_proof(frame.fields, _ADD.size, proof_bytes) if proof_bytes else b""
    return AddRequest(frame.request_id, ledger_id, key, term, batch, recovery, proof, revision)


def _read_proof(fields: bytes, start: int, size: int) -> bytes:
    if size > PROOF_BYTES_MAX or start + size > len(fields):
        raise RemoteProtocolError(f"a message with a proof of {size} bytes, in {len(fields)} bytes of fields")
    return fields[start : start + size]


def _decode_fence(frame: Frame) -> FenceRequest:
    ledger_id, term, revision, key = _FENCE.unpack_from(frame.fields)
    return FenceRequest(frame.request_id, ledger_id, key, term, revision)


def _decode_recovery_read(frame: Frame) -> RecoveryReadRequest:
    ledger_id, term, revision, entry_id, stamp, key = _RECOVERY_READ.unpack_from(frame.fields)
    return RecoveryReadRequest(frame.request_id, ledger_id, key, term, entry_id, stamp, revision)


def _decode_read(frame: Frame) -> ReadRequest:
    ledger_id, entry_id, stamp, bytes_max, key = _READ.unpack_from(frame.fields)
    return ReadRequest(frame.request_id, ledger_id, key, entry_id, stamp, bytes_max)


def _decode_read_last_add_confirmed(frame: Frame) -> ReadLastAddConfirmedRequest:
    ledger_id, after, wait_ms, key = _READ_LAST_ADD_CONFIRMED.unpack_from(frame.fields)
    request = ReadLastAddConfirmedRequest(frame.request_id, ledger_id, key, after, wait_ms)
    # A client of an older version does not ask for batches.
    if len(frame.fields) >= _READ_LAST_ADD_CONFIRMED.size + _AND_READ.size:
        read = _AND_READ.unpack_from(frame.fields, _READ_LAST_ADD_CONFIRMED.size)
        request.entry_id, request.stamp, request.bytes_max = read
    return request


def _decode_write_last_add_confirmed(frame: Frame) -> WriteLastAddConfirmedRequest:
    ledger_id, term, key, proof_bytes = _WRITE_LAST_ADD_CONFIRMED.unpack_from(frame.fields)
    proof = _read_proof(frame.fields, _WRITE_LAST_ADD_CONFIRMED.size, proof_bytes)
    return WriteLastAddConfirmedRequest(frame.request_id, ledger_id, key, term, proof)


def _decode_admin(frame: Frame) -> AdminRequest:
    (number,) = _ADMIN.unpack_from(frame.fields)
    command = AdminCommand(number) if number in _COMMANDS else AdminCommand.UNKNOWN
    is_of_ledger = command is AdminCommand.LEDGER_DELETED
    return AdminRequest(frame.request_id, command, *(_LEDGER_ID.unpack_from(frame.fields, 4) if is_of_ledger else ()))


def _decode_copy(frame: Frame) -> CopyRequest:
    ledger_id, term, revision, key, checksum, stored_key = _COPY.unpack_from(frame.fields)
    batch = decode(frame.body)
    if batch.digest_type is not DigestType.CRC32C and crc32c(frame.body) != checksum:
        raise RemoteProtocolError(f"{batch!r} does not match the CRC32C of its copy: it was damaged on the way")
    keys = _key_or_nothing(key), _key_or_nothing(stored_key)
    copied = frame.request_id, ledger_id, keys[0], term, batch
    return CopyRequest(*copied, recovery=True, revision=revision, stored_key=keys[1])


def _decode_copy_read(frame: Frame) -> CopyReadRequest:
    ledger_id, entry_id, stamp, bytes_max, *keys = _COPY_READ.unpack_from(frame.fields)
    key, stored_key = map(_key_or_nothing, keys)
    return CopyReadRequest(frame.request_id, ledger_id, key, entry_id, stamp, bytes_max, stored_key)


def _decode_ranges(frame: Frame) -> RangesRequest:
    ledger_id, stamp, first, last, *keys = _RANGES.unpack_from(frame.fields)
    key, stored_key = map(_key_or_nothing, keys)
    return RangesRequest(frame.request_id, ledger_id, key, stamp, first, last, stored_key)


def _decode_metastore(frame: Frame) -> MetastoreRequest:
    number, checksum = _METASTORE.unpack_from(frame.fields)
    purpose = _PURPOSES.get(number)
    if purpose is None:
        raise RemoteProtocolError(f"a request to a metastore with purpose {number}, which this version does not know")
    if crc32c(frame.body) != checksum:
        raise RemoteProtocolError("a request to a metastore does not match its CRC32C: it was damaged on the way")
    return MetastoreRequest(frame.request_id, purpose, frame.body)


def _key_or_nothing(key: bytes) -> bytes:
    return b"" if key == _NO_KEY else key


_DECODERS: dict[int, Callable[[Frame], Request]] = {
    ADD: _decode_add,
    FENCE: _decode_fence,
    RECOVERY_READ: _decode_recovery_read,
    READ: _decode_read,
    READ_LAST_ADD_CONFIRMED: _decode_read_last_add_confirmed,
    WRITE_LAST_ADD_CONFIRMED: _decode_write_last_add_confirmed,
    ADMIN: _decode_admin,
    COPY: _decode_copy,
    COPY_READ: _decode_copy_read,
    RANGES: _decode_ranges,
    METASTORE: _decode_metastore,
}


# -- answers ------------------------------------------------------------------------------------------------------


def encode_response(response: Response, pieces: list[bytes]) -> int:
    """Appends the bytes of an answer to `pieces`, its batches' unchanged; returns how many these are."""
    detail = response.detail.encode("utf-8", "replace")[:DETAIL_BYTES_MAX] if response.detail else b""
    batches, proof = response.batches, response.proof
    proof_bytes = len(proof) if proof else 0
    fields = _RESPONSE.pack(
        response.status, response.last_add_confirmed, response.fence_term, len(detail), len(batches), proof_bytes
    )
    # The answer to nearly every add has neither: this runs once for each of them.
    if detail or proof:
        fields += detail + proof
    if response.body:
        fields += _BODY_CHECKSUM.pack(crc32c(response.body))
        prefix = seal(RESPONSE, response.awaited, response.request_id, fields, len(response.body))
        pieces += (prefix, response.body)
        return len(prefix) + len(response.body)
    if not batches:
        # `awaited` is the flag of value 1, so it need not be translated.
        frame = seal(RESPONSE, response.awaited, response.request_id, fields)
        pieces.append(frame)
        return len(frame)
    body_bytes = 0
    for batch in batches:
        body_bytes += len(batch.data)
    prefix = seal(RESPONSE, response.awaited, response.request_id, fields, body_bytes)
    pieces.append(prefix)
    pieces += [batch.data for batch in batches]
    return len(prefix) + body_bytes


def decode_response(frame: Frame) -> Response:
    """Reads an answer. Raises `RemoteProtocolError` for anything that isn't one, and nothing else."""
    try:
        number, confirmed, fence_term, detail_bytes, count, proof_bytes = _RESPONSE.unpack_from(frame.fields)
    except struct.error as error:
        raise RemoteProtocolError(f"an answer with {len(frame.fields)} bytes of fields") from error
    status = _STATUSES.get(number)
    if status is None or _RESPONSE.size + detail_bytes > len(frame.fields):
        raise RemoteProtocolError(f"an answer of status {number} with {detail_bytes} bytes of detail")
    # The answer to an add, as nearly always.
    if not (frame.flags or detail_bytes or count or proof_bytes or frame.body):
        return Response(frame.request_id, status, confirmed, fence_term)
    awaited = frame.flags & _AWAITED != 0
    detail = frame.fields[_RESPONSE.size : _RESPONSE.size + detail_bytes].decode("utf-8", "replace")
    proof = _read_proof(frame.fields, _RESPONSE.size + detail_bytes, proof_bytes) if proof_bytes else b""
    if not count:
        _check_body(frame, _RESPONSE.size + detail_bytes + proof_bytes)
        return Response(frame.request_id, status, confirmed, fence_term, (), detail, awaited, proof, frame.body)
    batches = _decode_batches(frame.body, count)
    return Response(frame.request_id, status, confirmed, fence_term, batches, detail, awaited, proof)


def _check_body(frame: Frame, at: int) -> None:
    """A body without batches is a metastore's answer: nothing else of it is checked."""
    if not frame.body:
        return
    if len(frame.fields) < at + _BODY_CHECKSUM.size:
        raise RemoteProtocolError(f"an answer of no batches with a body of {len(frame.body)} bytes, and no checksum")
    (checksum,) = _BODY_CHECKSUM.unpack_from(frame.fields, at)
    if crc32c(frame.body) != checksum:
        raise RemoteProtocolError("an answer of a metastore does not match its CRC32C: it was damaged on the way")


def _decode_batches(body: bytes, count: int) -> tuple[Batch, ...]:
    # The body is the batch: no copy of a slice.
    if count == 1:
        return (decode(body),)
    batches: list[Batch] = []
    start = 0
    while start < len(body) and len(batches) < count:
        if start + _BATCH_SIZE.size > len(body):
            raise RemoteProtocolError(f"an answer that ends within the header of batch {len(batches)}")
        (size,) = _BATCH_SIZE.unpack_from(body, start)
        batches.append(decode(body[start : start + size]))
        start += size
    if start != len(body) or len(batches) != count:
        raise RemoteProtocolError(f"an answer of {count} batches that has {len(batches)}, in {len(body)} bytes")
    return tuple(batches)
