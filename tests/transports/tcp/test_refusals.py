"""What is taken for TLS, what a refusal in clear says, and what may stand in a log."""

from __future__ import annotations

import secrets
import ssl
from contextlib import suppress

import pytest

from replog.protocol import wire
from replog.protocol.wire import Hello, Refuse
from replog.transports.tcp.refusals import looks_like_none, looks_like_tls, printable, refusal_in_clear


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x").do_handshake()
    return outgoing.read()


def test_tls_is_known_by_its_beginning() -> None:
    for said in (client_hello(), b"\x15\x03\x03\x00\x02\x02\x28"):
        assert looks_like_tls(said)
        assert not looks_like_none(said)
    for said in (b"GET / HTTP/1.1\r\n", b"SSH-2.0-OpenSSH", bytes(100)):
        assert not looks_like_tls(said)
        assert looks_like_none(said)
    for said in (b"", b"\x16", b"\x16\x03\x01"):  # too little to tell
        assert not looks_like_tls(said)
        assert not looks_like_none(said)


@pytest.mark.parametrize("first", [0x15, 0x16])
def test_a_greeting_is_never_mistaken_for_tls(first: int) -> None:
    """Whatever its first four bytes are."""
    frame = wire.encode_greeting(Hello(1, 1, 0, secrets.token_bytes(32), "bookie-" + "0" * 32, "secret", "replog 0.1"))
    for minor in range(5):
        for rest in range(256):
            assert not looks_like_tls(bytes([first, 3, minor, rest]) + frame[4:])


def test_clear_refusal_can_be_read_by_a_tls_client() -> None:
    assert refusal_in_clear(wire.encode_greeting(Refuse("no room", retry=True))) == "no room"
    for said in (
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(100),
        wire.PING_FRAME,
        wire.encode_greeting(Refuse("x" * 99, retry=True))[:50],
    ):
        assert refusal_in_clear(said) == ""


def test_words_of_a_peer_cannot_forge_a_log_line() -> None:
    assert printable("a\nb\x1b[31m\u202ec") == "a?b?[31m?c"
    assert len(printable("x" * 100_000)) < 1100
