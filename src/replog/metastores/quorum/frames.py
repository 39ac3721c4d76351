"""The bodies of messages between members, as bytes.

    kind (u8), sizes of cluster, sender and address (u8, u8, u16), cluster's id, sender's name, sender's address, payload

The payload is that of `replog.protocol.consensus.codec`, except for copies of the state: see `copies`.
"""

from __future__ import annotations

import enum
import struct

import attrs

from replog.errors import RemoteProtocolError

_HEAD = struct.Struct(">BBBH")


class FrameKind(enum.IntEnum):
    """The kinds of messages. Their numbers pass over the wire."""

    MESSAGE = 1  # of the machine
    PAGE = 2  # of a copy of the state
    COPY = 3  # the end of a copy
    FOUNDING = 4  # of a cluster that begins, or of one that wants to know whether it must
    JOIN = 5  # the sender wants to be let in under its name
    REFUSED = 6  # why it is not: text for people


@attrs.frozen
class MemberFrame:
    """A message of one process to another: `cluster` is "" for a sender that belongs to none yet."""

    kind: FrameKind
    cluster: str
    sender: str
    address: str
    payload: bytes = b""

    def encode(self) -> bytes:
        """The bytes that `decode` reads."""
        cluster, sender, address = self.cluster.encode(), self.sender.encode(), self.address.encode()
        head = _HEAD.pack(self.kind, len(cluster), len(sender), len(address))
        return b"".join((head, cluster, sender, address, self.payload))

    @staticmethod
    def decode(data: bytes) -> MemberFrame:
        """Raises `RemoteProtocolError`."""
        try:
            kind, *sizes = _HEAD.unpack_from(data)
            texts, at = [], _HEAD.size
            for size in sizes:
                texts.append(data[at : at + size].decode())
                at += size
            if at > len(data):
                raise ValueError(f"it ends within its head of {at} bytes")
            cluster, sender, address = texts
            return MemberFrame(FrameKind(kind), cluster, sender, address, data[at:])
        except (struct.error, ValueError) as error:
            raise RemoteProtocolError(f"{len(data)} bytes are no message of a member: {error}") from error
