"""Entries, members and bases as bytes, for disks and messages.

    entry     format (u8), kind (u8), term (u64), CRC32C of what follows (u32), then the body, or the members as JSON
    base      index (u64), term (u64), the members as JSON

An entry of a format or a kind that this version does not know is refused, never skipped (Q20).
"""

from __future__ import annotations

import json
import struct
from typing import Any

from crc32c import crc32c

from replog.errors import RemoteProtocolError
from replog.protocol.consensus.groups import Membership
from replog.protocol.consensus.log import ABOUT_MEMBERS, Base, Kind, LogEntry

_FORMAT = 1
_ENTRY = struct.Struct(">BBQI")
_BASE = struct.Struct(">QQ")


def encode_entry(entry: LogEntry) -> bytes:
    """The bytes that `decode_entry` reads."""
    rest = entry.body if entry.members is None else encode_members(entry.members)
    return _ENTRY.pack(_FORMAT, entry.kind, entry.term, crc32c(rest)) + rest


def decode_entry(data: bytes) -> LogEntry:
    """Raises `RemoteProtocolError` for bytes that are no entry, are damaged, or are of a later format (Q20)."""
    if len(data) < _ENTRY.size:
        raise RemoteProtocolError(f"{len(data)} bytes are too few for an entry of the metastore's log")
    number, kind, term, checksum = _ENTRY.unpack_from(data)
    rest = data[_ENTRY.size :]
    if number != _FORMAT or kind not in set(Kind):
        raise RemoteProtocolError(
            f"an entry of the metastore's log has format {number} and kind {kind}: this version does not read it, update replog"
        )
    if crc32c(rest) != checksum:
        raise RemoteProtocolError("an entry of the metastore's log is damaged: its CRC32C differs")
    if kind in ABOUT_MEMBERS:
        return LogEntry(term, Kind(kind), members=decode_members(rest))
    return LogEntry(term, Kind(kind), rest)


def encode_members(members: Membership) -> bytes:
    """As JSON, with its keys in order."""
    facts = {"groups": members.groups, "addresses": dict(members.addresses)}
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()


def decode_members(data: bytes) -> Membership:
    """Raises `RemoteProtocolError`."""
    try:
        facts: Any = json.loads(data)
        groups = tuple(tuple(str(name) for name in group) for group in facts["groups"])
        return Membership(groups, {str(name): str(address) for name, address in facts["addresses"].items()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RemoteProtocolError(f"{len(data)} bytes do not say who the members are: {error}") from error


def encode_base(base: Base) -> bytes:
    """The bytes that `decode_base` reads."""
    return _BASE.pack(base.index, base.term) + encode_members(base.members)


def decode_base(data: bytes) -> Base:
    """Raises `RemoteProtocolError`."""
    if len(data) < _BASE.size:
        raise RemoteProtocolError(f"{len(data)} bytes are too few for the base of the metastore's log")
    index, term = _BASE.unpack_from(data)
    return Base(index, term, decode_members(data[_BASE.size :]))
