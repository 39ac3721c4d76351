"""A process that listens as a bookie does, and says what memory it takes: started by `test_half_messages.py`.

    python tests/transports/tcp/memory_actor.py tcp|unix|tls TOTAL_BYTES DIRECTORY

It prints its address. For each line that it reads, it prints a line of JSON: `resident_bytes` now, `peak_bytes` since the last
line, `charged_bytes`, `received_bytes`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import trio

from replog.abc import Reply
from replog.protocol.messages import Request, Response, Status
from replog.transports.tcp.counters import Counters
from replog.transports.tcp.listener import Listener
from replog.transports.tcp.options import TcpTuning, UnixTuning

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Bookie:
    """Answers each request at once."""

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        reply([Response(request.request_id, Status.OK) for request in requests])


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


async def main(kind: str, total_bytes: int, directory: str) -> None:
    limits: dict[str, Any] = {
        "total_bytes_max": total_bytes,
        "connection_bytes_max": total_bytes,
        "handshakes_max": 1000,
    }
    certificate = f"{directory}/bookie.pem" if kind == "tls" else ""
    counters = Counters()
    if kind == "unix":
        listener = Listener(Bookie(), "bookie-1", None, UnixTuning(**limits), counters)
        await listener.bind_path(f"{directory}/s", 0o600)
    else:
        options = TcpTuning(**limits, tls_certificate_file=certificate, unix_nearby=False)
        listener = Listener(Bookie(), "bookie-1", None, options, counters)
        await listener.bind("127.0.0.1", 0)
    peak_bytes = 0

    async def watch() -> None:
        nonlocal peak_bytes
        while True:
            peak_bytes = max(peak_bytes, resident_bytes())
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run)
        nursery.start_soon(watch)
        print(listener.address, flush=True)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            found = {
                "resident_bytes": resident_bytes(),
                "peak_bytes": peak_bytes,
                "charged_bytes": listener._budget.used_bytes,
                "received_bytes": counters.statistics()["received_bytes"],
            }
            print(json.dumps(found), flush=True)
            peak_bytes = 0
        os._exit(0)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), sys.argv[3])
