"""The options of connections over TCP and over Unix sockets."""

from __future__ import annotations

import re
from typing import Any

import attrs

from replog.errors import ConfigError
from replog.protocol.wire import FRAME_BYTES_MAX
from replog.runtime.tls import TlsOptions


@attrs.frozen
class StreamOptions:
    """Limits of connections over any kind of socket. Both sides have all of them.

    `connections_max`: of a listener, at a time. `total_bytes_max`: of all its connections' unanswered requests, and of
    messages that wait to be sent to them; each may have a share of what is free, so that none takes the last of it.

    `silence_max_s`: a connection on which nothing was heard for so long is taken for lost; after a quarter of it the
    client asks for a sign of life. The other deadlines follow from it: a message that began has to end within this
    time, and a peer has to take some of the bytes that wait for it.
    """

    total_bytes_max: int = 512 << 20
    connections_max: int = 1000
    silence_max_s: float = 30.0

    def __attrs_post_init__(self) -> None:
        _check(self, FRAME_BYTES_MAX)

    @property
    def is_client_mutual_tls(self) -> bool:
        """Whether a client shows a certificate."""
        return False

    @property
    def is_bookie_mutual_tls(self) -> bool:
        """Whether a bookie asks for certificates."""
        return False


@attrs.frozen
class TcpOptions(StreamOptions, TlsOptions):
    """Options of the scheme `tcp`, as in `tcp:0.0.0.0:3181?tls_certificate_file=bookie.pem`. Both sides have all of them, and
    those of `StreamOptions` and `TlsOptions`.

    A bookie with a certificate speaks TLS only, and so does a client with a `tls_ca_file`. A bookie with one lets in only
    clients with a certificate of that authority (mutual TLS). `tls_hostname`: the bookie's certificate must be for this
    host, instead of the one that is connected to.

    `advertise`: the HOST:PORT that others must connect to, if it is not where the bookie listens; a port of 0, or none, is
    replaced by the real one.

    `unix_nearby`: without TLS, a client on the bookie's own machine takes a Unix socket instead, which costs less; only
    where both sides say so, on Linux, and where the bookie is run by the client's user or by root.
    """

    tls_hostname: str = ""
    advertise: str = ""
    unix_nearby: bool = True

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.check_tls()

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

    `mode`: permissions of the socket's file, in octal, regardless of the umask: users who may write to the file may
    connect. Only the bookie's side uses it.
    """

    mode: str = "0600"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not re.fullmatch("0?[0-7]{3}", self.mode):
            raise ConfigError(f"mode={self.mode}: must be permissions in octal, such as 0600 or 0660")

    @property
    def mode_bits(self) -> int:
        """The permissions as a number."""
        return int(self.mode, 8)


# Without slots: a class can't have two bases with slots of their own.
@attrs.frozen(slots=False)
class StreamTuning(StreamOptions):
    """The options, and beside them the constants of connections. No configuration sets these; tests do, to see much soon."""

    # The largest entry and what stands around it: a smaller limit would refuse entries that the protocol allows.
    frame_bytes_max: int = FRAME_BYTES_MAX
    # Of one connection; beyond it nothing more is read from it. It holds the largest message, and as much again.
    connection_bytes_max: int = 64 << 20
    # At a time; one host gets half of them. A handshake takes milliseconds: 64 are thousands of clients a second.
    handshakes_max: int = 64
    # Of one host, at once; afterwards one each second. More than a client tries whose file of secrets is exchanged late.
    failed_handshakes_max: int = 20
    # The whole of it, with TLS and authentication: some round trips.
    handshake_timeout_s: float = 10.0
    # As `silence_max_s`: a peer that takes nothing for so long is as good as one that says nothing.
    transfer_timeout_s: float = 30.0
    # How long a bookie that leaves waits until accepted requests are answered: a few times what a commit on a busy disk takes.
    drain_timeout_s: float = 5.0

    def __attrs_post_init__(self) -> None:
        _check(self, self.connection_bytes_max)


@attrs.frozen
class TcpTuning(TcpOptions, StreamTuning):
    """Options and constants of the scheme `tcp`."""


@attrs.frozen
class UnixTuning(UnixOptions, StreamTuning):
    """Options and constants of the scheme `unix`."""


def tuned(options: TcpOptions | UnixOptions) -> TcpTuning | UnixTuning:
    """The options with the constants, which give way to them: deadlines that follow from `silence_max_s`, and one connection's
    share of `total_bytes_max`."""
    if isinstance(options, TcpTuning | UnixTuning):
        return options
    chosen: dict[str, Any] = {each.name: getattr(options, each.name) for each in attrs.fields(type(options))}
    silence_max_s = options.silence_max_s
    chosen |= {
        "connection_bytes_max": min(_DEFAULTS.connection_bytes_max, options.total_bytes_max),
        "handshake_timeout_s": min(_DEFAULTS.handshake_timeout_s, silence_max_s / 2),
        "transfer_timeout_s": silence_max_s,
        "drain_timeout_s": min(_DEFAULTS.drain_timeout_s, silence_max_s / 2),
    }
    return UnixTuning(**chosen) if isinstance(options, UnixOptions) else TcpTuning(**chosen)


def _check(options: StreamOptions, total_bytes_min: int) -> None:
    least = {"total_bytes_max": total_bytes_min, "connections_max": 1, "silence_max_s": 0.001}
    for name, lowest in least.items():
        if not getattr(options, name) >= lowest:  # true for NaN, too
            raise ConfigError(f"{name}={getattr(options, name)}: at least {lowest}")


_DEFAULTS = StreamTuning()
