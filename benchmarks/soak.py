"""A log that is written at an even rate and trimmed, for minutes: how much disk three bookies need, at which rate.

    PYTHONPATH=. python -m benchmarks.soak --minutes 20 --mb-per-s 100 --dir /some/disk

First with three bookie processes, then with three embedded bookies. Every option that clients and bookies have is at its default.
A line every ten seconds; at its end the figures to judge, with exit code 1 if they are not met: of bookie processes the most that
was on the disks beside what the log still names (at most 1 GiB), and their rate (at least 0.9 of that of embedded ones).
`--mb-per-s 0` writes as fast as it goes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from pathlib import Path

import trio

import replog
from benchmarks.loads import LOG
from benchmarks.remote.place import BOOKIES, Kind, RemotePlaces

_ENTRY_BYTES = 64 << 10
_TRIM_EVERY_S = 10.0
_MB = 1_000_000
BESIDE_LIVE_BYTES_MAX = 1 << 30
RATE_SHARE_MIN = 0.9


class Soak:
    """One run, and what it found. At 0 MB/s it writes as fast as it goes."""

    def __init__(self, directory: Path, mb_per_s: float, *, is_told: bool = True) -> None:
        self.written_bytes = 0
        self.most_beside_live_bytes = 0
        self._directory = directory
        self._bytes_per_s = mb_per_s * _MB
        self._is_told = is_told
        self._live_bytes: Counter[int] = Counter()  # acknowledged, by segment that the log names

    async def run(self, client: replog.Client, seconds: float) -> float:
        """Writes for so long; returns the rate in bytes per second."""
        started_s = trio.current_time()
        data = [os.urandom(_ENTRY_BYTES)] * 16
        trim_s = started_s + _TRIM_EVERY_S
        async with client.write_log(LOG) as log:
            while not self.written_bytes or trio.current_time() < started_s + seconds:
                positions = await log.extend(data)
                self.written_bytes += _ENTRY_BYTES * len(data)
                for position in positions:
                    self._live_bytes[position.segment] += _ENTRY_BYTES
                if trio.current_time() >= trim_s:
                    trim_s += _TRIM_EVERY_S
                    await self._trim(client, positions[-1], trio.current_time() - started_s)
                if self._bytes_per_s:
                    await trio.sleep_until(started_s + self.written_bytes / self._bytes_per_s)
            return self.written_bytes / (trio.current_time() - started_s)

    async def _trim(self, client: replog.Client, before: replog.Position, elapsed_s: float) -> None:
        # Just before a trim most is live: all since the last one, and what came before it in the same segment.
        used_bytes = await trio.to_thread.run_sync(bytes_below, self._directory)
        beside_bytes = used_bytes - BOOKIES * self._live_bytes.total()
        self.most_beside_live_bytes = max(self.most_beside_live_bytes, beside_bytes)
        if self._is_told:
            print(
                f"{elapsed_s:6.0f} s: {self.written_bytes / _MB:9.0f} MB written, {used_bytes / _MB:8.0f} MB on disks, "
                f"{beside_bytes / _MB:8.0f} beside those that are live",
                flush=True,
            )
        await client.trim_log(LOG, before=before)
        self._live_bytes = Counter({each: size for each, size in self._live_bytes.items() if each >= before.segment})


def bytes_below(directory: Path) -> int:
    """The sizes of all files. One that is removed meanwhile does not count."""
    found = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                found += (Path(parent) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return found


async def embedded(directory: Path, soak: Soak, seconds: float) -> float:
    """The rate with three bookies in this process, in bytes per second."""
    async with replog.embed(directory, bookies=BOOKIES) as client:
        return await soak.run(client, seconds)


async def remote(directory: Path, soak: Soak, seconds: float) -> float:
    """The same with three bookie processes."""
    places = RemotePlaces(directory, None)
    try:
        async with (await trio.to_thread.run_sync(places, Kind())).client() as client:
            return await soak.run(client, seconds)
    finally:
        await trio.to_thread.run_sync(places.close)


def main() -> None:
    """Parses the command line, and runs."""
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="of each of the two")
    parser.add_argument("--mb-per-s", type=float, default=100.0)
    parser.add_argument(
        "--dir", default=None, help="where the bookies keep their data; default: the system's temporary directory"
    )
    options = parser.parse_args()
    rates: list[float] = []
    beside: list[int] = []
    for name, run in (("bookie processes", remote), ("embedded bookies", embedded)):
        with tempfile.TemporaryDirectory(prefix="replog-soak-", dir=options.dir) as directory:
            soak = Soak(Path(directory), options.mb_per_s)
            print(name, flush=True)
            rates.append(trio.run(run, Path(directory), soak, options.minutes * 60))
            beside.append(soak.most_beside_live_bytes)
        print(f"{name}: {rates[-1] / _MB:.1f} MB/s; at most {beside[-1] / _MB:.0f} MB beside what was live", flush=True)
    share = rates[0] / rates[1]
    is_met = share >= RATE_SHARE_MIN and beside[0] <= BESIDE_LIVE_BYTES_MAX
    print(
        f"bookie processes beside embedded ones: rate {share:.2f} (at least {RATE_SHARE_MIN}): {'met' if is_met else 'not met'}"
    )
    if not is_met:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
