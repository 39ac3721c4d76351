"""Telling systemd the state of a process (`Type=notify`), if it asked for that."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Send `READY=1` or `STOPPING=1`. Never waits; does nothing if nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as telling:
        # A supervisor that does not read must not keep the bookie from serving.
        telling.setblocking(False)
        telling.sendto(state.encode(), b"\0" + address[1:].encode() if address.startswith("@") else address)
