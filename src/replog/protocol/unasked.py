"""Messages of a bookie that no request asked for, over a byte stream: a frame with request id 0 (W5)."""

from __future__ import annotations

import struct

from replog.errors import RemoteProtocolError
from replog.protocol.frames import Frame, seal
from replog.protocol.messages import NO_REQUEST, LedgerAwaited, ledger_awaited

AWAITED = 33  # the kind of the frame
FEATURE_AWAITED = 1  # the client understands it
_LEDGER_ID = struct.Struct("<q")


def encode_awaited(ledger_id: int) -> bytes:
    """The frame that tells a ledger's writer that a reader waits (W5)."""
    return seal(AWAITED, 0, NO_REQUEST, _LEDGER_ID.pack(ledger_id))


def decode_awaited(frame: Frame) -> LedgerAwaited:
    """Reads that frame. Raises `RemoteProtocolError` for anything that isn't one, and nothing else."""
    try:
        (ledger_id,) = _LEDGER_ID.unpack_from(frame.fields)
    except struct.error as error:
        raise RemoteProtocolError(f"a frame of kind {AWAITED} with {len(frame.fields)} bytes of fields") from error
    return ledger_awaited(ledger_id)
