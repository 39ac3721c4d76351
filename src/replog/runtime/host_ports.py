"""HOST:PORT, as people write it and as it is announced."""

from __future__ import annotations

import ipaddress
import socket

import trio

from replog.errors import ConfigError

DEFAULT_PORT = 3181  # as BookKeeper's
EVERYWHERE = ("", "0.0.0.0", "::")  # hosts to listen at: every address of the machine


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, [IPv6]:PORT, HOST or :PORT. Raises `ConfigError`."""
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"address {text!r}: an IPv6 address is written in brackets, as in [::1]:{DEFAULT_PORT}")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ConfigError(f"address {text!r}: {port!r} is not a port; an address looks like HOST:PORT")
    try:
        host.encode("idna")  # as the resolver does
    except UnicodeError as error:
        raise ConfigError(f"address {text!r}: {host!r} is not the name of a host: {error}") from error
    if "\0" in host:
        raise ConfigError(f"address {text!r}: {host!r} is not the name of a host")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The text that `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def advertised_address(listened: str, port: int, advertise: str) -> str:
    """The address for others to connect to, if the bookie listens at this host and got this port."""
    if advertise:
        has_port = ":" in advertise and not advertise.endswith("]")
        host, wanted_port = parse_address(advertise if has_port else f"{advertise}:0")
        return format_address(host, wanted_port or port)
    return format_address(socket.getfqdn() if listened in EVERYWHERE else listened, port)


def is_local_address(host: str) -> bool:
    """Whether this numeric address is of this machine alone."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


async def is_loopback(host: str) -> bool | None:
    """Whether all that this name stands for here is of this machine alone; None if nobody knows the name now."""
    try:
        found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    return all(is_local_address(str(address)) for _, _, _, _, (address, *_) in found)
