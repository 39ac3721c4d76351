"""A process that writes a log until it is killed: python -m benchmarks.shapes.leader METASTORE LOG LEDGER_BYTES IN_FLIGHT_BYTES

It appends so many bytes, says that it leads, and then keeps as much in flight as it was told (a mebibyte at least, or a single
entry), saying now and then how many entries are confirmed.
"""

from __future__ import annotations

import os
import sys

import trio

import replog
from benchmarks.figures import clock
from replog.config import ClientOptions

LEADS = "leads"
CONFIRMED = "confirmed "  # is said before a number: so many entries, all of which must survive
MIB, ENTRY_BYTES = 1 << 20, 1024
_ENTRIES_PER_CALL = 1000
_SAID_EVERY_S = 0.02


async def lead(metastore: str, name: str, ledger_bytes: int, in_flight_bytes: int) -> None:
    """Leads until killed."""
    # One ledger has all of it. It is filled with more in flight than there is afterwards.
    options = ClientOptions(in_flight_bytes_max=max(MIB, in_flight_bytes), roll_bytes=None)
    data, entries = os.urandom(ENTRY_BYTES), ledger_bytes // ENTRY_BYTES
    async with replog.connect(metastore, options=options) as client, client.write_log(name) as log:
        for begun in range(0, entries, _ENTRIES_PER_CALL):
            await log.extend([data] * min(_ENTRIES_PER_CALL, entries - begun))
        _say(f"{CONFIRMED}{entries}\n{LEADS}")
        add = log.push if in_flight_bytes > ENTRY_BYTES else log.append
        next_s = clock() + _SAID_EVERY_S
        while True:
            await add(data)
            if clock() >= next_s and log.last_add_confirmed is not None:
                _say(f"{CONFIRMED}{log.last_add_confirmed.entry + 1}")
                next_s = clock() + _SAID_EVERY_S


def _say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    trio.run(lead, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
