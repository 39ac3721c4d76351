"""Telling systemd how a process is (`Type=notify`), if it asked to be told."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """`READY=1`, `STOPPING=1`. Never waits, and nothing is wrong if nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as telling:
        telling.setblocking(False)
        telling.sendto(state.encode(), b"\0" + address[1:].encode() if address.startswith("@") else address)
