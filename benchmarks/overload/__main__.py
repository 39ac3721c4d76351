"""Measures what one writer gets from a bookie alone, and beside clients that ask for much and receive nothing (B9).

    python -m benchmarks.overload --clients 64 --kind reads --seconds 10

Prints appends in that time and their latencies without and with them, and by how much the bookie's memory grew. `halves`
sends most of a large add besides, and never its end. Bookie, writer and rude clients are processes of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import trio

import replog
from benchmarks.figures import percentiles
from replog.config import ClientOptions
from replog.errors import ReplogError
from replog.protocol.quorum import Quorum

_MIB = 1 << 20
_LARGE_ENTRIES = 128  # of a mebibyte each: what the rude ones ask for
_SETTLE_S = 2.0
_BOUND_BYTES = 512 * _MIB  # total_bytes_max, as it is


def _start(stack: ExitStack, module: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    stack.enter_context(process)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"{module} has ended early")
    return process


def _memory_bytes(process_id: int, name: str) -> int:
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"no {name} of process {process_id}")


async def _append(log: replog.LogWriter, seconds: float) -> dict[str, float]:
    """One append of 1 KiB after the other."""
    data, durations, failures = os.urandom(1024), [], 0
    deadline = time.perf_counter() + seconds
    while (started := time.perf_counter()) < deadline:
        try:
            # However short the run is, one slow sync of a busy disk is not a stuck append.
            with trio.fail_after(max(seconds, 10.0)):
                await log.append(data)
        except (ReplogError, trio.TooSlowError) as error:
            print(f"  append failed: {error!r}", file=sys.stderr, flush=True)
            failures += 1
            break
        durations.append(time.perf_counter() - started)
    found = percentiles(durations) if durations else {}
    return {"appends": len(durations), "failures": failures, "max_us": max(durations, default=0.0) * 1e6, **found}


async def _measure(arguments: argparse.Namespace, directory: Path, stack: ExitStack) -> None:
    metastore = f"lmdb:{directory / 'metadata'}"
    bookie = _start(
        stack, "benchmarks.remote.bookie", str(directory / "0"), metastore, "files", "tcp:127.0.0.1:0", "0.0"
    )
    options = ClientOptions(add_timeout_s=30.0)
    async with replog.connect(metastore, options=options, quorum=Quorum(1, 1, 1)) as client:
        async with client.create_ledger() as writer:
            for _ in range(_LARGE_ENTRIES):
                await writer.append(os.urandom(_MIB))
        async with client.write_log("healthy") as log:
            await _append(log, 1.0)
            idle_bytes = _memory_bytes(bookie.pid, "VmRSS")
            alone = await _append(log, arguments.seconds)
            print(json.dumps({"alone": alone, "idle_rss_mib": idle_bytes / _MIB}), flush=True)
            (remote,) = await client.remote_bookies()
            (address,) = [each.address for each in remote.endpoints if each.scheme == "tcp"]
            rude = _start(
                stack,
                "benchmarks.overload.rude",
                address,
                str(writer.ledger_id),
                str(_LARGE_ENTRIES),
                str(arguments.clients),
                arguments.kind,
            )
            await trio.sleep(min(_SETTLE_S, arguments.seconds))
            beside = await _append(log, arguments.seconds)
            peak_bytes = _memory_bytes(bookie.pid, "VmHWM")
            outcome, _ = await trio.to_thread.run_sync(rude.communicate)
            grown_bytes = peak_bytes - idle_bytes
            print(json.dumps({f"beside {arguments.clients} ({arguments.kind})": beside}), flush=True)
            print(
                json.dumps(
                    {
                        "rate_share": beside["appends"] / max(1.0, alone["appends"]),
                        "p99_above_alone_ms": (beside.get("p99_us", 1e9) - alone["p99_us"]) / 1000,
                        "rude_connections": int(outcome.split()[-1]),
                        "rss_grown_mib": grown_bytes / _MIB,
                        "rss_within_bound_and_64_mib": grown_bytes < _BOUND_BYTES + 64 * _MIB,
                    }
                ),
                flush=True,
            )


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--clients", type=int, default=64, help="that are rude (%(default)s)")
    parser.add_argument("--kind", choices=("reads", "halves"), default="reads", help="of rudeness (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each measurement (%(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="replog-overload-") as directory, ExitStack() as stack:
        trio.run(_measure, arguments, Path(directory), stack)


if __name__ == "__main__":
    main()
