"""How much memory a log needs through which much more is written, while it is trimmed. Runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import trio

import replog
from benchmarks.figures import Figures, clock

MIB = 1 << 20
_ENTRY_BYTES = 1024
_TRIM_EVERY_BYTES = 256 * MIB


def measure(directory: Path, bookies: int, size_bytes: int) -> Figures:
    """Peak and growth of the resident memory of a fresh process, in MiB, with all options at their defaults."""
    command = [sys.executable, "-m", __name__, str(directory), str(bookies), str(size_bytes)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return dict(json.loads(done.stdout))


async def _write_through(directory: Path, bookies: int, size_bytes: int) -> Figures:
    source = os.urandom(MIB + _ENTRY_BYTES)
    async with replog.embed(directory, bookies=bookies) as client, client.write_log("memory") as log:
        await log.append(b"first")
        before, started = _peak_mib(), clock()
        for written in range(0, size_bytes, MIB):
            for start in range(0, MIB, _ENTRY_BYTES):
                entry = source[start + 1 : start + 1 + _ENTRY_BYTES]  # bytes of its own, as an application has them
                try:
                    log.push_nowait(entry)
                except trio.WouldBlock:
                    await log.push(entry)
            if written % _TRIM_EVERY_BYTES == 0 and log.last_add_confirmed is not None:
                await client.trim_log("memory", before=log.last_add_confirmed)
        await log.flush()
        took_s, peak = clock() - started, _peak_mib()
    return {"peak_mib": peak, "growth_mib": peak - before, "mib_per_s": size_bytes / MIB / took_s}


def _peak_mib() -> float:
    """Of this program. What getrusage tells is never less than what its parent had."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    print(json.dumps(trio.run(_write_through, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
