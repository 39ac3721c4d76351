"""TLS over a socket."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from replog.transports.tcp.refusals import NotTlsError, SilentPeerError, looks_like_none
from replog.transports.tcp.stream import Stream

_READ_BYTES = 1 << 14  # one record: no read returns more
_RECORDS_BYTES = 128 << 10  # received at a time: OpenSSL keeps a buffer of this size for as long as the connection


class TlsStream(Stream):
    """A `Stream` with TLS in between. `handshake` comes first."""

    def __init__(
        self, connected: socket.socket, context: ssl.SSLContext, *, hostname: str | None, is_bookie: bool
    ) -> None:
        super().__init__(connected)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_bookie, server_hostname=None if is_bookie else hostname
        )

    async def handshake(self) -> None:
        """Raises `NotTlsError`, `SilentPeerError`, `ssl.SSLError`, OSError."""
        has_heard = False
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send_records()
                if has_heard:
                    await self._receive_records()
                    continue
                self._take_records(await self._first_words())
                has_heard = True
            except ssl.SSLError:
                self._send_records()  # the alert, so that the peer learns why
                raise
            else:
                self._send_records()
                return

    async def _first_words(self) -> bytes:
        try:
            data = await super().receive()
        except ConnectionError as error:
            raise SilentPeerError from error
        if not data:
            raise SilentPeerError
        if looks_like_none(data):
            raise NotTlsError(data)
        return data

    def write_in_clear(self, piece: bytes) -> None:
        """Says something to a peer that speaks no TLS."""
        super().write([piece])

    @property
    def peer_certificate(self) -> bytes:
        """The certificate that the peer showed, in DER; b"" if it showed none."""
        return self._tls.getpeercert(binary_form=True) or b""

    @property
    def peer_names(self) -> tuple[str, ...]:
        """The names in the peer's verified certificate: those it is for, then its common name."""
        certificate: Mapping[str, Any] = self._tls.getpeercert() or {}
        names = [value for _, value in certificate.get("subjectAltName", ()) if isinstance(value, str)]
        for relative_name in certificate.get("subject", ()):
            names += [str(value) for key, value in relative_name if key == "commonName"]
        return tuple(dict.fromkeys(names))

    def write(self, pieces: Sequence[bytes]) -> None:
        if self.is_closed:
            return
        try:
            for piece in pieces:
                if piece:
                    self._tls.write(piece)
        except ssl.SSLError:
            self.break_off()
        self._send_records()

    async def receive(self, wanted_bytes: int = 0) -> bytes:
        while True:
            try:
                data = self._tls.read(min(wanted_bytes, _READ_BYTES) or _READ_BYTES)
            except ssl.SSLWantReadError:
                self._send_records()  # TLS has messages of its own
                if not await self._receive_records():
                    return b""
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            else:
                return data

    @property
    def unread_bytes(self) -> int:
        return self._incoming.pending

    async def _receive_records(self) -> bool:
        data = await super().receive(_RECORDS_BYTES)
        self._take_records(data)
        return bool(data)

    def _take_records(self, data: bytes) -> None:
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _send_records(self) -> None:
        if self._outgoing.pending:
            super().write([self._outgoing.read()])

    def close(self) -> None:
        if not self.is_closed:
            with suppress(ssl.SSLError, OSError):  # a farewell, if the peer still hears it
                self._tls.unwrap()
            self._send_records()
        super().close()
