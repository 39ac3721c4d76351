"""The addresses of members: as text that can be compared, and what no other process can connect to."""

from __future__ import annotations

import pytest

from replog.errors import ConfigError
from replog.metastores.quorum.addresses import all_normalized, normalized, scheme_of


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (" M1:3181 ", "m1:3181"),
        ("m1", "m1:3181"),
        ("tcp:m1:03181", "m1:3181"),
        ("[::1]:7", "[::1]:7"),
        ("[2001:DB8::1]", "[2001:db8::1]:3181"),
        ("memory:M1", "memory:M1"),
        ("unix:/run/m1.sock", "unix:/run/m1.sock"),
    ],
)
def test_addresses_are_compared_as_text(text: str, address: str) -> None:
    assert normalized(text) == normalized(address) == address


@pytest.mark.parametrize(
    "text", ["", ":3181", "0.0.0.0:1", "[::]:1", "m1:0", "m1:x", "m1:70000", "::1:3181", "memory:"]
)
def test_address_that_no_other_can_connect_to_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        normalized(text)


def test_lists_are_sorted_and_have_each_address_once() -> None:
    assert all_normalized(["m2:1", "M1:1"]) == ("m1:1", "m2:1")
    with pytest.raises(ConfigError, match="named twice"):
        all_normalized(["m1", "M1:3181"])


def test_schemes() -> None:
    assert scheme_of("m1:3181") == ("tcp", "m1:3181")
    assert scheme_of("memory:m1") == ("memory", "m1")
