"""A client on the bookie's own machine takes a Unix socket instead of TCP, and saves processor time.

Beside each TCP socket a bookie listens at an *abstract* Unix socket that is named after it. Such a name has no file,
ends with its process, and is seen in the same network namespace only: a process that sees it could also connect to the
TCP socket by a local address. Nothing is announced, so bookies' addresses stay what they were: a client that is about
to connect to an address of its own machine looks for the name first.

Rules: clients and bookies with TLS never do this. Any user can take such a name, also one that stands for an address
which another machine has: a client trusts it only where its own user or root listens, and takes TCP otherwise. The
greeting then checks identity and authentication, as over TCP.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from contextlib import suppress

import trio

from replog.runtime.host_ports import format_address, is_local_address
from replog.runtime.platform import IS_LINUX, peer_credentials

_EVERYWHERE = "*"
_BACKLOG = 128
_ROOT = 0


def listen_beside(listening: socket.socket) -> socket.socket | None:
    """A Unix socket that is named after this TCP socket; None where the system has no such names, or this one is taken."""
    host, port = listening.getsockname()[:2]
    if not IS_LINUX:
        return None
    beside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        beside.setblocking(False)
        beside.bind(_name(_EVERYWHERE if ipaddress.ip_address(host).is_unspecified else host, port))
        beside.listen(_BACKLOG)
    except OSError:
        # A socket for IPv6 beside one for IPv4, or another user who is rude: clients use TCP.
        beside.close()
        return None
    return beside


async def connect_beside(host: str, port: int) -> socket.socket | None:
    """A socket that is connected to the bookie beside its TCP socket at this address; None if TCP is the way."""
    if not IS_LINUX or not _may_be_here(host):
        return None
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return None  # TCP reports the fault of the name
    for family, _, _, _, (address, *_) in found:
        if _is_of_this_machine(family, str(address), port):
            connected = _connected(str(address), port)
            if connected is not None:
                return connected
    return None


def beside(reached: socket.socket) -> socket.socket | None:
    """The same, once TCP has reached the bookie: if both ends have one address, it is of this machine, by whatever name."""
    with suppress(OSError):  # it has ended meanwhile: whoever uses it learns that
        host, port = reached.getpeername()[:2]
        if IS_LINUX and reached.getsockname()[0] == host:
            return _connected(host, port)
    return None


def _name(host: str, port: int) -> str:
    return f"\0replog/tcp/{format_address(host, port)}"


def _may_be_here(host: str) -> bool:
    """False for what looks like the name of another machine, which is not looked up twice: `beside` tells later."""
    with suppress(ValueError):
        ipaddress.ip_address(host.partition("%")[0])
        return True
    return host in ("", "localhost") or host.partition(".")[0] == socket.gethostname().partition(".")[0]


def _is_of_this_machine(family: int, address: str, port: int) -> bool:
    """Whether the system would reach this address from itself. Sends nothing."""
    if is_local_address(address):
        return True
    with socket.socket(family, socket.SOCK_DGRAM) as asking, suppress(OSError):
        asking.connect((address, port))
        return bool(asking.getsockname()[0] == address)
    return False


def _connected(host: str, port: int) -> socket.socket | None:
    return _connected_to(_name(host, port)) or _connected_to(_name(_EVERYWHERE, port))


def _connected_to(name: str) -> socket.socket | None:
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connecting.setblocking(False)
    # Neither refused nor full is an error here: TCP is asked next, and reports the fault or waits.
    if connecting.connect_ex(name) == 0 and peer_credentials(connecting)[1] in (_ROOT, os.geteuid()):
        return connecting
    connecting.close()
    return None
