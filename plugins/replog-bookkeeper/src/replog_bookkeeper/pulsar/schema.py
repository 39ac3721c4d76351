"""The protobuf messages of Pulsar that a salvage reads, as tables like those of `replog_bookkeeper.schema`.

`records` are of managed ledgers, as Pulsar calls the ledgers of a topic; `messages` are what entries consist of. Fields that
nothing here reads are left out: the library skips them. Texts of messages are bytes here, which is the same on the wire: clients
in some languages write any bytes there.
"""

from __future__ import annotations

from replog_bookkeeper.schema import message_classes

_RECORDS = """
message Position
1 required int64 ledgerId
2 required int64 entryId
message Property
1 required string key
2 required string value
message Driver
1 required string name
message Offload
3 optional bool complete
4 optional bool bookkeeperDeleted
6 optional .Driver driverMetadata
message LedgerInfo
1 required int64 ledgerId
2 optional int64 entries
3 optional int64 size
4 optional int64 timestamp
5 optional .Offload offloadContext
message ManagedLedgerInfo
1 repeated .LedgerInfo ledgerInfo
2 optional .Position terminatedPosition
3 repeated .Property properties
message Range
1 required .Position lowerEndpoint
2 required .Position upperEndpoint
message BatchIndexes
1 required .Position position
message Bits
1 required int64 key
2 repeated int64 values
message PositionInfo
1 required int64 ledgerId
2 required int64 entryId
3 repeated .Range individualDeletedMessages
5 repeated .BatchIndexes batchedEntryDeletionIndexInfo
6 repeated .Bits individualDeletedMessageRanges
message ManagedCursorInfo
1 required int64 cursorsLedgerId
2 optional int64 markDeleteLedgerId
3 optional int64 markDeleteEntryId
4 repeated .Range individualDeletedMessages
7 repeated .BatchIndexes batchedEntryDeletionIndexInfo
8 repeated .Property cursorProperties
message Compressed
1 required int32 compressionType
2 required int32 uncompressedSize
"""
_MESSAGES = """
message KeyValue
1 required bytes key
2 required bytes value
message EncryptionKey
1 required bytes key
2 required bytes value
message BrokerEntryMetadata
1 optional uint64 broker_timestamp
2 optional uint64 index
message MessageMetadata
1 required bytes producer_name
2 required uint64 sequence_id
3 required uint64 publish_time
4 repeated .KeyValue properties
5 optional bytes replicated_from
6 optional bytes partition_key
8 optional int32 compression
9 optional uint32 uncompressed_size
11 optional int32 num_messages_in_batch
12 optional uint64 event_time
13 repeated .EncryptionKey encryption_keys
14 optional bytes encryption_algo
15 optional bytes encryption_param
16 optional bytes schema_version
17 optional bool partition_key_b64_encoded
18 optional bytes ordering_key
19 optional int64 deliver_at_time
20 optional int32 marker_type
22 optional uint64 txnid_least_bits
23 optional uint64 txnid_most_bits
25 optional bool null_value
26 optional bytes uuid
27 optional int32 num_chunks_from_msg
28 optional int32 total_chunk_msg_size
29 optional int32 chunk_id
30 optional bool null_partition_key
message SingleMessageMetadata
1 repeated .KeyValue properties
2 optional bytes partition_key
3 required int32 payload_size
5 optional uint64 event_time
6 optional bool partition_key_b64_encoded
7 optional bytes ordering_key
8 optional uint64 sequence_id
9 optional bool null_value
10 optional bool null_partition_key
"""

records = message_classes("replog_bookkeeper.pulsar.records", _RECORDS)
messages = message_classes("replog_bookkeeper.pulsar.messages", _MESSAGES)
