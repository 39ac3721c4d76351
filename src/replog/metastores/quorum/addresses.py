"""The addresses of members, as text that can be compared: HOST:PORT for TCP, SCHEME:ADDRESS for another transport.

Addresses are never resolved to compare them: two names of one host are two addresses. Names are resolved at each connect.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from replog.errors import ConfigError
from replog.runtime.host_ports import EVERYWHERE, format_address, parse_address

_TCP = "tcp"
_OTHER = re.compile(r"(memory|unix|tcp):(.*)", re.DOTALL)


def normalized(text: str) -> str:
    """The address as it is compared: in lower case, with its port. Raises `ConfigError` for one that no other can connect to."""
    text = text.strip()
    scheme, rest = scheme_of(text)
    if scheme != _TCP:
        if not rest:
            raise ConfigError(f"address {text!r} names no place: write {scheme}:ADDRESS")
        return f"{scheme}:{rest}"
    host, port = parse_address(rest)
    if not port:
        raise ConfigError(f"address {text!r}: a member needs a port that others know: 0 can be any")
    if host in EVERYWHERE:
        raise ConfigError(f"address {text!r} is every address of this machine: name the one that others connect to")
    return format_address(host.lower(), port)


def all_normalized(texts: Iterable[str]) -> tuple[str, ...]:
    """The addresses, sorted. Raises `ConfigError`, also if one is there twice."""
    found = sorted(map(normalized, texts))
    for one, other in itertools.pairwise(found):
        if one == other:
            raise ConfigError(f"the address {one} is named twice among the peers")
    return tuple(found)


def scheme_of(address: str) -> tuple[str, str]:
    """The scheme of the transport, and the address that this transport knows."""
    other = _OTHER.fullmatch(address)
    return (other[1], other[2]) if other else (_TCP, address)
