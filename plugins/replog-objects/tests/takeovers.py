"""How long a log whose metadata is in a bucket has no leader after kill -9, until the first append of the candidate that waited.

python plugins/replog-objects/tests/takeovers.py --lease-s 1 --takeovers 10 --server moto
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

if __name__ == "__main__":  # pytest has done this otherwise
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]

from s3_server import SERVERS, S3Server, credentials
from test_failover import LEADER, end, next_line, three_bookies

_STARTING_S = 5.0  # until a candidate has come to wait


async def measure(server: S3Server, lease_s: float, takeovers: int, directory: Path) -> list[float]:
    """Seconds, one figure for each takeover, in leases and s on its line."""
    url, processes, found = server.bucket("takeovers").url(lease_s=lease_s), list[subprocess.Popen[bytes]](), []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", LEADER, url, str(len(processes))]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        return processes[-1]

    try:
        async with three_bookies(url, directory):
            leader = start()
            await next_line(leader)
            for _ in range(takeovers):
                candidate = start()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_drain, leader)
                    await trio.sleep(_STARTING_S + random.uniform(0, lease_s))
                    began_s = time.perf_counter()
                    leader.kill()
                assert await next_line(candidate) == 0, "the candidate has led before, or ended"
                found.append(time.perf_counter() - began_s)
                print(f"{found[-1]:.2f} s, {found[-1] / lease_s:.2f} leases", flush=True)
                leader = candidate
    finally:
        end(processes)
    return found


async def _drain(leader: subprocess.Popen[bytes]) -> None:
    """Reads what it says until it is dead: it must not wait for a full pipe."""
    while await next_line(leader) >= 0:
        pass


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lease-s", type=float, default=30.0)
    parser.add_argument("--takeovers", type=int, default=5)
    parser.add_argument("--server", choices=[*SERVERS], default="moto")
    given = parser.parse_args()
    os.environ.update(credentials())
    with tempfile.TemporaryDirectory() as name:
        server = SERVERS[given.server](Path(name))
        if not server.TAKES_SESSION_TOKENS:
            del os.environ["AWS_SESSION_TOKEN"]
        server.start()
        try:
            found = trio.run(measure, server, given.lease_s, given.takeovers, Path(name))
        finally:
            server.kill()
    middle = statistics.median(found)
    spread = f"{min(found):.2f} to {max(found):.2f} s"
    print(f"lease {given.lease_s:g} s: median {middle:.2f} s, {middle / given.lease_s:.2f} leases, {spread}")


if __name__ == "__main__":
    main()
