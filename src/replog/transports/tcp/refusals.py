"""The reasons why two ends do not come together, in words: a client gets the remedy, and a bookie's log the event."""

from __future__ import annotations

import ssl

from replog.errors import RemoteProtocolError
from replog.protocol import wire
from replog.protocol.wire import FrameSplitter, Refuse

_ALERT, _HANDSHAKE = 0x15, 0x16
_TLS_BYTES = 6  # of a record: as much as tells that it is one
_SHOWN_MAX = 1000

NO_TLS = "it does not speak TLS"


class RefusedPeerError(Exception):
    """The client may not connect; it gets the text, the log also `detail`."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class SilentPeerError(Exception):
    """The peer left before it said anything."""


class NotTlsError(Exception):
    """TLS was expected, and the peer began with something else: `said`."""

    def __init__(self, said: bytes) -> None:
        super().__init__(NO_TLS)
        self.said = said


def looks_like_tls(data: bytes) -> bool:
    """Whether a stream that begins so is TLS: a hello, or an alert. A frame of replog is never taken for one."""
    if len(data) < _TLS_BYTES or data[1] != 3 or data[2] > 4:
        return False
    return data[5] in (1, 2) if data[0] == _HANDSHAKE else data[0] == _ALERT and data[3:5] == b"\x00\x02"


def looks_like_none(data: bytes) -> bool:
    """Whether a stream that begins so is certainly not TLS."""
    return len(data) >= _TLS_BYTES and not looks_like_tls(data)


def printable(text: str) -> str:
    """A peer's text, fit for a line of a log."""
    shown = text[:_SHOWN_MAX] + ("..." if len(text) > _SHOWN_MAX else "")
    return "".join(each if each.isprintable() else "?" for each in shown)


def refusal_in_clear(said: bytes) -> str:
    """The reason, if a stream begins with a bookie's refusal; else ""."""
    try:
        for frame in FrameSplitter(wire.GREETING_BYTES_MAX).feed(said):
            greeting = wire.decode_greeting(frame)
            return printable(greeting.reason) if isinstance(greeting, Refuse) else ""
    except RemoteProtocolError:
        pass
    return ""


# -- what went wrong in TLS -----------------------------------------------------------------------------------------

_CLIENTS_CERTIFICATE = "this client's certificate (tls_certificate_file)"

# What the bookie's alert says to a client, by OpenSSL's reason. Each is about what the client showed.
_TOLD_TO_CLIENTS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a client certificate: give this client a tls_certificate_file",
    "TLSV1_ALERT_UNKNOWN_CA": f"it does not trust who signed {_CLIENTS_CERTIFICATE}: compare with its tls_ca_file",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"{_CLIENTS_CERTIFICATE} has expired: renew it",
    "SSLV3_ALERT_BAD_CERTIFICATE": f"it refuses {_CLIENTS_CERTIFICATE}: its log says why",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": f"{_CLIENTS_CERTIFICATE} is not made for clients: its purpose is another",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": f"it refuses {_CLIENTS_CERTIFICATE}: its log says why",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it speaks another version of TLS, not 1.3",
    "WRONG_VERSION_NUMBER": f"{NO_TLS}, or not with this client",
}

# What a client's alert says to a bookie: it is about what the bookie showed.
_TOLD_TO_BOOKIES = {
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust who signed this bookie's certificate: compare with its tls_ca_file",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that this bookie's certificate has expired: renew it",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refuses this bookie's certificate: is it for the host that clients connect to?",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it says that this bookie's certificate is not made for servers",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it refuses this bookie's certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate, and this bookie asks for one (tls_ca_file)",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it does not speak TLS 1.3",
    "WRONG_VERSION_NUMBER": NO_TLS,
    "HTTP_REQUEST": "it speaks HTTP",
    "UNEXPECTED_EOF_WHILE_READING": "it ended the connection during the handshake",
}

# Why this side does not believe a certificate, by X509's numbers.
_EXPIRED, _NOT_YET_VALID, _PURPOSE, _HOSTNAME, _IP_ADDRESS = 10, 9, 26, 62, 64
_UNTRUSTED = (18, 19, 20, 21)


def tls_problem_of_bookie(error: ssl.SSLError) -> str:
    """The problem, for a client: with the bookie's certificate, or with the client's own as the bookie reports it."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return _TOLD_TO_CLIENTS.get(error.reason, f"TLS failed: {error.reason or error}")
    if error.verify_code in (_HOSTNAME, _IP_ADDRESS):
        return f"its certificate is for another host: {error.verify_message}: is the address right? else tls_hostname"
    return _verification(error, "its certificate", "this client's tls_ca_file")


def tls_problem_of_client(error: ssl.SSLError) -> str:
    """The same for a bookie's log."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return _TOLD_TO_BOOKIES.get(error.reason, f"TLS failed: {error.reason or error}")
    return _verification(error, "its certificate", "this bookie's tls_ca_file")


def _verification(error: ssl.SSLCertVerificationError, certificate: str, authority: str) -> str:
    if error.verify_code == _EXPIRED:
        return f"{certificate} has expired: renew it"
    if error.verify_code == _NOT_YET_VALID:
        return f"{certificate} is not valid yet: is a clock wrong?"
    if error.verify_code == _PURPOSE:
        return f"{certificate} is made for another purpose (extended key usage)"
    if error.verify_code in _UNTRUSTED:
        return f"{certificate} is not signed by an authority in {authority}: {error.verify_message}"
    return f"{certificate} is refused: {error.verify_message}"
