"""Measures a live app's appends while jobs commit: `python -m benchmarks.splices [--turns 2] [--turn-s 60] [--commits 5]`.

Three bookies with storage in files and a metastore in LMDB, all in one process. An app leads a log, and appends an entry at a
time, a hundred a second. Jobs commit `--commits` times a minute: for a turn to the app's log, where its leader answers them
(L10), then for a turn to another log, and so on. Prints the app's latencies in both kinds of turns, how many `FencedError`s
it saw, and what commits took. `--patience 0` asks no leader: then each commit to the app's log deposes it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import attrs
import trio

import replog
from replog.errors import FencedError

PLACES = ("its log", "another log")
_APPENDS_S = 100
_ENTRY = bytes(100)


@attrs.define
class Measured:
    """What was seen in the minutes of one kind."""

    appends_s: list[float] = attrs.field(factory=list)
    commits_s: list[float] = attrs.field(factory=list)
    fenced: int = 0


class Trial:
    """One app and its jobs."""

    def __init__(self, client: replog.Client, turn_s: float, commits: float, patience_s: float) -> None:
        self.measured = {place: Measured() for place in PLACES}
        self._client = client
        self._patience_s = patience_s
        self._turn_s = turn_s
        self._pause_s = 60 / commits
        self._place = PLACES[0]
        self._jobs = 0

    async def run(self, turns: int) -> None:
        """So many turns with each log."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._append)
            await trio.sleep(1.0)
            for turn in range(2 * turns):
                self._place = PLACES[turn % 2]
                with trio.move_on_after(self._turn_s):
                    await self._commit()
            nursery.cancel_scope.cancel()

    async def _append(self) -> None:
        while True:
            try:
                async with self._client.write_log("app") as log:
                    while True:
                        place, started = self._place, trio.current_time()
                        await log.append(_ENTRY)
                        self.measured[place].appends_s.append(trio.current_time() - started)
                        await trio.sleep(1 / _APPENDS_S)
            except FencedError:
                self.measured[self._place].fenced += 1

    async def _commit(self) -> None:
        name = "app" if self._place == PLACES[0] else "other"
        while True:
            self._jobs += 1
            job = f"job {self._jobs}"
            async with self._client.create_ledger(custom={"log": name, "job": job}) as writer:
                await writer.extend([_ENTRY] * 100)
            started = trio.current_time()
            await self._client.jobs.append_ledgers(
                name, [writer.ledger_id], transaction=(job, 1), job=job, patience_s=self._patience_s
            )
            self.measured[self._place].commits_s.append(trio.current_time() - started)
            await trio.sleep(self._pause_s)


def shown(place: str, measured: Measured) -> str:
    """One line for people."""
    appends = statistics.quantiles(measured.appends_s, n=100)
    return (
        f"commits to {place:11}  appends {len(measured.appends_s):6}  p50 {appends[49] * 1000:6.2f} ms  "
        f"p99 {appends[98] * 1000:6.2f} ms  slowest {max(measured.appends_s) * 1000:7.2f} ms  fenced {measured.fenced}  "
        f"commits {len(measured.commits_s):3}, median {statistics.median(measured.commits_s) * 1000:6.1f} ms, "
        f"slowest {max(measured.commits_s) * 1000:6.1f} ms"
    )


async def main(turns: int, turn_s: float, commits: float, patience_s: float) -> None:
    """Measures, and prints a line for each kind of turns."""
    with tempfile.TemporaryDirectory() as directory:
        directories = [Path(directory) / str(number) for number in range(3)]
        async with replog.embed(directories, storage="files", quorum=replog.Quorum(3, 3, 2)) as client:
            trial = Trial(client, turn_s, commits, patience_s)
            await trial.run(turns)
    for place, measured in trial.measured.items():
        print(shown(place, measured), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2, help="with each of the two logs")
    parser.add_argument("--turn-s", type=float, default=60.0)
    parser.add_argument("--commits", type=float, default=5.0, help="a minute")
    parser.add_argument("--patience", type=float, default=5.0)
    options = parser.parse_args()
    trio.run(main, options.turns, options.turn_s, options.commits, options.patience)
