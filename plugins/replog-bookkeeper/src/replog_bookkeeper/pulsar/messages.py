"""The parts of a topic's entry: metadata of the broker, a checksum, metadata of the message or batch, and the payload.

    [0x0e02, int32 size, BrokerEntryMetadata] [0x0e01, int32 CRC32C of all after it] int32 size, MessageMetadata, payload

A batch's payload, once it is expanded, is for each message: int32 size, SingleMessageMetadata, its bytes. A message that is too
large for an entry is cut into chunks after it was compressed. An encrypted payload was compressed first.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import attrs
from crc32c import crc32c
from google.protobuf.message import DecodeError

from replog.errors import CompressionUnavailableError, ReplogError
from replog_bookkeeper.pulsar.compression import expand, name_of
from replog_bookkeeper.pulsar.errors import MessageDamagedError, MessageTooLargeError
from replog_bookkeeper.pulsar.schema import messages

_BROKER, _CHECKSUM = b"\x0e\x02", b"\x0e\x01"
_SIZE_BYTES = 4
_ABORTED = 22  # the marker that ends a transaction which has no effect


@attrs.frozen
class Encryption:
    """How a message is encrypted. Decrypting gives compressed data, and a batch if `messages` is not None."""

    algorithm: str
    keys: Mapping[str, bytes]  #: The key of the data, encrypted with each of these keys of the readers.
    parameter: bytes
    compression: str
    uncompressed_bytes: int
    messages: int | None
    chunk: tuple[str, int, int] | None  #: Of a chunk: the message's UUID, the chunk's number, and how many there are.


@attrs.frozen(kw_only=True)
class Message:
    """A message of a topic. Its place is that of its entry, and its index if it came in a batch. Times are ms since the epoch."""

    ledger_id: int
    entry_id: int
    batch_index: int | None = None
    data: bytes | None  #: None: the key has no value any more.
    key: bytes | None = None
    ordering_key: bytes | None = None
    properties: Mapping[str, str] = attrs.field(factory=dict)
    publish_time_ms: int
    event_time_ms: int | None = None
    producer_name: str
    sequence_id: int
    schema_version: bytes | None = None
    deliver_at_ms: int | None = None
    replicated_from: str | None = None
    broker_time_ms: int | None = None  #: When a broker took it, if it noted that.
    index: int | None = None  #: Its number in the topic, if brokers count.
    transaction: tuple[int, int] | None = None  #: It counts only if this transaction was committed.
    chunks: int | None = None  #: The number of entries that it was joined from; its place is that of the last.
    encryption: Encryption | None = None  #: Its data are encrypted, exactly as they are in the entry.


@attrs.frozen
class Unreadable:
    """A part of a topic that could not be read, and why. Without entries it is a whole ledger."""

    ledger_id: int
    first_entry_id: int | None
    last_entry_id: int | None
    error: ReplogError

    def __str__(self) -> str:
        place = f"ledger {self.ledger_id}"
        if self.first_entry_id is not None:
            place += f", entry {self.first_entry_id}"
        if self.last_entry_id != self.first_entry_id:
            place += f" to {self.last_entry_id}"
        return f"{place}: {str(self.error).removeprefix(f'ledger {self.ledger_id}: ')}"


@attrs.frozen
class Piece:
    """A chunk of a message that was cut into several entries."""

    ledger_id: int
    entry_id: int
    metadata: Any
    broker: Any
    data: bytes
    entry_bytes: int  # of its entry, which bounds the memory that it takes

    @property
    def message(self) -> tuple[bytes, bytes]:
        """The message that it is a piece of."""
        return self.metadata.producer_name, self.metadata.uuid


@attrs.frozen
class Marker:
    """An entry that brokers wrote for themselves. `aborted` is the transaction that it ends without effect."""

    aborted: tuple[int, int] | None


def take_apart(
    ledger_id: int, entry_id: int, data: bytes, message_bytes_max: int
) -> Piece | Marker | list[Message | Unreadable]:
    """The messages of an entry, of a batch that is cut short those before the cut; or the one piece or marker that it is."""

    def unreadable(error: ReplogError) -> Unreadable:
        return Unreadable(ledger_id, entry_id, entry_id, error)

    found: list[Message | Unreadable] = []
    try:
        broker, metadata, payload = _parsed(data)
        if metadata.HasField("marker_type"):
            return Marker(_transaction(metadata) if metadata.marker_type == _ABORTED else None)
        if metadata.encryption_keys:
            return [_message(ledger_id, entry_id, metadata, broker, payload, encryption=_encryption(metadata))]
        if metadata.num_chunks_from_msg > 1:
            return Piece(ledger_id, entry_id, metadata, broker, payload, len(data))
        payload = expand(metadata.compression, payload, metadata.uncompressed_size, message_bytes_max)
        if not metadata.HasField("num_messages_in_batch"):
            return [_message(ledger_id, entry_id, metadata, broker, payload)]
        at = 0
        for index in range(metadata.num_messages_in_batch):
            message, at = _of_batch(ledger_id, entry_id, index, metadata, broker, payload, at)
            found.append(message)
        if at != len(payload) or not found:
            raise MessageDamagedError(
                f"{len(payload) - at} bytes are left after the {len(found)} messages of its batch"
            )
    except (MessageDamagedError, MessageTooLargeError, CompressionUnavailableError) as error:
        found.append(unreadable(error))
    return found


def joined(pieces: list[Piece], message_bytes_max: int) -> Message:
    """The message that these are all pieces of, in their order.

    Raises `MessageDamagedError`, `MessageTooLargeError`, `CompressionUnavailableError`."""
    last = pieces[-1]
    metadata, data = last.metadata, b"".join(piece.data for piece in pieces)
    if len(data) != metadata.total_chunk_msg_size:
        raise MessageDamagedError(f"its chunks have {len(data)} bytes in place of {metadata.total_chunk_msg_size}")
    data = expand(metadata.compression, data, metadata.uncompressed_size, message_bytes_max)
    return _message(last.ledger_id, last.entry_id, metadata, last.broker, data, chunks=len(pieces))


def _parsed(data: bytes) -> tuple[Any, Any, bytes]:
    broker, at = messages["BrokerEntryMetadata"](), 0
    if data.startswith(_BROKER):
        broker, at = _framed("BrokerEntryMetadata", data, len(_BROKER))
    if data.startswith(_CHECKSUM, at):
        start = at + len(_CHECKSUM)
        at = start + _SIZE_BYTES
        if len(data) < at or crc32c(memoryview(data)[at:]) != int.from_bytes(data[start:at], "big"):
            raise MessageDamagedError("its CRC32C checksum differs")
    metadata, at = _framed("MessageMetadata", data, at)
    return broker, metadata, data[at:]


def _framed(name: str, data: bytes, at: int) -> tuple[Any, int]:
    """A message with its size before it, and where it ends."""
    start = at + _SIZE_BYTES
    size = int.from_bytes(data[at:start], "big")
    if len(data) < start + size:
        problem = f"{len(data) - at} bytes are left of it where a {name} with its size must be"
        raise MessageDamagedError(f"{problem}, of {size} bytes" if len(data) >= start else problem)
    try:
        found = messages[name].FromString(data[start : start + size])
    except DecodeError as error:
        raise MessageDamagedError(f"its {name} cannot be parsed: {error}") from error
    if not found.IsInitialized():
        raise MessageDamagedError(f"its {name} lacks {', '.join(found.FindInitializationErrors())}")
    return found, start + size


def _message(ledger_id: int, entry_id: int, metadata: Any, broker: Any, data: bytes, **more: Any) -> Message:
    is_null = metadata.null_value and "encryption" not in more
    return Message(
        ledger_id=ledger_id,
        entry_id=entry_id,
        data=None if is_null else data,
        **_of_message(metadata),
        **_of_entry(metadata, broker),
        **more,
    )


def _of_batch(
    ledger_id: int, entry_id: int, index: int, metadata: Any, broker: Any, payload: bytes, at: int
) -> tuple[Message, int]:
    """A message of a batch that begins at this place, and where it ends."""
    try:
        single, at = _framed("SingleMessageMetadata", payload, at)
        end = at + single.payload_size
        if not at <= end <= len(payload):
            raise MessageDamagedError(
                f"it has {single.payload_size} bytes, and {len(payload) - at} are left of its batch"
            )
        fields = _of_message(single)
    except MessageDamagedError as error:
        total = metadata.num_messages_in_batch
        raise MessageDamagedError(
            f"message {index} of the {total} of its batch: {error}; those after it are lost"
        ) from error
    if not single.HasField("sequence_id"):
        fields["sequence_id"] = metadata.sequence_id
    fields |= _of_entry(metadata, broker)
    if fields["index"] is not None:  # the broker notes that of the last one
        fields["index"] += index + 1 - metadata.num_messages_in_batch
    message = Message(
        ledger_id=ledger_id,
        entry_id=entry_id,
        batch_index=index,
        data=None if single.null_value else payload[at:end],
        **fields,
    )
    return message, end


def _of_message(fields: Any) -> dict[str, Any]:
    """The fields of each message, also in a batch."""
    return {
        "key": _key(fields),
        "ordering_key": fields.ordering_key if fields.HasField("ordering_key") else None,
        "properties": {_text(each.key): _text(each.value) for each in fields.properties},
        "event_time_ms": fields.event_time or None,
        "sequence_id": fields.sequence_id,
    }


def _of_entry(metadata: Any, broker: Any) -> dict[str, Any]:
    """The fields that all messages of an entry share."""

    def optional(source: Any, name: str) -> Any:
        return getattr(source, name) if source.HasField(name) else None

    replicated_from = optional(metadata, "replicated_from")
    return {
        "publish_time_ms": metadata.publish_time,
        "producer_name": _text(metadata.producer_name),
        "schema_version": optional(metadata, "schema_version"),
        "deliver_at_ms": optional(metadata, "deliver_at_time"),
        "replicated_from": None if replicated_from is None else _text(replicated_from),
        "broker_time_ms": optional(broker, "broker_timestamp"),
        "index": optional(broker, "index"),
        "transaction": _transaction(metadata),
    }


def _key(fields: Any) -> bytes | None:
    if fields.null_partition_key or not fields.HasField("partition_key"):
        return None
    key: bytes = fields.partition_key
    if not fields.partition_key_b64_encoded:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error as error:
        raise MessageDamagedError(f"its key {key[:100]!r} is said to be base64, and is not") from error


def _transaction(metadata: Any) -> tuple[int, int] | None:
    return (metadata.txnid_most_bits, metadata.txnid_least_bits) if metadata.HasField("txnid_most_bits") else None


def _encryption(metadata: Any) -> Encryption:
    is_batch, is_chunk = metadata.HasField("num_messages_in_batch"), metadata.num_chunks_from_msg > 1
    return Encryption(
        _text(metadata.encryption_algo),
        {_text(each.key): each.value for each in metadata.encryption_keys},
        metadata.encryption_param,
        name_of(metadata.compression),
        metadata.uncompressed_size,
        metadata.num_messages_in_batch if is_batch else None,
        (_text(metadata.uuid), metadata.chunk_id, metadata.num_chunks_from_msg) if is_chunk else None,
    )


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
