"""A member of a machine in a process of its own, with callers that write down what they ask for and what they are told.

    python -m tests.failures.machine_actor METASTORE LISTEN ADVERTISE HISTORY SEED

It reads the number of the current round from its standard input, and ends with it. A caller that is in doubt repeats its command
with the same id, as does the next process of the same history: so each command has one outcome, whatever failed in between.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

import replog
from replog.config.client import ClientTuning
from replog.machine.options import MachineTuning

NAME = "lists"
CALLERS = 4
KEYS = 6
CLIENT = ClientTuning(
    add_timeout_s=2.0, read_timeout_s=2.0, absence_wait_s=1.0, bookie_retry_after_s=0.5, connect_timeout_s=1.0
)
MACHINE = MachineTuning(call_timeout_s=1.5, session_timeout_s=60.0, snapshot_every=500)


@attrs.define
class Lists(replog.StateMachine):
    """A dict of lists."""

    lists: dict[str, list[int]] = attrs.field(factory=dict)

    @replog.command
    def append(self, keys: list[str], value: int) -> list[list[int]]:
        """Appends a value to several lists at once, and returns them."""
        for key in keys:
            self.lists.setdefault(key, []).append(value)
        return [list(self.lists[key]) for key in keys]


class Book:
    """The history of one place, which outlives its processes."""

    def __init__(self, path: Path) -> None:
        self.open_: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last line may be cut off by a kill
                    entry = json.loads(line)
                    self.open_[entry["id"]] = entry
        self.open_ = {name: each for name, each in self.open_.items() if "ended_s" not in each and each.get("value")}
        self._file = path.open("a")
        self._file.write("\n")  # behind a line that was cut off

    def note(self, entry: dict[str, Any]) -> None:
        """Writes the entry; what was written last about its id counts."""
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


class Callers:
    """The callers of one process."""

    def __init__(self, machine: replog.RunningMachine[Lists], book: Book, seed: int) -> None:
        self._machine = machine
        self._book = book
        self._random = random.Random(seed)
        self._values = int(seed) * 1_000_000
        self.round = 0

    async def resume(self) -> None:
        """Repeats what the last process of this place was not told."""
        for entry in list(self._book.open_.values()):
            await self._append(entry)

    async def run(self) -> None:
        while True:
            keys = self._random.sample([f"{self.round}-{key}" for key in range(KEYS)], 2)
            if self._random.random() < 0.3:
                await self._read(keys)
            else:
                await self._append({"keys": keys})
            print("did", flush=True)
            await trio.sleep(self._random.random() * 0.02)

    async def _append(self, entry: dict[str, Any]) -> None:
        if "id" not in entry:
            try:
                command_id = await self._machine.next_id()
            except replog.errors.MachineError:
                return  # no leader: nothing was sent
            self._values += 1
            entry |= {"id": str(command_id), "value": self._values, "began_s": time.monotonic()}
            self._book.note(entry)
        while True:
            try:
                seen = await self._machine.call_as(entry["id"], Lists.append, entry["keys"], entry["value"])
            except replog.errors.SessionExpiredError:
                return  # nobody will know, apart from the lists
            except replog.errors.CommandTimeoutError:
                continue
            break
        self._book.note(entry | {"ended_s": time.monotonic(), "seen": seen})
        if self._random.random() < 0.1:
            with contextlib.suppress(replog.errors.SessionExpiredError, replog.errors.CommandTimeoutError):
                again = await self._machine.call_as(entry["id"], Lists.append, entry["keys"], entry["value"])
                if again != seen:
                    self._book.note({"id": f"again {entry['id']}", "wrong": f"told {seen}, then {again}"})

    async def _read(self, keys: list[str]) -> None:
        began_s = time.monotonic()
        with contextlib.suppress(replog.errors.CommandTimeoutError):
            seen = await self._machine.read(lambda state: [list(state.lists.get(key, ())) for key in keys])
            entry = {"id": f"read {began_s} {self._random.random()}", "keys": keys, "value": None, "began_s": began_s}
            self._book.note(entry | {"ended_s": time.monotonic(), "seen": seen})


async def main(metastore: str, listen: str, advertise: str, history: str, seed: str) -> None:
    book = Book(Path(history))
    where = f"tcp:{listen}?advertise={advertise}"
    async with (
        replog.connect(metastore, options=CLIENT) as client,
        client.run_machine(NAME, Lists, listen=where, options=MACHINE) as machine,
        trio.open_nursery() as nursery,
    ):
        callers = Callers(machine, book, int(seed))
        print("runs", flush=True)
        nursery.start_soon(callers.resume)
        async for line in trio.lowlevel.FdStream(0):
            is_first, callers.round = callers.round == 0, int(line.split()[-1])
            if is_first:
                for _ in range(CALLERS):
                    nursery.start_soon(callers.run)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:6]))
