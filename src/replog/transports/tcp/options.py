"""What can be set about connections over TCP and over Unix sockets."""

from __future__ import annotations

import re

import attrs

from replog.errors import ConfigError
from replog.protocol.wire import FRAME_BYTES_MAX, HEADER


@attrs.frozen
class StreamOptions:
    """Limits and deadlines of connections, whatever kind of socket they have. Both sides have all of them.

    `frame_bytes_max`: of one message. `connection_bytes_max`: of what one connection asked and has no answer
    to, and of what waits to be sent to it; beyond it nothing more is read from it. `total_bytes_max`: the same for all
    connections of a listener, each of which may have a share of what is free, so that none takes the last of it.
    `connections_max`, `handshakes_max`: at a time; a handshake comes before anything else,
    and one host gets half of them. `failed_handshakes_max` from one host are taken at once, and one each second
    afterwards; until then its connections are closed unheard.

    `handshake_timeout_s`: for the whole of a handshake. `transfer_timeout_s`: a message that began has to end, and a
    peer has to take some of what waits for it. `silence_max_s`: nothing heard for so long, and the connection is taken for
    lost; a quarter of it, and the client asks for a sign of life. `drain_timeout_s`: how long a bookie that leaves waits for
    what it accepted to be answered.
    """

    frame_bytes_max: int = FRAME_BYTES_MAX
    connection_bytes_max: int = 64 << 20
    total_bytes_max: int = 512 << 20
    connections_max: int = 1000
    handshakes_max: int = 64
    failed_handshakes_max: int = 20
    handshake_timeout_s: float = 10.0
    transfer_timeout_s: float = 30.0
    silence_max_s: float = 30.0
    drain_timeout_s: float = 5.0

    def __attrs_post_init__(self) -> None:
        for name, least in _LEAST.items():
            if not getattr(self, name) >= least:  # true for NaN, too
                raise ConfigError(f"{name}={getattr(self, name)}: at least {least}")
        if self.frame_bytes_max > FRAME_BYTES_MAX:
            raise ConfigError(f"frame_bytes_max={self.frame_bytes_max}: at most {FRAME_BYTES_MAX}")
        if self.connection_bytes_max < self.frame_bytes_max or self.total_bytes_max < self.connection_bytes_max:
            raise ConfigError("connection_bytes_max must be at least frame_bytes_max, total_bytes_max at least both")

    @property
    def is_client_mutual_tls(self) -> bool:
        """Whether a client shows a certificate."""
        return False

    @property
    def is_bookie_mutual_tls(self) -> bool:
        """Whether a bookie asks for certificates."""
        return False


@attrs.frozen
class TcpOptions(StreamOptions):
    """Options of the scheme `tcp`, as in `tcp:0.0.0.0:3181?tls_certificate_file=bookie.pem`. Both sides have all of them, and
    those of `StreamOptions`.

    TLS. `tls_certificate_file` and `tls_key_file` (PEM; the key may stand in the certificate's file) are what this side shows:
    a bookie with a certificate speaks TLS only. `tls_ca_file`: certificates of the other side must be signed by this
    authority. A client with one speaks TLS only; a bookie with one lets in only clients with such a certificate (mutual TLS).
    `tls`: yes speaks TLS without an authority of one's own, a client then trusts what the system trusts; no speaks none, and
    then the files above may not be given. `tls_check_hostname`: a client checks that the certificate is for the host that it
    connects to. `tls_hostname`: for this one instead.

    `advertise`: the HOST:PORT that others must connect to, if it is not where the bookie listens; a port of 0, or none, is
    replaced by the real one.

    `unix_nearby`: without TLS, a client on the bookie's own machine takes a Unix socket instead, which costs less; only
    where both sides say so, on Linux, and where the bookie is run by the client's user or by root.
    """

    tls: bool | None = None
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_ca_file: str = ""
    tls_check_hostname: bool = True
    tls_hostname: str = ""
    advertise: str = ""
    unix_nearby: bool = True

    def __attrs_post_init__(self) -> None:
        StreamOptions.__attrs_post_init__(self)
        files = self.tls_certificate_file or self.tls_key_file or self.tls_ca_file
        if self.tls is False and files:
            raise ConfigError(f"tls=no, but there is {files}: leave one of them out")
        if self.tls_key_file and not self.tls_certificate_file:
            raise ConfigError(f"tls_key_file={self.tls_key_file} needs a tls_certificate_file")

    @property
    def is_client_tls(self) -> bool:
        """Whether a client speaks TLS."""
        return self.tls is True or bool(self.tls_certificate_file or self.tls_ca_file)

    @property
    def is_client_mutual_tls(self) -> bool:
        return bool(self.tls_certificate_file)

    @property
    def is_bookie_mutual_tls(self) -> bool:
        return self.is_bookie_tls and bool(self.tls_ca_file)

    @property
    def is_bookie_tls(self) -> bool:
        """Whether a bookie speaks TLS. Raises `ConfigError` if it should and cannot."""
        if (self.tls is True or self.tls_ca_file) and not self.tls_certificate_file:
            raise ConfigError("a bookie needs a tls_certificate_file to speak TLS")
        return bool(self.tls_certificate_file)


@attrs.frozen
class UnixOptions(StreamOptions):
    """Options of the scheme `unix`, as in `unix:/run/app/bookie.sock?mode=0660`: those of `StreamOptions`, and no TLS.

    `mode`: permissions of the socket's file, in octal, whatever the umask: whoever may write to the file may connect. Only
    the bookie's side uses it.
    """

    mode: str = "0600"

    def __attrs_post_init__(self) -> None:
        StreamOptions.__attrs_post_init__(self)
        if not re.fullmatch("0?[0-7]{3}", self.mode):
            raise ConfigError(f"mode={self.mode}: must be permissions in octal, such as 0600 or 0660")

    @property
    def mode_bits(self) -> int:
        """The permissions as a number."""
        return int(self.mode, 8)


_LEAST: dict[str, float] = {
    "frame_bytes_max": HEADER.size + (2 << 20),
    "connection_bytes_max": 1,
    "total_bytes_max": 1,
    "connections_max": 1,
    "handshakes_max": 1,
    "failed_handshakes_max": 1,
    "handshake_timeout_s": 0.001,
    "transfer_timeout_s": 0.001,
    "silence_max_s": 0.001,
    "drain_timeout_s": 0.0,
}
