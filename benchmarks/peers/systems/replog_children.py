"""Processes beside the runner's: who follows a log, and who leads it until killed.

python -m benchmarks.peers.systems.replog_children follow METASTORE LOG ENTRIES
python -m benchmarks.peers.systems.replog_children lead METASTORE LOG ENTRY_BYTES
"""

from __future__ import annotations

import json
import os
import sys

import trio

import replog
from benchmarks.figures import clock

FOLLOWING = "following"  # is said when the first entry is in hand
CONFIRMED = "confirmed"  # is said before a number: so many entries, all of which must survive


async def follow(metastore: str, log: str, entries: int) -> None:
    """Says when each of so many entries was in its hand, those after the first one. The clock is the same in all processes of
    a machine (CLOCK_MONOTONIC)."""
    seen_s: list[float] = []
    async with replog.connect(metastore) as client, client.read_log(log, follow=True) as reader:
        async for batch in reader.batches():
            count = len(batch.payloads())
            if not seen_s:
                print(FOLLOWING, flush=True)
            seen_s += [clock()] * count
            if len(seen_s) > entries:
                break
    print(json.dumps(seen_s[1 : entries + 1]), flush=True)


async def lead(metastore: str, log: str, entry_bytes: int) -> None:
    """Leads the log, and appends one entry at a time, until it is killed."""
    data = os.urandom(entry_bytes)
    async with replog.connect(metastore) as client, client.lead_log(log) as writer:
        confirmed = 0
        while True:
            await writer.append(data)
            confirmed += 1
            if confirmed % 16 == 0:
                os.write(sys.stdout.fileno(), f"{CONFIRMED} {confirmed}\n".encode())


if __name__ == "__main__":
    trio.run(follow if sys.argv[1] == "follow" else lead, sys.argv[2], sys.argv[3], int(sys.argv[4]))
