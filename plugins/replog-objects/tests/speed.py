"""Archiving and scanning a log, against obstore putting and getting the same bytes; appends beside it.

python plugins/replog-objects/tests/speed.py --mib 1024 --server moto
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import obstore
import trio
from obstore.store import S3Store

if __name__ == "__main__":  # pytest has done this otherwise
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]

from s3_server import SERVERS, S3Server, credentials

import replog

_OBJECT_MIB = 64
_BLOCK = 8 << 20
_ALONE_S = 5.0
_PAUSE_S = 0.005


def rate(mib: int, work: Callable[[int], object]) -> float:
    """MiB/s of doing it for each object."""
    began_s = time.perf_counter()
    for number in range(mib // _OBJECT_MIB):
        work(number)
    return mib / (time.perf_counter() - began_s)


def measure_obstore(server: S3Server, mib: int) -> tuple[float, float]:
    """Prints, and returns, the rates of putting and of getting in ranges, as archives do it."""
    store: Any = S3Store("perf", endpoint=f"http://{server.address}", client_options={"allow_http": True})
    body = os.urandom(_OBJECT_MIB << 20)
    put = rate(mib, lambda each: obstore.put(store, f"raw/{each}", body, use_multipart=False))
    get = rate(mib, lambda each: bytes(obstore.get(store, f"raw/{each}").bytes()))
    starts = range(0, len(body), _BLOCK)
    ranges = rate(
        mib, lambda each: [bytes(obstore.get_range(store, f"raw/{each}", start=at, length=_BLOCK)) for at in starts]
    )
    print(f"obstore: put {put:.0f}, get {get:.0f}, get in ranges of 8 MiB {ranges:.0f} MiB/s")
    return put, get


async def appends(client: replog.Client, has_ended: Callable[[], bool]) -> str:
    """Lone appends, until then."""
    waits_ms: list[float] = []
    async with client.write_log("beside") as log:
        while not has_ended():
            began_s = time.perf_counter()
            await log.append(bytes(1024))
            waits_ms.append((time.perf_counter() - began_s) * 1e3)
            await trio.sleep(_PAUSE_S)
    waits_ms.sort()
    return f"p50 {waits_ms[len(waits_ms) // 2]:.2f}, p99 {waits_ms[int(len(waits_ms) * 0.99)]:.2f} ms"


async def measure_replog(server: S3Server, mib: int, put: float, get: float, directory: Path) -> None:
    async with replog.embed(directory) as client:
        entries = [os.urandom(1024)] * 1024
        async with client.write_log("orders") as log:
            for _ in range(mib):
                await log.extend(entries)
            await log.roll()
        await client.admin.add_archive(f"s3://perf/archive?endpoint=http://{server.address}")
        end_s = time.perf_counter() + _ALONE_S
        print("appends alone:", await appends(client, lambda: time.perf_counter() > end_s))
        done = trio.Event()

        async def beside() -> None:
            print("appends beside archiving:", await appends(client, done.is_set))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(beside)
            began_s = time.perf_counter()
            moved = await client.admin.archive_log("orders")
            archived = moved.size_bytes / (time.perf_counter() - began_s) / (1 << 20)
            done.set()
        print(f"archive: {archived:.0f} MiB/s, {archived / put:.2f} of obstore's put (at least 0.6 is wanted)")
        for each in client.bookies:
            await each.collect_garbage()
    async with replog.embed(directory) as client, client.read_log("orders") as reader:
        began_s, count = time.perf_counter(), 0
        async for batch in reader.batches():
            count += len(batch)
        scanned = count / 1024 / (time.perf_counter() - began_s)
        print(f"scan: {scanned:.0f} MiB/s, {scanned / get:.2f} of obstore's get (at least 0.6 is wanted)")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--server", choices=[*SERVERS], default="moto")
    given = parser.parse_args()
    os.environ.update(credentials())
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        server = SERVERS[given.server](Path(place))
        if not server.TAKES_SESSION_TOKENS:
            del os.environ["AWS_SESSION_TOKEN"]
        server.start()
        with closing(_Ending(server)):
            server.bucket("perf")
            put, get = measure_obstore(server, given.mib)
            before_s = _cpu_s(server.pid)
            began_s = time.perf_counter()
            trio.run(measure_replog, server, given.mib, put, get, Path(place) / "wal")
            share = (_cpu_s(server.pid) - before_s) / (time.perf_counter() - began_s)
            print(f"{given.server} used {100 * share:.0f} % of a processor meanwhile")


class _Ending:
    """Ends a server."""

    def __init__(self, server: S3Server) -> None:
        self.close = server.kill


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
