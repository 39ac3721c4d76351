"""A key-value store that survives kill -9 and power loss: a dict, a write-ahead log, and snapshots.

python examples/wal.py DIRECTORY set NAME VALUE     or: get NAME, delete NAME, snapshot
python examples/wal.py DIRECTORY                    the same, one command in each line of standard input
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

import replog


class Store:
    """Every change is in the log before it is in the dict. Open it with `async with Store.opened(directory)`."""

    def __init__(self, client: replog.Client, log: replog.LogWriter, snapshot: Path) -> None:
        self.data: dict[str, str] = {}
        self._client, self._log, self._snapshot = client, log, snapshot
        self._lock = trio.Lock()  # changes reach the dict in the order of the log

    @classmethod
    @asynccontextmanager
    async def opened(cls, directory: Path) -> AsyncIterator[Store]:
        async with replog.embed(directory) as client, client.write_log("store") as log:  # recovers what a crash left
            store = cls(client, log, directory / "snapshot.json")
            await store._load()
            yield store

    async def _load(self) -> None:
        start = replog.Position(0, 0)
        if self._snapshot.exists():
            saved = json.loads(self._snapshot.read_text())
            start, self.data = replog.Position.parse(saved["start"]), saved["data"]
        async with self._client.read_log("store") as reader:
            async for record in reader:
                if record.position >= start:  # the snapshot includes everything before it
                    self._apply(json.loads(record.data))

    def _apply(self, changes: dict[str, str | None]) -> None:
        self.data.update((name, value) for name, value in changes.items() if value is not None)
        for name in [name for name, value in changes.items() if value is None]:
            self.data.pop(name, None)

    async def change(self, changes: dict[str, str | None]) -> None:
        """Sets names, or deletes those whose value is None: all of them or none, permanently once this returns."""
        async with self._lock:
            with trio.CancelScope(shield=True):  # a cancelled append may be kept, and the dict would miss it
                await self._log.append(json.dumps(changes).encode())
            self._apply(changes)

    async def snapshot(self) -> None:
        """Writes the dict to a file, and drops the log before it. A crash in between only costs space."""
        async with self._lock:
            start = await self._log.roll()  # the snapshot has everything before this position
            content = json.dumps({"start": str(start), "data": self.data})
            await trio.to_thread.run_sync(replace_file, self._snapshot, content)
        await self._client.trim_log("store", before=start)


def replace_file(path: Path, content: str) -> None:
    """The old content or the new one, whatever happens."""
    new = path.with_suffix(".new")
    with new.open("w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


async def obey(store: Store, command: str) -> str:
    match command.split():
        case ["set", name, value]:
            await store.change({name: value})
        case ["delete", name]:
            await store.change({name: None})
        case ["get", name]:
            return store.data.get(name, "(none)")
        case ["snapshot"]:
            await store.snapshot()
        case _:
            return f"what is {command.strip()!r}? one of: set NAME VALUE, get NAME, delete NAME, snapshot"
    return "ok"


async def main(directory: Path, words: list[str]) -> None:
    try:
        async with Store.opened(directory) as store:
            if words:
                print(await obey(store, " ".join(words)))
            while not words and (line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)):
                print(await obey(store, line), flush=True)
    except replog.errors.StorageInUseError as error:
        sys.exit(f"Another process has the store open: {error}")
    except replog.FencedError as error:  # can happen where processes share bookies; here, only to a bug
        sys.exit(f"Another writer took over; the last change was kept or not, start again to see: {error}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    trio.run(main, Path(sys.argv[1]), sys.argv[2:])
