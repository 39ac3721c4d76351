"""One bookie as a process: says where it is, and recycles its files when it is told to. Ends with its standard input."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import trio

import replog
from benchmarks.loads import recycled
from replog.abc import Storage
from replog.backends.disk import Disk
from replog.backends.files.options import FilesOptions
from replog.backends.files.storage import open_storage
from replog.config import BookieOptions
from replog.hookspecs import Backend, hookimpl
from replog.registry import Registry
from replog.runtime.platform import keep_freed_memory


class SlowDisk(Disk):
    """A disk that takes so long for each sync, and as long as it takes if that is longer."""

    def __init__(self, sync_s: float) -> None:
        super().__init__()
        self._sync_s = sync_s

    def fdatasync(self, fd: int) -> None:
        started_s = time.perf_counter()
        super().fdatasync(fd)
        time.sleep(max(0.0, self._sync_s - (time.perf_counter() - started_s)))


class SlowFiles:
    """A plugin with the storage `slow-files`: `files` on such a disk."""

    def __init__(self, sync_s: float) -> None:
        self._sync_s = sync_s

    @hookimpl
    def replog_storages(self) -> Sequence[Backend[Storage]]:
        """Offers "slow-files"."""
        return [Backend("slow-files", self._open, FilesOptions)]

    def _open(self, path: str, options: FilesOptions) -> Storage:
        return open_storage(path, options, disk=SlowDisk(self._sync_s))


async def _serve(arguments: Sequence[str]) -> None:
    directory, metastore, storage, listen, sync_s = arguments
    options = BookieOptions(storage=storage, listen=(listen,))
    registry = Registry({"slow-files": SlowFiles(float(sync_s))})
    lines = trio.wrap_file(sys.stdin)
    async with replog.embed(
        directory, bookies=1, metastore=metastore, bookie_options=options, registry=registry
    ) as client:
        print("ready", flush=True)
        async for _ in lines:
            await client.bookies[0].collect_garbage()
            await recycled(client)
            print("recycled", flush=True)


if __name__ == "__main__":
    keep_freed_memory()  # as `replog bookie serve` does
    trio.run(_serve, sys.argv[1:])
