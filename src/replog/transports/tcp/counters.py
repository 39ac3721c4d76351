"""Counters of a transport's listeners, counted by connection: a message costs nothing."""

from __future__ import annotations

from replog.transports.tcp.stream import Stream


class Counters:
    """Since the transport was made. The number of open connections is looked up on request."""

    __slots__ = ("_open", "_received_bytes", "_sent_bytes", "accepted", "failed_handshakes", "handshakes", "refused")

    def __init__(self) -> None:
        self.accepted = 0  # connections that were heard
        self.refused = 0  # and that were not: too many, or their host had failed too often
        self.handshakes = 0  # under way
        self.failed_handshakes = 0
        self._open: set[Stream] = set()
        self._received_bytes = self._sent_bytes = 0  # over what is closed

    def opened(self, stream: Stream) -> None:
        """A connection is heard."""
        self.accepted += 1
        self._open.add(stream)

    def closed(self, stream: Stream) -> None:
        """And has ended."""
        self._open.remove(stream)
        self._received_bytes += stream.received_bytes
        self._sent_bytes += stream.taken_bytes

    def statistics(self) -> dict[str, float]:
        """Counters, and the gauges `connections` and `handshakes`; bytes as they are on the wire."""
        return {
            "connections": len(self._open),
            "handshakes": self.handshakes,
            "accepted_connections": self.accepted,
            "refused_connections": self.refused,
            "failed_handshakes": self.failed_handshakes,
            "received_bytes": self._received_bytes + sum(each.received_bytes for each in self._open),
            "sent_bytes": self._sent_bytes + sum(each.taken_bytes for each in self._open),
        }
