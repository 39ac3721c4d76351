"""TLS over a socket, and the contexts that say who trusts whom."""

from __future__ import annotations

import hashlib
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from replog.errors import ConfigError
from replog.transports.tcp.options import TcpOptions
from replog.transports.tcp.stream import Stream

_READ_BYTES = 1 << 18


class TlsStream(Stream):
    """As `Stream`, with TLS between. `handshake` comes first."""

    def __init__(
        self, connected: socket.socket, context: ssl.SSLContext, *, hostname: str | None, is_bookie: bool
    ) -> None:
        super().__init__(connected)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_bookie, server_hostname=None if is_bookie else hostname
        )

    async def handshake(self) -> None:
        """Raises `ssl.SSLError`, OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send_records()
                await self._receive_records()
            except ssl.SSLError:
                self._send_records()  # the alert, so that the peer learns why
                raise
            else:
                self._send_records()
                return

    @property
    def peer_certificate(self) -> bytes:
        """The certificate that the peer showed, in DER; b"" if it showed none."""
        return self._tls.getpeercert(binary_form=True) or b""

    @property
    def peer_names(self) -> tuple[str, ...]:
        """The names in the peer's verified certificate: those it is for, then its common name."""
        certificate: Mapping[str, Any] = self._tls.getpeercert() or {}
        names = [str(value) for _, value in certificate.get("subjectAltName", ())]
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

    async def receive(self) -> bytes:
        while True:
            try:
                data = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                self._send_records()  # TLS has messages of its own
                if not await self._receive_records():
                    return b""
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            else:
                return data

    async def _receive_records(self) -> bool:
        data = await super().receive()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return bool(data)

    def _send_records(self) -> None:
        if self._outgoing.pending:
            super().write([self._outgoing.read()])

    def close(self) -> None:
        if not self.is_closed:
            with suppress(ssl.SSLError, OSError):  # a farewell, if the peer still hears it
                self._tls.unwrap()
            self._send_records()
        super().close()


def client_context(options: TcpOptions) -> ssl.SSLContext | None:
    """None without TLS. Raises `ConfigError`."""
    if not options.is_client_tls:
        return None
    context = _context(ssl.Purpose.SERVER_AUTH, options)
    context.check_hostname = options.tls_check_hostname
    return context


def bookie_context(options: TcpOptions) -> ssl.SSLContext | None:
    """None without TLS. Raises `ConfigError`."""
    if not options.is_bookie_tls:
        return None
    context = _context(ssl.Purpose.CLIENT_AUTH, options)
    if options.tls_ca_file:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _context(purpose: ssl.Purpose, options: TcpOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(purpose, cafile=options.tls_ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # both ends are replog: nothing older is needed
        if options.tls_certificate_file:
            context.load_cert_chain(options.tls_certificate_file, options.tls_key_file or None, _no_password)
    except (OSError, ssl.SSLError) as error:
        files = (options.tls_ca_file, options.tls_certificate_file, options.tls_key_file)
        named = ", ".join(name for name in files if name)
        raise ConfigError(f"TLS: the certificates and keys in {named} can't be used: {error}") from error
    return context


def _no_password() -> str:
    raise ConfigError("TLS: the key is encrypted, and there is nobody to ask for its password: decrypt it")


def certificate_digest(certificate: bytes) -> bytes:
    """What both sides mix into the session: whoever sits between them with another certificate is found out."""
    return hashlib.sha256(certificate).digest()


def own_certificate(options: TcpOptions) -> bytes:
    """The first certificate of the bookie's file, in DER. Raises `ConfigError`."""
    try:
        text = Path(options.tls_certificate_file).read_text(encoding="ascii")
        begin = text.index("-----BEGIN CERTIFICATE-----")
        end = text.index("-----END CERTIFICATE-----", begin) + len("-----END CERTIFICATE-----")
        return ssl.PEM_cert_to_DER_cert(text[begin:end])
    except (OSError, ValueError) as error:
        raise ConfigError(f"TLS: no certificate in {options.tls_certificate_file}: {error}") from error
