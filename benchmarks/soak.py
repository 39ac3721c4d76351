"""A log that is written at an even rate and trimmed, for minutes: how much disk three bookie processes need at which rate.

    PYTHONPATH=. python -m benchmarks.soak --minutes 20 --mb-per-s 100 --dir /some/disk

Every option that clients and bookies have is at its default. A line every ten seconds; at its end the figures to judge: the
rate, the most that was on the disks beside what the log still names, and journal files that were used again.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import trio

import replog
from benchmarks.loads import LOG
from benchmarks.remote.place import BOOKIES, SPARE_FILES_MAX, Kind, RemotePlace, RemotePlaces

_ENTRY_BYTES = 64 << 10
_TRIM_EVERY_S = 10.0
_MB = 1_000_000


class Soak:
    """One run, and what it found."""

    def __init__(self, directory: Path, mb_per_s: float) -> None:
        self.written_bytes = 0
        self.most_beside_live_bytes = 0
        self._directory = directory
        self._bytes_per_s = mb_per_s * _MB
        self._since_trim_bytes = 0  # acknowledged since the last trim

    async def run(self, client: replog.Client, seconds: float) -> float:
        """Writes for so long; returns the rate in bytes per second."""
        started_s = trio.current_time()
        data = [os.urandom(_ENTRY_BYTES)] * 16
        trim_s = started_s + _TRIM_EVERY_S
        async with client.write_log(LOG) as log:
            while trio.current_time() < started_s + seconds:
                positions = await log.extend(data)
                self.written_bytes += _ENTRY_BYTES * len(data)
                self._since_trim_bytes += _ENTRY_BYTES * len(data)
                if trio.current_time() >= trim_s:
                    trim_s += _TRIM_EVERY_S
                    await self._trim(client, positions[-1], trio.current_time() - started_s)
                await trio.sleep_until(started_s + self.written_bytes / self._bytes_per_s)
            return self.written_bytes / (trio.current_time() - started_s)

    async def _trim(self, client: replog.Client, before: replog.Position, elapsed_s: float) -> None:
        # What is live is most just before a trim: since the last one everything is, and the segment that was begun before.
        used_bytes = await trio.to_thread.run_sync(bytes_below, self._directory)
        beside_bytes = used_bytes - BOOKIES * self._since_trim_bytes
        self.most_beside_live_bytes = max(self.most_beside_live_bytes, beside_bytes)
        print(
            f"{elapsed_s:6.0f} s: {self.written_bytes / _MB:9.0f} MB written, {used_bytes / _MB:8.0f} MB on disks, "
            f"{beside_bytes / _MB:8.0f} beside those since the last trim",
            flush=True,
        )
        await client.trim_log(LOG, before=before)
        self._since_trim_bytes = 0


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


async def _recycled(client: replog.Client) -> float:
    statistics = [await each.statistics() for each in await client.remote_bookies()]
    return min(each.numbers.get("journal_recycled_files", 0.0) for each in statistics)


async def _main(place: RemotePlace, directory: Path, minutes: float, mb_per_s: float) -> None:
    async with place.client() as client:
        soak = Soak(directory, mb_per_s)
        bytes_per_s = await soak.run(client, minutes * 60)
        recycled = await _recycled(client)
    print(f"rate {bytes_per_s / _MB:.1f} MB/s; at most {soak.most_beside_live_bytes / _MB:.0f} MB beside what was live")
    print(f"journal files used again, of the bookie with fewest: {recycled:.0f}")


def main() -> None:
    """Parses the command line, and runs."""
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--mb-per-s", type=float, default=100.0)
    parser.add_argument(
        "--dir", default=None, help="where the bookies keep their data; default: the system's temporary directory"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="replog-soak-", dir=options.dir) as directory:
        places = RemotePlaces(Path(directory), SPARE_FILES_MAX)
        try:
            trio.run(_main, places(Kind()), Path(directory), options.minutes, options.mb_per_s)
        finally:
            places.close()


if __name__ == "__main__":
    main()
