"""HOST:PORT, as people write it and as it is announced."""

from __future__ import annotations

import socket

import pytest

from replog.errors import ConfigError
from replog.runtime.host_ports import advertised_address, format_address, is_local_address, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:1", ("localhost", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[::1]:0", ("::1", 0)),
        ("[fe80::1%eth0]:5", ("fe80::1%eth0", 5)),
        ("bookie.example", ("bookie.example", 3181)),
        ("[::1]", ("::1", 3181)),
        (":7", ("", 7)),
        ("", ("", 3181)),
        ("bücher.example:1", ("bücher.example", 1)),
    ],
)
def test_valid_addresses_are_read(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *["::1", "::1:80", "host:", "host:port", "host:-1", "host:65536", "host:+1", "host:1_0", "host:٣", "host: 1"],
        *["a:b:1", "host:" + "9" * 5000, "a..b:1", "a" * 64 + ":1", "\0:1", "host:0x10"],
    ],
)
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        parse_address(text)


@pytest.mark.parametrize("address", [("localhost", 1), ("::1", 65535), ("10.0.0.1", 3181)])
def test_written_addresses_are_read(address: tuple[str, int]) -> None:
    assert parse_address(format_address(*address)) == address


def test_advertised_address_can_be_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "bookie-1.example")
    assert advertised_address("127.0.0.1", 5, "") == "127.0.0.1:5"
    assert advertised_address("::1", 5, "") == "[::1]:5"
    for everywhere in ("", "0.0.0.0", "::"):
        assert advertised_address(everywhere, 5, "") == "bookie-1.example:5"
    assert advertised_address("0.0.0.0", 5, "gate.example") == "gate.example:5"
    assert advertised_address("0.0.0.0", 5, "gate.example:0") == "gate.example:5"
    assert advertised_address("0.0.0.0", 5, "gate.example:6") == "gate.example:6"
    assert advertised_address("0.0.0.0", 5, "[2001:db8::1]:6") == "[2001:db8::1]:6"
    assert advertised_address("0.0.0.0", 5, "[2001:db8::1]") == "[2001:db8::1]:5"
    with pytest.raises(ConfigError):
        advertised_address("0.0.0.0", 5, "2001:db8::1")


def test_local_addresses_are_recognized() -> None:
    for host in ("127.0.0.1", "127.1.2.3", "::1"):
        assert is_local_address(host)
    for host in ("10.0.0.1", "fe80::1%eth0", "0.0.0.0", "name", ""):
        assert not is_local_address(host)
