"""One bookie as a process: says where it is, and recycles its files when it is told to. Ends with its standard input."""

from __future__ import annotations

import sys

import trio

import replog
from benchmarks.loads import recycled
from replog.config import BookieOptions


async def _serve(directory: str, metastore: str, storage: str, listen: str) -> None:
    options = BookieOptions(storage=storage, listen=(listen,), commit_inline_when_idle=True)
    lines = trio.wrap_file(sys.stdin)
    async with replog.embed(directory, bookies=1, metastore=metastore, bookie_options=options) as client:
        print("ready", flush=True)
        async for _ in lines:
            await client.bookies[0].collect_garbage()
            await recycled(client)
            print("recycled", flush=True)


if __name__ == "__main__":
    trio.run(_serve, *sys.argv[1:])
