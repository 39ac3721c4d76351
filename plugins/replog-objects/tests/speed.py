"""Archiving and scanning a log, against obstore putting and getting the same bytes; appends beside it; what bookies free.

python plugins/replog-objects/tests/speed.py --mib 1024 --rounds 3 --server moto

In each round obstore puts objects, then as many bytes of a log are archived, both beside lone appends; obstore gets ranges of
8 MiB, one after the other, then the log is scanned. Ratios are of one round; medians of the rounds are printed at the end. With
`--server local` the archive is a directory, `file:`, and obstore's store is another: replog's objects are synced to the disk
there, and obstore's are not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs
import obstore
import trio
from obstore.store import LocalStore, S3Store

if __name__ == "__main__":  # pytest has done this otherwise
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]

from s3_server import SERVERS, S3Server, credentials

import replog

Answer = TypeVar("Answer")

_OBJECT_MIB = 64
_BLOCK = 8 << 20
_APPENDS_ALONE_S = 5.0
_PAUSE_S = 0.005
_LEFT_MIB, _FREED_S = 1024, 60.0  # what bookies may keep, and how soon

GOALS = {
    "archive / obstore's put": ">= 0.6",
    "scan / obstore's ranges": ">= 0.6",
    "p99 of appends beside / alone": "<= 2",
}


@attrs.frozen
class Place:
    """A store, as obstore sees it and as an archive's URL. `server_cpu_s` is what its process has used so far."""

    store: Any
    url: str
    server_cpu_s: Callable[[], float]


def rate(mib: int, work: Callable[[int], object]) -> float:
    """MiB/s of doing it for each object."""
    began_s = time.perf_counter()
    for number in range(mib // _OBJECT_MIB):
        work(number)
    return mib / (time.perf_counter() - began_s)


def put_alone(place: Place, mib: int) -> float:
    """MiB/s of obstore, putting one object after the other."""
    body = os.urandom(_OBJECT_MIB << 20)
    return rate(mib, lambda each: obstore.put(place.store, f"raw/{each}", body, use_multipart=False))


def get_alone(place: Place, mib: int) -> float:
    """MiB/s of obstore, getting what `put_alone` has put."""
    starts = range(0, _OBJECT_MIB << 20, _BLOCK)

    def get(each: int) -> None:
        for at in starts:
            bytes(obstore.get_range(place.store, f"raw/{each}", start=at, length=_BLOCK))

    return rate(mib, get)


async def appends(client: replog.Client, has_ended: Callable[[], bool]) -> float:
    """Lone appends, until then. The 99th of 100, in ms."""
    waits_ms: list[float] = []
    async with client.write_log("beside") as log:
        while not has_ended():
            began_s = time.perf_counter()
            await log.append(bytes(1024))
            waits_ms.append((time.perf_counter() - began_s) * 1e3)
            await trio.sleep(_PAUSE_S)
    return sorted(waits_ms)[int(len(waits_ms) * 0.99)]


def disk_mib(directory: Path) -> float:
    """What the files below it take of the disk."""
    return sum(each.stat().st_blocks * 512 for each in directory.rglob("*") if each.is_file()) / (1 << 20)


class Measured:
    """The figures of all rounds."""

    def __init__(self) -> None:
        self._figures: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, name: str, value: float) -> None:
        self._figures[name].append(value)
        print(f"  {name}: {value:.2f}", flush=True)

    def ratio(self, over: str, under: str) -> None:
        self.add(f"{over} / {under}", self._figures[over][-1] / self._figures[under][-1])

    def summary(self) -> Iterator[str]:
        for name, values in self._figures.items():
            goal = f"; wanted: {GOALS[name]}" if name in GOALS else ""
            yield f"{name}: {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f}{goal})"


@contextmanager
def server_share(place: Place, measured: Measured, name: str) -> Iterator[None]:
    """Says how much of a processor the store's server uses meanwhile."""
    before_s, began_s = place.server_cpu_s(), time.perf_counter()
    yield
    measured.add(name, 100 * (place.server_cpu_s() - before_s) / (time.perf_counter() - began_s))


async def beside_appends(client: replog.Client, work: Callable[[], Awaitable[Answer]]) -> tuple[Answer, float]:
    """What it returns, and the 99th of 100 appends meanwhile, in ms."""
    done, found = trio.Event(), []

    async def append() -> None:
        found.append(await appends(client, done.is_set))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append)
        answer = await work()
        done.set()
    return answer, found[0]


async def archive(place: Place, mib: int, directory: Path, measured: Measured) -> None:
    async with replog.embed(directory) as client:
        entries = [os.urandom(1024)] * 1024
        async with client.write_log("orders") as log:
            for _ in range(mib):
                await log.extend(entries)
            await log.roll()
        await client.admin.add_archive(place.url)
        end_s = time.perf_counter() + _APPENDS_ALONE_S
        measured.add("p99 of appends alone", await appends(client, lambda: time.perf_counter() > end_s))
        put, p99_ms = await beside_appends(client, lambda: trio.to_thread.run_sync(put_alone, place, mib))
        measured.add("obstore's put", put)
        measured.add("p99 of appends beside that put", p99_ms)
        before_mib, began_s = disk_mib(directory), time.perf_counter()

        async def move() -> float:
            moved = await client.admin.archive_log("orders")
            return moved.size_bytes / (time.perf_counter() - began_s) / (1 << 20)

        with server_share(place, measured, "server while archiving, %"):
            archived, p99_ms = await beside_appends(client, move)
        ended_s = time.perf_counter()
        measured.add("archive", archived)
        measured.add("p99 of appends beside", p99_ms)
        measured.ratio("archive", "obstore's put")
        measured.ratio("p99 of appends beside", "p99 of appends alone")
        with trio.move_on_after(_FREED_S):
            while disk_mib(directory) > _LEFT_MIB:  # noqa: ASYNC110 - nobody tells of it
                await trio.sleep(0.1)
        measured.add("bookies' disk before, MiB", before_mib)
        measured.add("bookies' disk after, MiB", disk_mib(directory))
        measured.add("  and this was after, s", time.perf_counter() - ended_s)


async def scan(place: Place, mib: int, directory: Path, measured: Measured) -> None:
    measured.add("obstore's ranges", get_alone(place, mib))
    async with replog.embed(directory) as client, client.read_log("orders") as reader:
        with server_share(place, measured, "server while scanning, %"):
            began_s, count = time.perf_counter(), 0
            async for batch in reader.batches():
                count += len(batch)
            measured.add("scan", count / 1024 / (time.perf_counter() - began_s))
        assert count == mib << 10, "all of it"
    measured.ratio("scan", "obstore's ranges")


@contextmanager
def opened(server_name: str, directory: Path) -> Iterator[Place]:
    """A new store."""
    if server_name == "local":
        for name in ("raw", "archive"):
            (directory / name).mkdir()
        yield Place(LocalStore(directory / "raw"), f"file:{directory / 'archive'}", lambda: 0.0)
        return
    os.environ.update(credentials(), TMPDIR=str(directory))
    server = SERVERS[server_name](directory)
    if not server.TAKES_SESSION_TOKENS:
        del os.environ["AWS_SESSION_TOKEN"]
    server.start()
    try:
        server.bucket("perf")
        endpoint = f"http://{server.address}"
        store = S3Store("perf", endpoint=endpoint, client_options={"allow_http": True, "timeout": "600s"})
        yield Place(store, f"s3://perf/archive?endpoint={endpoint}", lambda: _cpu_s(server))
    finally:
        server.kill()


def _cpu_s(server: S3Server) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=["local", *SERVERS], default="moto")
    where = "where the store keeps its files: a disk other than the bookies', or memory, as a bucket is elsewhere"
    parser.add_argument("--store", type=Path, default=Path.cwd(), help=where)
    given = parser.parse_args()
    measured = Measured()
    for number in range(given.rounds):
        print(f"round {number + 1}", flush=True)
        with (
            tempfile.TemporaryDirectory(dir=Path.cwd()) as name,
            tempfile.TemporaryDirectory(dir=given.store) as stored,
            opened(given.server, Path(stored)) as place,
        ):
            trio.run(archive, place, given.mib, Path(name), measured)
            trio.run(scan, place, given.mib, Path(name), measured)
    print(f"medians of {given.rounds} rounds, {given.mib} MiB, {given.server}; MiB/s, ms")
    print("\n".join(measured.summary()))


if __name__ == "__main__":
    main()
