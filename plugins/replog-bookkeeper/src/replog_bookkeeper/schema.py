"""The protobuf messages of BookKeeper, as tables: field number, label, type, name. The kept library `protobuf` does the work.

Fields that are enumerations on the wire are int32 here, which has the same bytes, so that an unknown number can be named in an
error. Only where a text form is read they have their names.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_WIRE = """
message BKPacketHeader
1 required int32 version
2 required int32 operation
3 required uint64 txnId
4 optional uint32 priority
message ReadRequest
1 required int64 ledgerId
2 required int64 entryId
3 optional bytes masterKey
4 optional int64 previousLAC
5 optional int64 timeOut
100 optional int32 flag
message AddRequest
1 required int64 ledgerId
2 required int64 entryId
3 required bytes masterKey
4 required bytes body
5 optional int32 writeFlags
100 optional int32 flag
message StartTLSRequest
message AuthMessage
1 required string authPluginName
2 required bytes payload
message GetBookieInfoRequest
1 optional int64 requested
message ForceLedgerRequest
1 required int64 ledgerId
message GetListOfEntriesOfLedgerRequest
1 required int64 ledgerId
message WriteLacRequest
1 required int64 ledgerId
2 required int64 lac
3 required bytes masterKey
4 required bytes body
message ReadLacRequest
1 required int64 ledgerId
message ReadResponse
1 required int32 status
2 required int64 ledgerId
3 required int64 entryId
4 optional bytes body
5 optional int64 maxLAC
6 optional int64 lacUpdateTimestamp
message AddResponse
1 required int32 status
2 required int64 ledgerId
3 required int64 entryId
message WriteLacResponse
1 required int32 status
2 required int64 ledgerId
message ReadLacResponse
1 required int32 status
2 required int64 ledgerId
3 optional bytes lacBody
4 optional bytes lastEntryBody
message StartTLSResponse
message GetBookieInfoResponse
1 required int32 status
2 optional int64 totalDiskCapacity
3 optional int64 freeDiskSpace
message ForceLedgerResponse
1 required int32 status
2 required int64 ledgerId
message GetListOfEntriesOfLedgerResponse
1 required int32 status
2 required int64 ledgerId
3 optional bytes availabilityOfEntriesOfLedger
message Request
1 required .BKPacketHeader header
100 optional .ReadRequest readRequest
101 optional .AddRequest addRequest
102 optional .AuthMessage authRequest
103 optional .WriteLacRequest writeLacRequest
104 optional .ReadLacRequest readLacRequest
105 optional .GetBookieInfoRequest getBookieInfoRequest
106 optional .StartTLSRequest startTLSRequest
107 optional .ForceLedgerRequest forceLedgerRequest
108 optional .GetListOfEntriesOfLedgerRequest getListOfEntriesOfLedgerRequest
message Response
1 required .BKPacketHeader header
2 required int32 status
100 optional .ReadResponse readResponse
101 optional .AddResponse addResponse
102 optional .AuthMessage authResponse
103 optional .WriteLacResponse writeLacResponse
104 optional .ReadLacResponse readLacResponse
105 optional .GetBookieInfoResponse getBookieInfoResponse
106 optional .StartTLSResponse startTLSResponse
107 optional .ForceLedgerResponse forceLedgerResponse
108 optional .GetListOfEntriesOfLedgerResponse getListOfEntriesOfLedgerResponse
"""
_DATA = """
enum State OPEN=1 IN_RECOVERY=2 CLOSED=3
enum DigestType CRC32=1 HMAC=2 CRC32C=3 DUMMY=4
message Segment
1 repeated string ensembleMember
2 required int64 firstEntryId
message CustomMetadata
1 optional string key
2 optional bytes value
message LedgerMetadataFormat
1 required int32 quorumSize
2 required int32 ensembleSize
3 required int64 length
4 optional int64 lastEntryId
5 required State state
6 repeated .Segment segment
7 optional DigestType digestType
8 optional bytes password
9 optional int32 ackQuorumSize
10 optional int64 ctime
11 repeated .CustomMetadata customMetadata
12 optional int64 cToken
message Endpoint
1 optional string id
2 optional int32 port
3 optional string host
4 optional string protocol
5 repeated string auth
6 repeated string extensions
message Property
1 required string key
2 required string value
message BookieServiceInfoFormat
6 repeated .Endpoint endpoints
7 repeated .Property properties
message CookieFormat
1 required string bookieHost
2 required string journalDir
3 required string ledgerDirs
4 optional string instanceId
5 optional string indexDirs
"""
_Field = descriptor_pb2.FieldDescriptorProto


def message_classes(package: str, text: str) -> Any:
    """The classes of these messages, by name."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    names, enums = [], set()
    for line in filter(None, text.splitlines()):
        words = line.split()
        if words[0] == "message":
            file.message_type.add(name=words[1])
            names.append(words[1])
        elif words[0] == "enum":
            enum = file.enum_type.add(name=words[1])
            enums.add(words[1])
            for name, number in (word.split("=") for word in words[2:]):
                enum.value.add(name=name, number=int(number))
        else:
            number, label, kind, name = words
            field = file.message_type[-1].field.add(name=name, number=int(number))
            field.label = getattr(_Field, f"LABEL_{label.upper()}")
            if kind.startswith("."):
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{package}{kind}"
            elif kind in enums:
                field.type, field.type_name = _Field.TYPE_ENUM, f".{package}.{kind}"
            else:
                field.type = getattr(_Field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in names}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


wire = message_classes("replog_bookkeeper.wire", _WIRE)
data = message_classes("replog_bookkeeper.data", _DATA)
